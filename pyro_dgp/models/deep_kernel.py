"""Deep kernel learning: a neural feature extractor in front of any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from pyro_dgp.internal.assignment import CheckedModule

#: Widths of the hidden layers, without the features.
HIDDEN = (50, 20)
#: Bound of a feature, in its initial standard deviations.
REACH = 3.0


class FeatureExtractor(nn.Module):
    """A network of linear layers with ReLU between them, ``(..., N, D) -> (..., N, features)`` (after Wilson et al. 2016).

    Inputs and features are standardised, the features by the statistics of the untrained network on ``x``. Both
    standardisations stay fixed. The kernels on top start at the right scale, and the features of a row do not depend on
    the other rows of a batch, as they would with batch normalisation.

    At learning rates that suit kernels, features can leave the reach of the inducing points; the mean then becomes
    constant and stays so. Three things together prevent this:

    - A standardised feature z becomes ``3 tanh(z / 3)``: z to first order, and never beyond 3.
    - The weights start at the variance that keeps the scale of the values from layer to layer (He et al. 2015), so that
      the standardisation does not magnify the steps of the optimiser.
    - The two hidden layers are narrow: a step of Adam moves the values of a layer in proportion to its width. For wider
      or deeper networks use ``fit(..., optimizer=adam_for_networks)``.

    :param x: training inputs ``(N, D)``.
    :param features: number of features.
    :param hidden: widths of the hidden layers.

    >>> import torch
    >>> from pyro_dgp import FeatureExtractor
    >>> extractor = FeatureExtractor(torch.randn(50, 6), features=2)
    >>> extractor(torch.randn(10, 6)).shape
    torch.Size([10, 2])
    """

    input_shift: Tensor
    input_scale: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, features: int = 5, hidden: Sequence[int] = HIDDEN) -> None:
        super().__init__()
        if x.dim() != 2:
            raise ValueError(
                f"FeatureExtractor takes inputs (N, D), got {tuple(x.shape)}: use x[:, None] for one input"
            )
        layers: list[nn.Module] = []
        width = x.shape[-1]
        for size in hidden:
            layers += [_linear(width, size, "relu"), nn.ReLU()]
            width = size
        self.network = nn.Sequential(*layers, _linear(width, features, "linear")).to(x)
        with torch.no_grad():
            self._keep_statistics("input_", x)
            self._keep_statistics("", self._raw(x))

    def _keep_statistics(self, prefix: str, values: Tensor) -> None:
        """Keep the mean and scale of each column as buffers; a constant column is only shifted."""
        spread = values.std(0, correction=0)
        self.register_buffer(f"{prefix}shift", values.mean(0))
        rounding = 10 * torch.finfo(values.dtype).eps * values.abs().amax(0)
        self.register_buffer(f"{prefix}scale", torch.where(spread > rounding, spread, 1.0))

    def _raw(self, x: Tensor) -> Tensor:
        raw: Tensor = self.network((x - self.input_shift) / self.input_scale)
        return raw

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, ``(..., N, features)``."""
        return REACH * torch.tanh((self._raw(x) - self.shift) / (REACH * self.scale))


def _linear(inputs: int, outputs: int, nonlinearity: Literal["relu", "linear"]) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity=nonlinearity)
    nn.init.zeros_(layer.bias)
    return layer


class DeepKernel(CheckedModule):
    """A model of the features of the inputs, ``model(extractor(x), y)`` ([DSPP] 5.5; Wilson et al. 2016).

    Model and extractor are trained together: ``fit`` trains a deep kernel as it trains any model. A network other than
    :class:`FeatureExtractor` may need ``fit(..., optimizer=adam_for_networks)``. At the learning rate that suits kernels
    it can carry the features out of reach of the inducing points, and the mean stays constant from there on.

    :param extractor: any module ``(N, D) -> (N, features)``; see :class:`FeatureExtractor`. It is made a Pyro module in
        place, so that stock ``SVI`` trains its parameters too.
    :param model: any model called as ``model(x, y)`` with inputs ``(N, features)``: build it on
        ``extractor(x).detach()``.

    >>> import torch
    >>> from pyro_dgp import DeepGP, DeepKernel, FeatureExtractor
    >>> x = torch.randn(50, 6)
    >>> extractor = FeatureExtractor(x, features=2)
    >>> model = DeepKernel(extractor, DeepGP(extractor(x).detach(), layers=1))
    >>> model(x).shape  # a draw of y from the prior
    torch.Size([50])
    """

    def __init__(self, extractor: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.extractor, self.model = extractor, model

    def admit(self, name: str, value: Any) -> Any:
        """Take a network as ``extractor``, and make it a Pyro module in place."""
        if name == "extractor":
            if not isinstance(value, nn.Module):
                raise TypeError(
                    f"the extractor of a DeepKernel is a torch.nn.Module, not {type(value).__name__}: give a network (N, D) -> (N, features)"
                )
            if not isinstance(value, PyroModule):
                to_pyro_module_(value)
        return value

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Call the model on the features of ``x``."""
        return self.model(self.extractor(x), *args, **kwargs)
