"""Row arguments: the arguments of a model that hold one entry for each row of its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: Positional and named arguments of one call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class RowArguments:
    """The arguments of a call, of which those that hold rows can be taken row by row.

    A row argument is a tensor, given as an argument by itself, whose first dimension is the number of rows: targets, an
    offset, an exposure, a second set of inputs. All others (numbers, tensors of other lengths, lists) go to each call
    whole. A tensor that has as many entries as there are rows and is no row argument belongs into the model, as a buffer,
    or gets another first dimension.

    :param args: positional arguments.
    :param kwargs: arguments by name.
    :param count: number of rows; that of the first positional argument if not given.

    >>> import torch
    >>> from pyro_dgp.internal.rows import RowArguments
    >>> arguments = RowArguments((torch.zeros(5, 2),), {"exposure": torch.ones(5), "power": 2.0})
    >>> (x,), named = arguments[slice(0, 3)]
    >>> len(x), len(named["exposure"]), named["power"]
    (3, 3, 2.0)
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int | None = None) -> None:
        self.args, self.kwargs = args, dict(kwargs)
        self.count = len(args[0]) if count is None else count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice | Tensor) -> Call:
        """Return the arguments of a call on some rows: a slice, numbers of rows, or a mask over all rows."""
        return tuple(self._taken(value, rows) for value in self.args), {
            name: self._taken(value, rows) for name, value in self.kwargs.items()
        }

    def _holds_rows(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.count

    def _taken(self, value: Any, rows: slice | Tensor) -> Any:
        return value[rows] if self._holds_rows(value) else value

    @property
    def tensors(self) -> list[Tensor]:
        """The row arguments, positional ones first."""
        return [value for value in (*self.args, *self.kwargs.values()) if self._holds_rows(value)]

    def require_finite(self, purpose: str) -> None:
        """Raise if a named row argument holds NaN or infinity.

        :param purpose: what the rows are for, as the message says it: ``training``.
        """
        for name, value in self.kwargs.items():
            if self._holds_rows(value) and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} holds NaN or infinity: drop or fill such rows before {purpose}")
