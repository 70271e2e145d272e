"""Variational Fourier features of additive Matern kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.families import saved
from pyro_dgp.processes.fixed_features import FixedFeatures
from pyro_dgp.processes.fourier_columns import FourierColumns, fourier_functions
from pyro_dgp.processes.matern_terms import MaternTerm, matern_terms

#: Share of the inputs of a layer outside of the interval of its features that is worth a remark.
MOST_OUTSIDE = 0.05


class FourierBasis(FixedFeatures):
    """Basis of the Fourier features of each term of an additive Matern kernel, one term behind another.

    A constant term has one feature, itself over its variance.

    :ivar intervals: a and b of each term, ``(T, 2)``, in units of its input.
    :ivar dims: the input of each term, ``(T,)``; -1 for a constant.
    """

    intervals: Tensor
    dims: Tensor
    layout: ClassVar[tuple[str, ...]] = ("dims", "num_inputs", "frequencies")

    def __init__(self, intervals: Tensor, dims: Tensor, num_frequencies: int, *, num_inputs: int) -> None:
        super().__init__()
        self.num_frequencies, self._num_inputs = num_frequencies, num_inputs
        self.register_buffer("num_inputs", torch.tensor(num_inputs))
        self.register_buffer("frequencies", torch.tensor(num_frequencies))
        self.register_buffer("intervals", intervals)
        self.register_buffer("dims", dims)
        self._dims = dims.tolist()  # the layout, without a transfer from the device in every step
        self.size = sum(1 if dim < 0 else 2 * num_frequencies + 1 for dim in self._dims)

    def _terms(self, prior: FunctionPrior) -> list[MaternTerm]:
        self._require_inputs(prior.x, prior.name)
        terms = matern_terms(prior.covariance, range(prior.x.shape[-1]), prior.name)
        found = [-1 if term.dim is None else term.dim for term in terms]
        if found != self._dims:
            raise ValueError(
                f"the features of {prior.name!r} are those of a kernel whose terms have the inputs {self._dims}, and its kernel has {found}: "
                "initialise the guide on this model"
            )
        return terms

    def _columns_of(self, term: MaternTerm, number: int, like: Tensor | None = None) -> FourierColumns:
        """Return the columns of a term, in the precision of ``like`` where that is given."""
        interval = self.intervals[number]
        if like is not None:
            term, interval = replace(term, rate=term.rate.to(like), variance=term.variance.to(like)), interval.to(like)
        return FourierColumns(term, interval, self.num_frequencies)

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        parts = []
        for number, term in enumerate(self._terms(prior)):
            if term.dim is None:
                parts.append(term.variance.sqrt()[..., None, None] * torch.ones_like(prior.x[..., None, None, :, 0]))
            else:
                parts.append(self._columns_of(term, number).whitened(prior.x[..., term.dim]))
        return linalg.stacked(*parts)

    def features(self, x: Tensor, name: str) -> Tensor:
        """See :class:`~pyro_dgp.processes.fixed_features.FixedFeatures`: sines and cosines on the interval."""
        self._require_inputs(x, name)
        parts = []
        for dim, interval in zip(self._dims, self.intervals, strict=True):
            if dim < 0:
                parts.append(torch.ones_like(x[:, 0]).unsqueeze(0))
                continue
            own = x[:, dim]
            if len(own) and not (own.min() >= interval[0] and own.max() <= interval[1]):
                raise ValueError(
                    f"column {dim} of the inputs of {name!r} goes from {float(own.min()):.9g} to {float(own.max()):.9g}, outside of the interval of "
                    f"its features, {float(interval[0]):.9g} to {float(interval[1]):.9g}, where they depend on hyperparameters: give "
                    "FourierFeatures(interval=...) that holds all rows"
                )
            parts.append(fourier_functions(own, interval, self.num_frequencies))
        return torch.cat(parts, -2)

    def _require_inputs(self, x: Tensor, name: str) -> None:
        if x.shape[-1] != self._num_inputs:
            raise ValueError(
                f"the features of {name!r} are those of {self._num_inputs} inputs and it has {x.shape[-1]}: pass inputs of as many columns as "
                "guide.initialize got"
            )

    def whiten(self, prior: FunctionPrior, columns: Tensor) -> Tensor:
        """See :class:`~pyro_dgp.processes.fixed_features.FixedFeatures`."""
        parts, before = [], 0
        for number, term in enumerate(self._terms(prior)):
            if term.dim is None:
                parts.append(
                    term.variance.to(columns).sqrt()[..., None, None] * columns[..., None, before : before + 1, :]
                )
            else:
                fourier = self._columns_of(term, number, columns)
                parts.append(fourier.whiten(columns[..., None, before : before + 2 * self.num_frequencies + 1, :]))
            before += parts[-1].shape[-2]
        return linalg.stacked(*parts)

    def remarks(self, prior: FunctionPrior) -> Iterator[str]:
        """Iterate over the columns of inputs of which a share lies outside of their interval."""
        for dim, (low, high) in zip(self._dims, self.intervals.tolist(), strict=True):
            x = prior.x[..., dim]
            share = float(((x < low) | (x > high)).to(x).mean()) if dim >= 0 else 0.0
            if share > MOST_OUTSIDE:
                yield (
                    f"{share:.0%} of the inputs of {prior.name!r} in column {dim} lie outside of the interval of its Fourier features, {low:.3g} to "
                    f"{high:.3g}, where these say little: give FourierFeatures a wider interval, or a larger margin"
                )

    def root(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        parts = [
            term.variance.rsqrt()[..., None, None] if term.dim is None else self._columns_of(term, number).root()
            for number, term in enumerate(self._terms(prior))
        ]
        rows, before = [], 0
        for part in parts:
            rows.append(functional.pad(part, (before, self.size - before - part.shape[-1])))
            before += part.shape[-1]
        return linalg.stacked(*rows)


@dataclass(frozen=True)
class FourierFeatures(BasisFamily):
    """Variational Fourier features for every GP of a model (Hensman, Durrande and Solin 2018), shallow or deep (Rudner and Sejdinovic 2018).

    The kernels are Matern kernels of smoothness 1/2, 3/2 or 5/2 of one input each, and their sums: ``ActiveDims(Matern32(), [0]) +
    ActiveDims(Matern32(), [1])``. A constant kernel has one feature more, and ``White`` adds variance and no feature.

    Features live on an interval for each input. They have no covariance left to learn near its ends, where the basis is periodic: the
    interval should be wider than the data. Outside of it they follow the Markov property of the kernel.

    :param num_frequencies: F: a term of the kernel has 2 F + 1 features.
    :param covariance: form of the covariance of q(v): ``full``, ``diagonal``, ``delta`` or ``prior``.
    :param interval: a and b of all inputs, in their units; if not given, the range of the training inputs of a layer with ``margin``.
    :param margin: width added on either side, as a share of the range.
    :param hidden_scale: initial standard deviation of v in layers below the top, and ``scale`` that in the top layer.

    >>> import torch
    >>> from pyro_dgp import DeepGP, FourierFeatures, GaussianProcess, Matern32
    >>> prior = GaussianProcess(Matern32())(torch.linspace(0.0, 1.0, 5)[:, None])
    >>> process = FourierFeatures(10).create(prior, hidden=False)
    >>> process.basis.intervals.tolist(), process.basis.size
    ([[-0.5, 1.5]], 21)
    """

    num_frequencies: int = 30
    covariance: str = "full"
    _: KW_ONLY
    interval: tuple[float, float] | None = None
    margin: float = 0.5
    hidden_scale: float = 1e-2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.num_frequencies, int) and self.num_frequencies >= 1):
            raise ValueError(f"num_frequencies must be a whole number, 1 or more, got {self.num_frequencies}")
        if self.interval is not None and not _is_interval(self.interval):
            raise ValueError(
                f"an interval is one pair for all inputs, from a finite number to a larger one, got {self.interval}"
            )
        if not 0 <= self.margin < math.inf:
            raise ValueError(f"the margin is a share of the range, a finite number of 0 or more, got {self.margin}")
        self.require_sound()

    @property
    def num_inducing(self) -> int:  # type: ignore[override]
        """Number of features of each term."""
        return 2 * self.num_frequencies + 1

    def basis(self, prior: FunctionPrior, beside: Basis | None = None) -> FourierBasis:
        """Return a basis on the intervals of the prior's inputs."""
        x = prior.x.detach().reshape(-1, prior.x.shape[-1])
        terms = matern_terms(prior.covariance, range(x.shape[-1]), prior.name)
        if not terms:
            raise ValueError(f"the kernel of {prior.name!r} is white noise, which has no features: add a Matern kernel")
        intervals = [self._interval(None if term.dim is None else x[:, term.dim]) for term in terms]
        dims = torch.tensor([-1 if term.dim is None else term.dim for term in terms])
        return FourierBasis(
            torch.tensor(intervals, dtype=x.dtype, device=x.device),
            dims.to(x.device),
            self.num_frequencies,
            num_inputs=x.shape[-1],
        )

    def _interval(self, x: Tensor | None) -> tuple[float, float]:
        if self.interval is not None or x is None:
            return self.interval or (0.0, 1.0)
        low, high = float(x.min()), float(x.max())
        width = (high - low) or 1.0
        return low - self.margin * width, high + self.margin * width

    def restored_basis(self, state: dict[str, Tensor]) -> FourierBasis:
        """See :class:`~pyro_dgp.processes.basis_family.BasisFamily`."""
        intervals, dims, inputs = saved(state, "intervals", "dims", "num_inputs")
        return FourierBasis(torch.zeros_like(intervals), dims.clone(), self.num_frequencies, num_inputs=int(inputs))


def _is_interval(interval: Any) -> bool:
    """Tell whether a pair goes from a finite number to a larger one."""
    ends = [end for end in interval if isinstance(end, int | float) and math.isfinite(end)]
    return len(interval) == len(ends) == 2 and ends[0] < ends[1]
