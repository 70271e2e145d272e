"""A prediction in the target's own units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyro_dgp.data.arrays import named, numbered
from pyro_dgp.data.dataset import by_output, require_real
from pyro_dgp.internal.affine import restored, standardised
from pyro_dgp.prediction.prediction import Prediction

P = ParamSpec("P")
Result = TypeVar("Result")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A scope with another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class RescaledPrediction(TorchDistribution):
    """The predictive distribution of ``shift + scale * y`` for a prediction of a standardised target y.

    With z = (value - shift) / scale it has mean ``shift + scale E[y]``, variance ``scale^2 Var[y]``, quantiles ``shift + scale q``,
    distribution function ``F(z)`` and log density ``log p(z) - log scale``. A target that was left as it is has shift 0 and scale 1. With
    several outputs all this holds for each, and the log density is that of all outputs of a row together.

    :param standardised: the prediction of the standardised target, ``(N,)`` or ``(N, P)``.
    :param shift: mean that was subtracted from the targets, ``()`` or ``(P,)``.
    :param scale: standard deviation that they were divided by, of the same shape.
    :param like: a tensor of the dtype and on the device that the model was fitted in.
    :param outputs: names of the outputs, where there are several: values in a table are taken by them.
    :param labels: names of the classes, where the target was one of words: values may be words too.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        standardised: Prediction,
        *,
        shift: float | Tensor,
        scale: float | Tensor,
        like: Tensor,
        outputs: Sequence[str] = (),
        labels: Sequence[str] = (),
    ) -> None:
        self.standardised, self.outputs, self.labels = standardised, tuple(outputs), tuple(labels)
        self.shift, self.scale = (
            torch.as_tensor(each, dtype=torch.float64, device=like.device) for each in (shift, scale)
        )
        self.dtype, self.device = like.dtype, like.device
        super().__init__(standardised.batch_shape, standardised.event_shape, validate_args=False)

    def __repr__(self) -> str:
        return f"RescaledPrediction(rows={self.batch_shape[0]}, shift={_said(self.shift)}, scale={_said(self.scale)})"

    def _evaluate(self, method: Callable[[Prediction], Tensor]) -> Tensor:
        """A figure of the standardised prediction, evaluated in the dtype of the fit and returned in float64, which units of any size need."""
        with default_dtype(self.dtype):
            return method(self.standardised).double()

    def _standardised(self, value: Any) -> Tensor:
        named = numbered(by_output(value, self.outputs), self.labels)
        if isinstance(named, Tensor):
            tensor = named.double()
        else:
            require_real(named, "the targets")
            tensor = torch.from_numpy(np.array(named, dtype=np.float64, order="C"))
        z: Tensor = standardised(tensor.to(self.device), self.shift, self.scale)
        return z.to(dtype=self.dtype, device=self.device)

    def _restored(self, method: Callable[[Prediction], Tensor]) -> Tensor:
        """A figure in units of the standardised target, in the target's own."""
        return restored(self._evaluate(method), self.shift, self.scale)  # type: ignore[no-any-return]

    @contextmanager
    def in_training_units(self, value: Any) -> Iterator[tuple[Prediction, Tensor]]:
        """A scope of the dtype of the fit, with the prediction of the standardised target, and values of the target standardised."""
        with default_dtype(self.dtype):
            yield self.standardised, self._standardised(value)

    @property
    def mean(self) -> Tensor:
        """Predictive mean ``(N,)``."""
        return self._restored(lambda p: p.mean)

    @property
    def variance(self) -> Tensor:
        """Total predictive variance ``(N,)``, noise included."""
        return self.scale**2 * self._evaluate(lambda p: p.variance)

    @property
    def covariance(self) -> Tensor:
        """Total predictive covariance over the outputs of each row, ``(N, P, P)``, noise included; ``(N, 1, 1)`` of a single target."""
        scale = self.scale.reshape(-1, 1)
        return scale * scale.mT * self._evaluate(lambda p: p.covariance)

    @property
    def probs(self) -> Tensor:
        """Probabilities of the classes ``(N, C)``, of a target of two classes or more."""
        return self._evaluate(lambda p: p.probs)

    def log_prob(self, value: Any) -> Tensor:
        """Log density of each row at values in the target's units, nats per unit: ``(N,)``."""
        z = self._standardised(value)
        return self._evaluate(lambda p: p.log_prob(z)) - self.scale.log().expand(self.event_shape).sum()

    def cdf(self, value: Any) -> Tensor:
        """``p(y <= value)`` of each row."""
        z = self._standardised(value)
        return self._evaluate(lambda p: p.cdf(z))

    def quantile(self, level: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles: ``(N,)`` for one level, ``(Q, N)`` for several."""
        return self._restored(lambda p: p.quantile(level))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws ``(*sample_shape, N)``, independent over rows; of classes their numbers, or their names where these are numbers."""
        draws = self._restored(lambda p: p.sample(sample_shape))
        return torch.as_tensor(named(draws.cpu(), self.labels)).to(draws) if self.labels else draws

    def crps(self, value: Any) -> Tensor:
        """Continuous ranked probability score of each row, units of the target."""
        z = self._standardised(value)
        return self.scale * self._evaluate(lambda p: p.crps(z))


def of_standardised(
    function: Callable[Concatenate[Prediction, Tensor, P], Result],
) -> Callable[Concatenate[Prediction | RescaledPrediction, Any, P], Result]:
    """Let a function of a prediction and targets, whose result has no units, take a prediction in the target's own units, and targets in these."""

    @wraps(function)
    def wrapped(prediction: Prediction | RescaledPrediction, y: Any, *args: P.args, **kwargs: P.kwargs) -> Result:
        if not isinstance(prediction, RescaledPrediction):
            return function(prediction, y, *args, **kwargs)
        with prediction.in_training_units(y) as (standardised, z):
            return function(standardised, z, *args, **kwargs)

    return wrapped


def _said(values: Tensor) -> str:
    """Numbers as ``repr`` shows them."""
    return str(values.tolist()) if values.dim() else f"{float(values):g}"
