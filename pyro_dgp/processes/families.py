"""Recipes for processes, and which of them serves which GP of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.site_names import site_of
from pyro_dgp.processes.base import Process


def saved(state: dict[str, Tensor], *names: str) -> list[Tensor]:
    """Tensors of a process's state by name; raises where they are those of another family."""
    for name in names:
        if name not in state:
            raise ValueError(
                f"the saved process has no {name!r} but {sorted(state)}: it is of another family than the guide that loads it"
            )
    return [state[name] for name in names]


class ProcessFamily(ABC):
    """A recipe for processes: what the user hands to a guide, which creates one process for each GP of the model.

    :ivar num_inducing: M, or what there is of that kind.
    """

    num_inducing: int

    @abstractmethod
    def create(self, prior: FunctionPrior, hidden: bool) -> Process:
        """A process initialised at the prior's inputs ``(N, D)``; ``hidden`` says that a layer stands above it."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> Process:
        """A process of the shapes of a state dict, to be loaded into."""


Families = ProcessFamily | Mapping[str, ProcessFamily]


def require_families(families: object) -> None:
    """Raise unless it is a family, or a mapping to families."""
    parts = families.items() if isinstance(families, Mapping) else [("", families)]
    for name, family in parts:
        if not isinstance(family, ProcessFamily):
            where = f"processes[{name!r}]" if name else "processes"
            raise TypeError(f"{where} is an object such as InducingPoints(64), not {family!r}")


def family_of(families: Families, key: str) -> ProcessFamily:
    """The family of a GP: of its own name (``"y/f"``), or of its site (``"y"``)."""
    return families if isinstance(families, ProcessFamily) else families[_serving(families, key)]


def _serving(families: Mapping[str, ProcessFamily], key: str) -> str:
    """The name in the mapping that serves a GP."""
    for name in (key, site_of(key)):
        if name in families:
            return name
    raise ValueError(f"no process family for the GP {key!r}: add it to the mapping, which has {list(families)}")


def require_used(families: Families, keys: Collection[str]) -> None:
    """Raise if a mapping has a name that serves none of the GPs."""
    if isinstance(families, ProcessFamily):
        return
    unused = set(families) - {_serving(families, key) for key in keys}
    if unused:
        raise ValueError(
            f"processes= names {min(unused)!r}, which serves no Gaussian process: the model has {list(keys)} (other latent "
            "sites are served by latents= and networks=)"
        )


def require_scales(scale: float, hidden_scale: float) -> None:
    """Raise unless the initial scales of a family are positive."""
    if min(scale, hidden_scale) <= 0:
        raise ValueError(f"initial scales are above 0, got scale={scale} and hidden_scale={hidden_scale}")
