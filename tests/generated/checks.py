"""What must hold of every fit and every prediction. A check that fails raises AssertionError with what was found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pyro_dgp as dgp
from tests.generated.data import Data
from tests.generated.parts import CLASSES
from tests.generated.program import Fit
from tests.generated.spec import Spec

REFUSALS = (ValueError, TypeError, NotImplementedError)


def finite(value: Tensor, what: str) -> None:
    assert bool(torch.isfinite(value).all()), f"{what} holds NaN or infinity"


def shaped(value: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    assert tuple(value.shape) == shape, f"{what} has shape {tuple(value.shape)} where {shape} is right"
    assert value.dtype == dtype, f"{what} is {value.dtype} and the model {dtype}"


@dataclass
class Checked:
    """A fitted program under its checks.

    :ivar notes: sentences of figures that are refused.
    """

    spec: Spec
    data: Data
    fit: Fit
    notes: list[str] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the data."""
        return getattr(torch, self.spec.dtype)

    @property
    def target(self) -> tuple[int, ...]:
        """Shape of the targets of the new rows."""
        return tuple(self.data.new_y.shape)

    @property
    def has_classes(self) -> bool:
        """Whether targets are classes, of which there are no moments."""
        return self.spec.likelihood in ("robust max", "softmax", "ordinal")

    def has_wide_counts(self, prediction: Any) -> bool:
        """Whether the moments of counts are next to the largest of all numbers, or beyond them."""
        if self.spec.likelihood not in ("poisson", "negative binomial"):
            return False
        largest = torch.finfo(self.dtype).max ** 0.25
        return not bool((torch.stack([prediction.mean, prediction.variance]) < largest).all())

    def predicted(self, x: Tensor | None = None, fit: Any = None, batch_size: int = 1000) -> Any:
        """Predict, with the same seed at every call."""
        torch.manual_seed(self.spec.seed + 1)
        posterior = self.fit.posterior if fit is None else fit
        return dgp.predict(posterior, self.data.new_x if x is None else x, 4, batch_size=batch_size)

    def allowed(self, figure: Callable[[], Any]) -> Any:
        """A figure, or nothing where it is refused in a sentence."""
        try:
            return figure()
        except REFUSALS as error:
            if not is_sentence(error):
                raise
            self.notes.append(str(error))
            return None

    def run(self) -> None:
        """Make every check of single figures."""
        self.training()
        self.moments()
        self.densities()
        self.quantiles()
        self.draws()
        self.no_rows()

    def training(self) -> None:
        assert all(map(math.isfinite, self.fit.losses)), f"losses {self.fit.losses}"
        for module in self.fit.modules:
            for name, value in module.named_parameters():
                finite(value, f"the parameter {name}")
                if not name.startswith("latents."):  # these have the dtype of the priors
                    assert value.dtype == self.dtype, f"the parameter {name} is {value.dtype} and the data {self.dtype}"

    def moments(self) -> None:
        prediction = self.predicted()
        if self.has_classes:
            probs = prediction.probs
            shaped(probs, (*self.target, CLASSES), self.dtype, "probs")
            assert bool((probs >= 0).all()) and bool(((probs.sum(-1) - 1).abs() < 1e-4).all()), f"probs are {probs}"
            return
        for name in ("mean", "variance"):
            value = getattr(prediction, name)
            shaped(value, self.target, self.dtype, name)
            if not self.has_wide_counts(prediction):
                finite(value, f"the {name}")
        least = prediction.variance.nan_to_num(1.0).min()
        assert least > 0 or (least == 0 and not self.spec.is_real), f"variance is {least}"

    def densities(self) -> None:
        prediction, y = self.predicted(), self.data.new_y
        rows = self.target[: len(self.spec.batch) + 1]
        value = prediction.log_prob(y)
        shaped(value, rows, self.dtype, "log_prob")
        if not self.has_wide_counts(prediction):
            finite(value, "log_prob")
        components = prediction.component_log_prob(y)
        shaped(components, (components.shape[0], *rows), self.dtype, "component_log_prob")
        if self.has_wide_counts(prediction):
            return
        scores = self.allowed(lambda: dgp.scores(prediction, y))
        for name, score in (scores or {}).items():
            assert math.isfinite(score), f"the score {name} is {score}"
        if not self.has_classes:
            cdf = self.allowed(lambda: prediction.cdf(y))
            if cdf is not None:
                shaped(cdf, self.target, self.dtype, "cdf")
                known = cdf[~y.isnan()]
                assert bool(((known >= -1e-6) & (known <= 1 + 1e-6)).all()), f"cdf is {cdf}"

    def quantiles(self) -> None:
        prediction, levels = self.predicted(), [0.05, 0.5, 0.95]
        if self.has_classes or self.has_wide_counts(prediction):
            return
        value = self.allowed(lambda: prediction.quantile(levels))
        if value is None:
            return
        shaped(value, (3, *self.target), self.dtype, "quantile")
        finite(value, "quantiles")
        assert bool((value.diff(dim=0) >= 0).all()), "quantiles fall as the level rises"
        if self.spec.is_real:
            room, share = (1e-3, 1e-9) if self.spec.dtype == "float64" else (0.02, 1e-5)
            for level, each in zip(levels, value, strict=True):
                nudge = share * each.abs()  # rounding of y
                below, above = prediction.cdf(each - nudge), prediction.cdf(each + nudge)
                within = (below <= level + room) & (above >= level - room)
                assert bool(within.all()), f"cdf(quantile({level})) lies between {below} and {above}"

    def draws(self) -> None:
        prediction = self.predicted()
        value = prediction.sample((3,))
        assert tuple(value.shape) == (3, *self.target), f"samples have shape {tuple(value.shape)}"
        if value.is_floating_point():
            shaped(value, (3, *self.target), self.dtype, "samples")
            if not self.has_wide_counts(prediction):
                finite(value, "samples")

    def no_rows(self) -> None:
        try:
            self.predicted(self.data.new_x[..., :0, :])
        except ValueError as error:
            assert is_sentence(error), f"no rows: {error}"
        else:
            raise AssertionError("a prediction of no rows is no error")


def is_sentence(error: BaseException) -> bool:
    """Whether an error is one sentence of the library with a remedy."""
    trace, text = error.__traceback__, str(error).split("\n" + " " * 4)[0]  # Pyro writes the shapes of a trace below
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    origin = "" if trace is None else trace.tb_frame.f_code.co_filename
    return "pyro_dgp/" in origin and "\n" not in text and (": " in text or ", " in text)
