"""Arguments of the model that training does not give, or gives to other rows, where a guide was initialised with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.call_arguments import remedy_for
from pyro_dgp.internal.rows import ReadRows, RowArguments
from pyro_dgp.internal.user_warning import warn_user


def warn_of_left_out(guide: Variational | None, rows: RowArguments, *, call: str) -> None:
    """Warn of arguments of the model, such as ``exposure``, that ``initialize`` got and training does not; raise for rows of another number.

    :param call: how to pass one, with ``{name}`` in the place of its name.
    """
    if guide is None:
        return
    for name in rows.left_out(guide.structure.further, guide.structure.whole):
        warn_user(
            f"guide.initialize gave the model {name!r}, and this fit does not: {remedy_for(name, call.format(name=name))}"
        )


def require_no_rows(guide: Variational | None, arguments: Mapping[str, Any], rows: int) -> None:
    """Raise for arguments beside a stream that have an entry for each of its rows, which come in another order.

    :param rows: number of rows of the stream.
    """
    whole = frozenset[str]() if guide is None else guide.structure.whole
    further = frozenset[str]() if guide is None else guide.structure.further
    for name, value in arguments.items():
        if name in whole or not isinstance(value, Tensor) or value.dim() == 0 or value.numel() <= 1:
            continue
        if len(value) == rows or name in further:
            what = (
                "an entry for each row"
                if len(value) == rows
                else f"{len(value)} entries, and had one for each row in guide.initialize"
            )
            raise ValueError(
                f"the argument {name!r} has {what}; the rows of a stream come in random order: let the stream read it with them, as "
                "NumpyStream(inputs, targets, rows=[file]) does, whose batches have it after the targets"
            )


def read_rows(
    guide: Variational | None, batches: Iterable[tuple[Tensor, ...]], arguments: Mapping[str, Any]
) -> Iterator[ReadRows]:
    """Give the rows of each batch with the arguments beside them; warn at the first batch of arguments that ``initialize`` got and these steps do not."""
    for number, batch in enumerate(batches):
        if guide is not None and number == 0:
            _warn_of_parts(guide, len(batch) - 2, arguments)
        yield ReadRows(batch, arguments)


def _warn_of_parts(guide: Variational, parts: int, arguments: Mapping[str, Any]) -> None:
    """Warn where batches have fewer row arguments than ``initialize`` got, and of arguments without rows that are not given."""
    further, whole = (sorted(names - arguments.keys()) for names in (guide.structure.further, guide.structure.whole))
    if parts < len(further):
        warn_user(
            f"guide.initialize gave the model {', '.join(map(repr, further))}, and the batches of this stream hold {parts or 'no'} "
            "row arguments after inputs and targets: let the stream read rows=[file] too, or the model's default if it is meant"
        )
    for name in whole if parts <= len(further) else ():  # one of the parts may be it
        remedy = remedy_for(name, f"fit_stream(objective, stream, {name}=...)")
        warn_user(f"guide.initialize gave the model {name!r}, and this fit does not: {remedy}")
