"""How predictions of one program must agree with each other."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import torch

import pyro_dgp as dgp
from tests.generated.checks import Checked, finite
from tests.generated.parts import family_of, propagation_of
from tests.generated.program import Program, fitted

#: Rounding that is allowed, as a share of the standard deviation and of the value.
ROUNDING = {"float64": 1e-5, "float32": 3e-2}


class Related(Checked):
    """A fitted program under all checks: those of single figures, and of rows, precision, files, seeds and units."""

    def run(self) -> None:
        """Make every check."""
        super().run()
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
        is_measured = self.spec.is_standardized and self.spec.is_real and self.spec.way in ("guide", "exact")
        if (
            is_measured and self.spec.dtype == "float64"
        ):  # Adam makes steps of what rounding leaves of a gradient of zero
            self.units()

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
        double.model.double()
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
        second = Related(self.spec, data, fitted(self.spec, data))
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
