"""Selection of components of a distribution, and concatenation of distributions of one kind, by their parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

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
        return _made_of(components, arguments), log_weights
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
    return _made_of(parts[0], {name: torch.cat([values[name] for values in known], axis) for name in known[0]})


def flattened(components: Distribution, start: int, end: int) -> Distribution:
    """Return a distribution with the batch axes from ``start`` to before ``end`` as one."""
    if isinstance(components, PointValues):
        return PointValues(components.value.flatten(start, end - 1), components.site)
    parameters = parameters_of(components)
    if parameters is None:
        return Flattened(components, start, end)
    return _made_of(components, {name: value.flatten(start, end - 1) for name, value in parameters.items()})


def parameters_of(components: Distribution) -> dict[str, Tensor] | None:
    """Return the parameters that a distribution was constructed by, each with the whole batch in front.

    ``None`` stands for a distribution that might be another if it was made of its parameters again: a user's, and one whose
    constructor takes more than its ``arg_constraints`` name, such as the number of trials of a multinomial.
    """
    kind = type(components)
    signature = inspect.signature(kind.__init__).parameters
    arguments = signature.keys() - {"self", "validate_args"}
    is_known = kind.__module__.split(".")[0] in ("torch", "pyro", "pyro_dgp")
    if not is_known or not arguments or not arguments <= components.arg_constraints.keys():
        return None
    names = [name for name in components.arg_constraints if name in components.__dict__]
    if not names:
        names = list(components.arg_constraints)  # as of LogNormal or Beta, which keep theirs in a distribution inside
    # A distribution keeps some derived parameters after their first use, beside those of its constructor.
    for made_of, kept in (("scale_tril", ("covariance_matrix", "precision_matrix")), ("logits", ("probs",))):
        names = [name for name in names if made_of not in names or name not in kept]
    required = {name for name in arguments if signature[name].default is inspect.Parameter.empty}
    if not required <= set(names):
        return None
    parameters = {}
    for name in names:
        value, constraint = getattr(components, name), components.arg_constraints[name]
        if not isinstance(value, Tensor):
            return None
        event = value.shape[value.dim() - constraint.event_dim :]  # type: ignore[attr-defined]
        parameters[name] = value.expand(components.batch_shape + event)
    return parameters


def _made_of(components: Distribution, arguments: dict[str, Tensor]) -> Distribution:
    """Construct a distribution of the same kind by other parameters."""
    kind: Any = type(components)
    made: Distribution = kind(**arguments, validate_args=False)
    return made
