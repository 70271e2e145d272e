"""Adam for networks whose weights have a prior, at the mode of their posterior."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from pyro_dgp.training.optimising import adam_for_networks, rows_of_loss


@dataclass(frozen=True)
class AdamWithWeightPrior:
    """Adam as :func:`adam_for_networks` builds it, for the mode of the posterior of network weights under a normal prior.

    A neural network in front of a GP overfits few rows, since its weights are points that nothing regularises (Ober, Rasmussen and van der
    Wilk 2021). Here a weight of a linear or convolutional layer with n inputs has the prior ``w ~ N(0, 2 / (precision n))``, and a bias ``b ~
    N(0, 1 / precision)``. With a precision of 1 the variance of w is that at which ReLU keeps the scale of values from layer to layer (He et al. 2015). The optimiser
    minimises the loss, in nats per row, minus ``log p(w, b) / N``. The losses that :func:`~pyro_dgp.fit` returns are without that prior.
    A transposed convolution of stride s has, on average, as many inputs to a value of its output as its kernel has weights for it, divided by s in each direction.

    Under ``weight_norm``, ``w = g v / |v|``, the prior of w is that of the scale g, whose squares have the sum of those of w. A weight that is
    computed in another way, as by ``spectral_norm`` and ``orthogonal``, which fix its scale, is refused, since no decay of a parameter is a
    normal prior of it. Weights with a prior of their own (``PyroSample``) keep that one.

    :param precision: of the prior, above 0; 10 if not given. More holds the network closer to a constant.

    >>> import torch
    >>> from pyro_dgp import ELBO, AdamWithWeightPrior, DeepGP, DeepKernel, FeatureExtractor, InducingPoints, Variational, fit
    >>> x, y = torch.randn(20, 3), torch.randn(20)
    >>> extractor = FeatureExtractor(x, features=2)
    >>> model = DeepKernel(extractor, DeepGP(extractor(x).detach(), layers=1))
    >>> guide = Variational(model, InducingPoints(5))
    >>> guide.initialize(x, y)
    >>> result = fit(ELBO(num_data=20)(model, guide), x, y, steps=20, optimizer=AdamWithWeightPrior(precision=10.0))

    :raises ValueError: for a precision that is not above 0, and where it is called with a loss that does not know the number of rows, or with a network
        whose weights are computed in another way than by ``weight_norm``.
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
    for path, module in objective.named_modules():
        if isinstance(module, nn.Linear | _ConvNd) and any(each.requires_grad for each in module.parameters()):
            for name, share in (("weight", _inputs(module) / 2), ("bias", 1.0)):
                parameter = _parameter_of(module, name, path)
                if parameter is not None:
                    yield parameter, share


def _inputs(layer: nn.Linear | _ConvNd) -> float:
    """Return the number of inputs of a value of the output; of a transposed convolution, whose values have different numbers, the mean."""
    if isinstance(layer, nn.Linear):
        return float(layer.in_features)
    inputs = layer.in_channels / layer.groups * math.prod(layer.kernel_size)
    return inputs / math.prod(layer.stride) if layer.transposed else inputs


def _parameter_of(layer: nn.Module, name: str, path: str) -> Tensor | None:
    """Return the parameter whose sum of squares is that of a weight or a bias; ``None`` where there is no bias, for one that is not trained, and for one with a prior of its own.

    :param path: of the layer, for the message.
    :raises ValueError: for a computed weight without such a parameter.
    """
    own = layer._parameters
    if name in own:
        return own[name]
    if name in getattr(layer, "_pyro_samples", ()):
        return None
    if f"{name}_g" in own and f"{name}_v" in own:  # torch.nn.utils.weight_norm
        return own[f"{name}_g"]
    if is_parametrized(layer, name):
        steps: Any = layer.parametrizations[name]  # type: ignore[index]
        if len(steps) == 1 and isinstance(steps[0], _WeightNorm) and "original0" in steps._parameters:
            return steps.original0  # type: ignore[no-any-return]
    if f"{name}_orig" in own and f"{name}_mask" in layer._buffers:  # torch.nn.utils.prune
        return own[f"{name}_orig"]
    value: Tensor = getattr(layer, name)
    if not any(each.requires_grad for own_path, each in layer.named_parameters() if name in own_path):
        return None
    if value is own.get(f"{name}_unconstrained"):  # a PyroParam without a constraint
        return value
    raise ValueError(
        f"the {name} of the layer {path!r} is computed from other parameters, and no decay of these is a normal prior of it: take out what computes "
        "it, such as spectral_norm or orthogonal, or train with adam_for_networks, which has no prior"
    )
