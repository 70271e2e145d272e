"""Files of chains: how far a chain has come, as tensors, numbers and words, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.internal.checkpoint import StateError, read_state, write_state
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.user_warning import warn_user

#: Version of what a file holds; a file of a later one is refused.
FORMAT = 1

#: Names of the fields that are written as they are.
_PLAIN = ("identity", "done", "seconds", "initial", "params", "kernel", "diagnostics")

#: Errors that a state of another shape than it should have leads to.
SENSELESS = (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError)


@dataclass
class ChainState:
    """How far a chain has come: its draws, and everything on which its next draw depends.

    :ivar identity: that of the plan it was made by.
    :ivar initial: the first point in unconstrained space, by site.
    :ivar params: the present one.
    :ivar random_state: that of torch's random numbers on the CPU.
    :ivar kernel: the state of the kernel, see :func:`~pyro_dgp.mcmc.kernel_state.stateful`; only of a chain that is saved.
    :ivar done: iterations, warm-up included.
    :ivar draws: each site's values after the warm-up, in its own space.
    :ivar stats: figures of each draw, by name.
    :ivar diagnostics: figures of the whole chain.
    :ivar seconds: time spent in iterations.
    """

    identity: str
    initial: dict[str, Tensor]
    params: dict[str, Tensor]
    random_state: Tensor
    _: KW_ONLY
    kernel: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    stats: dict[str, list[float | int | bool]] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def keep(self, kernel: Any) -> None:
        """Add the present values, in the space of each site, and the kernel's figures of them."""
        transforms = getattr(kernel, "transforms", None) or {}
        for name, value in self.params.items():
            own = transforms[name].inv(value) if name in transforms else value
            self.draws.setdefault(name, []).append(own.detach().clone())
        for name, figure in getattr(kernel, "stats", {}).items():
            self.stats.setdefault(name, []).append(figure)

    def require_fits(self, initial: Mapping[str, Tensor]) -> None:
        """Raise unless its points have the sites, shapes and types of the first point of the kernel that is to go on."""
        wanted = {name: (value.shape, value.dtype) for name, value in initial.items()}
        for point in (self.initial, self.params):
            if {name: (value.shape, value.dtype) for name, value in point.items()} != wanted:
                raise ValueError("its points are of another model")


@dataclass(frozen=True)
class ChainFile:
    """File of one chain.

    :ivar identity: what a chain in the file must have; see :func:`~pyro_dgp.mcmc.chain_identity.identity`.
    """

    path: Path
    identity: str

    def write(self, state: ChainState) -> None:
        """Write a state whole or not at all; where that fails, warn, and leave the file as it is."""
        plain = {name: getattr(state, name) for name in _PLAIN}
        draws = {name: torch.stack(values) for name, values in state.draws.items()}
        stats = {name: torch.from_numpy(np.array(values)) for name, values in state.stats.items()}
        whole = {"format": FORMAT, **plain, "random": state.random_state, "draws": draws, "stats": stats}
        try:
            write_state(self.path, whole)
        except OSError as error:
            warn_user(
                f"the chain {str(self.path)!r} cannot be written ({error.strerror or error}): sampling goes on, and the file stays as it was"
            )

    def read(self, device: torch.device, *, warmup_steps: int) -> ChainState | None:
        """Read a state; nothing where there is no file.

        :param device: where its tensors are put.
        :raises ValueError: if the file holds another chain, is of a later version, or makes no sense.
        """
        if not self.path.exists():
            return None
        try:
            whole = read_state(self.path)
            version, identity = whole["format"], whole["identity"]
        except (StateError, KeyError) as error:
            raise self.unreadable(error) from error
        if isinstance(version, int) and version > FORMAT:
            raise ValueError(
                f"the chain {str(self.path)!r} is of a later version of this program ({version}, and this one reads up to {FORMAT}): update "
                "it, or delete the file to start the chain again"
            )
        if identity != self.identity:
            raise ValueError(
                f"{str(self.path)!r} holds a chain of other data, or of another model, kernel, seed or warm-up: name another folder"
            )
        try:
            return _state(whole, device, warmup_steps)
        except SENSELESS as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> ValueError:
        """Return the error of a file that makes no sense."""
        reason = str(error) if isinstance(error, StateError) else f"it makes no sense: {first_line(error)}"
        return ValueError(f"the chain {str(self.path)!r} cannot be read ({reason}): delete it to start the chain again")


def _state(whole: Mapping[str, Any], device: torch.device, warmup_steps: int) -> ChainState:
    """Build a state of what a file holds."""
    random, done = whole["random"], whole["done"]
    if not isinstance(random, Tensor) or random.shape != torch.get_rng_state().shape or random.dtype != torch.uint8:
        raise ValueError("it has no random numbers")
    if not isinstance(done, int) or done < 1:
        raise ValueError("it has no number of iterations")
    count = max(done - warmup_steps, 0)
    draws = {name: list(_moved(values, device)) for name, values in whole["draws"].items()}
    stats = {name: values.tolist() for name, values in whole["stats"].items()}
    lengths = {len(values) for values in (*draws.values(), *stats.values())}
    if not lengths <= {count} or set(draws) != (set(whole["params"]) if count else set()):
        raise ValueError(f"it has other draws than those of {done} iterations")
    plain = {name: _moved(whole[name], device) for name in _PLAIN}
    return ChainState(random_state=random, draws=draws, stats=stats, **plain)


def _moved(value: Any, device: torch.device) -> Any:
    """Return a nest of dictionaries and lists with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(each, device) for key, each in value.items()}
    return [_moved(each, device) for each in value] if isinstance(value, list) else value
