"""Draws of mixtures: one component's draw for each row, without those of the components that are not picked."""

from __future__ import annotations

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.distributions import made_of, parameters_of
from pyro_dgp.prediction.point_values import PointValues

#: Most numbers that are drawn together where all components of a row have to be drawn.
_MOST = 4_000_000


def picked_draws(components: Distribution, index: Tensor, *, reparameterised: bool) -> Tensor:
    """Return a draw of component ``index[c, n]`` for each number c and row n: ``(C, N, ...)``.

    Elementwise components that are made of their parameters again are drawn as one distribution of the picked parameters. Others are drawn all, some numbers
    c at a time, and the picked ones kept.

    :param components: distribution of batch shape ``(S, N, ...)``.
    :param index: numbers of components, ``(C, N)``.
    :param reparameterised: whether draws have gradients in what the components are made of.

    >>> import torch
    >>> from pyro_dgp.prediction.picked_draws import picked_draws
    >>> far = torch.distributions.Normal(torch.tensor([[0.0, 10.0], [100.0, 110.0]]), 1e-6)
    >>> picked_draws(far, torch.tensor([[0, 1], [1, 0]]), reparameterised=False).round().tolist()
    [[0.0, 110.0], [100.0, 10.0]]
    """
    if isinstance(components, PointValues):
        return _picked(components.value, index)
    parameters = None if components.event_shape else parameters_of(components)
    if parameters is not None:
        kept = made_of(components, {name: _picked(value, index) for name, value in parameters.items()})
        return kept.rsample() if reparameterised else kept.sample()
    draw = components.rsample if reparameterised else components.sample
    many = max(1, _MOST // max(1, (components.batch_shape + components.event_shape).numel()))
    return torch.cat([_gathered(draw(Size((len(part),))), part) for part in index.split(many)])


def _picked(values: Tensor, index: Tensor) -> Tensor:
    """Return the values ``(S, N, ...)`` of the picked components, ``(C, N, ...)``."""
    return values[index, torch.arange(index.shape[1], device=index.device)]


def _gathered(draws: Tensor, index: Tensor) -> Tensor:
    """Return the picked ones of draws of all components ``(C, S, N, ...)``: ``(C, N, ...)``."""
    pick = index.reshape(len(index), 1, index.shape[1], *[1] * (draws.dim() - 3))
    return draws.gather(1, pick.expand(len(index), 1, *draws.shape[2:])).squeeze(1)
