"""Data sets: reading, checking, splitting, standardising."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
logger = logging.getLogger("pyro_dgp")


@dataclass(frozen=True)
class Dataset:
    """Inputs ``(N, D)``, targets ``(N,)``, in their own units, and test masks ``(N, K)`` if the file has any.

    :ivar columns: names of the inputs, if the file has any, and ``target``, the name of the target.
    """

    name: str
    x: Array
    y: Array
    splits: NDArray[np.bool_] | None = None
    columns: tuple[str, ...] = ()
    target: str = "y"

    def fingerprint(self) -> str:
        """A short hash of the values, which tells data sets of one name apart."""
        parts = (self.x, self.y) if self.splits is None else (self.x, self.y, self.splits)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


@dataclass(frozen=True)
class Scaler:
    """Affine map to zero mean and unit variance, by the statistics of the training part alone."""

    mean: Array
    scale: Array

    @classmethod
    def fit(cls, values: Array) -> Scaler:
        """Statistics of the columns of ``values``."""
        return cls(np.asarray(values.mean(0)), np.asarray(values.std(0)))

    def __call__(self, values: Array) -> Array:
        """Standardised values."""
        scaled: Array = (values - self.mean) / self.scale
        return scaled


@dataclass(frozen=True)
class Split:
    """One training and test part, standardised by the training part; ``target_scale`` is its standard deviation of y."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    target_mean: float
    target_scale: float


def load_diabetes() -> Dataset:
    """scikit-learn's diabetes data (442 x 10), which an installed dependency ships."""
    from sklearn import datasets

    bunch = datasets.load_diabetes()
    names = tuple(map(str, bunch.feature_names))
    return Dataset("diabetes", bunch.data, bunch.target, columns=names, target="progression")


def load_default() -> Dataset:
    """The data set of a comparison that names none."""
    return load_diabetes()


#: Data sets that installed dependencies ship, by the name that ``--data`` takes in the place of a file.
SHIPPED = {"diabetes": load_diabetes}


def load(path: str | Path, target: str | None = None) -> Dataset:
    """Read a data set and check it.

    :param path: a name of :data:`SHIPPED`, or a file: ``.npz`` with ``X``, ``y`` and, if there, ``splits`` (1 = test), or CSV or Parquet with a header.
    :param target: the target's column; the last one of a table if not given.
    :raises ValueError: one sentence that says what is wrong with the file and what to do.
    """
    path = Path(path)
    if str(path) in SHIPPED and not path.exists():
        if target is not None:
            raise ValueError(f"--target names a column of a table, and {str(path)!r} has one target")
        return SHIPPED[str(path)]()
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}: check the path given to --data")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        dataset = _from_npz(path, target)
    elif suffix in (".csv", ".parquet"):
        dataset = _from_table(path, suffix, target)
    else:
        raise ValueError(f"{path.name!r} is neither CSV, Parquet nor .npz: convert it to one of them")
    check(dataset)
    return dataset


def _from_npz(path: Path, target: str | None) -> Dataset:
    if target is not None:
        raise ValueError(f"--target names a column of a table, and {path.name!r} is .npz with its target in 'y'")
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("X", "y", "splits") if name in archive.files}
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path.name!r} cannot be read as .npz ({error}): save it with numpy.savez(X=..., y=...)"
        ) from error
    for name in ("X", "y"):
        if name not in arrays:
            raise ValueError(f"{path.name!r} has no array {name!r}: save it with numpy.savez(X=..., y=...)")
        if not np.issubdtype(arrays[name].dtype, np.number):
            raise ValueError(f"{name!r} in {path.name!r} holds {arrays[name].dtype}, not numbers: encode it first")
    x, y = arrays["X"], arrays["y"]
    if np.iscomplexobj(x) or np.iscomplexobj(y):
        raise ValueError(f"{path.name!r} holds complex numbers: give real inputs and targets")
    if x.ndim != 2:
        raise ValueError(f"'X' in {path.name!r} has shape {x.shape}: it must be (N, D)")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.shape != (len(x),):
        raise ValueError(f"'y' in {path.name!r} has shape {y.shape} for {len(x)} rows of X: it must be (N,) or (N, 1)")
    splits = arrays.get("splits")
    if splits is not None and (splits.ndim != 2 or len(splits) != len(x)):
        raise ValueError(f"'splits' in {path.name!r} has shape {splits.shape}: it must be (N, K), 1 for test rows")
    return Dataset(path.stem, x.astype(float), y.astype(float), None if splits is None else splits == 1)


def _from_table(path: Path, suffix: str, target: str | None) -> Dataset:
    try:
        table = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(f"reading {path.name!r} needs pyarrow: pip install 'pyro-dgp[parquet]'") from error
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path.name!r} cannot be read as {suffix[1:]} ({reason}): check the file") from error
    target = str(table.columns[-1]) if target is None and len(table.columns) else target
    if target is None or target not in table.columns:
        columns = ", ".join(map(str, table.columns[:20]))
        raise ValueError(f"{path.name!r} has no column {target!r}: its columns are {columns}")
    if table.empty and len(table.columns):
        raise ValueError(f"{path.name!r} has zero rows: give a file with data")
    words = [str(name) for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    if words:
        raise ValueError(f"column {words[0]!r} of {path.name!r} does not hold numbers: encode or drop it")
    y = table[target].to_numpy(dtype=float, na_value=np.nan)
    x = table.drop(columns=[target]).to_numpy(dtype=float, na_value=np.nan)
    names = tuple(str(name) for name in table.columns if name != target)
    return Dataset(path.stem, x, y, columns=names, target=target)


def check(dataset: Dataset) -> None:
    """Raise ``ValueError`` with one sentence for data that no method could be trained on."""
    name, x, y = dataset.name, dataset.x, dataset.y
    if x.ndim != 2 or y.shape != (len(x),):
        raise ValueError(f"{name!r} has inputs {x.shape} and targets {y.shape}: they must be (N, D) and (N,)")
    if len(x) == 0:
        raise ValueError(f"{name!r} has zero rows: give a file with data")
    if x.shape[1] == 0:
        raise ValueError(f"{name!r} has no input columns besides the target: give at least one")
    for label, values in (("input", x), ("target", y[:, None])):
        bad = ~np.isfinite(values)
        if bad.any():
            row, column = map(int, np.argwhere(bad)[0])
            where = f"input column {column}" if label == "input" else "the target"
            raise ValueError(
                f"{name!r} has NaN or infinity in {where}, row {row}: drop or fill {int(bad.any(1).sum())} such rows"
            )
    if len(x) < 10:
        raise ValueError(f"{name!r} has {len(x)} rows: at least 10 are needed to train and test")
    if len(np.unique(y)) == 2:
        logger.warning(
            "the target of %r has two values and is treated as a number: for classes write a model with Bernoulli()",
            name,
        )


def held_out_rows(dataset: Dataset, number: int) -> NDArray[np.bool_]:
    """Mask of the test rows ``(N,)`` of split ``number``: the file's own, else a random tenth drawn with that seed."""
    if dataset.splits is not None:
        count = dataset.splits.shape[1]
        if not 0 <= number < count:
            raise ValueError(f"{dataset.name!r} has splits 0 to {count - 1}, not {number}")
        return dataset.splits[:, number]
    if number < 0:
        raise ValueError(f"a split is numbered from 0, got {number}")
    test = np.zeros(len(dataset.x), dtype=bool)
    test[np.random.RandomState(number).permutation(len(test))[: max(1, len(test) // 10)]] = True
    return test


def split(dataset: Dataset, number: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Split:
    """Training and test part ``number``: the file's own, else a random 90/10 one drawn with that seed.

    :raises ValueError: if there is no such split, or a column is constant in its training part.
    """
    test = held_out_rows(dataset, number)
    if test.all() or not test.any():
        raise ValueError(f"split {number} of {dataset.name!r} leaves no training or no test rows: check 'splits'")
    scale_x, scale_y = Scaler.fit(dataset.x[~test]), Scaler.fit(dataset.y[~test])
    if (constant := np.flatnonzero(_is_constant(dataset.x[~test]))).size:
        raise ValueError(f"input column {constant[0]} of {dataset.name!r} is constant in the training part: drop it")
    if _is_constant(dataset.y[~test][:, None])[0]:
        raise ValueError(f"the target of {dataset.name!r} is constant in the training part: there is nothing to learn")

    def tensor(values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    return Split(
        tensor(scale_x(dataset.x[~test])),
        tensor(scale_y(dataset.y[~test])),
        tensor(scale_x(dataset.x[test])),
        tensor(scale_y(dataset.y[test])),
        float(scale_y.mean),
        float(scale_y.scale),
    )


def _is_constant(values: Array) -> NDArray[np.bool_]:
    spread = values.max(0) - values.min(0)
    return np.asarray(spread <= 1e-12 * np.abs(values).max(0))
