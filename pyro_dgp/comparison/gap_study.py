"""The inference gap of named methods on one model and one data set: at the same fixed hyperparameters, and with priors on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.comparison.gap_figure import draw_gap
from pyro_dgp.comparison.lock import locked_folder
from pyro_dgp.comparison.tables import gap_table
from pyro_dgp.internal.progress import Progress, silent
from pyro_dgp.internal.untrusted_files import UnreadableError, read_json
from pyro_dgp.internal.whole_file import write_text, write_whole
from pyro_dgp.prediction.gap import InferenceGap, inference_gap
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.training.checkpoints import Checkpoints
from pyro_dgp.zoo.anatomy import free_parameters
from pyro_dgp.zoo.method import DEEP, DEEP_LEARNED, DEEP_WITH_PRIORS, Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

Row = dict[str, Any]

#: What a study writes.
FILE = "gap.json"

#: Number of draws of each chain of the reference, in a row of the file.
DRAWS = "mcmc_samples"

#: Added to the reference's name: a second run of it, whose distance from the first is what chance makes.
AGAIN = " again"

#: Conditions of the hyperparameters.
FIXED, PRIORS = "fixed", "priors"


@dataclass(frozen=True)
class GapStudy:
    """Methods and the sampler that they are compared with, on one model.

    :ivar methods: methods that fit the model.
    :ivar reference: the sampler that the others are judged by.
    """

    methods: Sequence[Method]
    reference: Method

    def check(self) -> None:
        """Raise for methods whose model is another, and for a reference that is none."""
        for method in (self.reference, *self.methods):
            if not method.architecture.is_deep or method.architecture.has_network:
                raise ValueError(
                    f"the gap is measured on one deep model and {method.name} fits another: leave it out, or run the gap by itself"
                )
        if not self.reference.inference.approximates_posterior(Settings()):
            raise ValueError(
                f"{self.reference.name} is no approximation of the posterior: take ess or nuts as the reference"
            )

    def finished(self, folder: Path, draws: int) -> bool:
        """Whether the folder has this study's ``gap.json``: of the same reference and number of its draws, with all methods. One that is broken
        is made again.

        :param draws: number of draws of each chain.
        """
        try:
            rows = read_gap(folder)
        except ValueError:
            return False
        is_own = {"reference": self.reference.name, DRAWS: draws}.items()
        there = {row["method"] for row in rows if is_own <= row.items()}
        names = {method.name for method in self.methods}
        return there >= {self.reference.name + AGAIN, *names} - {self.reference.name}

    def run(
        self,
        x: Tensor,
        y: Tensor,
        new: Tensor,
        *,
        settings: Settings,
        progress: Callable[[str], Progress],
        say: Callable[[str], None],
        folder: Path | None,
    ) -> GapResult:
        """Gaps at ``new`` under each condition that the model allows.

        The zoo's model has two: ``fixed`` hyperparameters, those that dsvi learns on the same rows, and ``priors`` on all of them. A
        user's model is taken as it is: ``priors`` if all its hyperparameters have one, else ``fixed``, where those without a prior stay
        at the values that dsvi learns. Every method sees all rows, but those that hold some out for validation.

        :param folder: where chains and training are kept, from which an interrupted study goes on; the caller removes it.
        """
        self.check()
        gaps: dict[str, dict[str, InferenceGap]] = {}
        for condition, build in self._conditions(x, y, settings).items():
            kept = None if folder is None else folder / condition
            with _saved(kept, "learned"):
                model = build()
            own = gaps[condition] = self._gaps(model, x, y, new, settings=settings, progress=progress, folder=kept)
            figures = (f"{name} {gap.figures()['gap_wasserstein']:.2f}" for name, gap in own.items())
            say(f"gap at {condition} hyperparameters: " + "; ".join(figures))
        return GapResult(gaps, self, new, draws=settings.mcmc_samples)

    def _conditions(self, x: Tensor, y: Tensor, settings: Settings) -> dict[str, Callable[[], nn.Module]]:
        """How the model is built for each condition."""
        if self.reference.architecture in (DEEP, DEEP_LEARNED, DEEP_WITH_PRIORS):
            return {
                FIXED: lambda: _learned(DEEP.untrained(x, y, settings), x, y, settings),
                PRIORS: lambda: DEEP_WITH_PRIORS.untrained(x, y, settings),
            }
        torch.manual_seed(settings.seed)
        built = self.reference.architecture.untrained(x, y, settings)
        model = copy.deepcopy(built)  # a factory may return the same object
        if free_parameters(model):
            return {FIXED: lambda: _learned(model, x, y, settings)}
        return {PRIORS: lambda: model}

    def _gaps(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        new: Tensor,
        *,
        settings: Settings,
        progress: Callable[[str], Progress],
        folder: Path | None,
    ) -> dict[str, InferenceGap]:
        """Distances of all methods from the reference on one model."""

        def fit(method: Method, label: str, settings: Settings) -> Prediction:
            torch.manual_seed(settings.seed)
            inference = method.inference if folder is None else method.inference.saving_to(folder / label)
            with _saved(folder, f"{label} training"):
                fitted = inference.run(copy.deepcopy(model), x, y, settings=settings, progress=progress(label))
            torch.manual_seed(settings.seed)  # whether or not it was fitted just now
            return fitted.predict(new)

        name = self.reference.name
        reference, again = fit(self.reference, name, settings), name + AGAIN
        others = {again: fit(self.reference, again, replace(settings, seed=settings.seed + 1))}
        others |= {method.name: fit(method, method.name, settings) for method in self.methods if method.name != name}
        return {name: _gap(prediction, reference) for name, prediction in others.items()}


def _saved(folder: Path | None, name: str) -> AbstractContextManager[object]:
    """Return the scope in which training is saved, if there is a folder."""
    return nullcontext() if folder is None else Checkpoints(folder / name)


def _learned(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> nn.Module:
    """The model with the hyperparameters that dsvi learns."""
    torch.manual_seed(settings.seed)
    METHODS["dsvi"].inference.run(model, x, y, settings=settings, progress=silent)
    return model.requires_grad_(False)


def _gap(prediction: Prediction, reference: Prediction) -> InferenceGap:
    with torch.no_grad():
        return inference_gap(prediction, reference)


@dataclass(frozen=True)
class GapResult:
    """Distances of methods from a sampler; ``print`` shows the table.

    :ivar gaps: by condition, ``fixed`` or ``priors``, and method.
    :ivar study: what was compared with what.
    :ivar x: inputs that they were measured at, as the model takes them ``(N, D)``.
    :ivar draws: number of draws of each chain of the sampler.
    """

    gaps: dict[str, dict[str, InferenceGap]]
    study: GapStudy
    x: Tensor
    _: KW_ONLY
    draws: int

    @property
    def rows(self) -> list[Row]:
        """A row for each method and condition.

        ``approximates_posterior`` is false for methods trained by a predictive loss: their distance says how different they are, not how
        wrong.
        """
        methods = {method.name: method for method in (*self.study.methods, self.study.reference)}
        return [
            {
                "method": name,
                "hyperparameters": condition,
                "reference": self.study.reference.name,
                DRAWS: self.draws,
                **gap.figures(),
                "approximates_posterior": methods[name.removesuffix(AGAIN)].inference.approximates_posterior(
                    Settings()
                ),
            }
            for condition, by_method in self.gaps.items()
            for name, gap in by_method.items()
        ]

    def __str__(self) -> str:
        return gap_table(self.rows)

    def write(self, folder: Path | str) -> None:
        """Write ``gap.json`` and ``gap-CONDITION.png``.

        :raises ValueError: if another run is in the folder.
        """
        with locked_folder(Path(folder)):
            self.write_files(Path(folder))

    def write_files(self, folder: Path) -> None:
        """Write the files to a folder that this run has locked: the figures, and then the table."""
        for condition, by_method in self.gaps.items():
            reference = f"{self.study.reference.name}, {condition} hyperparameters"

            def draw(path: Path, gaps: dict[str, InferenceGap] = by_method, reference: str = reference) -> None:
                draw_gap(gaps, self.x, path, reference=reference)

            write_whole(folder / f"gap-{condition}.png", draw)
        write_text(folder / FILE, json.dumps(self.rows, indent=2) + "\n")


def read_gap(folder: Path) -> list[Row]:
    """Read the rows of ``gap.json``.

    :raises ValueError: one sentence for a file that is missing, or is no table of gaps.
    """
    try:
        rows = read_json(folder / FILE)
        if not isinstance(rows, list) or not rows or not all(map(_is_row, rows)):
            raise UnreadableError("it is no table of gaps")
    except UnreadableError as error:
        raise ValueError(
            f"{str(folder / FILE)!r} cannot be read ({error}): delete it, and go on with --resume"
        ) from error
    return rows


def _is_row(row: Any) -> bool:
    words, numbers = ("method", "reference", "hyperparameters"), ("gap_mean", "gap_sd", "gap_wasserstein", "gap_kl")
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in words)
        and all(isinstance(row.get(name), int | float) for name in numbers)
        and isinstance(row.get("approximates_posterior"), bool)
    )
