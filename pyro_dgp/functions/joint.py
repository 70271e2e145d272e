"""Joint distributions of rows: mixtures of normals over all rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Size, Tensor

from pyro_dgp.functions.fits import Setting
from pyro_dgp.functions.handler import ReachedSite
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.likelihoods.conditional import Conditional
from pyro_dgp.likelihoods.targets import check_target
from pyro_dgp.likelihoods.units import Units

#: Rows of a joint distribution at most: it factorises a matrix of all of them for each component.
MOST_ROWS = 2000


@dataclass(frozen=True)
class JointNormal:
    """One component: a function at all rows, mean ``(D_out, N)`` and covariance ``(D_out, N, N)``, independent over outputs.

    :ivar likelihood: that of this component around the function; ``None`` where there is none around it alone.
    """

    mean: Tensor
    covariance: Tensor
    likelihood: Conditional | None = None


#: A component of a mixture, computed when it is called for.
Component = Callable[[], JointNormal]


class JointDistribution:
    """Distribution of a function at N rows together, and of targets there: a mixture of normals over all rows.

    Within a component outputs are independent. A component's matrix is computed when it is needed and is not kept, so that memory does not
    grow with their number. Made by :meth:`FunctionDraws.joint`. In a model with a :class:`~pyro_dgp.Standardizer` the function, its mean and
    its covariance are in standardised units, and targets, their covariance and their density in the target's own.

    :param components: S components.
    :param shares: their weights, which sum to one.
    :param name: the site, for messages.

    >>> import torch
    >>> from pyro_dgp import DeepGP, PosteriorDraws, draw_functions
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> joint = draw_functions(PosteriorDraws(DeepGP(x, layers=1), {}, (x[::2], y[::2])), 1).joint(x[1::2])  # exact regression
    >>> joint.mean.shape, joint.covariance.shape, joint.log_prob(y[1::2]).shape
    (torch.Size([10]), torch.Size([10, 10]), torch.Size([]))
    """

    def __init__(self, components: Sequence[Component], shares: Sequence[float], *, name: str) -> None:
        self._components, self._shares, self._name = components, shares, name

    @property
    def num_components(self) -> int:
        """Number of normals, S."""
        return len(self._components)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, list[Conditional | None]]:
        """Mean ``(D_out, N)`` and covariance ``(D_out, N, N)`` of the mixture, about the mean of the first component, and the likelihood of each."""
        likelihoods: list[Conditional | None] = []
        centre: Tensor | None = None
        first = second = torch.zeros(())
        for component, share in zip(self._components, self._shares, strict=True):
            normal = component()
            centre = normal.mean if centre is None else centre
            away = normal.mean - centre
            first = first + share * away
            second = second + share * (normal.covariance + away.unsqueeze(-1) * away.unsqueeze(-2))
            likelihoods.append(normal.likelihood)
        assert centre is not None
        return centre + first, second - first.unsqueeze(-1) * first.unsqueeze(-2), likelihoods

    @property
    def mean(self) -> Tensor:
        """Mean of the function, ``(N,)`` for one output and ``(N, D_out)`` for several."""
        mean = self._moments[0]
        return mean[0] if len(mean) == 1 else mean.mT

    @property
    def covariance(self) -> Tensor:
        """Covariance of the function over rows, ``(N, N)`` for one output and ``(D_out, N, N)`` for several; no noise."""
        covariance = self._moments[1]
        return covariance[0] if len(covariance) == 1 else covariance

    @property
    def target_covariance(self) -> Tensor:
        """Covariance of targets over rows, noise included, in the shape of :attr:`covariance`, squared units of the targets.

        The noise is the mean of those of the components.

        :raises ValueError: unless the noise is Gaussian.
        """
        _, covariance, likelihoods = self._moments
        found = [_gaussian_noise(each, self._name) for each in likelihoods]
        noise = torch.stack([share * noise for share, (noise, _) in zip(self._shares, found, strict=True)]).sum(0)
        units = found[0][1]
        by_output = linalg.add_noise(covariance, noise).movedim(0, -1)
        covariance = units.scaled(by_output, power=2).movedim(-1, 0)
        return covariance[0] if len(covariance) == 1 else covariance

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the joint log density of targets ``(N,)`` or ``(N, D_out)``, nats in total: ``log sum_s w_s N(y | m_s, C_s + noise_s)``.

        :raises ValueError: for targets of another shape, or unless the noise is Gaussian.
        """
        terms = []
        for component, share in zip(self._components, self._shares, strict=True):
            normal = component()
            noise, units = _gaussian_noise(normal.likelihood, self._name)
            outputs, rows = normal.mean.shape
            check_target(y, Size([rows] if outputs == 1 else [rows, outputs]), normal.mean)
            target = units(y).unsqueeze(0) if outputs == 1 else units(y).mT
            factor = linalg.noisy_cholesky(linalg.add_noise(normal.covariance, noise), None, self._name)
            white = linalg.solve_triangular(factor, (target - normal.mean).unsqueeze(-1), upper=False)
            size = outputs * rows * math.log(2 * math.pi)
            total = -0.5 * white.square().sum() - linalg.half_log_determinants(factor).sum() - 0.5 * size
            terms.append(total - rows * units.log_scale(outputs).to(total) + math.log(share))
        return torch.logsumexp(torch.stack(terms), 0)


def _gaussian_noise(likelihood: Conditional | None, name: str) -> tuple[Tensor, Units]:
    """Return the noise variance, in units of the function, and the units of the targets; raise unless the noise is Gaussian."""
    noise = None if likelihood is None else likelihood.noise_variance()
    if likelihood is None or noise is None:
        raise ValueError(
            f"the targets at {name!r} have no Gaussian noise around one Gaussian process, or may be missing, so that their joint distribution has "
            "no closed form: use that of the function, .mean and .covariance"
        )
    return noise, likelihood.units


def require_few_rows(x: Tensor) -> None:
    """Raise for inputs that are no rows ``(N, D)``, or more than :data:`MOST_ROWS`."""
    if x.dim() != 2 or len(x) > MOST_ROWS:
        raise ValueError(
            f"a joint distribution takes at most {MOST_ROWS} rows (N, D), got {tuple(x.shape)}: pass fewer rows, or draw functions, "
            "which take any number"
        )


def shares_and_components(
    reached: Sequence[tuple[Setting, ReachedSite]],
) -> tuple[list[float], list[Component]]:
    """Return the mixture over settings, of equal weights, and draws of the layers below: one component for all draws whose inputs do not differ."""
    shares: list[float] = []
    components: list[Component] = []
    for setting, site in reached:
        carried = any(prior.x.dim() == 3 for prior in site.priors.values())
        count = setting.num_draws if carried else 1
        for draw in range(count):
            shares.append(1 / (len(reached) * count))
            components.append(_LastLayer(setting, site, draw))
    return shares, components


@dataclass(frozen=True)
class _LastLayer:
    """Component of one draw: q(f) of the last layer at the inputs that the layers below have drawn."""

    setting: Setting
    site: ReachedSite
    draw: int

    def __call__(self) -> JointNormal:
        means, covariances = [], []
        for key, prior in self.site.priors.items():
            at = _of_one_draw(prior, self.draw)
            marginal = self.setting.processes[key](at)
            covariance = marginal.covariance_matrix
            means.append(marginal.mean.mT)
            covariances.append(covariance.expand(at.num_outputs, *covariance.shape[-2:]))
        likelihood = self.site.conditional if len(self.site.priors) == 1 else None
        return JointNormal(torch.cat(means), torch.cat(covariances), likelihood)


def _of_one_draw(prior: FunctionPrior, draw: int) -> FunctionPrior:
    """Return the prior at the inputs of one draw, ``(N, D)``."""
    if prior.x.dim() == 2:
        return prior
    return FunctionPrior(
        prior.x[draw],
        prior.covariance,
        prior.mean_function,
        num_outputs=prior.num_outputs,
        jitter=prior.jitter,
        name=prior.name,
    )
