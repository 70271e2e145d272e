"""The comparison: named methods on one data set, each from a copy of the untrained model, scored alike."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.comparison.figures import LEVELS, plot_comparison
from pyro_dgp.comparison.gap_study import GapStudy, report
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.dataset import check as check_data
from pyro_dgp.data.named import load_default
from pyro_dgp.data.splitting import Split, split
from pyro_dgp.export.inference_data import to_arviz
from pyro_dgp.internal.optional import require
from pyro_dgp.internal.peak_memory import peak_memory_mb, reset_peak_memory
from pyro_dgp.internal.progress import Progress
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.models.deep_gp import KERNELS
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.scores import coverage, scores
from pyro_dgp.zoo.inference import Fitted
from pyro_dgp.zoo.methods import METHODS, Method
from pyro_dgp.zoo.recipes import deep, deep_with_priors
from pyro_dgp.zoo.settings import Settings

#: Training rows in an ArviZ file at most, equally spaced.
_MOST_ROWS = 1000

DEFAULT_METHODS = ("exact-gp", "svgp", "ppgpr", "dsvi", "nuts")
Row = dict[str, Any]
Curves = dict[str, np.ndarray]


class MethodFailedError(RuntimeError):
    """A method stopped with a numerical error; the others' results are kept."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, and where the results go.

    :ivar output: folder of the results. It must not exist or be empty, unless ``resume``.
    :ivar dataset: the data; a scan line of a photograph if not given, see :func:`~pyro_dgp.data.named.scan_line`.
    :ivar methods: names of ``METHODS``.
    :ivar resume: methods that the folder has results for are not run again.
    :ivar gap: a sampler, ``ess`` or ``nuts``: the deep methods are fitted once more to one and the same model and data, and their
        distances from it written to ``gap.json``; see :class:`~pyro_dgp.gap_study.GapStudy`.
    """

    output: Path
    dataset: Dataset | None = None
    methods: Sequence[str] = DEFAULT_METHODS
    settings: Settings = Settings()
    dtype: str = "float64"
    device: str = "auto"
    threads: int | None = None
    resume: bool = False
    gap: str | None = None

    def study(self) -> GapStudy | None:
        """The gap that was asked for, of those methods that fit the deep model."""
        if self.gap is None:
            return None
        return GapStudy([name for name in self.methods if METHODS[name].model in (deep, deep_with_priors)], self.gap)


def no_progress(name: str) -> Progress:
    """A progress callback that shows nothing."""
    return lambda step, total, figures: None


def compare(
    comparison: Comparison, say: Callable[[str], None] = print, progress: Callable[[str], Progress] = no_progress
) -> list[Row]:
    """Run the comparison, write ``results.json``, ``METHOD.nc`` and ``comparison.png``, and return the rows.

    Everything is checked before anything is trained or written. What has finished is kept if the rest is interrupted.

    :param say: gets every remark, a sentence each.
    :param progress: gives the progress callback of a method.
    :raises ValueError: for bad input, before training starts.
    :raises MethodFailedError: at the end, if methods stopped with a numerical error.
    """
    settings = comparison.settings
    check(comparison)
    dataset = comparison.dataset or load_default()
    check_data(dataset)
    device = _device(comparison.device)
    part = split(dataset, settings.split, dtype=getattr(torch, comparison.dtype), device=device)
    config = _config(comparison, dataset)
    rows = _finished(comparison, config)
    _make_folder(comparison.output)
    settings = _reduce(settings, part, say)
    say(
        f"{dataset.name}: {len(part.x_train)} training rows, {len(part.x_test)} test rows, {part.x_train.shape[1]} inputs"
    )
    say(f"the noise variance of every method stays above {NOISE_FLOOR:g} of the standardised target's")
    failures = {}
    with _torch_defaults(comparison):
        untrained: dict[Any, torch.nn.Module] = {}
        try:
            for name in comparison.methods:
                if any(row["method"] == name for row in rows):
                    say(f"{name}: finished before, not run again")
                    continue
                try:
                    chains = comparison.output / f".{name}"
                    row, fitted, given, prediction = _run(
                        METHODS[name], part, settings, untrained, chains, say, progress
                    )
                except (RuntimeError, ValueError) as error:
                    say(f"{name} failed: {error}")
                    failures[name] = error
                    continue
                for doubt in _doubts(fitted):
                    say(f"{name}: {doubt}")
                head = {"method": name, "dataset": dataset.name, "split": settings.split, "seed": settings.seed}
                rows.append(head | row | {"config": config})
                _write(comparison.output, rows, part, fitted, given, prediction)
                shutil.rmtree(chains, ignore_errors=True)
            study = comparison.study()
            if study is not None and not study.finished(comparison.output):
                given = _subset(METHODS[study.reference], part, settings, say)
                x, y = part.x_train[given], part.y_train[given]
                try:
                    chains = comparison.output / ".gap"
                    gaps = study.run(x, y, part.x_test, settings, progress, say, chains)
                    report(gaps, study, part.x_test, comparison.output)
                    shutil.rmtree(chains, ignore_errors=True)
                except (RuntimeError, ValueError) as error:
                    say(f"the gap failed: {error}")
                    failures["the gap"] = error
        finally:
            if rows:
                _draw(comparison.output, rows, dataset.name)
            elif not any(comparison.output.iterdir()):
                comparison.output.rmdir()
    if failures:
        raise MethodFailedError("; ".join(f"{name} failed: {error}" for name, error in failures.items()))
    return rows


def check(comparison: Comparison) -> None:
    """Raise ``ValueError`` with one sentence for anything in the request that cannot be run.

    :raises ImportError: if a package that every comparison needs is missing.
    """
    require("arviz", "h5netcdf", "matplotlib", "scoringrules", extra="compare", what="a comparison")
    settings = comparison.settings
    unknown = [name for name in comparison.methods if name not in METHODS]
    if unknown:
        raise ValueError(f"there is no method {unknown[0]!r}: choose from {', '.join(METHODS)}")
    if not comparison.methods:
        raise ValueError("no methods to compare: name at least one")
    if len(set(comparison.methods)) < len(comparison.methods):
        raise ValueError("a method is named twice: name each once")
    if settings.kernel not in KERNELS:
        raise ValueError(f"there is no kernel {settings.kernel!r}: choose from {', '.join(KERNELS)}")
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name.replace('_', '-')} must be at least {least}, got {value}")
    if settings.seed >= 2**31:
        raise ValueError(f"seed must be below 2**31, got {settings.seed}")
    if not 0 < settings.learning_rate < float("inf"):
        raise ValueError(f"learning-rate must be a positive number, got {settings.learning_rate}")
    for name in comparison.methods:
        METHODS[name].inference.check(settings)
    study = comparison.study()
    if study is not None:
        study.check()
    if comparison.threads is not None and comparison.threads < 1:
        raise ValueError(f"threads must be at least 1, got {comparison.threads}")
    if comparison.dtype not in ("float32", "float64"):
        raise ValueError(f"dtype is float32 or float64, not {comparison.dtype!r}")
    if comparison.output.exists() and not comparison.output.is_dir():
        raise ValueError(f"the output {str(comparison.output)!r} is a file: name a folder")
    if comparison.output.exists() and any(comparison.output.iterdir()) and not comparison.resume:
        raise ValueError(
            f"the folder {str(comparison.output)!r} exists: name another --output, or go on in it with --resume"
        )


_LEAST = {
    "layers": 1, "width": 1, "inducing": 1, "row_inducing": 1, "samples": 1, "batch_size": 1, "epochs": 1, "beta": 0, "split": 0, "seed": 0,
    "mcmc_points": 2, "mcmc_samples": 8, "warmup": 0, "chains": 1,
}  # fmt: skip


def _device(choice: str) -> str:
    if choice not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is auto, cpu or cuda, not {choice!r}")
    if choice == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for and torch sees none: use --device cpu")
    return "cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu"


@contextmanager
def _torch_defaults(comparison: Comparison) -> Iterator[None]:
    """Default dtype and number of threads, for a while."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(getattr(torch, comparison.dtype))
    if comparison.threads is not None:
        torch.set_num_threads(comparison.threads)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])


def _config(comparison: Comparison, dataset: Dataset) -> dict[str, Any]:
    named = {
        "dataset": dataset.name,
        "data": dataset.fingerprint(),
        "dtype": comparison.dtype,
    }
    return named | asdict(comparison.settings)


def _finished(comparison: Comparison, config: dict[str, Any]) -> list[Row]:
    path = comparison.output / "results.json"
    if not comparison.resume or not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text())
        different = [
            f"{key} {row['config'].get(key)!r} in {row['method']}, now {value!r}"
            for row in rows
            for key, value in config.items()
            if row["config"].get(key) != value
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is not a result of this program ({error}): name another --output") from error
    if different:
        raise ValueError(
            f"the results in {str(comparison.output)!r} were made with other settings ({different[0]}): "
            "repeat those, or name another --output"
        )
    return [
        row for row in rows if all((comparison.output / f"{row['method']}.{end}").exists() for end in ("nc", "npz"))
    ]


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder {str(output)!r} cannot be made ({error.strerror}): name another --output"
        ) from error
    if not os.access(output, os.W_OK):
        raise ValueError(f"the folder {str(output)!r} cannot be written to: name another --output")


def _reduce(settings: Settings, part: Split, say: Callable[[str], None]) -> Settings:
    """M at most the number of distinct training inputs, said aloud."""
    distinct = len(torch.unique(part.x_train, dim=0))
    if settings.inducing > distinct:
        say(
            f"{settings.inducing} inducing points are more than the {distinct} distinct training inputs: reduced to {distinct}"
        )
        return replace(settings, inducing=distinct)
    return settings


def _subset(method: Method, part: Split, settings: Settings, say: Callable[[str], None]) -> Tensor:
    """Numbers of the training rows that a method is given."""
    most, rows = method.inference.most_rows(settings), len(part.x_train)
    if most is None or rows <= most:
        return torch.arange(rows)
    generator = torch.Generator().manual_seed(settings.seed)
    say(f"{method.name}: trained on a random subset of {most} of the {rows} training rows")
    return torch.randperm(rows, generator=generator)[:most]


def _run(
    method: Method,
    part: Split,
    settings: Settings,
    untrained: dict[Any, torch.nn.Module],
    folder: Path,
    say: Callable[[str], None],
    progress: Callable[[str], Progress],
) -> tuple[Row, Fitted, Tensor, Prediction]:
    for remark in method.inference.remarks(settings):
        say(f"{method.name}: {remark}")
    given = _subset(method, part, settings, say)
    x, y = part.x_train[given], part.y_train[given]
    torch.manual_seed(settings.seed)
    if method.model not in untrained:
        untrained[method.model] = method.model(part.x_train, settings)
    model = copy.deepcopy(untrained[method.model])
    torch.manual_seed(settings.seed)  # whether or not the model was built just now
    device = str(x.device)
    reset_peak_memory(device)
    fitted = method.inference.saving_to(folder).run(model, x, y, settings, progress(method.name))
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    prediction = fitted.predict(part.x_test)
    figures = scores(prediction, part.y_test, part.target_scale)
    seconds = time.perf_counter() - start
    row = {
        "n_train": fitted.rows,
        "n_test": len(part.x_test),
        "layers": method.layers(settings),
        "width": settings.width,
        "inducing": settings.inducing,
        "samples": settings.samples,
        "steps": fitted.steps,
        **figures,
        "train_seconds": fitted.seconds,
        "seconds_per_step": fitted.seconds / max(fitted.steps, 1),
        "predict_seconds": seconds,
        "peak_memory_mb": peak_memory_mb(device),
        **fitted.diagnostics,
    }
    return row, fitted, given, prediction


def _doubts(fitted: Fitted) -> list[str]:
    """Sentences on chains that have not converged."""
    doubts, figures = [], fitted.diagnostics
    r_hat, divergences = figures.get("r_hat_max"), figures.get("divergences")
    if isinstance(r_hat, float) and r_hat > 1.05:
        doubts.append(
            f"R-hat of its slowest site is {r_hat:.2f}: not converged; more --mcmc-samples, --warmup or --chains"
        )
    if "r_hat_max" in figures and r_hat is None:
        doubts.append("it has no R-hat: too few draws, or some quantity never moved")
    if isinstance(divergences, int) and divergences:
        total = next(iter(fitted.sample_stats.values())).size
        doubts.append(f"{divergences} of its {total} transitions diverged: its draws may miss parts of the posterior")
    return doubts


def _write(output: Path, rows: list[Row], part: Split, fitted: Fitted, given: Tensor, prediction: Prediction) -> None:
    """One method's files, then the table that names it: a method in the table has all its files."""
    name = rows[-1]["method"]
    shown = given[:: -(-len(given) // _MOST_ROWS)]
    x, y, new = part.x_train[shown], part.y_train[shown], (prediction, part.x_test, part.y_test)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the prediction was made from")  # a remark has said so
        data = to_arviz(
            fitted.predict(x), x, y, draws=fitted.draws, sample_stats=fitted.sample_stats, new=new, rows=shown
        )
    _atomically(output / f"{name}.nc", lambda path: data.to_netcdf(str(path)))
    curves = _curves(fitted, prediction, part)
    _atomically(output / f"{name}.npz", lambda path: _save_arrays(path, curves))
    text = json.dumps(rows, indent=2) + "\n"
    _atomically(output / "results.json", lambda path: path.write_text(text))


def _atomically(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}")
    write(temporary)
    temporary.replace(path)


def _save_arrays(path: Path, arrays: Curves) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _curves(fitted: Fitted, prediction: Prediction, part: Split) -> Curves:
    """What the figure shows of one method."""

    def band(p: Prediction) -> tuple[Tensor, Tensor, Tensor]:
        low, high = p.quantile([0.05, 0.95])
        return p.mean, low, high

    tensors = {"observed": part.y_test, "coverage": coverage(prediction, part.y_test, LEVELS.to(part.y_test))}
    tensors |= dict(zip(("mean", "low", "high"), band(prediction), strict=True))
    if part.x_train.shape[1] == 1:
        both = torch.cat([part.x_train, part.x_test])
        margin = 0.1 * (both.max() - both.min())
        grid = torch.linspace(float(both.min() - margin), float(both.max() + margin), 200).to(both)[:, None]
        names = ("grid_mean", "grid_low", "grid_high")
        tensors |= {"grid": grid[:, 0]} | dict(zip(names, band(fitted.predict(grid)), strict=True))
        tensors |= {"x_train": part.x_train[:, 0], "y_train": part.y_train, "x_test": part.x_test[:, 0]}
    return {name: values.detach().cpu().numpy() for name, values in tensors.items()}


def _draw(output: Path, rows: list[Row], dataset: str) -> None:
    curves = {}
    for row in rows:
        with np.load(output / f"{row['method']}.npz") as archive:
            curves[row["method"]] = {name: archive[name] for name in archive.files}
    _atomically(output / "comparison.png", lambda path: plot_comparison(rows, curves, path, dataset))
