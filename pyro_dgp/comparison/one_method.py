"""One method of a comparison: fitted to each fold, scored, pooled."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_dgp.comparison.files import ROW_NLL, Curves, Row
from pyro_dgp.comparison.keep import Fitting
from pyro_dgp.comparison.parts import Part
from pyro_dgp.comparison.plan import Plan
from pyro_dgp.comparison.request import Say
from pyro_dgp.export.inference_data import to_arviz
from pyro_dgp.internal.peak_memory import peak_memory_mb, reset_peak_memory
from pyro_dgp.internal.progress import Progress
from pyro_dgp.mcmc.diagnostics import doubts
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.reliability import binned, confidences
from pyro_dgp.prediction.scores import coverage, scores
from pyro_dgp.training.checkpoints import Checkpoints
from pyro_dgp.zoo.inference import Fitted
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings

#: Training rows in an ArviZ file at most, equally spaced.
_MOST_ROWS = 1000

#: Levels of the calibration curve.
LEVELS = torch.linspace(0.05, 0.95, 19)

#: Points of one input at which bands are drawn.
_GRID = 600

#: Draws by which quantiles are estimated of a likelihood that has no distribution function.
_DRAWS = 2000


@dataclass(frozen=True)
class Fold:
    """A method's fit to one part, and its prediction of the test rows.

    :ivar figures: scores and costs.
    """

    fitting: Fitting
    fitted: Fitted
    prediction: Prediction
    figures: dict[str, float]

    @property
    def part(self) -> Part:
        """The rows."""
        return self.fitting.part


@dataclass(frozen=True)
class Outcome:
    """A method's row in the table, what the figure shows of it, and its fit to the first fold."""

    row: Row
    curves: Curves
    first: Fold


class Untrained:
    """The untrained models of one part, each built once: every method starts from a copy."""

    def __init__(self, part: Part, settings: Settings) -> None:
        self.part, self.settings = part, settings
        self._built: dict[Any, nn.Module] = {}

    def copy(self, method: Method) -> nn.Module:
        """A copy of the model that the method fits."""
        if method.architecture not in self._built:
            torch.manual_seed(self.settings.seed)
            x, y = self.part.x_train, self.part.y_train
            self._built[method.architecture] = method.architecture.untrained(x, y, self.settings)
        return copy.deepcopy(self._built[method.architecture])


def run_method(
    method: Method,
    plan: Plan,
    untrained: Sequence[Untrained],
    *,
    chains: Path | None,
    say: Say,
    progress: Callable[[str], Progress],
) -> Outcome:
    """Fit a method to every fold and score it on all test rows.

    :param untrained: models of each part.
    :param chains: where chains and training are kept while they go on.
    """
    for remark in plan.remarks(method):
        say(f"{method.name}: {remark}")
    folds = []
    for number, models in enumerate(untrained):
        given = plan.given(method, models.part, say if number == 0 else _nothing)
        own = plan.request.model
        fitting = Fitting(
            method,
            models.part,
            given,
            plan.settings,
            own,
            columns=plan.dataset.columns,
            target_name=plan.dataset.target,
            labels=plan.dataset.labels,
            outputs=plan.dataset.outputs,
        )
        kept = None if chains is None else chains / f"fold-{number}"
        label = method.name if len(untrained) == 1 else f"{method.name} {number + 1}/{len(untrained)}"
        folds.append(_run_fold(fitting, models.copy(method), chains=kept, progress=progress(label)))
    row = _row(method, plan, folds)
    transitions = sum(next(iter(fold.fitted.sample_stats.values()), np.empty(0)).size for fold in folds)
    remarked = next((fold.fitted.remarks for fold in folds if fold.fitted.remarks), ())
    doubted = (finding.sentence for finding in doubts(row, transitions))
    for sentence in (*doubted, *remarked):
        say(f"{method.name}: {sentence}")
    return Outcome(row, _curves(folds), folds[0])


def _nothing(sentence: str) -> None:
    """Say nothing: it was said of the first fold."""


def _run_fold(fitting: Fitting, model: nn.Module, *, chains: Path | None, progress: Progress) -> Fold:
    part, settings, inference = fitting.part, fitting.settings, fitting.method.inference
    x, y = part.x_train[fitting.given], part.y_train[fitting.given]
    torch.manual_seed(settings.seed)  # whether or not the model was built just now
    device = str(x.device)
    reset_peak_memory(device)
    inference = inference if chains is None else inference.saving_to(chains)
    with nullcontext() if chains is None else Checkpoints(chains / "training"):
        fitted = inference.run(model, x, y, settings=settings, progress=progress)
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    prediction = fitted.predict(part.x_test)
    figures = scores(prediction, part.y_test, part.target_scale)
    figures["predict_seconds"] = time.perf_counter() - start
    figures["peak_memory_mb"] = peak_memory_mb(device)
    return Fold(fitting, fitted, prediction, figures)


def _row(method: Method, plan: Plan, folds: Sequence[Fold]) -> Row:
    """A method's row in the table, without the names of data and split."""
    settings, first = plan.settings, folds[0].fitted
    steps = sum(fold.fitted.steps for fold in folds)
    seconds = sum(fold.fitted.seconds for fold in folds)
    row = {
        "n_train": first.rows,
        "n_test": sum(len(fold.part.x_test) for fold in folds),
        "layers": method.layers(settings),
        "width": settings.width,
        "inducing": settings.inducing,
        "samples": method.inference.settled(settings).num_samples,
        "steps": steps,
        **pooled_scores(folds, plan.parts),
        "train_seconds": seconds,
        "seconds_per_step": seconds / max(steps, 1),
        "predict_seconds": sum(fold.figures["predict_seconds"] for fold in folds),
        "peak_memory_mb": max(fold.figures["peak_memory_mb"] for fold in folds),
    }
    return row | pooled_diagnostics([fold.fitted.diagnostics for fold in folds])


_SCORES = ("nll", "rmse", "crps", "nll_original", "rmse_original", "crps_original")
_CLASS_SCORES = ("nll", "accuracy", "brier", "ece")


def pooled_scores(folds: Sequence[Fold], parts: Sequence[Part]) -> dict[str, Any]:
    """Scores over the test rows of all folds.

    Of a single split they are those of its test rows, and ``nll``, ``rmse`` and ``crps`` are on the scale of the target standardised by
    its training rows. Folds are standardised each by its own training rows, so their scores are first brought to the target's own units,
    pooled there (means over all rows; for ``rmse`` of squares), and then divided by **one** scale for all folds: the root mean square of
    their training standard deviations. ``nll_per_fold``, ``rmse_per_fold`` and ``crps_per_fold`` are on that scale, too.
    """
    if "accuracy" in folds[0].figures:
        return _pooled_class_scores(folds)
    if len(folds) == 1:
        return {name: folds[0].figures[name] for name in _SCORES}
    if parts[0].target_scale.dim():
        return _pooled_scores_of_outputs(folds)
    scale = math.sqrt(sum(float(part.target_scale) ** 2 for part in parts) / len(parts))
    rows = np.array([len(fold.part.x_test) for fold in folds])
    nll, rmse, crps = (
        np.array([fold.figures[name] for fold in folds]) for name in ("nll_original", "rmse_original", "crps_original")
    )
    original = {
        "nll_original": float((rows * nll).sum() / rows.sum()),
        "rmse_original": math.sqrt(float((rows * rmse**2).sum() / rows.sum())),
        "crps_original": float((rows * crps).sum() / rows.sum()),
    }
    return {
        "nll": original["nll_original"] - math.log(scale),
        "rmse": original["rmse_original"] / scale,
        "crps": original["crps_original"] / scale,
        **original,
        "folds": len(folds),
        "nll_per_fold": [float(value) for value in nll - math.log(scale)],
        "rmse_per_fold": [float(value) for value in rmse / scale],
        "crps_per_fold": [float(value) for value in crps / scale],
    }


def _pooled_scores_of_outputs(folds: Sequence[Fold]) -> dict[str, Any]:
    """Scores of several outputs over the test rows of all folds, each fold in its own standardised units: of RMSE that of each output over all rows, then the mean."""
    rows = np.array([len(fold.part.x_test) for fold in folds])
    values = {name: np.array([fold.figures[name] for fold in folds]) for name in _SCORES}
    pooled = {name: float((rows * own).sum() / rows.sum()) for name, own in values.items()}
    squared = [(fold.prediction.mean - fold.part.y_test).square().sum(0) for fold in folds]
    scaled = [own * fold.part.target_scale.to(own).square() for own, fold in zip(squared, folds, strict=True)]
    for name, each in (("rmse", squared), ("rmse_original", scaled)):
        pooled[name] = float((torch.stack(each).sum(0) / int(rows.sum())).sqrt().mean())
    per_fold = {f"{name}_per_fold": [float(each) for each in values[name]] for name in ("nll", "rmse", "crps")}
    return pooled | {"folds": len(folds)} | per_fold


def _pooled_class_scores(folds: Sequence[Fold]) -> dict[str, Any]:
    """Scores of classes over the test rows of all folds; the calibration error is that of all rows in one diagram."""
    if len(folds) == 1:
        return {name: folds[0].figures[name] for name in _CLASS_SCORES}
    rows = np.array([len(fold.part.x_test) for fold in folds])
    values = {name: np.array([fold.figures[name] for fold in folds]) for name in _CLASS_SCORES}
    pooled: dict[str, Any] = {name: float((rows * own).sum() / rows.sum()) for name, own in values.items()}
    confidence, right = _confidences(folds)
    pooled |= {"ece": binned(confidence, right).error, "folds": len(folds)}
    return pooled | {f"{name}_per_fold": [float(each) for each in own] for name, own in values.items()}


def _confidences(folds: Sequence[Fold]) -> tuple[Tensor, Tensor]:
    """Confidence of each test row of all folds, and whether it is right."""
    pairs = [confidences(fold.prediction, fold.part.y_test) for fold in folds]
    return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


def pooled_diagnostics(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the first fold, but of the chains the worst of all folds: most R-hat, least ESS, all divergences."""
    pooled = dict(figures[0])
    worst: dict[str, Callable[[list[Any]], Any]] = {"r_hat_max": max, "ess_min": min, "divergences": sum}
    for name in worst.keys() & pooled.keys():
        values = [own.get(name) for own in figures]
        pooled[name] = None if any(value is None for value in values) else worst[name](values)
    return pooled


def arviz_of(fold: Fold) -> Any:
    """The ArviZ object of a fit: its training rows, thinned if there are many, and its test rows."""
    given, part, fitted = fold.fitting.given, fold.part, fold.fitted
    step = -(-len(given) // _MOST_ROWS)
    rows, new = given[::step], (fold.prediction, part.x_test, part.y_test)
    prediction, row_step = fitted.predict(part.x_train[rows]), 1
    if (
        prediction.drawn_by_row
    ):  # draws hold the values of all training rows together, and take some of them for new ones
        rows, prediction, row_step = given, fitted.predict(part.x_train[given]), step
    x, y = part.x_train[rows], part.y_train[rows]
    draws, statistics = fitted.draws, fitted.sample_stats
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the prediction was made from")  # a remark has said so
        return to_arviz(prediction, x, y, draws=draws, sample_stats=statistics, new=new, rows=rows, row_step=row_step)


def _curves(folds: Sequence[Fold]) -> Curves:
    """Arrays of one method: bands of the first fold, calibration and NLL of all test rows."""
    fold = folds[0]
    part, prediction = fold.part, fold.prediction
    nll = {ROW_NLL: torch.cat([-each.prediction.log_prob(each.part.y_test).detach().reshape(-1) for each in folds])}
    if "accuracy" in fold.figures:
        confidence, right = _confidences(folds)
        tensors = {"confidence": confidence, "right": right, **nll}
        return {name: values.cpu().numpy() for name, values in tensors.items()}
    rows = torch.tensor([float(len(each.part.y_test)) for each in folds])
    shares = torch.stack([_coverage(each) for each in folds]).to(rows)
    tensors = nll | {"observed": part.y_test, "coverage": (rows @ shares) / rows.sum() if len(folds) > 1 else shares[0]}
    tensors |= dict(zip(("mean", "low", "high"), _band(prediction), strict=True))
    if part.x_train.shape[1] == 1 and part.y_train.dim() == 1:
        both = torch.cat([part.x_train, part.x_test])
        margin = 0.02 * (both.max() - both.min())
        grid = torch.linspace(float(both.min() - margin), float(both.max() + margin), _GRID).to(both)[:, None]
        names = ("grid_mean", "grid_low", "grid_low_50", "grid_high_50", "grid_high")
        bands = _band(fold.fitted.predict(grid), (0.05, 0.25, 0.75, 0.95))
        tensors |= {"grid": grid[:, 0]} | dict(zip(names, bands, strict=True))
        tensors |= {"x_train": part.x_train[:, 0], "y_train": part.y_train, "x_test": part.x_test[:, 0]}
    return {name: values.detach().reshape(-1).cpu().numpy() for name, values in tensors.items()}  # all outputs together


def _band(prediction: Prediction, levels: Sequence[float] = (0.05, 0.95)) -> tuple[Tensor, ...]:
    """Mean and quantiles, estimated from draws where the likelihood has no distribution function."""
    try:
        quantiles = prediction.quantile(levels)
    except NotImplementedError:
        draws = prediction.sample((_DRAWS,))
        quantiles = draws.quantile(torch.tensor(levels).to(draws), 0)
    return prediction.mean, *quantiles


def _coverage(fold: Fold) -> Tensor:
    """Share of test targets inside each central interval: by draws where the likelihood has no distribution function."""
    y, levels = fold.part.y_test, LEVELS.to(fold.part.y_test)
    try:
        return coverage(fold.prediction, y, levels)
    except NotImplementedError:
        below = (fold.prediction.sample((_DRAWS,)) <= y).double().mean(0)
        return (2 * (below - 0.5).abs().reshape(1, -1) <= levels[:, None]).double().mean(-1)
