"""One chain: what it is to do, how far it has come, and the file from which it goes on."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.mcmc.whitening import without_whitening

#: Seconds between two savings of a chain, at least.
SAVE_EVERY = 5.0

#: ``report(done)``, called after each iteration of one chain, warm-up included.
OwnProgress = Callable[[int], object]


@dataclass
class ChainState:
    """How far a chain has come: its draws, and everything on which its next draw depends.

    :ivar identity: that of the plan it was made by.
    :ivar params: the present point in unconstrained space, by site.
    :ivar done: iterations, warm-up included.
    :ivar draws: each site's values after the warm-up, in its own space.
    :ivar stats: figures of each draw, by name.
    :ivar diagnostics: figures of the whole chain.
    :ivar seconds: time spent in iterations.
    """

    identity: str
    kernel: MCMCKernel
    params: dict[str, Tensor]
    random_state: Tensor
    done: int = 0
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    stats: dict[str, list[float | int | bool]] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def keep(self) -> None:
        """Add the present values, in the space of each site, and the kernel's figures of them."""
        transforms = getattr(self.kernel, "transforms", None) or {}
        for name, value in self.params.items():
            own = transforms[name].inv(value) if name in transforms else value
            self.draws.setdefault(name, []).append(own.detach().clone())
        for name, figure in getattr(self.kernel, "stats", {}).items():
            self.stats.setdefault(name, []).append(figure)

    def save(self, path: Path) -> None:
        """Write a file. It is done only after a whole iteration, so a draw that is interrupted half-way is made again."""
        import cloudpickle

        temporary = path.with_suffix(".part")
        temporary.write_bytes(cloudpickle.dumps(self))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, identity: str) -> ChainState:
        """Read a file; raises if the chain in it has another identity."""
        state: ChainState = pickle.loads(path.read_bytes())
        if state.identity != identity:
            raise ValueError(
                f"{str(path)!r} holds a chain of other data, or of another model, kernel, seed or warm-up: name another folder"
            )
        return state


@dataclass(frozen=True)
class ChainPlan:
    """Plan of one chain.

    :ivar path: its file; nothing where it is not saved.
    :ivar identity: what the chain in the file must have; see :func:`~pyro_dgp.mcmc.chain_identity.identity`.
    """

    num_samples: int
    warmup_steps: int
    seed: int
    path: Path | None = None
    identity: str = ""

    def saved_in(self, folder: Path, chain: int, identity: str) -> ChainPlan:
        """The plan with a file for a chain of this identity and the plan's seed."""
        return replace(self, path=folder / f"chain-{chain}.pickle", identity=f"{identity}-{self.seed}")

    def run(self, kernel: MCMCKernel, args: tuple[Any, ...], report: OwnProgress | None) -> ChainState:
        """Go on where the file ends, or start."""
        scope = modules_of(without_whitening(kernel.model))
        with module_local_parameters(*scope), torch.random.fork_rng(devices=[]):
            if self.path is not None and self.path.exists():
                state = ChainState.load(self.path, self.identity)
            else:
                state = self._begin(copy.deepcopy(kernel), args)
            torch.set_rng_state(state.random_state)
            self._draw(state, report)
            state.diagnostics = dict(state.kernel.diagnostics())
            state.kernel.cleanup()
        return state

    def _begin(self, kernel: MCMCKernel, args: tuple[Any, ...]) -> ChainState:
        torch.manual_seed(self.seed)
        kernel.setup(self.warmup_steps, *args)
        return ChainState(self.identity, kernel, dict(kernel.initial_params), torch.get_rng_state())

    def _draw(self, state: ChainState, report: OwnProgress | None) -> None:
        kernel, saved = state.kernel, time.monotonic()
        total = self.warmup_steps + self.num_samples
        while state.done < total:
            if state.done == self.warmup_steps:
                kernel.end_warmup()
            start = time.perf_counter()
            state.params = kernel.sample(state.params)
            state.seconds += time.perf_counter() - start
            if state.done >= self.warmup_steps:
                state.keep()
            state.done += 1
            state.random_state = torch.get_rng_state()
            if self.path is not None and (state.done == total or time.monotonic() - saved > SAVE_EVERY):
                state.save(self.path)
                saved = time.monotonic()
            if report is not None:
                report(state.done)
