"""What must hold of every fit and every prediction. A check that fails raises AssertionError with what was found."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pyro_dgp as dgp
from tests.generated.data import Data
from tests.generated.parts import CLASSES, family_of, propagation_of
from tests.generated.program import Fit, Program, fitted
from tests.generated.spec import Spec

REFUSALS = (ValueError, TypeError, NotImplementedError)
#: Rounding that is allowed, as a share of the standard deviation and of the value.
ROUNDING = {"float64": 1e-5, "float32": 3e-2}


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
        """Whether counts are so large that sums over them are long, or their moments are beyond all numbers."""
        return self.spec.likelihood in ("poisson", "negative binomial") and not bool((prediction.mean < 1e3).all())

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
        """Make every check."""
        self.training()
        self.moments()
        self.densities()
        self.quantiles()
        self.draws()
        self.no_rows()
        if self.spec.is_deterministic:
            self.rows()
            self.loss_of_rows()
            self.precision()
        if not self.spec.batch:
            self.functions()
        if self.spec.way == "guide":
            self.saved()
        if self.spec.seed % 5 == 0:
            self.again()
        if self.spec.is_standardized and self.spec.is_real and self.spec.way in ("guide", "exact"):
            self.units()

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

    def close(self, found: Any, wanted: Any, what: str, room: float, pick: Any = slice(None)) -> None:
        """Compare two predictions: all of the first, and the rows ``pick`` of the second."""
        place = (*(slice(None) for _ in self.spec.batch), pick)
        if self.has_classes:
            off = (found.probs - wanted.probs[place]).abs().max()
            assert float(off) <= 10 * room, f"{what}: probs differ by {off}"
            return
        if self.has_wide_counts(wanted):
            return
        mean, sd = wanted.mean[place], wanted.variance[place].sqrt()
        off = ((found.mean - mean).abs() / (sd + mean.abs())).max()
        assert float(off) <= room, f"{what}: means differ by a share of {float(off):.2g}"
        off = (found.variance.sqrt() / sd - 1).abs().max()
        assert float(off) <= room, f"{what}: standard deviations differ by a share of {float(off):.2g}"

    def rows(self) -> None:
        """Rows one at a time, in another order and in small batches give what all at once give."""
        if not self.spec.is_ordinary:
            return
        room, whole, count = ROUNDING[self.spec.dtype], self.predicted(), self.spec.new
        order = torch.arange(count).flip(0)
        self.close(self.predicted(self.data.new_x[..., order, :]), whole, "order of rows", room, order)
        self.close(self.predicted(batch_size=2), whole, "batches of rows", room)
        singles = []
        for row in range(count):
            each = self.predicted(self.data.new_x[..., row : row + 1, :])
            self.close(each, whole, "one row", room, slice(row, row + 1))
            axis = len(self.spec.batch)
            singles.append(each.log_prob(self.data.new_y.narrow(axis, row, 1)))
        joined, density = torch.cat(singles, -1), whole.log_prob(self.data.new_y)
        off = ((joined - density).abs() / (1 + density.abs())).max()
        assert float(off) <= 100 * room, f"log densities of rows one at a time differ by a share of {float(off):.2g}"

    def loss_of_rows(self) -> None:
        """A loss of all rows is the mean of the losses of each row, which stands for all of them."""
        if self.fit.objective is None or not self.spec.is_ordinary or self.spec.rows > 10:
            return
        axis = len(self.spec.batch)
        x, y = self.data.x, self.data.y
        with torch.no_grad():
            whole = float(self.fit.objective(x, y))
            singles = [
                float(self.fit.objective(x.narrow(axis, row, 1), y.narrow(axis, row, 1)))
                for row in range(self.spec.rows)
            ]
        mean, largest = sum(singles) / len(singles), max(map(abs, [whole, 1.0, *singles]))
        off = abs(whole - mean) / largest
        assert off <= ROUNDING[self.spec.dtype], f"the loss is {whole} and that of its rows {mean}"

    def precision(self) -> None:
        """A guide in float32 predicts what it predicts in float64."""
        if self.spec.way != "guide" or self.spec.dtype != "float32" or not self.spec.is_ordinary:
            return
        double = copy.deepcopy(self.fit.posterior).double()
        with torch.no_grad():
            wanted = self.predicted(self.data.new_x.double(), double)
            self.close(self.predicted(), wanted, "float32 beside float64", 0.1)

    def functions(self) -> None:
        """Drawn functions are functions: the same at each call, row by row."""
        draws = self.allowed(lambda: dgp.draw_functions(self.fit.posterior, 3, seed=0, num_frequencies=16))
        if draws is None:
            return
        x = self.data.new_x
        value = self.allowed(lambda: draws(x))
        if value is None:
            return
        finite(value, "drawn functions")
        assert value.dtype == self.dtype, f"drawn functions are {value.dtype}"
        lead = (3, *self.spec.batch, self.spec.new)
        assert tuple(value.shape[: len(lead)]) == lead, f"drawn functions have shape {tuple(value.shape)}"
        order = torch.arange(self.spec.new).flip(0)
        again = draws(x[..., order, :]).flip(len(lead) - 1)
        if self.spec.is_ordinary:
            off = ((again - value).abs() / (1 + value.abs())).max()
            assert float(off) <= 10 * ROUNDING[self.spec.dtype], f"functions change with the order of rows by {off}"

    def saved(self) -> None:
        """A guide that is loaded from a file predicts the same bits."""
        file = io.BytesIO()
        state = {"model": self.fit.model.state_dict(), "guide": self.fit.posterior.state_dict()}
        torch.save(state, file)
        file.seek(0)
        torch.manual_seed(self.spec.seed + 2)
        model = Program(self.spec, self.data).to(self.dtype)
        guide = dgp.Variational(model, family_of(self.spec), propagation_of(self.spec))
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        guide.load_state_dict(saved["guide"])
        self.equal(self.predicted(fit=guide), "a guide that was saved and loaded")

    def again(self) -> None:
        """The same seed makes the same bits."""
        second = fitted(self.spec, self.data)
        assert second.losses == self.fit.losses, (
            f"losses {second.losses} of a second run, {self.fit.losses} of the first"
        )
        self.equal(self.predicted(fit=second.posterior), "a second run")

    def equal(self, found: Any, what: str) -> None:
        """The prediction is that of the fit, bit by bit."""
        figure = "probs" if self.has_classes else "mean"
        value, wanted = getattr(found, figure), getattr(self.predicted(), figure)
        assert torch.equal(value, wanted), f"{what} predicts other values, by {(value - wanted).abs().max()}"

    def units(self) -> None:
        """Targets in units 1024 times smaller: the same standardised numbers."""
        factor, data = 1024.0, self.data.scaled(1024.0)
        second = Checked(self.spec, data, fitted(self.spec, data))
        found, wanted = second.predicted(), self.predicted()
        off = ((found.mean / factor - wanted.mean).abs() / (wanted.mean.abs() + wanted.variance.sqrt())).max()
        assert float(off) < ROUNDING[self.spec.dtype], f"means do not follow the units, by a share of {float(off):.2g}"
        outputs = self.target[-1] if len(self.target) > len(self.spec.batch) + 1 else 1
        present = (~data.new_y.isnan()).reshape(*self.target[: len(self.spec.batch) + 1], outputs).sum(-1)
        shift = wanted.log_prob(self.data.new_y) - found.log_prob(data.new_y) - present * math.log(factor)
        off = (shift.abs() / (1 + wanted.log_prob(self.data.new_y).abs())).max()
        assert float(off) < ROUNDING[self.spec.dtype], (
            f"log densities do not follow the units, by a share of {float(off):.2g}"
        )


def is_sentence(error: BaseException) -> bool:
    """Whether an error is one sentence of the library with a remedy."""
    trace, text = error.__traceback__, str(error).split("\n" + " " * 4)[0]  # Pyro writes the shapes of a trace below
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    origin = "" if trace is None else trace.tb_frame.f_code.co_filename
    return "pyro_dgp/" in origin and "\n" not in text and (": " in text or ", " in text)
