"""Row arguments: the arguments of a model that hold one entry for each row of its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Size, Tensor

#: Positional and named arguments of one call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@runtime_checkable
class Batch(Protocol):
    """Rows of one step, all or a part of which a call is made on."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, part: slice) -> Call:
        """Return the arguments of a call on a part of the rows."""


def num_rows(x: Tensor) -> int:
    """Return the number of rows of inputs ``(..., N, D)``, or of values ``(N,)``."""
    return x.shape[max(x.dim() - 2, 0)]


def inputs_among(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the arguments of a call whose rows may be those of the data: tensors ``(..., N, D)``.

    Where the first tensor is ``(N,)`` it is the first whose length another one has too, if all are ``(N,)``.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if tensors and tensors[0].dim() >= 2:
        return [tensor for tensor in tensors if tensor.dim() >= 2]
    if any(tensor.dim() != 1 for tensor in tensors):
        return []
    lengths = [len(tensor) for tensor in tensors]
    return [tensor for tensor in tensors if lengths.count(len(tensor)) > 1][:1]


class RowArguments:
    """The arguments of a call, of which those that hold rows can be taken row by row.

    The rows of the inputs x are their last axis but one, ``(..., N, D)``. Where a model has groups (data sets
    ``(*groups, N, D)``, or a plate around its Gaussian processes), these are the axes in front of the rows of all else, as
    in y ``(*groups, N)``. So an argument holds rows if it is a tensor, given by itself, whose shape begins with
    ``(*groups, N)``, or with what broadcasting leaves of that, such as ``(N,)``: targets, an offset, an exposure, a second
    set of inputs. The longest beginning that fits is taken.

    All others (numbers, tensors of other lengths, lists) go to each call whole. A tensor that has as many entries as there
    are rows and is no row argument belongs into the model, as a buffer, or gets another first dimension.

    :param args: positional arguments.
    :param kwargs: arguments by name.
    :param x: the inputs; the first positional argument if not given.
    :param groups: the groups of the model; the batch axes of x if not given.
    :param whole: names of arguments that go to each call whole, whatever their shape.

    >>> import torch
    >>> from pyro_dgp.internal.rows import RowArguments
    >>> arguments = RowArguments((torch.zeros(5, 2),), {"exposure": torch.ones(5), "power": 2.0})
    >>> (x,), named = arguments[slice(0, 3)]
    >>> len(x), len(named["exposure"]), named["power"]
    (3, 3, 2.0)
    >>> (x, y), _ = RowArguments((torch.zeros(4, 5, 2), torch.zeros(4, 5)), {})[slice(0, 3)]  # four data sets
    >>> x.shape, y.shape
    (torch.Size([4, 3, 2]), torch.Size([4, 3]))
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        x: Tensor | None = None,
        groups: Size | None = None,
        whole: Collection[str] = (),
    ) -> None:
        self.args, self.kwargs, self.whole = args, dict(kwargs), frozenset(whole)
        self.x: Tensor = args[0] if x is None else x
        self.count = num_rows(self.x)
        self.groups = Size(self.x.shape[:-2]) if groups is None else groups

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice | Tensor) -> Call:
        """Return the arguments of a call on some rows: a slice, numbers of rows, or a mask over all rows."""
        self._require_tensors(rows)
        return tuple(self._taken(value, rows) for value in self.args), {
            name: value if name in self.whole else self._taken(value, rows) for name, value in self.kwargs.items()
        }

    def grouped(self, groups: Size, *, whole: Collection[str] = ()) -> RowArguments:
        """Return the same arguments of a model with these groups, some of which go to each call whole."""
        return RowArguments(self.args, self.kwargs, x=self.x, groups=groups, whole=whole)

    def axis_of(self, value: Any) -> int | None:
        """Return the axis of an argument that holds the rows; ``None`` if none does."""
        if not isinstance(value, Tensor):
            return None
        if value is self.x:
            return max(value.dim() - 2, 0)
        for axis in range(len(self.groups), -1, -1):
            if value.shape[: axis + 1] == (*self.groups[len(self.groups) - axis :], self.count):
                return axis
        return None

    def _taken(self, value: Any, rows: slice | Tensor) -> Any:
        axis = self.axis_of(value)
        return value if axis is None else value[(slice(None),) * axis + (rows,)]

    def left_out(self, further: Collection[str], whole: Collection[str]) -> list[str]:
        """Return the names of tensors that an earlier call had and this one does not give.

        :param further: names of those with rows, and ``whole``, of those without.
        :raises ValueError: for a tensor of several entries, but not one for each row, where there were rows.
        """
        for name in sorted(further):
            value = self.kwargs.get(name)
            if isinstance(value, Tensor) and value.numel() > 1 and self.axis_of(value) is None:
                raise ValueError(
                    f"the argument {name!r} has shape {tuple(value.shape)}, and there are {self.count} rows: give it an entry for each row, as guide.initialize got it"
                )
        return sorted({*further, *whole} - self.kwargs.keys())

    def _require_tensors(self, rows: slice | Tensor) -> None:
        """Raise where some of the rows are taken, for NumPy arrays with an entry for each row."""
        if isinstance(rows, slice) and len(range(*rows.indices(self.count))) == self.count:
            return
        for name, value in self._named:
            if isinstance(value, np.ndarray) and value.ndim and len(value) == self.count:
                raise TypeError(
                    f"the argument {name!r} is a NumPy array with an entry for each of the {self.count} rows, of which no batch can be taken: pass a tensor, "
                    f"torch.as_tensor({name})"
                )

    @property
    def _named(self) -> list[tuple[str, Any]]:
        """The arguments by name that may hold rows."""
        return [(name, value) for name, value in self.kwargs.items() if name not in self.whole]

    @property
    def tensors(self) -> list[Tensor]:
        """The row arguments, positional ones first."""
        given = (*self.args, *(value for _, value in self._named))
        return [value for value in given if self.axis_of(value) is not None]

    def require_finite(self, purpose: str) -> None:
        """Raise if a named row argument holds NaN or infinity.

        :param purpose: what the rows are for, as the message says it: ``training``.
        """
        for name, value in self._named:
            if self.axis_of(value) is not None and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} holds NaN or infinity: drop or fill such rows before {purpose}")


class TakenRows:
    """Some of the rows of row arguments, by their numbers."""

    def __init__(self, rows: RowArguments, index: Tensor) -> None:
        self.rows, self.index = rows, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, part: slice) -> Call:
        return self.rows[self.index[part]]


class ReadRows:
    """Row arguments that were read, all of which hold rows, and arguments that have none."""

    def __init__(self, rows: tuple[Tensor, ...], others: Mapping[str, Any]) -> None:
        self.rows, self.others = rows, others

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, part: slice) -> Call:
        return tuple(values[part] for values in self.rows), dict(self.others)
