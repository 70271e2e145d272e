"""Checks of targets."""

from __future__ import annotations

from typing import Any

from torch import Size, Tensor


def check_target(y: Any, shape: Size, like: Tensor, *, integers: bool = False) -> Tensor:
    """Return ``y``; raise with one sentence unless it ends in the shape of the observation's event, ``(N,)`` or ``(N, D_out)``,
    and has the dtype and device of the function values.

    :param integers: whether targets are classes or counts, which may have an integer dtype; they are returned in the dtype of the function values.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"y is {type(y).__name__}, not a tensor: use torch.as_tensor(y)")
    if integers and not y.dtype.is_floating_point and not y.dtype.is_complex:
        y = y.to(like.dtype)
    if y.dtype != like.dtype or y.device != like.device:
        ours, theirs = (f"{str(t.dtype).removeprefix('torch.')} on {t.device}" for t in (y, like))
        raise TypeError(f"y is {ours} and the inputs are {theirs}: convert one")
    is_row_of_groups = shape[0] == 1 and like.dim() > 2  # one row of each group, and one group
    if len(shape) == 1 and y.dim() >= 2 and y.shape[-1] == 1 and y.shape[-2] == shape[0] and not is_row_of_groups:
        raise ValueError(f"y has shape {tuple(y.shape)}; for one output it is (N,): pass y.squeeze(-1)")
    if y.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, shape))
        if y.dim() == len(shape) - 1 and shape[-1] == 1 and y.shape[-1] == shape[0]:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but its distribution makes it (..., {wanted}): function values have an axis of outputs, "
                "take the one output as f[..., 0]"
            )
        is_table = len(shape) == 1 and y.dim() >= 2 and y.shape[-2] == shape[0]
        remedy = (
            f": pass y.argmax(-1) for columns of classes, and give the GP num_outputs={y.shape[-1]} for as many targets"
        )
        told = remedy if is_table else ""
        raise ValueError(
            f"y has shape {tuple(y.shape)}, but the inputs and the likelihood make it (..., {wanted}){told}"
        )
    return y
