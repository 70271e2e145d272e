"""What distributions of torch are made of."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from pyro.distributions.torch_distribution import MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints


def elementwise(distribution: Any) -> Any:
    """The distribution of single elements.

    Every ``Independent`` around it, which turns batch axes into event axes, is taken off, and so is every mask, which leaves
    elements out of a log density.

    >>> elementwise(torch.distributions.Independent(torch.distributions.Normal(torch.zeros(5), 1.0), 1)).batch_shape
    torch.Size([5])
    """
    while isinstance(distribution, torch.distributions.Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def is_real(fn: Any) -> bool:
    """Tell whether a distribution is over all real numbers; one that does not say is taken for real."""
    try:
        support = fn.support
    except (AttributeError, NotImplementedError):
        return True
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


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
    for first, kept in (("scale_tril", ("covariance_matrix", "precision_matrix")), ("logits", ("probs",))):
        names = [name for name in names if first not in names or name not in kept]
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


def made_of(components: Distribution, arguments: dict[str, Tensor]) -> Distribution:
    """Construct a distribution of the same kind by other parameters."""
    kind: Any = type(components)
    made: Distribution = kind(**arguments, validate_args=False)
    return made
