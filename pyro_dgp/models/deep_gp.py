"""A stack of Gaussian processes, written as a user would write it. The named methods fit this model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_dgp.gp import GaussianProcess
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.kernels.named import named_kernel
from pyro_dgp.likelihoods import Gaussian, Likelihood
from pyro_dgp.means import Mean, Projection
from pyro_dgp.models.standardizer import Standardizer


class DeepGP(CheckedModule):
    """A chain of ``layers - 1`` hidden GPs with ``width`` outputs, and one GP on top.

    The hidden GPs have linear means, by default the fixed ones of [DSVI] 3.12. The sites are ``h1, h2, ...``, function values
    ``(N, width)`` of the hidden layers, and ``y``. One layer is a plain GP.

    :param x: training inputs ``(N, D)``: only their number of dimensions and principal directions are used.
    :param layers: number of GPs in the chain, 1 or more.
    :param width: outputs of each hidden layer, or a number for each of them: ``(16, 4)`` for three layers.
    :param kernel: a name of :data:`~pyro_dgp.kernels.named.KERNELS`: ``rbf``, ``matern52`` and so on with a lengthscale for each input,
        ``matern52-isotropic`` with one for all, ``matern52-additive``, ``matern52-spherical``, ``rbf+matern52``.
    :param likelihood: observation model; Gaussian with ``outputs`` outputs if not given.
    :param outputs: number of functions of the top layer.
    :param per_output: whether each output of a hidden layer has a kernel of its own ([DSPP]) or all share one ([DSVI]).
    :param mean: function from the inputs of a hidden layer ``(N, D)`` and its width to its mean: ``Projection.fit`` is fixed,
        ``LinearMean.fit`` starts there and is learned, which many inputs of which few matter need.
    :param top_mean: mean of the top layer, zero if not given. Counts need one: ``ConstantMean(value=float(y.mean().log()))`` starts at their level.
    :param standardizer: ``Standardizer.fit(x, y)`` for inputs and targets in their own units, in which predictions are then; without,
        standardise both before training.

    >>> import pyro, torch
    >>> from pyro_dgp import DeepGP
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> trace = pyro.poutine.trace(DeepGP(x, layers=3, width=2)).get_trace(x)
    >>> [(name, tuple(trace.nodes[name]["value"].shape)) for name in ("h1", "h2", "y")]
    [('h1', (8, 2)), ('h2', (8, 2)), ('y', (8,))]
    """

    def __init__(
        self,
        x: Tensor,
        layers: int = 2,
        width: int | Sequence[int] = 5,
        *,
        kernel: str = "matern52",
        likelihood: Likelihood | None = None,
        outputs: int = 1,
        per_output: bool = False,
        mean: Callable[[Tensor, int], Mean] = Projection.fit,
        top_mean: Mean | None = None,
        standardizer: Standardizer | None = None,
    ) -> None:
        super().__init__()
        widths = (width,) * max(layers - 1, 1) if isinstance(width, int) else tuple(width)
        if layers < 1 or any(size < 1 for size in widths):
            raise ValueError(f"a deep GP has at least one layer of width one, got layers={layers}, width={width}")
        if not isinstance(width, int) and len(widths) != layers - 1:
            raise ValueError(
                f"width has {len(widths)} numbers and the model {layers - 1} hidden layers: give one for each"
            )
        self.standardizer, self.columns = standardizer, x.shape[-1]
        hidden, inputs = [], self._standardised(x)
        for size in widths[: layers - 1]:
            choice = named_kernel(kernel, inputs.shape[-1], size if per_output else None)
            hidden.append(GaussianProcess(choice, mean(inputs, size), size))
            with torch.no_grad():  # read as it stands: a call would put its parameters into Pyro's store
                inputs = hidden[-1].mean.forward()(inputs).expand(-1, size)
        self.hidden = PyroModule[nn.ModuleList](hidden)
        self.top = GaussianProcess(named_kernel(kernel, inputs.shape[-1], None), top_mean, outputs)
        likelihood = Gaussian(outputs) if likelihood is None else likelihood
        self.likelihood = likelihood if standardizer is None else standardizer.likelihood(likelihood)

    def admit(self, name: str, value: Any) -> Any:
        """Take a likelihood as ``likelihood`` and a Gaussian process as ``top``."""
        wanted = {"likelihood": Likelihood, "top": GaussianProcess}.get(name, object)
        if not isinstance(value, wanted):
            raise TypeError(
                f"{name} of a DeepGP is a {wanted.__name__} of pyro_dgp, not {type(value).__name__}: for any other write a model of your own"
            )
        return value

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample every site jointly; where ``y`` is given, it is observed."""
        h = self._standardised(x)
        for number, layer in enumerate(self.hidden, 1):
            h = pyro.sample(f"h{number}", layer(h))
        draw: Tensor = pyro.sample("y", self.likelihood(self.top(h)), obs=y)
        return draw

    def _standardised(self, x: Tensor) -> Tensor:
        """Return inputs as the kernels see them; raise for other columns than those the model was made for, as a standardizer does."""
        if self.standardizer is not None:
            return self.standardizer.inputs(x)
        if x.dim() > 1 and x.shape[-1] != self.columns:
            raise ValueError(
                f"a DeepGP made for inputs (N, {self.columns}) got {tuple(x.shape)}: pass the columns that it was made for, or make another from these inputs"
            )
        return x
