"""Data that stay on disk: their rows are read block by block, shuffled and put into batches, in memory that does not grow with them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.data.categories import kinds_in
from pyro_dgp.data.dataset import require_real
from pyro_dgp.internal.affine import standardised
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.optional import optional
from pyro_dgp.internal.untrusted_files import UnreadableError, require_plain

#: Inputs, targets, and further row arguments of the model if there are any.
Block = tuple[NDArray[Any], ...]

#: Blocks whose rows are shuffled together, in memory twice while they are put into one.
POOL = 4
#: Largest whole number of a row argument.
LARGEST = np.iinfo(np.int64).max


class Stream(ABC):
    """Base of streams: inputs ``(N, D)`` and targets ``(N,)`` in blocks of rows, of which :data:`POOL` are shuffled together.

    A model that takes more than inputs and targets, ``model(x, y, exposure)``, has its further row arguments in each block
    and each batch after these two, in its own order. Those of whole numbers, such as indices, are int64 in a batch, and those of truth values
    bool; all else has the dtype of the batches, targets that are classes or counts too. Memory is that of twice :data:`POOL` blocks. A stream of your own sets ``sizes`` and writes :meth:`read`.

    :ivar sizes: rows of each block.
    :param dtype: of inputs, targets and real row arguments in the batches.
    :param device: of the batches.
    """

    sizes: Sequence[int]

    def __init__(self, dtype: torch.dtype | None = None, device: str = "cpu") -> None:
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.device = device

    @abstractmethod
    def read(self, block: int) -> Block:
        """Inputs ``(rows, D)``, targets ``(rows,)`` and further row arguments ``(rows, ...)`` of a block, in memory."""

    def __len__(self) -> int:
        return sum(self.sizes)

    def batches(self, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Batches without end. A pass visits every row once: blocks in random order, the rows of :data:`POOL` of them shuffled
        together; its last batch may be smaller. Rows that a file has in an order are mixed no further than that.

        :param start: number of the first batch, counted from 0. Blocks of those before it are not read.
        :raises ValueError: for fewer rows than one in a batch; at a block with NaN or infinity, or of other lengths than :attr:`sizes` says.
        """
        if batch_size < 1 or start < 0:
            raise ValueError(
                f"batch_size is at least 1 and start at least 0, got {batch_size} and {start}: give rows to each batch"
            )
        if len(self) == 0:
            raise ValueError("the stream has no rows: look at its files")
        generator, filled = np.random.default_rng(seed), [block for block, size in enumerate(self.sizes) if size]
        firsts = np.cumsum([0, *self.sizes])
        while True:
            order = generator.permutation(filled)
            left = np.empty(0, dtype=np.int64)  # rows that the batches of a pool left over
            rest: Block | None = None  # what they hold, if it was read
            for first in range(0, len(order), POOL):
                blocks = [int(block) for block in order[first : first + POOL]]
                numbers = np.concatenate([left, *(np.arange(firsts[block], firsts[block + 1]) for block in blocks)])
                shuffled = generator.permutation(len(numbers))
                count = len(numbers) // batch_size
                full = count * batch_size
                if start >= count:
                    start, rest = start - count, None
                else:
                    pool = self._joined(blocks, self._rows(left, firsts) if rest is None else rest)
                    for at in range(start * batch_size, full, batch_size):
                        yield self._tensors(pool, shuffled[at : at + batch_size])
                    start, rest = 0, tuple(part[shuffled[full:]] for part in pool)
                    del pool  # before the next one is read
                left = numbers[shuffled[full:]]
            if len(left) and start:
                start -= 1
            elif len(left):
                last = self._rows(left, firsts) if rest is None else rest
                assert last is not None
                yield self._tensors(last, np.arange(len(left)))

    def _rows(self, numbers: NDArray[np.int64], firsts: NDArray[np.int64]) -> Block | None:
        """Some rows by their numbers; nothing for none.

        :param firsts: the number of the first row of each block.
        """
        if len(numbers) == 0:
            return None
        owners = np.searchsorted(firsts, numbers, side="right") - 1
        found, order = [], []
        for block in np.unique(owners):
            places = np.flatnonzero(owners == block)
            found.append(tuple(part[numbers[places] - firsts[block]] for part in self._checked(int(block))))
            order.append(places)
        back = np.argsort(np.concatenate(order))
        return tuple(np.concatenate(parts)[back] for parts in zip(*found, strict=True))

    def sample(self, rows: int, seed: int = 0) -> tuple[Tensor, ...]:
        """Rows of a few random blocks, for ``guide.initialize``; every row if the stream has no more than that."""
        if rows < 1:
            raise ValueError(f"a sample has at least 1 row, got rows={rows}: ask for more")
        return next(self.batches(min(rows, len(self)), seed))

    def in_order(self) -> Iterator[tuple[Tensor, ...]]:
        """Every block once, in order: one pass, in memory of one block.

        :raises ValueError: at a block with NaN or infinity, or of other lengths than :attr:`sizes` says.
        """
        for block, size in enumerate(self.sizes):
            if size:
                yield self._tensors(self._checked(block), np.arange(size))

    def _joined(self, numbers: list[int], rest: Block | None) -> Block:
        """Several blocks as one, after the rows that the last batches left over."""
        blocks = [*([rest] if rest else []), *map(self._checked, numbers)]
        return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))

    def _checked(self, block: int) -> Block:
        parts = self.read(block)
        names = ["an input", "the target", *(f"row argument {number}" for number in range(1, len(parts) - 1))]
        if any(len(part) != self.sizes[block] for part in parts):
            found = ", ".join(str(len(part)) for part in parts)
            raise ValueError(
                f"block {block} of the stream has inputs, targets and row arguments of {found} rows and sizes says {self.sizes[block]}: give all of "
                "them as many, and leave files as they are while they are read"
            )
        for name, values in zip(names, parts, strict=True):
            require_real(values, f"the values of {name} of block {block} of the stream")
            bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
            if bad.any():
                row = sum(self.sizes[:block]) + int(bad.argmax())
                raise ValueError(f"{name} of row {row} of the stream is NaN or infinity: drop or fill such rows")
        for name, values in zip(names[2:], parts[2:], strict=True):
            whole = np.asarray(values)
            if whole.dtype.kind == "u" and (most := int(whole.max(initial=0))) > LARGEST:
                raise ValueError(
                    f"{name} of the stream holds {most}, and whole numbers go up to {LARGEST}: number its values anew"
                )
        return parts

    def _tensors(self, block: Block, rows: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Return rows of a block as tensors: inputs and targets real, row arguments as they are."""
        return tuple(self._tensor(part[rows], may_be_whole=number >= 2) for number, part in enumerate(block))

    def _tensor(self, values: NDArray[Any], *, may_be_whole: bool) -> Tensor:
        """Return values of a batch.

        :param may_be_whole: whether whole numbers and truth values stay what they are.
        """
        values = np.asarray(values)
        if may_be_whole and values.dtype.kind in "iu":
            return torch.as_tensor(values.astype(np.int64, copy=False), device=self.device)
        dtype = torch.bool if may_be_whole and values.dtype.kind == "b" else self.dtype
        return torch.as_tensor(values, dtype=dtype, device=self.device)


class NumpyStream(Stream):
    """Two ``.npy`` files or more, of which a block at a time is read.

    Files that have another shape than when the stream was opened are refused.

    :param x: file of the inputs ``(N, D)``.
    :param y: file of the targets ``(N,)``.
    :param block_rows: rows of a block.
    :param rows: files of further row arguments of the model, ``(N, ...)``, in the order that it takes them in.
    """

    def __init__(
        self,
        x: str | Path,
        y: str | Path,
        block_rows: int = 65_536,
        *,
        rows: Sequence[str | Path] = (),
        **batches: Any,
    ) -> None:
        super().__init__(**batches)
        self.files = (Path(x), Path(y), *map(Path, rows))
        self.arrays = [_array_on_disk(file) for file in self.files]
        shapes = [array.shape for array in self.arrays]
        if len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]:
            raise ValueError(f"{x} and {y} have shapes {shapes[0]} and {shapes[1]}: they must be (N, D) and (N,)")
        for file, shape in zip(self.files, shapes, strict=True):
            if shape[:1] != shapes[0][:1]:
                raise ValueError(
                    f"{file} has shape {shape} and {x} has {shapes[0][0]} rows: give one entry for each row"
                )
        if block_rows < 1:
            raise ValueError(f"block_rows must be at least 1, got {block_rows}")
        total = shapes[0][0]
        self.starts = range(0, total, block_rows)
        self.sizes = [min(block_rows, total - start) for start in self.starts]

    def read(self, block: int) -> Block:
        """See :class:`Stream`."""
        start, count = self.starts[block], self.sizes[block]
        return tuple(
            _rows_on_disk(file, array, start, count) for file, array in zip(self.files, self.arrays, strict=True)
        )


@dataclass(frozen=True)
class _ArrayOnDisk:
    """Shape and kind of an array, from the head of its ``.npy`` file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_by_column: bool
    offset: int


def _array_on_disk(file: Path) -> _ArrayOnDisk:
    """Shape and kind of an array of numbers on disk."""
    try:
        require_plain(file)
        values: Any = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever bytes that are no array make of the parser
        reason = str(error) if isinstance(error, UnreadableError) else first_line(error)
        raise ValueError(f"{file} is no .npy file of numbers ({reason}): write it by np.save") from error
    if not isinstance(values, np.memmap) or not _are_numbers(values.dtype):
        raise ValueError(f"{file} is no .npy file of numbers but holds {getattr(values, 'dtype', 'several arrays')}")
    return _ArrayOnDisk(values.shape, values.dtype, not values.flags.c_contiguous, values.offset)


def _rows_on_disk(file: Path, opened: _ArrayOnDisk, start: int, count: int) -> NDArray[Any]:
    """Rows of an array on disk. They are read, not mapped: a file that shrinks meanwhile would end the process.

    :param opened: what the file was when the stream was opened.
    :raises ValueError: if it is another array now, or shorter than its head says.
    """
    now = _array_on_disk(file)
    if now != opened:
        raise ValueError(
            f"{file} had shape {opened.shape} and {opened.dtype} when the stream was opened and has {now.shape} and {now.dtype} now: open the stream "
            "again, and leave the files as they are while they are read"
        )
    each = math.prod(now.shape[1:])
    places = [column * now.shape[0] + start for column in range(each)] if now.is_by_column else [start * each]
    wanted = count if now.is_by_column else count * each
    with file.open("rb") as opened_file:
        parts = []
        for place in places:
            opened_file.seek(now.offset + place * now.dtype.itemsize)
            parts.append(np.fromfile(opened_file, now.dtype, wanted))
    if any(len(part) != wanted for part in parts):
        raise ValueError(f"{file} became shorter while it was read: leave the files as they are until training ends")
    values = np.concatenate(parts)
    return values.reshape(count, *now.shape[1:], order="F" if now.is_by_column else "C")


class ParquetStream(Stream):
    """A Parquet file, whose row groups are the blocks; their size was chosen when the file was written.

    An index that pandas wrote beside the columns is no column, as for :func:`~pyro_dgp.load`.

    :param path: the file.
    :param target: the column of the targets.
    :param rows: columns that are row arguments of the model besides x and y, in the order that it takes them in. All other
        columns are inputs.
    """

    def __init__(self, path: str | Path, target: str, *, rows: Sequence[str] = (), **batches: Any) -> None:
        super().__init__(**batches)
        parquet = optional("pyarrow.parquet", extra="parquet", what="reading Parquet")
        try:
            require_plain(Path(path))
            self.file = parquet.ParquetFile(path)
            schema = self.file.schema_arrow
            names = _columns(schema)
        except Exception as error:  # whatever bytes of another format make of the parser
            reason = str(error) if isinstance(error, UnreadableError) else first_line(error)
            raise ValueError(f"{path} cannot be read as Parquet ({reason}): check the file") from error
        self.path, self.target, self.rows = Path(path), target, tuple(rows)
        for name in (target, *rows):
            if name not in names:
                raise ValueError(f"{path} has no column {name!r}: its columns are {', '.join(names[:20])}")
        for name in names:
            if name in kinds_in(schema):
                raise ValueError(f"column {name!r} of {path} holds kinds (category), not numbers: encode or drop it")
            if not _holds_numbers(schema.field(name).type):
                raise ValueError(
                    f"column {name!r} of {path} holds {schema.field(name).type}, not numbers: encode or drop it"
                )
        self.inputs = [name for name in names if name not in (target, *rows)]
        if not self.inputs:
            raise ValueError(f"{path} has no input columns besides {', '.join((target, *rows))}: give at least one")
        self.sizes = [self.file.metadata.row_group(number).num_rows for number in range(self.file.num_row_groups)]

    def read(self, block: int) -> Block:
        """See :class:`Stream`."""
        try:
            table = self.file.read_row_group(block)
        except OSError as error:
            raise ValueError(
                f"block {block} of {self.path} cannot be read ({error}): leave the file as it is while it is read, and open the stream again"
            ) from error
        inputs = np.column_stack([_values(table[name]) for name in self.inputs])
        return (inputs, *(_values(table[name]) for name in (self.target, *self.rows)))


def _values(column: Any) -> NDArray[Any]:
    """Return the values of a column of Parquet, with NaN where truth values are missing, as numpy has it where numbers are."""
    values: NDArray[Any] = column.to_numpy()
    return values if values.dtype != object else column.cast("float64").to_numpy()


def _holds_numbers(kind: Any) -> bool:
    """Whether a column of Parquet of that type holds numbers or truth values, and neither kinds, times nor values of another type."""
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return False
    return dtype.kind in "biuf"


def _are_numbers(dtype: Any) -> bool:
    """Whether values are numbers, or truth values, which count as 0 and 1."""
    return np.issubdtype(dtype, np.number) or np.issubdtype(dtype, np.bool_)


def _columns(schema: Any) -> list[str]:
    """Return the columns of a Parquet file without those that pandas wrote for the index of the rows."""
    index = (schema.pandas_metadata or {}).get(
        "index_columns", []
    )  # words, or a record of a range, which has no column
    return [name for name in schema.names if name not in index]


class Standardized(Stream):
    """Another stream with inputs and targets of zero mean and unit variance, by one pass over all of its rows.

    Further row arguments stay as they are.

    :ivar target_mean: mean of the targets.
    :ivar target_scale: standard deviation of the targets, ``y = target_mean + target_scale * standardised``.
    :raises ValueError: if a column is constant.
    """

    def __init__(self, stream: Stream) -> None:
        from sklearn.preprocessing import StandardScaler

        super().__init__(stream.dtype, stream.device)
        self.stream, self.sizes = stream, stream.sizes
        self.inputs, self.targets = StandardScaler(), StandardScaler()
        ends: list[Any] = []  # of the target and each input: the variance of a constant need not be zero, by rounding
        for block in [block for block, size in enumerate(self.sizes) if size]:
            x, y, *_ = stream._checked(block)
            x, y = x.astype(float), y.astype(float)[:, None]
            self.inputs.partial_fit(x)
            self.targets.partial_fit(y)
            columns = np.hstack([y, x])
            ends += [columns.min(0), columns.max(0)]
        is_constant = np.min(ends, axis=0) == np.max(ends, axis=0)
        if is_constant.any():
            number = int(is_constant.argmax())
            raise ValueError(f"{f'input {number - 1}' if number else 'the target'} of the stream is constant: drop it")
        self.target_mean, self.target_scale = float(self.targets.mean_[0]), float(self.targets.scale_[0])

    def read(self, block: int) -> Block:
        """See :class:`Stream`."""
        x, y, *rest = self.stream.read(block)
        x = standardised(x, self.inputs.mean_, self.inputs.scale_)
        y = np.asarray(y, dtype=np.float64)  # NumPy would subtract in the precision of the file
        return x, standardised(y, self.target_mean, self.target_scale), *rest
