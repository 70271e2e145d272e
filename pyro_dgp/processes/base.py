"""Variational families over one GP: what a guide puts in the place of a prior."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution, constraints
from pyro.nn import PyroModule
from torch import Size, Tensor
from torch.distributions import register_kl

from pyro_dgp.gp import FunctionPrior


class FunctionMarginal(TorchDistribution):
    """q(f) at inputs: independent normals with the process's marginal moments, and its regulariser.

    Draws are independent over rows, which is all that factorising likelihoods and layers above need ([DSVI] 3.9); the
    joint covariance over rows comes from ``covariance_matrix``.

    :ivar mean: ``(..., N, D_out)``.
    :ivar variance: ``(..., N, D_out)``, marginal variances (not scales).
    :ivar regularizer: nats in total, the term a loss subtracts; ``()`` if it is the process's own, else of the shape of the
        batch that it depends on.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        mean: Float[Tensor, "*b n k"],
        variance: Float[Tensor, "*b n k"],
        regularizer: Tensor,
        joint: Callable[[], Tensor],
    ) -> None:
        self._mean, self._variance, self.regularizer, self._joint = mean, variance, regularizer, joint
        super().__init__(mean.shape[:-2], mean.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """E q(f_nd)."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Var q(f_nd)."""
        return self._variance

    @property
    def covariance_matrix(self) -> Float[Tensor, "*b k n n"]:
        """The joint covariance over rows, one matrix for each output: ``(..., D_out, N, N)``."""
        return self._joint()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FunctionMarginal:
        """The same type, moments repeated; the regulariser, a property of the process, is not multiplied."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        full = (*shape, *self.event_shape)
        return FunctionMarginal(self._mean.expand(full), self._variance.expand(full), self.regularizer, self._joint)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws from the marginals, ``(*sample_shape, ..., N, D_out)``."""
        shape = self._extended_shape(Size(sample_shape))
        noise = torch.randn(shape, dtype=self._mean.dtype, device=self._mean.device)
        return self._mean + self._variance.sqrt() * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density under the marginals, nats in total; shape of the batch."""
        squared = (value - self._mean).square() / self._variance
        return -0.5 * (squared + self._variance.log() + math.log(2 * math.pi)).sum((-2, -1))


@register_kl(FunctionMarginal, FunctionPrior)
def _kl(q: FunctionMarginal, p: FunctionPrior) -> Tensor:
    """The process's own regulariser, so that ``TraceMeanField_ELBO`` uses it."""
    return q.regularizer.expand(q.batch_shape)


class Process(PyroModule):
    """q over one GP. ``process(prior)`` is its marginal at the prior's inputs, by the prior's kernel and mean."""

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """The marginal of q(f) at ``prior.x``.

        :param at: what an amortised process's inference functions look at, ``prior.x`` if not given; others ignore it.
        """
        raise NotImplementedError


def saved(state: dict[str, Tensor], *names: str) -> list[Tensor]:
    """Tensors of a process's state by name; raises where they are those of another family."""
    for name in names:
        if name not in state:
            raise ValueError(
                f"the saved process has no {name!r} but {sorted(state)}: it is of another family than the guide that loads it"
            )
    return [state[name] for name in names]


class ProcessFamily(ABC):
    """A recipe for processes: what the user hands to a guide, which creates one process for each GP of the model.

    :ivar num_inducing: M, or what there is of that kind.
    """

    num_inducing: int

    @abstractmethod
    def create(self, prior: FunctionPrior, hidden: bool) -> Process:
        """A process initialised at the prior's inputs ``(N, D)``; ``hidden`` says that a layer stands above it."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> Process:
        """A process of the shapes of a state dict, to be loaded into."""


Families = ProcessFamily | Mapping[str, ProcessFamily]


def require_families(families: object) -> None:
    """Raise unless it is a family, or a mapping to families."""
    parts = families.items() if isinstance(families, Mapping) else [("", families)]
    for name, family in parts:
        if not isinstance(family, ProcessFamily):
            where = f"processes[{name!r}]" if name else "processes"
            raise TypeError(f"{where} is an object such as InducingPoints(64), not {family!r}")


def family_of(families: Families, key: str) -> ProcessFamily:
    """The family of a GP: of its own name (``"y/f"``), or of its site (``"y"``)."""
    return families if isinstance(families, ProcessFamily) else families[_serving(families, key)]


def _serving(families: Mapping[str, ProcessFamily], key: str) -> str:
    """The name in the mapping that serves a GP."""
    for name in (key, key.split("/")[0]):
        if name in families:
            return name
    raise ValueError(f"no process family for the GP {key!r}: add it to the mapping, which has {list(families)}")


def require_used(families: Families, keys: Collection[str]) -> None:
    """Raise if a mapping has a name that serves none of the GPs."""
    if isinstance(families, ProcessFamily):
        return
    unused = set(families) - {_serving(families, key) for key in keys}
    if unused:
        raise ValueError(
            f"processes= names {min(unused)!r}, which serves no Gaussian process: the model has {list(keys)} (other latent "
            "sites are served by latents= and networks=)"
        )


def require_kernel_fits(key: str, prior: FunctionPrior) -> None:
    """Raise, with the name of the GP, if its kernel does not take inputs of that many dimensions."""
    try:
        prior.covariance.matrix(prior.x[..., :1, :].unsqueeze(-3))
    except ValueError as error:
        raise ValueError(f"at the Gaussian process {key!r}, {error}") from error


def require_scales(scale: float, hidden_scale: float) -> None:
    """Raise unless the initial scales of a family are positive."""
    if min(scale, hidden_scale) <= 0:
        raise ValueError(f"initial scales are above 0, got scale={scale} and hidden_scale={hidden_scale}")
