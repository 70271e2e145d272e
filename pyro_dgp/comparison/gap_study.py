"""The inference gap of named methods on one model and one data set: at the same fixed hyperparameters, and with priors on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.comparison.gap_figure import draw_gap
from pyro_dgp.internal.progress import Progress
from pyro_dgp.models.priors import with_priors
from pyro_dgp.prediction.gap import InferenceGap, inference_gap
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.recipes import deep, deep_with_priors
from pyro_dgp.zoo.settings import Settings

Row = dict[str, Any]

#: What a study writes.
FILE = "gap.json"

#: Added to the reference's name: a second run of it, whose distance from the first is what chance makes.
AGAIN = " again"


@dataclass(frozen=True)
class GapStudy:
    """What is compared with what.

    :ivar methods: names of methods that fit the deep model.
    :ivar reference: the sampler that the others are judged by.
    """

    methods: Sequence[str]
    reference: str = "ess"

    def check(self) -> None:
        """Raise for methods whose model is another."""
        if self.reference not in METHODS:
            raise ValueError(
                f"there is no method {self.reference!r} to take as reference: choose from {', '.join(METHODS)}"
            )
        for name in (self.reference, *self.methods):
            if METHODS[name].model not in (deep, deep_with_priors):
                raise ValueError(
                    f"the gap is measured on one deep model and {name} fits another: leave it out, or run the gap by itself"
                )
        if not METHODS[self.reference].inference.approximates_posterior(Settings()):
            raise ValueError(
                f"{self.reference} is no approximation of the posterior: take ess or nuts as the reference"
            )

    def finished(self, folder: Path) -> bool:
        """Whether the folder has this study's ``gap.json``: of the same reference, with all of its methods."""
        path = folder / FILE
        if not path.exists():
            return False
        rows = json.loads(path.read_text())
        there = {row["method"] for row in rows if row["reference"] == self.reference}
        return there >= {self.reference + AGAIN, *self.methods} - {self.reference}

    def run(
        self,
        x: Tensor,
        y: Tensor,
        new: Tensor,
        settings: Settings,
        progress: Callable[[str], Progress],
        say: Callable[[str], None],
        folder: Path,
    ) -> dict[str, dict[str, InferenceGap]]:
        """Gaps at ``new`` by method, under ``fixed`` hyperparameters and under ``priors``.

        Fixed ones are those that dsvi learns on the same rows. Every method sees all rows, but those that hold some out for validation.

        :param folder: where chains are kept, from which an interrupted study goes on; the caller removes it.
        """
        self.check()
        gaps = {}
        for condition, model in (("fixed", self._learned(x, y, settings)), ("priors", with_priors(deep(x, settings)))):
            own = gaps[condition] = self._gaps(model, x, y, new, settings, progress, folder / condition)
            figures = (f"{name} {gap.figures()['gap_wasserstein']:.2f}" for name, gap in own.items())
            say(f"gap at {condition} hyperparameters: " + "; ".join(figures))
        return gaps

    def _gaps(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        new: Tensor,
        settings: Settings,
        progress: Callable[[str], Progress],
        folder: Path,
    ) -> dict[str, InferenceGap]:
        """Distances of all methods from the reference on one model."""

        def fit(name: str, label: str, settings: Settings) -> Prediction:
            torch.manual_seed(settings.seed)
            inference = METHODS[name].inference.saving_to(folder / label)
            return inference.run(copy.deepcopy(model), x, y, settings, progress(label)).predict(new)

        reference, again = fit(self.reference, self.reference, settings), self.reference + AGAIN
        others = {again: fit(self.reference, again, replace(settings, seed=settings.seed + 1))}
        others |= {name: fit(name, name, settings) for name in self.methods if name != self.reference}
        return {name: _gap(prediction, reference) for name, prediction in others.items()}

    def _learned(self, x: Tensor, y: Tensor, settings: Settings) -> nn.Module:
        """The model with the hyperparameters that dsvi learns."""
        torch.manual_seed(settings.seed)
        model = deep(x, settings)
        METHODS["dsvi"].inference.run(model, x, y, settings, _silent)
        return model.requires_grad_(False)


def _gap(prediction: Prediction, reference: Prediction) -> InferenceGap:
    with torch.no_grad():
        return inference_gap(prediction, reference)


def _silent(step: int, total: int, figures: dict[str, float]) -> None:
    """No progress."""


def report(gaps: dict[str, dict[str, InferenceGap]], study: GapStudy, new: Tensor, folder: Path) -> list[Row]:
    """Write ``gap.json`` and ``gap-CONDITION.png``; a row for each method and condition.

    ``approximates_posterior`` is false for methods trained by a predictive loss: their distance says how different they are, not how wrong.
    """
    rows = []
    for condition, by_method in gaps.items():
        for name, gap in by_method.items():
            method = METHODS[name.removesuffix(AGAIN)]
            rows.append({
                "method": name, "hyperparameters": condition, "reference": study.reference, **gap.figures(),
                "approximates_posterior": method.inference.approximates_posterior(Settings()),
            })  # fmt: skip
        draw_gap(
            by_method, new, folder / f"gap-{condition}.png", reference=f"{study.reference}, {condition} hyperparameters"
        )
    (folder / FILE).write_text(json.dumps(rows, indent=2) + "\n")
    return rows
