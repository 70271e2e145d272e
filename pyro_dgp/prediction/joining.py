"""Selection of components of a distribution, and concatenation of distributions of one kind, by their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.distributions import made_of, parameters_of
from pyro_dgp.internal.views import Flattened, Joined
from pyro_dgp.prediction.point_values import PointValues


def counted_components(components: Distribution, log_weights: Tensor) -> tuple[Distribution, Tensor]:
    """Return the first S components of an elementwise distribution, and their log weights ``(S,)``.

    Where a smaller distribution cannot be made of the parameters, all components stay and those after S get weight 0.
    """
    count, carried = len(log_weights), components.batch_shape[0]
    if carried == count:
        return components, log_weights
    if isinstance(components, PointValues):
        return PointValues(components.value[:count], components.site), log_weights
    parameters = parameters_of(components)
    if parameters is not None:
        arguments = {name: value[:count] for name, value in parameters.items()}
        return made_of(components, arguments), log_weights
    return components, torch.cat([log_weights, log_weights.new_full((carried - count,), -math.inf)])


def concatenate(parts: Sequence[Distribution], axis: int = 0) -> Distribution:
    """Return one distribution whose parameters are those of several, concatenated along an axis."""
    if isinstance(parts[0], PointValues):
        first, *others = (part for part in parts if isinstance(part, PointValues))
        return first.joined(others, axis)
    of_each = [parameters_of(part) for part in parts]
    known = [parameters for parameters in of_each if parameters is not None]
    if len(known) < len(parts):
        return Joined(parts, axis)
    return made_of(parts[0], {name: torch.cat([values[name] for values in known], axis) for name in known[0]})


def flattened(components: Distribution, start: int, end: int) -> Distribution:
    """Return a distribution with the batch axes from ``start`` to before ``end`` as one."""
    if isinstance(components, PointValues):
        return PointValues(components.value.flatten(start, end - 1), components.site)
    parameters = parameters_of(components)
    if parameters is None:
        return Flattened(components, start, end)
    return made_of(components, {name: value.flatten(start, end - 1) for name, value in parameters.items()})
