"""Deep kernel learning: a neural feature extractor in front of any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

#: Widths of the hidden layers of the network of Wilson et al. 2016, shortened tenfold; the features come after them.
HIDDEN = (100, 100, 50, 20)


class FeatureExtractor(nn.Module):
    """A network of five linear layers with ReLU between them, ``(..., N, D) -> (..., N, features)`` (Wilson et al. 2016).

    The features are standardised by the untrained network's statistics on ``x``, which stay fixed: the kernels on top
    start at the right scale, and no row's features depend on the other rows of a batch, as batch normalisation would have it.

    :param x: training inputs ``(N, D)``.
    :param features: number of features.
    :param hidden: widths of the hidden layers.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, features: int = 5, hidden: Sequence[int] = HIDDEN) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = x.shape[-1]
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        network = nn.Sequential(*layers, nn.Linear(width, features)).to(x)
        with torch.no_grad():
            raw = network(x)
        self.register_buffer("shift", raw.mean(0))
        self.register_buffer("scale", raw.std(0).clamp_min(1e-6))
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The features."""
        raw: Tensor = self.network(x)
        return (raw - self.shift) / self.scale


class DeepKernel(PyroModule):
    """``model`` on the features of the inputs: ``model(extractor(x), y)``, trained as one ([DSPP] 5.5; Wilson et al. 2016).

    :param extractor: any module ``(N, D) -> (N, features)``; see :class:`FeatureExtractor`. It is made a Pyro module in
        place, so that stock ``SVI`` trains its parameters too.
    :param model: any model called as ``model(x, y)``, of inputs ``(N, features)``: build it on ``extractor(x).detach()``.

    Train it by ``fit(..., optimizer=adam_for_networks)`` of :mod:`pyro_dgp.fit`: at the learning rate that suits kernels the network
    can carry the features out of reach of the inducing points, and the mean stays constant from there on.
    """

    def __init__(self, extractor: nn.Module, model: nn.Module) -> None:
        super().__init__()
        if not isinstance(extractor, PyroModule):
            to_pyro_module_(extractor)
        self.extractor, self.model = extractor, model

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The model at the features."""
        return self.model(self.extractor(x), *args, **kwargs)
