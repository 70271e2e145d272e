"""The prior: a Gaussian process as a Pyro module, and its distribution over function values at given inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor, nn
from torch.distributions import biject_to, transform_to
from torch.distributions.transforms import Transform

from pyro_dgp.internal import linalg
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.internal.factorised import Factorised, factorised, noisy_factorised
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.kernels import Covariance, Kernel
from pyro_dgp.kernels.base import require_kernel
from pyro_dgp.kernels.factor_faults import explained
from pyro_dgp.kernels.trial import try_once
from pyro_dgp.means import Mean, MeanFunction, as_mean


class GaussianProcess(CheckedModule):
    """A Gaussian process prior over functions with one or several outputs, independent given the kernel.

    ``f_d ~ GP(m_d, k_d)``; ``gp(x)`` is a distribution over the values ``f_d(x_n)``, to be given to ``pyro.sample``
    or to a likelihood. Inputs are ``(..., N, D)``, values ``(..., N, num_outputs)``: data are an event dimension.

    >>> from pyro_dgp import RBF, GaussianProcess
    >>> gp = GaussianProcess(RBF(), num_outputs=2)
    >>> gp(torch.zeros(5, 1)).event_shape
    torch.Size([5, 2])

    :param kernel: one kernel for all outputs, or one per output (``outputs=num_outputs`` in the kernel).
    :param mean: a mean; a function or ``torch.nn.Module``, which becomes a :class:`FunctionMean`; zero if not given.
    :param num_outputs: D_out.
    :param jitter: relative jitter of every Cholesky factor; ``None`` for the policy of ``linalg.cholesky``.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean | nn.Module | MeanFunction | None = None,
        num_outputs: int = 1,
        *,
        jitter: float | None = None,
    ) -> None:
        super().__init__()
        self.num_outputs, self.jitter = num_outputs, jitter
        self.kernel, self.mean = kernel, as_mean(mean)

    def admit(self, name: str, value: Any) -> Any:
        """Take a kernel for as many outputs as ``kernel``; a mean, a function, a network or nothing as ``mean``."""
        if name == "kernel":
            for part in require_kernel(value).modules():
                if getattr(part, "outputs", None) not in (None, self.num_outputs):
                    raise ValueError(
                        f"the kernel has outputs={part.outputs} and the Gaussian process num_outputs={self.num_outputs}: "
                        "make them equal"
                    )
        return as_mean(value) if name == "mean" else value

    def forward(self, x: Any) -> FunctionPrior:
        """The prior at inputs ``x``, with every parameter of kernel and mean read now."""
        if isinstance(x, FunctionPrior):
            raise TypeError(
                f"inputs of a Gaussian process are values, not the distribution over the values of {x.name!r}: sample that layer first, "
                "as in h = pyro.sample('h', gp(x))"
            )
        require_tensor(x, "inputs of a Gaussian process are")
        if x.dim() < 2:
            raise ValueError(
                f"inputs of a Gaussian process have shape (..., N, D), got {tuple(x.shape)}: use x[:, None] for one input"
            )
        if not x.is_floating_point():
            raise TypeError(
                f"inputs of a Gaussian process are real numbers, not {_short(x.dtype)}: pass x.to(torch.get_default_dtype())"
            )
        own = next(self.parameters(), None)
        if own is None:
            own = next((buffer for buffer in self.buffers() if buffer.is_floating_point()), None)
        if own is not None and own.dtype != x.dtype:
            raise TypeError(
                f"inputs are {_short(x.dtype)} and the parameters of the Gaussian process are {_short(own.dtype)}: "
                "convert one, as in model.to(x.dtype)"
            )
        if own is not None and own.device != x.device:
            raise TypeError(
                f"inputs are on {x.device} and the parameters of the Gaussian process on {own.device}: "
                "move one, as in model.to(x.device)"
            )
        covariance = self.kernel()
        try_once(self.kernel, covariance, x)
        return FunctionPrior(
            x,
            covariance,
            self.mean(),
            num_outputs=self.num_outputs,
            jitter=self.jitter,
            name=self._pyro_name or "gp",
            source=id(self),
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Whitening(Transform):
    """The affine bijection ``eps -> loc + L eps`` onto function values."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.independent(constraints.real, 2)
    bijective = True

    def __init__(self, prior: FunctionPrior) -> None:
        super().__init__()
        self.prior = prior

    def _call(self, x: Tensor) -> Tensor:
        return self.prior.unwhiten(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.prior.whiten(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``sum_d log |L_d|``, shape of the batch."""
        return self.prior.half_log_determinant().expand(x.shape[:-2])


class _FunctionValues(constraints.Constraint):
    """All real matrices, unconstrained through the prior's own whitening, so that a random start is a smooth function."""

    event_dim = 2

    def __init__(self, prior: FunctionPrior) -> None:
        self.prior = prior
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether all entries are finite, for each matrix."""
        return torch.isfinite(value).all(-1).all(-1)


@biject_to.register(_FunctionValues)
@transform_to.register(_FunctionValues)
def _whitening(constraint: _FunctionValues) -> Transform:
    return _Whitening(constraint.prior)


def too_many_values_message(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """The sentence that refuses a hyperparameter with more values than its kernel, mean or likelihood has."""
    return (
        f"at {name!r} a hyperparameter has more values than its kernel, mean or likelihood has parameters, so that shapes are {found} where "
        f"{wanted} is right: give a prior the shape of the parameter, and a kernel one lengthscale for each input by ard=D"
    )


class FunctionPrior(TorchDistribution):
    """Distribution of GP function values at inputs: ``N(m(x), K(x, x))``, independent over outputs.

    ``batch_shape`` is the leading shape of the inputs, ``event_shape`` is ``(N, D_out)``. The N x N covariance is
    built on the first ``rsample`` or ``log_prob`` and never before: guides read ``x``, ``covariance`` and ``mean`` of it.

    >>> from pyro_dgp import RBF, GaussianProcess
    >>> prior = GaussianProcess(RBF(), num_outputs=2)(torch.linspace(0.0, 1.0, 5)[:, None])
    >>> prior.covariance_matrix.shape  # the two outputs share one kernel
    torch.Size([1, 5, 5])
    >>> prior.log_prob(prior.rsample((3,))).shape
    torch.Size([3])

    :ivar x: inputs ``(..., N, D)``.
    :ivar covariance: the covariance function with its parameter values.
    :ivar mean_function: the mean function with its parameter values.
    :ivar source: identity of the :class:`GaussianProcess` that made it, if one did.
    :cvar is_dense: whether the covariance of all rows has a dense factor, ``scale_tril``.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True
    is_dense: ClassVar[bool] = True

    def __init__(
        self,
        x: Tensor,
        covariance: Covariance,
        mean_function: MeanFunction,
        *,
        num_outputs: int = 1,
        jitter: float | None = None,
        name: str = "gp",
        source: int | None = None,
    ) -> None:
        self.x, self.covariance, self.mean_function = x, covariance, mean_function
        self.num_outputs, self.jitter, self.name, self.source = num_outputs, jitter, name, source
        self._factor: Tensor | None = None
        self._factorised: Factorised | None = None
        super().__init__(Size(x.shape[:-2]), Size((x.shape[-2], num_outputs)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Real matrices, whose unconstrained space is that of the whitened values."""
        return _FunctionValues(self)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FunctionPrior:
        """The prior over more batches of inputs, of the same type, so that a KL registered for it holds in plates too."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        rows = self.event_shape[0]
        refuse_data_plate(rows, f"a sample of the Gaussian process {self.name!r} at {rows} rows")
        return self.at(self.x.expand(*shape, *self.x.shape[-2:]))

    def at(self, x: Tensor) -> FunctionPrior:
        """The prior of the same functions at other inputs."""
        return FunctionPrior(
            x,
            self.covariance,
            self.mean_function,
            num_outputs=self.num_outputs,
            jitter=self.jitter,
            name=self.name,
            source=self.source,
        )

    @property
    def mean(self) -> Float[Tensor, "*b n k"]:
        """``m(x)``, shape ``(..., N, D_out)``."""
        values = self.mean_function(self.x)
        if not isinstance(values, Tensor):
            raise TypeError(
                f"the mean function of {self.name!r} returned {type(values).__name__}, not a tensor (..., N, 1) or (..., N, D_out)"
            )
        if values.dim() < self.x.dim() or values.shape[-2] != self.x.shape[-2]:
            raise ValueError(
                f"the mean function of {self.name!r} turned inputs of shape {tuple(self.x.shape)} into {tuple(values.shape)}, which is "
                "neither (..., N, 1) nor (..., N, D_out): for (..., N) return values.unsqueeze(-1)"
            )
        if values.shape[-1] not in (1, self.num_outputs):
            raise ValueError(
                f"the mean function of {self.name!r} has {values.shape[-1]} outputs and the Gaussian process "
                f"num_outputs={self.num_outputs}: make them equal"
            )
        return values.expand(*self.batch_shape, *self.event_shape)

    @property
    def variance(self) -> Float[Tensor, "*b n k"]:
        """``k_d(x_n, x_n)``, shape ``(..., N, D_out)``."""
        return self.covariance.diagonal(self.x.unsqueeze(-3)).mT.expand(*self.batch_shape, *self.event_shape)

    @property
    def covariance_matrix(self) -> Float[Tensor, "*b e n n"]:
        """``K(x, x)``, shape ``(..., E, N, N)``; E is 1 where the outputs share the kernel."""
        return self.covariance.matrix(self.x.unsqueeze(-3))

    @property
    def scale_tril(self) -> Float[Tensor, "*b e n n"]:
        """Cholesky factor of the covariance, kept after the first use."""
        if self._factor is None:
            self._factor = self._own().scale_tril
        return self._factor

    def _own(self) -> Factorised:
        """The covariance of all rows with its factor, kept after the first use."""
        if self._factorised is None:
            try:
                self._factorised = factorised(self.covariance_matrix, self.jitter, self.name)
            except linalg.NotPositiveDefiniteError as error:
                raise explained(error, self.covariance, self.x, "inputs") from error
        return self._factorised

    @property
    def factor(self) -> Tensor:
        """Cholesky factor that whitens values, or that of an approximation. It can be set to the one of an equal prior."""
        return self.scale_tril

    @factor.setter
    def factor(self, known: Tensor | None) -> None:
        self._factor = known

    def unwhiten(self, noise: Tensor) -> Tensor:
        """``m(x) + L eps``; ``eps`` and result ``(..., N, D_out)``."""
        product = self._own().times(noise) if self._factor is None else linalg.apply_factor(self._factor, noise)
        values = self.mean + product
        if values.shape != noise.shape:
            raise ValueError(too_many_values_message(self.name, tuple(values.shape), tuple(noise.shape)))
        return values

    def whiten(self, values: Tensor) -> Tensor:
        """``L^-1 (f - m(x))``, the inverse of :meth:`unwhiten`."""
        self.require_values(values)
        return linalg.solve_factor(self.scale_tril, values - self.mean)

    def require_values(self, values: Tensor) -> None:
        """Raise for function values of another shape."""
        if values.shape[-2:] != self.event_shape:
            raise ValueError(
                f"function values of {self.name!r} have shape (..., {self.event_shape[0]}, {self.event_shape[1]}), "
                f"got {tuple(values.shape)}"
            )

    def half_log_determinant(self) -> Tensor:
        """``0.5 * sum_d log det K_d``, shape of the batch."""
        return linalg.half_log_determinant(self.scale_tril, self.num_outputs)

    def noisy_scale_tril(self, variance: Tensor) -> Float[Tensor, "*b e n n"]:
        """Cholesky factors of ``K_d + variance_d I``, the covariance of noisy values, for noise variances ``(D_out,)``."""
        return self._noisy(variance).scale_tril

    def _noisy(self, variance: Tensor) -> Factorised:
        try:
            return noisy_factorised(linalg.add_noise(self.covariance_matrix, variance), self.jitter, self.name)
        except linalg.NotPositiveDefiniteError as error:
            raise explained(error, self.covariance, self.x, "inputs") from error

    def noisy_log_prob(self, values: Tensor, variance: Tensor) -> Tensor:
        """``sum_d log N(y_d | m_d, K_d + variance_d I)``, nats in total over rows and outputs; shape of the batch.

        :param values: noisy function values ``(..., N, D_out)``.
        :param variance: variance of the noise, ``(D_out,)``.
        """
        return self._noisy(variance).log_density(values - self.mean)

    def some_terms(self, count: int) -> FunctionPrior:
        """Return the prior with an estimate of the density of observed values, from so many of its terms; raise where it is no product of terms."""
        raise ValueError(
            f"the likelihood of all rows of {self.name!r} is no product of terms, so that none can be drawn: give MarginalLikelihood a Vecchia approximation, "
            "vecchia(model), or leave terms out"
        )

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Exact joint draws ``(*sample_shape, ..., N, D_out)``."""
        shape = self._extended_shape(Size(sample_shape))
        return self.unwhiten(torch.randn(shape, dtype=self.x.dtype, device=self.x.device))

    def log_prob(self, value: Tensor) -> Tensor:
        """Joint log density of function values, nats in total over rows and outputs; shape of the batch."""
        white = self.whiten(value)
        count = self.event_shape.numel()
        return -0.5 * white.square().sum((-2, -1)) - self.half_log_determinant() - 0.5 * count * math.log(2 * math.pi)
