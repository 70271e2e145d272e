"""The command ``pyro-dgp predict``: a kept fit at new rows, as a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_dgp.data.arrays import named
from pyro_dgp.data.categories import (
    class_numbers,
    encoded_as,
    or_its_source,
    possible_sources,
    sources_of,
    unused_columns,
    words_of_training,
)
from pyro_dgp.data.dataset import numbered_outputs
from pyro_dgp.data.reading import read_arrays, read_table, require_file, require_numbers
from pyro_dgp.internal.errors import shown
from pyro_dgp.internal.optional import optional
from pyro_dgp.internal.untrusted_files import why
from pyro_dgp.internal.whole_file import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from pyro_dgp.comparison.method_fit import MethodFit
    from pyro_dgp.prediction.rescaled import RescaledPrediction


#: Columns that a table of predictions may have, beside probabilities of classes.
FIGURES = ("mean", "sd", "quantile_05", "quantile_95", "class", "log_density")


def add_predict(commands: Any) -> None:
    """Add the command to those of the parser."""
    command = commands.add_parser("predict", help="predict new rows by a fit that compare has kept")
    add = command.add_argument
    add("--fit", type=Path, metavar="DIR", required=True, help="folder of a comparison")
    add("--method", metavar="NAME", required=True, help="the method whose fit is used")
    add(
        "--data",
        type=Path,
        metavar="FILE",
        required=True,
        help="new rows: CSV or Parquet with a header, or .npz with X",
    )
    add(
        "--target",
        metavar="COLUMN",
        help="target column, for the log density; none: the one of training, if it is there",
    )
    add("--model", metavar="FILE.py:NAME", help="where the model came from Python, or its file has moved on")
    add("--output", type=Path, metavar="FILE", help="CSV that is written; none: DATA-METHOD.csv in this folder")
    command.set_defaults(run=_predict)


def _predict(parsed: argparse.Namespace) -> int:
    from pyro_dgp.comparison.keep import load_fit
    from pyro_dgp.comparison.own_model import model_from_file

    output = parsed.output or Path(f"{parsed.data.stem}-{parsed.method}.csv")
    require_new(output)
    model = None if parsed.model is None else model_from_file(parsed.model)
    fit = load_fit(parsed.fit, parsed.method, model=model)
    kinds = possible_sources(fit.columns) - set(fit.columns)
    if fit.labels:
        kinds.add(parsed.target or fit.target_name)
    rows = read_rows(parsed.data, kinds)
    carried = rows.columns[carried_columns(rows, fit, parsed.target)]
    if len(carried) and parsed.data.suffix.lower() == ".csv":
        rows = read_rows(parsed.data, {*kinds, *carried})  # as it is written: 007 is no 7
    table = predicted(fit, rows, parsed.target)
    write_whole(output, lambda part: table.to_csv(part, index=False))
    print(f"{len(table)} predictions by {parsed.method} in {output}")
    spare = zip(map(str, rows.columns), spare_columns(rows, fit, parsed.target), strict=True)
    if left_out := [name for name, is_spare in spare if is_spare and is_figure(name)]:
        print(f"columns of {parsed.data.name} that have names of figures are not in it: {', '.join(left_out)}")
    folds, trained = folds_of(parsed.fit, parsed.method)
    if folds > 1:
        print(
            f"the fit is that of the first of {folds} folds, trained on {trained} rows: compare without folds (--split 0) for one of more rows"
        )
    return 0


def folds_of(folder: Path, method: str) -> tuple[int, int]:
    """Number of folds of a comparison, and of training rows of the first of them, whose fit is kept; 1 and 0 where its table does not say."""
    from pyro_dgp.comparison.files import TABLE

    try:
        rows = json.loads((folder / TABLE).read_text())
        row = next(row for row in rows if row["method"] == method)
        return int(row.get("folds", 1)), int(row.get("n_train", 0))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return 1, 0


def require_new(output: Path) -> None:
    """Raise ``ValueError`` for a file that is there already, or that cannot be made."""
    try:
        output.lstat()
    except FileNotFoundError as error:
        if not output.parent.is_dir():
            raise ValueError(f"there is no folder {str(output.parent)!r}: make it, or name another --output") from error
    except OSError as error:
        raise ValueError(
            f"the file {shown(output.name)!r} cannot be made ({why(error)}): name another --output"
        ) from error
    else:
        raise ValueError(f"the file {str(output)!r} exists: name another --output")


def read_rows(path: Path, kinds: Collection[str] = ()) -> pd.DataFrame:
    """A table of new rows; the columns of ``.npz`` are numbers, with the target as ``y``.

    :param kinds: columns that stay text where it is all numbers, those that training took for kinds or classes.
    :raises ValueError: one sentence for a file that cannot be read, or holds no rows or no numbers.
    """
    require_file(path)
    if path.suffix.lower() != ".npz":
        return read_table(path, kinds)
    pd = optional("pandas", extra="compare", what="a table of predictions")
    arrays = read_arrays(path, needed=("X",))
    if arrays["X"].ndim != 2:
        raise ValueError(f"'X' in {path.name!r} has shape {arrays['X'].shape}: it must be (N, D)")
    table = pd.DataFrame(arrays["X"])
    if "y" in arrays:
        if arrays["y"].ndim not in (1, 2) or len(arrays["y"]) != len(table):
            raise ValueError(
                f"'y' in {path.name!r} has shape {arrays['y'].shape} for {len(table)} rows of X: it must be (N,) or (N, P), or be left out"
            )
        values = arrays["y"].reshape(len(table), arrays["y"].shape[1] if arrays["y"].ndim == 2 else 1)
        names = ("y",) if values.shape[1] == 1 else numbered_outputs(values.shape[1])
        table[list(names)] = values
    if table.empty:
        raise ValueError(f"{path.name!r} has zero rows: give a file with data")
    return table


def predicted(fit: MethodFit, rows: pd.DataFrame, target: str | None = None) -> pd.DataFrame:
    """Mean, standard deviation, 5 % and 95 % quantile of each row in the target's units, and its log density if the target is there.

    For classes the columns are the most probable class and the probability of each. For several outputs there are four columns for each, such as
    ``mean(heating)``, and the log density is that of all of a row together.

    Columns are taken by the names that they had in training, whatever their order. Others, such as names of the rows, stand first, unless they
    have the name of a figure of the predictions. Where training had no names columns are taken in order, without the target's.

    :param target: column of the target; that of training if it is there.
    :raises ValueError: one sentence for a column that is missing.
    """
    import numpy as np

    from pyro_dgp.prediction.target_kinds import has_few_values

    pd = optional("pandas", extra="compare", what="a table of predictions")
    if target is not None and target not in rows.columns:
        raise ValueError(f"the new rows have no column {target!r}: they have {', '.join(map(str, rows.columns))}")
    if fit.outputs and target is not None:
        raise ValueError(f"the fit is of {len(fit.outputs)} targets, {fit.target_name}: leave --target out")
    is_input = any(name == fit.target_name or name.startswith(f"{fit.target_name}=") for name in fit.columns)
    is_there = fit.target_name in rows.columns and not is_input
    target = target or (fit.target_name if is_there else None)
    targets = [name for name in fit.outputs if name in rows.columns] or ([] if target is None else [target])
    inputs = encoded_as(rows.drop(columns=targets), fit.columns)
    missing = [name for name in fit.columns if name not in inputs.columns]
    if missing:
        raise ValueError(
            f"the new rows have no column {or_its_source(missing[0])}, which the fit takes: its inputs are {', '.join(sources_of(fit.columns))}"
        )
    inputs = inputs[list(fit.columns)] if fit.columns else inputs
    is_blank = bool(targets) and bool(rows[targets].isna().all(axis=None))  # a column that waits to be filled in
    are_there = bool(targets) and not is_blank and len(targets) == max(1, len(fit.outputs))
    observed = [_numbered(rows[name], fit.labels) for name in targets] if are_there else []
    require_numbers(
        inputs.assign(**{str(name): own for name, own in zip(targets, observed, strict=False)}), "the new rows"
    )
    prediction = fit.predict(inputs.to_numpy(dtype=float))
    if has_few_values(prediction.standardised.mixture().components):
        columns = _of_classes(prediction.probs, fit.labels, fit.outputs)
    else:
        low, high = _quantiles(prediction)
        figures = {"mean": prediction.mean, "sd": prediction.variance.sqrt(), "quantile_05": low, "quantile_95": high}
        columns = _of_outputs(figures, fit.outputs)
    table = pd.DataFrame(columns)
    if observed:
        y = np.stack([np.asarray(own, dtype=float) for own in observed], -1)
        if not np.isfinite(y).all():
            number = int((~np.isfinite(y)).any(0).argmax())
            raise ValueError(
                f"the target {targets[number]!r} of the new rows holds NaN or infinity: drop the column or fill it"
            )
        y = named(y if fit.outputs else y[:, 0], fit.labels)
        table["log_density"] = prediction.log_prob(y).cpu().numpy()
    return pd.concat((rows.loc[:, carried_columns(rows, fit, target)].reset_index(drop=True), table), axis=1)


def carried_columns(rows: pd.DataFrame, fit: MethodFit, target: str | None = None) -> list[bool]:
    """Tell of each column of new rows whether it stands before the predictions: it is spare, and has no name of a figure."""
    spare = zip(map(str, rows.columns), spare_columns(rows, fit, target), strict=True)
    return [is_spare and not is_figure(name) for name, is_spare in spare]


def spare_columns(rows: pd.DataFrame, fit: MethodFit, target: str | None = None) -> list[bool]:
    """Tell of each column of new rows whether it is no input and no target of a fit. Where training had no names none is spare."""
    targets = {*fit.outputs, target or fit.target_name}
    unused = unused_columns(rows, fit.columns) if fit.columns else [False] * len(rows.columns)
    return [is_unused and str(name) not in targets for name, is_unused in zip(rows.columns, unused, strict=True)]


def is_figure(name: str) -> bool:
    """Tell whether a column of predictions may have this name."""
    return name.partition("(")[0] in FIGURES or name.startswith("p(")


def _of_outputs(figures: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Any]:
    """Columns of a table: a figure by its name, or one for each output."""
    arrays = {name: values.cpu().numpy() for name, values in figures.items()}
    if not outputs:
        return arrays
    return {f"{name}({output})": values[:, at] for at, output in enumerate(outputs) for name, values in arrays.items()}


def _numbered(column: Any, labels: Sequence[str]) -> Any:
    """A column of the target, words as the numbers of their classes."""
    if not labels:
        return column
    if column.isna().any():
        raise ValueError(
            f"the target has {int(column.isna().sum())} blank cells among the new rows: drop the column or fill it"
        )
    return class_numbers(words_of_training(column, labels, "the target"), labels)


def _of_classes(probs: Tensor, labels: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    """The most probable class, and the probability of each class, of each output where there are several."""
    import numpy as np

    if outputs:
        each = [(name, _of_classes(probs[:, number], labels, ())) for number, name in enumerate(outputs)]
        return {f"{figure}({name})": values for name, columns in each for figure, values in columns.items()}
    names = list(labels) or [str(number) for number in range(probs.shape[-1])]
    columns: dict[str, Any] = {"class": np.array(names)[probs.argmax(-1).cpu().numpy()]}
    return columns | {f"p({name})": probs[:, number].cpu().numpy() for number, name in enumerate(names)}


def _quantiles(prediction: RescaledPrediction) -> Tensor:
    """The 5 % and 95 % quantiles of each row, from draws where the likelihood has no distribution function."""
    import torch

    levels = [0.05, 0.95]
    try:
        return prediction.quantile(levels)
    except NotImplementedError:
        draws = prediction.sample((2000,))
        return draws.quantile(torch.tensor(levels).to(draws), 0)
