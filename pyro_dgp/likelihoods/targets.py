"""Checks of targets and of the plates around them."""

from __future__ import annotations

from typing import Any

from pyro.poutine.runtime import get_plates
from torch import Size, Tensor


def refuse_data_plate(rows: int) -> None:
    """Raise inside a plate of as many elements as the data have rows."""
    for frame in get_plates():
        if frame.size == rows > 1 and frame.vectorized and "particles" not in frame.name:
            raise ValueError(
                f"an observation of {rows} rows stands inside the plate {frame.name!r} of {rows}: its rows are an event "
                "dimension and each would be counted once more; move the sample statement out of the data plate"
            )


def check_target(y: Any, shape: Size, like: Tensor) -> None:
    """Raise with one sentence unless ``y`` ends in the shape of the observation's event, ``(N,)`` or ``(N, D_out)``,
    and has the dtype and device of the function values.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"y is {type(y).__name__}, not a tensor: use torch.as_tensor(y)")
    if y.dtype != like.dtype or y.device != like.device:
        ours, theirs = (f"{str(t.dtype).removeprefix('torch.')} on {t.device}" for t in (y, like))
        raise TypeError(f"y is {ours} and the inputs are {theirs}: convert one")
    if len(shape) == 1 and y.dim() >= 2 and y.shape[-1] == 1 and y.shape[-2] == shape[0]:
        raise ValueError(f"y has shape {tuple(y.shape)}; for one output it is (N,): pass y.squeeze(-1)")
    if y.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, shape))
        if y.dim() == len(shape) - 1 and shape[-1] == 1 and y.shape[-1] == shape[0]:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but its distribution makes it (..., {wanted}): function values have an axis of outputs, "
                "take the one output as f[..., 0]"
            )
        raise ValueError(f"y has shape {tuple(y.shape)}, but the inputs and the likelihood make it (..., {wanted})")
