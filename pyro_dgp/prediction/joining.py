"""Selection of components of a distribution, and concatenation of distributions of one kind, by their parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.prediction.point_values import PointValues


def counted_components(components: Distribution, log_weights: Tensor) -> tuple[Distribution, Tensor]:
    """Return the first S components of an elementwise distribution, and their log weights ``(S,)``.

    Where the constructor of the distribution cannot make a smaller one, all components stay and those after S get weight 0.
    """
    count, carried = len(log_weights), components.batch_shape[0]
    if carried == count:
        return components, log_weights
    if isinstance(components, PointValues):
        return PointValues(components.value[:count], components.site), log_weights
    axes, shape = len(components.batch_shape), (count, *components.batch_shape[1:])
    arguments = {
        name: value[:count] if value.dim() >= axes and len(value) == carried else value
        for name, value in parameters_of(components).items()
    }
    try:
        made = _made_of(components, arguments)
    except ValueError:
        made = components
    if made.batch_shape == shape and made.event_shape == components.event_shape:
        return made, log_weights
    return components, torch.cat([log_weights, log_weights.new_full((carried - count,), -math.inf)])


def concatenate(parts: Sequence[Distribution], axis: int = 0) -> Distribution:
    """Return one distribution whose parameters are those of several, concatenated along an axis."""
    if isinstance(parts[0], PointValues):
        first, *others = (part for part in parts if isinstance(part, PointValues))
        return first.joined(others, axis)
    of_each = [parameters_of(part) for part in parts]
    return _made_of(parts[0], {name: torch.cat([values[name] for values in of_each], axis) for name in of_each[0]})


def flattened(components: Distribution, start: int, end: int) -> Distribution:
    """Return a distribution with the batch axes from ``start`` to before ``end`` as one."""
    if isinstance(components, PointValues):
        return PointValues(components.value.flatten(start, end - 1), components.site)
    parameters = {}
    for name, value in parameters_of(components).items():
        constraint: Any = components.arg_constraints[name]
        event = value.shape[value.dim() - constraint.event_dim :]
        parameters[name] = value.expand(components.batch_shape + event).flatten(start, end - 1)
    return _made_of(components, parameters)


def parameters_of(components: Distribution) -> dict[str, Tensor]:
    """Return the parameters by which a distribution was constructed."""
    names = [name for name in components.arg_constraints if name in components.__dict__]
    constructor = inspect.signature(type(components).__init__).parameters.keys() - {"self", "validate_args"}
    if not names and constructor <= components.arg_constraints.keys():
        names = list(components.arg_constraints)  # as of LogNormal or Beta, which keep theirs in a distribution inside
    # A distribution keeps some derived parameters after their first use, beside those of its constructor.
    for made_of, kept in (("scale_tril", ("covariance_matrix", "precision_matrix")), ("logits", ("probs",))):
        names = [name for name in names if made_of not in names or name not in kept]
    return {name: getattr(components, name) for name in names}


def _made_of(components: Distribution, arguments: dict[str, Tensor]) -> Distribution:
    """Construct a distribution of the same kind by other parameters."""
    kind: Any = type(components)
    try:
        made: Distribution = kind(**arguments, validate_args=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"mixtures of {kind.__name__} components cannot be joined: its constructor does not take "
            f"{list(arguments)}; let the likelihood's components() be a plain distribution"
        ) from error
    return made
