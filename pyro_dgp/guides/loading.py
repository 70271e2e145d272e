"""Creation of the parameters that a state dict holds and a guide lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_dgp.internal.site_names import process_parameter
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.families import Families, family_of

_UNCONSTRAINED = "_unconstrained"
_PARAMETERS = ("latents.locs", "latents.scales", "latents.weights", "latents.lower")


def missing_processes(
    state: Mapping[str, Any], families: Families, present: Mapping[str, Any]
) -> Iterator[tuple[str, Process]]:
    """Create, in the shapes of a guide's state, the processes that the guide lacks; give each with its name.

    :param state: the state dict of a guide.
    :param present: the guide's processes by name.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if (of_process := process_parameter(name)) is not None:
            key, attribute = of_process
            groups.setdefault(key, {})[attribute] = value
    for key, tensors in groups.items():
        if key not in present:
            yield key, family_of(families, key).restore(tensors)


def missing_latents(state: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[tuple[str, PyroParam]]:
    """Create the parameters of normals of latent sites that the guide lacks; give each with its name.

    :param state: the state dict of a guide.
    :param present: the state dict of the guide that loads it.
    """
    for name, value in state.items():
        if name.startswith(_PARAMETERS) and name not in present:
            constraint = constraints.positive if name.startswith("latents.scales") else constraints.real
            dims = 2 if name.startswith(("latents.weights", "latents.lower")) else None
            yield (
                name.removesuffix(_UNCONSTRAINED),
                PyroParam(torch.ones_like(value), constraint=constraint, event_dim=dims),
            )
