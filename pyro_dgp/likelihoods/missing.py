"""Targets of which some are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.distributions import ObservedPart, filled
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units

#: A term of each row, ``(..., N)``, for a likelihood, its targets and the moments of its functions.
_Term = Callable[[Conditional, Tensor, Moments], Tensor]


@dataclass(frozen=True)
class MissingConditional(Conditional):
    """``p(y_n, observed | f_n)``: the likelihood of those outputs of a row that are observed. NaN is a missing output.

    :ivar inner: the likelihood of complete targets.
    :ivar outputs: number of outputs of y.
    """

    inner: Conditional
    outputs: int
    takes_missing = True

    @property
    def integration(self) -> str:  # type: ignore[override]
        """How the likelihood of complete targets integrates the last layer."""
        return self.inner.integration

    @property
    def units(self) -> Units:  # type: ignore[override]
        """Units of the targets: those of complete ones."""
        return self.inner.units

    @property
    def takes_integers(self) -> bool:  # type: ignore[override]
        """Whether targets may be integers, none of which is missing then."""
        return self.inner.takes_integers

    @property
    def is_flat(self) -> bool:  # type: ignore[override]
        """Whether p(y | f) is a step function of f."""
        return self.inner.is_flat

    def given(self, f: Tensor) -> RowObservation:
        """p(y | f), whose log density is that of the observed outputs. Draws are complete."""
        rows = self.inner.given(f)
        return RowObservation(ObservedPart(rows.base_dist), rows.reinterpreted_batch_ndims)

    def location(self, f: Tensor) -> Tensor | None:
        """Values that the noise of complete targets is put around."""
        return self.inner.location(f)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``sum_d E_N(f) log p(y_nd | f_n)`` over the observed outputs d: ``(..., N)``."""
        return self._by_output(y, f, lambda inner, targets, moments: inner.expected_log_prob(targets, moments))

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y_n, observed | f_n) N(f_n) df_n``: ``(..., N)``."""
        return self._jointly(y, f, lambda inner, targets, moments: inner.predictive_log_prob(targets, moments))

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """``log int p(y_n, observed | f_n)^power N(f_n) df_n``: ``(..., N)``."""
        return self._jointly(y, f, lambda inner, targets, moments: inner.log_expected_power(targets, moments, power))

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """See :class:`Conditional`; of the observed outputs."""
        return self._jointly(
            y, f, lambda inner, targets, moments: inner.log_expected_gamma_score(targets, moments, gamma)
        )

    def components(self, f: Moments) -> Distribution:
        """Predictions of all outputs, whether or not their targets were observed."""
        return self.inner.components(f)

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """Raise: closed forms take complete targets."""
        raise ValueError(
            "log p(y) has no closed form here where outputs may be missing: give the model a guide and a loss, or run MCMC on "
            "pyro_dgp.whitened(model); with a single output leave the rows out"
        )

    def check(self, y: Tensor) -> None:
        """Raise for observed targets that the likelihood cannot have produced."""
        if not bool(y.isnan().all()):
            self.inner.check(filled(y))

    def _by_output(self, y: Tensor, f: Moments, term: _Term) -> Tensor:
        """A term that is a sum over the outputs, of the observed ones."""
        if self.outputs == 1:
            return _where_observed(~y.isnan(), self.inner, y, f, term)
        patterns = self._patterns(y)
        if len(patterns) < self.outputs or not self._has_independent_noise(f):
            return self._by_pattern(patterns, y, f, term)
        total: Tensor = f.mean.new_zeros(())
        for output in range(self.outputs):
            inner, functions = self.inner.of_outputs([output])
            total = total + _where_observed(~y[..., output].isnan(), inner, y[..., output], _taken(f, functions), term)
        return total

    def _jointly(self, y: Tensor, f: Moments, term: _Term) -> Tensor:
        """A term of all observed outputs of each row together, which is a sum where outputs have functions and noise of their own."""
        if self.outputs == 1 or (self._has_independent_noise(f) and self._is_separate()):
            return self._by_output(y, f, term)
        return self._by_pattern(self._patterns(y), y, f, term)

    def _patterns(self, y: Tensor) -> Tensor:
        """Return which outputs are observed, each combination once: ``(patterns, outputs)``."""
        return (~y.isnan()).reshape(-1, self.outputs).unique(dim=0)

    def _by_pattern(self, patterns: Tensor, y: Tensor, f: Moments, term: _Term) -> Tensor:
        """A term of all observed outputs of each row, one combination of them after another."""
        if len(patterns) == 1 and bool(patterns.all()):
            return term(self.inner, y, f)
        observed, total = ~y.isnan(), torch.zeros_like(f.mean[..., 0])
        for pattern in patterns:
            chosen = torch.nonzero(pattern).reshape(-1).tolist()
            if chosen:
                inner, functions = self.inner.of_outputs(chosen)
                rows, targets = (observed == pattern).all(-1), y[..., chosen]
                targets = targets if len(chosen) > 1 else targets.squeeze(-1)
                total = total + _where_observed(rows, inner, targets, _taken(f, functions), term)
        return total

    def _has_independent_noise(self, f: Moments) -> bool:
        """Whether outputs are independent given f: elements of a batch, not one event."""
        return not self.inner.given(f.mean[..., :1, :].detach()).base_dist.event_shape

    def _is_separate(self) -> bool:
        """Whether no function is read by two outputs."""
        read = [function for output in range(self.outputs) for function in self.inner.of_outputs([output])[1]]
        return len(read) == len(set(read))


def _taken(f: Moments, functions: list[int]) -> Moments:
    return Moments(f.mean[..., functions], f.variance[..., functions])


def _where_observed(rows: Tensor, inner: Conditional, y: Tensor, f: Moments, term: _Term) -> Tensor:
    """A term of the rows of a mask, zero for the others."""
    if not bool(rows.any()):
        return torch.zeros_like(f.mean[..., 0])
    wanted = rows if y.dim() == rows.dim() else rows.unsqueeze(-1)
    return torch.where(rows, term(inner, filled(y.where(wanted, torch.nan)), f), 0.0)


class MissingOutputs(Likelihood):
    """A likelihood of targets of which some are missing: NaN is an output of a row that was not observed.

    The terms of a row are those of its observed outputs, under the likelihood with the missing ones integrated out; nothing is filled in.
    A row without any observed output adds nothing, and is refused by :class:`~pyro_dgp.ApproximateEP`, which counts rows. Predictions are of all outputs.
    Without this, NaN is refused.

    >>> from pyro_dgp import Gaussian, MissingOutputs
    >>> likelihood = MissingOutputs(Gaussian(2))
    >>> f, y = torch.zeros(1, 2), torch.tensor([[0.5, torch.nan]])
    >>> bool(likelihood.given(f).log_prob(y) == Gaussian().given(f[:, :1]).log_prob(y[:, 0]))
    True

    :param likelihood: the likelihood of complete targets. Of several outputs: ``Gaussian``, ``HeteroscedasticGaussian``,
        ``LinearCoregionalization``, or one whose :class:`Conditional` has ``of_outputs``.
    """

    takes_missing: ClassVar[bool] = True

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"MissingOutputs takes a likelihood such as Gaussian(3), not {type(likelihood).__name__}")
        if type(likelihood).forward is not Likelihood.forward or type(likelihood).given is not Likelihood.given:
            raise ValueError(
                f"{type(likelihood).__name__} makes its observations by a forward or given of its own, which MissingOutputs cannot reach: mask the "
                "distribution there, .mask(observed)"
            )
        self.likelihood = likelihood

    @property
    def functions(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the Gaussian processes that the likelihood is called on."""
        return self.likelihood.functions

    def require_outputs(self, outputs: int) -> None:
        """Raise unless the likelihood takes ``outputs`` functions."""
        self.likelihood.require_outputs(outputs)

    def target_outputs(self, outputs: int) -> int:
        """Number of outputs of y for ``outputs`` functions."""
        return self.likelihood.target_outputs(outputs)

    def conditional(self, *args: Any, **kwargs: Any) -> Conditional:
        """The likelihood of complete targets, with its parameters read now."""
        return self.likelihood.conditional(*args, **kwargs)

    def _read(self, values: Mapping[str, Tensor]) -> Conditional:
        return self.likelihood._read(values)

    def _with_units(self, f: Tensor, values: Mapping[str, Tensor]) -> Conditional:
        inner = self.likelihood._with_units(f, values)
        if self.units is not None:
            inner = self._standardized(inner, f)
        return MissingConditional(inner, self.target_outputs(f.shape[-1]))
