"""Inference functions: small networks from inputs to the inducing points, means and scales of a row."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from pyro.nn import PyroParam
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, softplus

from pyro_dgp.internal.assignment import CheckedModule

SLOPE = 0.2

#: Smallest standard deviation. Far from the data networks give extreme values, and a scale rounded to 0 has no logarithm.
SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Sizes of an amortised process: M, D, D_out, and whether the covariance of a row is full."""

    num_inducing: int
    num_inputs: int
    num_outputs: int
    is_full: bool

    @property
    def num_scales(self) -> int:
        """How many numbers describe one scale: M for a diagonal, M (M + 1) / 2 for a triangle."""
        size = self.num_inducing
        return size * (size + 1) // 2 if self.is_full else size


class Perceptron(CheckedModule):
    """Linear layers with LeakyReLU(0.2) between them, ``(..., inputs) -> (..., outputs)``.

    All weights and biases are one ``PyroParam``, since Pyro keeps books for each; :meth:`layers` gives them by layer.

    :param depth: number of hidden layers, each ``width`` wide.
    """

    def __init__(self, inputs: int, outputs: int, depth: int, width: int, like: Tensor) -> None:
        super().__init__()
        sizes = [inputs, *[width] * depth, outputs]
        self.shapes = [(columns, rows) for rows, columns in itertools.pairwise(sizes)]
        drawn = [rows**-0.5 * (2 * torch.rand(rows * columns + columns) - 1) for columns, rows in self.shapes]
        self.coefficients = PyroParam(torch.cat(drawn).to(like), event_dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, ``(..., outputs)``."""
        *hidden, last = self.layers(self.coefficients)
        for weight, bias in hidden:
            x = leaky_relu(linear(x, weight, bias), SLOPE)
        return linear(x, *last)

    def layers(self, coefficients: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each layer, views of the vector ``coefficients``."""
        counts = [count for columns, rows in self.shapes for count in (columns * rows, columns)]
        parts = coefficients.split(counts)
        return [(w.view(shape), b) for w, b, shape in zip(parts[::2], parts[1::2], self.shapes, strict=True)]

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """Weight ``(outputs, width)`` and bias ``(outputs,)`` of the last layer, views that a caller sets in place."""
        outputs, width = self.shapes[-1]
        own = self.coefficients.data[-outputs * (width + 1) :]
        return own[:-outputs].view(outputs, width), own[-outputs:]


class InferenceFunctions(CheckedModule):
    """Map from inputs ``(..., N, D)`` to the variational parameters of each row. Derive from it for networks of your own.

    An :class:`AmortizationRecipe` makes the networks and passes ``sizes``, which has M, D and D_out.

    | value | shape |
    |---|---|
    | inducing points | ``(..., N, M, D)`` |
    | whitened means | ``(..., N, D_out, M)`` |
    | whitened scales | diagonal: ``(..., N, D_out, M)``, standard deviations; full: ``(..., N, D_out, M, M)``, lower triangular |

    >>> import torch
    >>> from pyro_dgp import AffineMaps, InferenceFunctions
    >>> from pyro_dgp.processes import Sizes
    >>> x, sizes = torch.randn(20, 3), Sizes(num_inducing=4, num_inputs=3, num_outputs=1, is_full=False)
    >>> functions = AffineMaps().create(sizes, x, scale=1.0)
    >>> isinstance(functions, InferenceFunctions), [tuple(value.shape) for value in functions(x)]
    (True, [(20, 4, 3), (20, 1, 4), (20, 1, 4)])
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Float[Tensor, "*b n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return points, means and scales."""
        raise NotImplementedError

    def _means(self, raw: Tensor) -> Tensor:
        return raw.unflatten(-1, (self.sizes.num_outputs, self.sizes.num_inducing))

    def _scales(self, raw: Tensor) -> Tensor:
        raw = raw.unflatten(-1, (self.sizes.num_outputs, self.sizes.num_scales))
        if not self.sizes.is_full:
            return softplus(raw) + SMALLEST_SCALE
        size = self.sizes.num_inducing
        below = torch.ones(size, size, dtype=torch.bool, device=raw.device).tril(-1)
        diagonal = softplus(raw[..., :size]) + SMALLEST_SCALE
        return torch.diag_embed(diagonal).masked_scatter(below.expand(*raw.shape[:-1], size, size), raw[..., size:])


class AmortizationRecipe(ABC):
    """A recipe for inference functions. A user gives it to :class:`AmortizedInducingPoints`.

    >>> from pyro_dgp import AffineMaps, AmortizationRecipe, AmortizedInducingPoints, OneNetwork
    >>> [isinstance(recipe, AmortizationRecipe) for recipe in (AffineMaps(), OneNetwork(depth=1))]
    [True, True]
    >>> AmortizedInducingPoints(8, OneNetwork(depth=1)).recipe.depth
    1
    """

    @abstractmethod
    def create(self, sizes: Sizes, x: Float[Tensor, "n d"], scale: float) -> InferenceFunctions:
        """Make functions whose initial scales are ``scale`` times the identity, at inputs like ``x``.

        When a guide is loaded, its functions are made by the saved sizes and scale at inputs of zero. All values that are
        taken from ``x`` must therefore be parameters or buffers, which the state dict holds.
        """


@dataclass(frozen=True)
class Hidden:
    """Hidden layers of perceptrons.

    :param depth: number of hidden layers.
    :param width: units of each; if not given, the smaller of the perceptron's inputs and outputs, but at least
        ``narrowest``.
    :param narrowest: smallest width that is chosen. [AVDGP] C.1 has 1: there a layer has a single unit where the inputs
        have one dimension, and its function has a single bend.
    """

    depth: int = 2
    width: int | None = None
    _: KW_ONLY
    narrowest: int = 16

    def __post_init__(self) -> None:
        if self.depth < 0 or (self.width is not None and self.width < 1) or self.narrowest < 1:
            raise ValueError(
                f"a network has a depth of 0 or more and a width of 1 or more, got depth={self.depth}, width={self.width}, "
                f"narrowest={self.narrowest}"
            )

    def perceptron(self, inputs: int, outputs: int, like: Tensor) -> Perceptron:
        """Build a perceptron with these hidden layers."""
        width = max(self.narrowest, min(inputs, outputs)) if self.width is None else self.width
        return Perceptron(inputs, outputs, self.depth, width, like)


@dataclass(frozen=True)
class AffineMaps(Hidden, AmortizationRecipe):
    """Recipe with points ``z_nm = W_m x_n + b_m``, and two perceptrons for means and scales ([AVDGP] 3.2, 3.3).

    An affine map of the input space onto itself keeps the inducing points of a row from degenerating. At the start W_m is
    the identity, b_m is normal, and means and scales are equal over the M points ([AVDGP] 4.6). Spread and networks expect
    inputs of about unit scale: standardise them.

    :param depth: number of hidden layers of the perceptrons; see :class:`Hidden` for their ``width`` and ``narrowest``.
    :param spread: initial standard deviation of b_m, in units of the inputs.

    >>> import torch
    >>> from pyro_dgp import AffineMaps
    >>> from pyro_dgp.processes import Sizes
    >>> x = torch.randn(20, 3)
    >>> points, _, _ = AffineMaps(spread=0.0).create(Sizes(4, 3, 1, False), x, scale=1.0)(x)
    >>> bool((points == x[:, None]).all())  # without spread every point of a row starts at the row
    True
    """

    spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread < 0:
            raise ValueError(f"spread is a standard deviation, 0 or more, got {self.spread}")

    def create(self, sizes: Sizes, x: Float[Tensor, "n d"], scale: float) -> InferenceFunctions:
        """See :class:`AmortizationRecipe`."""
        return _Affine(sizes, self, x, scale)


class _Affine(InferenceFunctions):
    def __init__(self, sizes: Sizes, recipe: AffineMaps, x: Tensor, scale: float) -> None:
        super().__init__(sizes)
        points, inputs = sizes.num_inducing, sizes.num_inputs
        identity = torch.eye(inputs).to(x)
        self.weight = PyroParam(identity.repeat(points, 1, 1), event_dim=3)
        self.bias = PyroParam(recipe.spread * torch.randn(points, inputs).to(x), event_dim=2)
        self.means = recipe.perceptron(inputs, sizes.num_outputs * points, x)
        self.scales = recipe.perceptron(inputs, sizes.num_outputs * sizes.num_scales, x)
        _equal_over_points(*self.means.last, points)
        _constant_scales(*self.scales.last, sizes, scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`InferenceFunctions`."""
        z = (x @ self.weight.flatten(0, 1).mT).unflatten(-1, tuple(self.bias.shape)) + self.bias
        return z, self._means(self.means(x)), self._scales(self.scales(x))


@dataclass(frozen=True)
class OneNetwork(Hidden, AmortizationRecipe):
    """Recipe with a single perceptron for points, means and scales ([AVDGP] 3.1; Jafrasteh et al. 2022).

    The points start around rows of the training inputs. A deep network tends to map all inputs into a subspace, where
    rows are no longer told apart ([AVDGP] C.2). Inputs are expected to be of about unit scale.

    :param depth: number of hidden layers; see :class:`Hidden` for their ``width`` and ``narrowest``.

    >>> import torch
    >>> from pyro_dgp import OneNetwork
    >>> from pyro_dgp.processes import Sizes
    >>> x = torch.randn(20, 3)
    >>> [tuple(value.shape) for value in OneNetwork(depth=1).create(Sizes(4, 3, 1, False), x, scale=1.0)(x)]
    [(20, 4, 3), (20, 1, 4), (20, 1, 4)]
    """

    def create(self, sizes: Sizes, x: Float[Tensor, "n d"], scale: float) -> InferenceFunctions:
        """See :class:`AmortizationRecipe`."""
        return _Network(sizes, self, x, scale)


class _Network(InferenceFunctions):
    def __init__(self, sizes: Sizes, recipe: OneNetwork, x: Tensor, scale: float) -> None:
        super().__init__(sizes)
        self.split = [sizes.num_inducing * sizes.num_inputs, sizes.num_outputs * sizes.num_inducing]
        outputs = sum(self.split) + sizes.num_outputs * sizes.num_scales
        self.network = recipe.perceptron(sizes.num_inputs, outputs, x)
        weight, bias = self.network.last
        first, second = self.split[0], sum(self.split)
        rows = torch.randint(len(x), (sizes.num_inducing,), device=x.device)
        bias[:first] = x[rows].flatten()
        _equal_over_points(weight[first:second], bias[first:second], sizes.num_inducing)
        _constant_scales(weight[second:], bias[second:], sizes, scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`InferenceFunctions`."""
        raw = self.network(x)
        points, means, scales = raw.split([*self.split, raw.shape[-1] - sum(self.split)], -1)
        z = points.unflatten(-1, (self.sizes.num_inducing, self.sizes.num_inputs))
        return z, self._means(means), self._scales(scales)


def _equal_over_points(weight: Tensor, bias: Tensor, points: int) -> None:
    for values in (weight.unflatten(0, (-1, points)), bias.unflatten(0, (-1, points))):
        values.copy_(values[:, :1].clone().expand_as(values))


def _constant_scales(weight: Tensor, bias: Tensor, sizes: Sizes, scale: float) -> None:
    weight.zero_()
    rows = bias.view(sizes.num_outputs, sizes.num_scales)
    rows.zero_()
    rows[:, : sizes.num_inducing] = math.log(math.expm1(scale - SMALLEST_SCALE))
