"""Moment matching: hidden layers carried as independent normals, whose moments at the next layer have closed forms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.processes.normal_inputs import moments_at_normal_inputs
from pyro_dgp.processes.process_in_pass import ProcessInPass
from pyro_dgp.processes.psi_statistics import NormalInputs
from pyro_dgp.propagation.base import Propagation
from pyro_dgp.propagation.sigma_points import SigmaPoint

#: Largest difference from an affine map, as a share of the changes of the inputs.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}
#: Standard deviations beyond which a normal has no mass that counts.
_FAR = 8.0


class MomentMatching(Propagation):
    """Propagation of each layer as a normal whose mean and variance are matched, without draws.

    The outputs of a hidden layer are carried as independent normals ``N(m_nd, v_nd)``. Mean and variance of the next layer
    at such inputs are closed forms of the psi statistics of a radial basis function kernel ([Ashman 2020] 3.19 to 3.23; Bui,
    Hernandez-Lobato, Hernandez-Lobato, Li and Turner 2016, section 4). Covariances between the outputs of a layer are left
    out, and a normal stands for what is none: both approximate, in training.

    **What it serves.** Inducing points, kernels ``RBF(ard=D)`` (``White`` may be added) and affine means in all layers above
    the first. Between two layers the model may do what is affine in the hidden values of a row: scale them, select some,
    join them with the inputs. All else is refused: another map such as ``tanh``, a layer that reads two others, a site that
    is no Gaussian process and depends on a hidden layer, and two plain sites in the place of ``likelihood(gp(h))``.

    Predictions are those of the matched normal, as in training. Set ``guide.propagation = MonteCarlo(100)`` after training
    for the mixture of draws: under :class:`~pyro_dgp.ApproximateEP` it may be much worse, since the noise was learned beside
    the matched variance.

    A pass takes memory for ``N M^2`` numbers in each layer, N rows of a step and M points.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MomentMatching, Variational
    >>> x, y = torch.randn(20, 1), torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1, kernel="rbf"), InducingPoints(5), MomentMatching())
    >>> guide.initialize(x, y)
    >>> guide.components(x, y).trace.nodes["y"]["fn"].moments.mean.shape  # one component
    torch.Size([1, 20, 1])
    """

    num_components = 1
    carries_values = False

    def initialize(self, latent: Mapping[str, FunctionPrior], reads: Mapping[str, Collection[str]]) -> None:
        """Raise for a model whose layers are no chain."""
        hidden = {name for names in reads.values() for name in names}
        for name, sites in reads.items():
            if len(sites) > 1:
                raise ValueError(
                    f"the inputs of {name!r} are made from {len(sites)} layers ({', '.join(sites)}), and moment matching carries one layer to the "
                    "next: carry them by MonteCarlo(10)"
                )
        for name in latent:
            if name not in hidden:
                raise ValueError(
                    f"{name!r} is a site of function values that no other Gaussian process reads, and moment matching integrates a likelihood "
                    "over them: write pyro.sample('y', likelihood(gp(x)), obs=y), or carry them by MonteCarlo(10)"
                )

    def log_weights(self, like: Tensor) -> Tensor:
        """Return 0, the log weight of the one component."""
        return like.new_zeros(1)

    def require_plain_site(self, site: str) -> None:
        """Raise: a normal layer has no values that another site could depend on."""
        raise ValueError(
            f"the site {site!r} is no Gaussian process and depends on a hidden layer, which moment matching carries as a normal and not by "
            "values: carry it by MonteCarlo(10)"
        )

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> SigmaPoint:
        """Return the distribution whose draw holds the layer's normals: means, means plus one standard deviation of each output, and checks.

        The checks, at other distances in all outputs and rows, tell whether what follows is affine, and keeps rows apart.
        """
        if carried:
            marginal = FunctionMarginal(marginal.mean[0], marginal.variance[0], marginal.regularizer, marginal._joint)
        points = _points(marginal.mean)
        lead = FunctionMarginal.expand(marginal, (len(points), *marginal.batch_shape))
        return SigmaPoint(lead, points.reshape(len(points), *[1] * (marginal.mean.dim() - 2), *points.shape[1:]))

    def marginal(self, process: ProcessInPass, prior: FunctionPrior, carried: bool) -> FunctionMarginal:
        """Return q(f) at a row's normal inputs, ``(1, ..., N, D_out)``.

        :raises ValueError: where the inputs or the mean are not affine in the hidden values.
        """
        if not carried:
            return process(prior)
        x, mean = prior.x, prior.mean
        outputs = len(x) - 1 - len(_checks(1, 1))  # of the layer below
        directions = _affine(x, outputs, f"the inputs of {prior.name!r} are")
        slopes = _affine(mean, outputs, f"the mean of {prior.name!r} is")
        width = x.shape[-1]
        inputs = NormalInputs(x[0].reshape(-1, width), directions.reshape(len(directions), -1, width))
        shape = mean.shape[1:]
        loc, variance, regularizer = moments_at_normal_inputs(
            process,
            prior,
            inputs,
            mean=mean[0].reshape(-1, shape[-1]),
            slopes=slopes.reshape(len(slopes), -1, shape[-1]),
        )
        return FunctionMarginal(loc.reshape(1, *shape), variance.reshape(1, *shape), regularizer, _no_joint)


def _points(mean: Tensor) -> Tensor:
    """Return distances from the mean in standard deviations, ``(W + 1 + checks, N, W)``: none, one for each output, and those of the checks."""
    rows, width = mean.shape[-2:]
    near = torch.cat([mean.new_zeros(1, width), torch.eye(width).to(mean)])
    return torch.cat([near.unsqueeze(1).expand(-1, rows, -1), _checks(rows, width).to(mean)])


def _checks(rows: int, width: int) -> Tensor:
    """Return distances in standard deviations at which maps are looked at, ``(checks, rows, width)``.

    They reach to where a normal has no mass, in both directions, so that a kink such as that of a rectified linear unit is met wherever it
    counts. They differ by row without a period, so that maps which join rows are met too.
    """
    outputs, row = torch.arange(width, dtype=torch.float64), torch.arange(rows, dtype=torch.float64)
    apart = (1 - 2 * (outputs % 2)) * (1 + 0.1 * (outputs % 5))
    together = 1 + 0.1 * (outputs % 7)
    directions = torch.stack([1.3 * apart, *(sign * _FAR * each for each in (apart, together) for sign in (1, -1))])
    return directions.unsqueeze(1) * (1 + 0.25 * torch.cos(2.4 * row)).unsqueeze(-1)


def _affine(values: Tensor, width: int, what: str) -> Tensor:
    """Return the changes of values along the directions, ``(W, ...)``; raise where the checks are not their sums, row by row.

    :param values: at the means, at one standard deviation of each of W outputs, and at the checks: ``(W + 1 + checks, ..., N, D)``.
    :param width: number of outputs, W.
    """
    centre, steps, found = values[0], values[1 : width + 1] - values[0], values[width + 1 :]
    distances = _checks(values.shape[-2], width).to(values)
    tolerance = _TOLERANCE.get(values.dtype, 1e-2)
    with torch.no_grad():
        missing = _largest(found - centre - torch.einsum("cnw,w...nd->c...nd", distances, steps))
        size = _FAR * (_largest(steps) + torch.finfo(values.dtype).eps * _largest(centre) / tolerance)
        if not bool((missing <= tolerance * size).all()):
            raise ValueError(
                f"{what} not affine in the hidden layer row by row, or drawn for each of its values, and moment matching carries normals through "
                "affine maps of single rows alone: carry the layer by MonteCarlo(10)"
            )
    return steps


def _largest(values: Tensor) -> Tensor:
    """Return the largest size of each column: ``(D,)``. A column may be far smaller than another."""
    return values.abs().reshape(-1, values.shape[-1]).amax(0)


def _no_joint() -> Tensor:
    raise ValueError(
        "moment matching has no joint covariance over rows: use the mean and variance, or set guide.propagation = MonteCarlo(10)"
    )
