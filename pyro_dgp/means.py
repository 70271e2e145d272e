"""Mean functions, and the concatenation of inputs between layers.

A mean is a Pyro module. Called, it reads its parameters and returns a function ``(..., N, D) -> (..., N, D_out)``, or
``(..., N, 1)`` where the mean is the same for every output. A Gaussian process also takes a network or a plain function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Float
from pyro.nn import PyroParam
from torch import Tensor, nn

from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.internal.parameters import require_number
from pyro_dgp.internal.user_functions import PresentFunction, adopted
from pyro_dgp.kernels import Kernel

MeanFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Affine:
    """Function ``x W + b``, in which W ``(..., D, D_out)`` or b ``(..., D_out)`` may be missing; leading axes are those of plates."""

    weight: Tensor | None
    bias: Tensor | None
    name: str = "the mean"

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is not None and x.shape[-1] != self.weight.shape[-2]:
            raise ValueError(
                f"{self.name} was made for inputs of {self.weight.shape[-2]} dimensions and got {x.shape[-1]}: "
                f"call the model on {self.weight.shape[-2]}, or build a mean for {x.shape[-1]}"
            )
        result = x.new_zeros(*x.shape[:-1], 1) if self.weight is None else x @ self.weight
        if self.bias is None:
            return result
        in_plates = self.bias.dim() > 1 and self.bias.shape[:-1].numel() > 1
        return result + (self.bias.unsqueeze(-2) if in_plates else self.bias)


class Mean(CheckedModule):
    """Base of all mean functions; a subclass returns its function from ``forward``.

    >>> import torch
    >>> from pyro_dgp import Mean
    >>> class Sine(Mean):
    ...     def forward(self):
    ...         return torch.sin
    >>> Sine()()(torch.zeros(4, 1)).shape
    torch.Size([4, 1])
    """

    spelling_is_checked = True

    def forward(self) -> MeanFunction:
        """Read the parameters and return the function."""
        raise NotImplementedError


class Zero(Mean):
    """Zero mean, ``m(x) = 0``.

    >>> import torch
    >>> from pyro_dgp import Zero
    >>> Zero()()(torch.ones(2, 3)).tolist()
    [[0.0], [0.0]]
    """

    def forward(self) -> MeanFunction:
        """Return the zero function; a zero mean has no parameters."""
        return _Affine(None, None)


class ConstantMean(Mean):
    """Constant mean, ``m(x) = constant``, with one learned value for each output: shape ``(outputs,)``.

    :param value: initial constant, in units of the function.

    >>> import torch
    >>> from pyro_dgp import ConstantMean
    >>> ConstantMean(outputs=2)()(torch.ones(1, 3)).tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, outputs: int = 1, value: float = 0.0) -> None:
        super().__init__()
        require_number(value)
        if not isinstance(outputs, Integral) or outputs < 1:
            raise ValueError(
                f"outputs of a ConstantMean is a whole number of 1 or more, got {outputs!r}: its value is value="
            )
        self.constant: Any = PyroParam(torch.full((outputs,), float(value)), event_dim=1)

    def forward(self) -> MeanFunction:
        """Read ``constant``."""
        return _Affine(None, self.constant)


class LinearMean(Mean):
    """Learned linear mean, ``m(x) = x weight + bias``: ``weight`` ``(inputs, outputs)``, ``bias`` ``(outputs,)``.

    >>> import torch
    >>> from pyro_dgp import LinearMean
    >>> LinearMean(inputs=3, outputs=2)()(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, inputs: int, outputs: int = 1) -> None:
        super().__init__()
        self.weight: Any = PyroParam(torch.randn(inputs, outputs) / inputs**0.5, event_dim=2)
        self.bias: Any = PyroParam(torch.zeros(outputs), event_dim=1)

    @classmethod
    def fit(cls, x: Tensor, width: int) -> LinearMean:
        """Build a mean of inputs ``x`` ``(N, D_in)`` that starts at the principal directions, as :meth:`Projection.fit`, and is learned.

        >>> import torch
        >>> from pyro_dgp import LinearMean
        >>> LinearMean.fit(torch.randn(10, 2), width=2).weight.detach().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        start = Projection.fit(x, width).weight
        mean = cls(*start.shape).to(start)
        mean.weight = start.clone()
        mean.bias = start.new_zeros(width)
        return mean

    def forward(self) -> MeanFunction:
        """Read ``weight`` and ``bias``."""
        return _Affine(self.weight, self.bias, type(self).__name__)


class Projection(Mean):
    """Fixed linear mean ``m(x) = x W`` of hidden layers ([DSVI] 3.12).

    W is the identity where the layer has as many outputs as inputs, the leading principal directions where it has
    fewer, and the identity padded with zeros where it has more. With a zero mean in its place, hidden values collapse
    as layers are added.

    >>> import torch
    >>> from pyro_dgp import Projection
    >>> mean = Projection.fit(torch.tensor([[1.0, 2.0]]), width=3)
    >>> mean()(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0, 0.0]]
    """

    weight: Tensor

    def __init__(self, weight: Float[Tensor, "d_in d_out"]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    @classmethod
    def fit(cls, x: Tensor, width: int) -> Projection:
        """Build the projection of inputs ``x`` ``(N, D_in)`` onto ``width`` outputs.

        The values of ``x`` matter only if ``width < D_in``.

        :raises ValueError: for rows that span fewer than ``width`` directions, which are N - 1 at most, where directions are sought.
        """
        if x.dim() != 2:
            raise ValueError(f"Projection.fit takes inputs (N, D), got {tuple(x.shape)}: use x[:, None] for one input")
        if width < 1:
            raise ValueError(f"a layer has at least one output, got a width of {width}: give 1 or more")
        x, inputs = x.detach(), x.shape[-1]
        if width >= inputs:
            return cls(torch.eye(inputs, width, dtype=x.dtype, device=x.device))
        if len(x) <= width:
            raise ValueError(
                f"{len(x)} rows of {inputs} inputs span {max(len(x) - 1, 0)} principal directions at most and the width is {width}: give more than "
                f"{width} rows, such as all training inputs, or a width of {inputs} or more"
            )
        if not bool(x.isfinite().all()):
            raise ValueError(
                "the inputs hold NaN or infinity, which have no principal directions: drop or fill such rows"
            )
        _, _, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
        return cls((directions * signs)[:width].mT.contiguous())

    def forward(self) -> MeanFunction:
        """Return ``x W``; W is a buffer and no parameter."""
        return _Affine(self.weight, None, type(self).__name__)


class FunctionMean(Mean):
    """Mean ``m(x) = function(x)`` of a plain function or of any ``torch.nn.Module``.

    ``GaussianProcess(kernel, mean=function)`` makes one of a function or network. A network is made a Pyro module in place:
    its parameters train with the kernel's, and stand in the state dict as ``mean.function``. They are read when the Gaussian
    process is called. A ``PyroSample`` assigned to one of them is a prior on it.

    :param function: maps inputs ``(..., N, D)`` to ``(..., N, D_out)``, or to ``(..., N, 1)`` for all outputs alike, each row
        by itself. It draws nothing at random.
    :raises ValueError: for a function that names a network or a tensor to be trained, which would stay as it is, and for a
        network with dropout or batch normalisation, which is no function of single rows.
    :raises TypeError: for what cannot be called.

    >>> import torch
    >>> from pyro_dgp import RBF, GaussianProcess
    >>> gp = GaussianProcess(RBF(), mean=torch.nn.Linear(3, 1))
    >>> list(gp.mean.state_dict()), gp(torch.zeros(5, 3)).mean.shape
    (['function.weight', 'function.bias'], torch.Size([5, 1]))
    >>> GaussianProcess(RBF(), mean=lambda x: x.sum(-1, keepdim=True))(torch.ones(2, 3)).mean.tolist()
    [[3.0], [3.0]]
    """

    def __init__(self, function: nn.Module | MeanFunction) -> None:
        super().__init__()
        self.function = function

    def admit(self, name: str, value: Any) -> Any:
        """Take a function or a network as ``function``."""
        return adopted(_callable(value), "mean function") if name == "function" else value

    def forward(self) -> MeanFunction:
        """Read every parameter of the network."""
        return PresentFunction.of(self.function)


def _callable(value: Any) -> Any:
    """Return ``value`` if it may be a mean function; raise with the remedy if not."""
    if isinstance(value, type):
        remedy = f"the class {value.__name__}: make one, {value.__name__}(...)"
    elif isinstance(value, Real | Tensor):
        remedy = "a number: write ConstantMean(value=...) for a learned constant, or a function for a fixed one"
    elif isinstance(value, Kernel | Mean) or not callable(value):
        remedy = f"{type(value).__name__}: give one, such as ConstantMean()"
    else:
        return value
    raise TypeError(f"a mean is a Mean of pyro_dgp, a function or a torch.nn.Module, not {remedy}")


def as_mean(value: Any) -> Mean:
    """Return a mean: a :class:`Mean` itself, a :class:`FunctionMean` of a function or network, and :class:`Zero` of nothing."""
    if value is None:
        return Zero()
    return value if isinstance(value, Mean) else FunctionMean(_callable(value))


def concatenate_inputs(h: Float[Tensor, "*s n w"], x: Float[Tensor, "*b m d"]) -> Float[Tensor, "*s n k"]:
    """Join hidden values and inputs as ``[h, x]`` along the last axis.

    The inputs are repeated over the leading (particle) axes of ``h``. A layer that sees the data as well as the layer
    below it is written ``self.top(concatenate_inputs(h, x))``.

    >>> import torch
    >>> from pyro_dgp import concatenate_inputs
    >>> concatenate_inputs(torch.zeros(10, 4, 2), torch.zeros(4, 3)).shape  # 10 particles, 4 rows
    torch.Size([10, 4, 5])
    """
    if h.shape[-2] != x.shape[-2]:
        raise ValueError(
            f"there are {h.shape[-2]} rows of function values and {x.shape[-2]} rows of inputs: pass those of one batch"
        )
    return torch.cat([h, x.expand(*h.shape[:-1], x.shape[-1])], -1)
