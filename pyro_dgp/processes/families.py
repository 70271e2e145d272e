"""Recipes for processes, and the choice of a recipe for each GP of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.site_names import site_of
from pyro_dgp.processes.base import Process


def saved(state: dict[str, Tensor], *names: str) -> list[Tensor]:
    """Return tensors of a process's state by name; raise where the state is that of another family."""
    for name in names:
        if name not in state:
            raise ValueError(
                f"the saved process has no {name!r} but {sorted(state)}: build the guide with the family that was saved"
            )
    return [state[name] for name in names]


class ProcessFamily(ABC):
    """A recipe for processes. A user gives it to a guide, which creates one process for each GP of the model.

    :ivar num_inducing: M, the number of inducing points, or the size of another basis.

    >>> from pyro_dgp import AmortizedInducingPoints, InducingPoints, ProcessFamily
    >>> families = {"h1": InducingPoints(64), "y": AmortizedInducingPoints(8)}
    >>> [(name, family.num_inducing) for name, family in families.items() if isinstance(family, ProcessFamily)]
    [('h1', 64), ('y', 8)]
    """

    num_inducing: int

    @abstractmethod
    def create(self, prior: FunctionPrior, hidden: bool) -> Process:
        """Create a process, initialised at the prior's inputs ``(N, D)``; ``hidden`` is true for layers below the top."""

    def coupled(self, process: Process, prior: FunctionPrior, *, hidden: bool, deviations: int) -> Process:
        """Return a process that moves with hyperparameters that have a posterior; by default one that does not move.

        :param process: what :meth:`create` returned.
        :param deviations: number of standardised deviations of hyperparameters.
        """
        return process

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> Process:
        """Create a process in the shapes of a state dict, which is loaded into it."""


Families = ProcessFamily | Mapping[str, ProcessFamily]


def require_families(families: object) -> None:
    """Raise unless ``families`` is a family, or a mapping to families."""
    parts = families.items() if isinstance(families, Mapping) else [("", families)]
    for name, family in parts:
        if not isinstance(family, ProcessFamily):
            where = f"processes[{name!r}]" if name else "processes"
            raise TypeError(f"{where} is an object such as InducingPoints(64), not {family!r}")


def family_of(families: Families, key: str) -> ProcessFamily:
    """Return the family that serves a GP, by the name of the GP (``"y/f"``) or of its site (``"y"``)."""
    return families if isinstance(families, ProcessFamily) else families[_serving(families, key)]


def _serving(families: Mapping[str, ProcessFamily], key: str) -> str:
    """Return the name in the mapping that serves a GP."""
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
