"""Adam for networks whose weights have a prior, at the mode of their posterior."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from pyro_dgp.training.optimising import adam_for_networks, rows_of_loss


@dataclass(frozen=True)
class AdamWithWeightPrior:
    """Adam as :func:`adam_for_networks` builds it, for the mode of the posterior of network weights under a normal prior.

    A neural network in front of a GP overfits few rows, since its weights are points that nothing regularises (Ober, Rasmussen and van der
    Wilk 2021). Here a weight of a linear or convolutional layer with n inputs has the prior ``w ~ N(0, 2 / (precision n))``, and a bias ``b ~
    N(0, 1 / precision)``. With a precision of 1 the variance of w is that at which ReLU keeps the scale of values from layer to layer (He et al. 2015). The optimiser
    minimises the loss, in nats per row, minus ``log p(w, b) / N``. The losses that :func:`~pyro_dgp.fit` returns are without that prior.

    :param precision: of the prior, above 0; 10 if not given. More holds the network closer to a constant.

    >>> import torch
    >>> from pyro_dgp import ELBO, AdamWithWeightPrior, DeepGP, DeepKernel, FeatureExtractor, InducingPoints, Variational, fit
    >>> x, y = torch.randn(20, 3), torch.randn(20)
    >>> extractor = FeatureExtractor(x, features=2)
    >>> model = DeepKernel(extractor, DeepGP(extractor(x).detach(), layers=1))
    >>> guide = Variational(model, InducingPoints(5))
    >>> guide.initialize(x, y)
    >>> result = fit(ELBO(num_data=20)(model, guide), x, y, steps=20, optimizer=AdamWithWeightPrior(precision=10.0))

    :raises ValueError: for a precision that is not above 0, and where it is called with a loss that does not know the number of rows.
    """

    precision: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.precision < math.inf:
            raise ValueError(
                f"the precision of a prior is a finite number above 0, got {self.precision}: adam_for_networks has no prior"
            )

    def __call__(self, objective: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of an objective ``loss(model, guide)``."""
        rows = rows_of_loss(objective)
        if rows is None:
            raise ValueError(
                "the prior of network weights counts as one of the terms of all rows, and the loss does not say how many there are: give it num_data=len(x)"
            )
        decays = {id(parameter): self.precision * share / rows for parameter, share in _with_prior(objective)}
        groups = []
        for group in adam_for_networks(objective, learning_rate).param_groups:
            own = {name: value for name, value in group.items() if name != "params"}
            for decay in sorted({decays.get(id(parameter), 0.0) for parameter in group["params"]}):
                members = [each for each in group["params"] if decays.get(id(each), 0.0) == decay]
                groups.append({**own, "params": members, "weight_decay": decay})
        return torch.optim.Adam(groups, fused=True)


def _with_prior(objective: nn.Module) -> Iterator[tuple[Tensor, float]]:
    """Iterate over the parameters with a prior, with its precision for a :attr:`AdamWithWeightPrior.precision` of one."""
    for module in objective.modules():
        if isinstance(module, nn.Linear | _ConvNd):
            yield module.weight, module.weight[0].numel() / 2
            if module.bias is not None:
                yield module.bias, 1.0
