"""Chains of one process: what each is to do, how it goes on from its file, and how several are run in step."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.mcmc.chain_file import SENSELESS, ChainFile, ChainState
from pyro_dgp.mcmc.kernel_state import stateful
from pyro_dgp.mcmc.lockstep import lockstep
from pyro_dgp.mcmc.trajectories import Steps
from pyro_dgp.mcmc.whitening import without_whitening

#: Seconds between two savings of a chain, at least.
SAVE_EVERY = 5.0

#: ``report(done)``, called after each iteration of one chain, warm-up included.
OwnProgress = Callable[[int], object]


@runtime_checkable
class Stepwise(Protocol):
    """A kernel whose draws can be made step by step, so that several chains share the evaluation of their gradients."""

    def steps(self, params: dict[str, Tensor]) -> Steps[dict[str, Tensor]]:
        """Make one draw: yield leapfrog steps and trajectories, be sent the point at the end of each step and the point drawn from each trajectory, and return the draw."""
        ...

    @property
    def takes_several(self) -> bool:
        """Whether slopes of several chains take less time than those of one after another."""
        ...

    def slopes(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities ``(C,)`` and gradients ``(C, n)`` at positions of any chains of the same model and data, ``(C, n)``."""
        ...


@dataclass(frozen=True)
class ChainPlan:
    """Plan of one chain.

    :ivar file: its file; nothing where it is not saved.
    """

    num_samples: int
    warmup_steps: int
    seed: int
    file: ChainFile | None = None

    @property
    def total(self) -> int:
        """Iterations, warm-up included."""
        return self.warmup_steps + self.num_samples

    def saved_in(self, folder: Path, chain: int, identity: str) -> ChainPlan:
        """The plan with a file for a chain of this identity and the plan's seed."""
        return replace(self, file=ChainFile(folder / f"chain-{chain}.safetensors", f"{identity}-{self.seed}"))

    def saved(self, args: tuple[Any, ...]) -> ChainState | None:
        """Read the state that the file holds; nothing where there is none."""
        if self.file is None:
            return None
        device = next((value.device for value in args if isinstance(value, Tensor)), torch.device("cpu"))
        return self.file.read(device, warmup_steps=self.warmup_steps)

    def set_up(self, kernel: MCMCKernel, args: tuple[Any, ...], saved: ChainState | None) -> ChainState:
        """Set up a kernel of this chain alone, and return how far the chain has come."""
        return self._begin(kernel, args) if saved is None else self._go_on(kernel, args, saved)

    def _begin(self, kernel: MCMCKernel, args: tuple[Any, ...]) -> ChainState:
        torch.manual_seed(self.seed)
        kernel.setup(self.warmup_steps, *args)
        identity, initial = "" if self.file is None else self.file.identity, dict(kernel.initial_params)
        return ChainState(identity, initial, initial, torch.get_rng_state())

    def _go_on(self, kernel: MCMCKernel, args: tuple[Any, ...], state: ChainState) -> ChainState:
        """Set up a kernel from the first point of a chain, and set the state in which the chain was saved."""
        assert self.file is not None
        torch.manual_seed(self.seed)
        try:
            with suppress(NotImplementedError, AttributeError):  # of a kernel that always starts at the same point
                kernel.initial_params = dict(state.initial)
            kernel.setup(self.warmup_steps, *args)
            state.require_fits(kernel.initial_params)
            stateful(kernel).load_state_dict(state.kernel)
        except SENSELESS as error:
            raise self.file.unreadable(error) from error
        return state

    def iterations(
        self, kernel: MCMCKernel, state: ChainState, report: OwnProgress | None, running: list[ChainPlan]
    ) -> Steps[None]:
        """Make the iterations that are left, as a computation that asks for leapfrog steps and trajectories where the kernel does.

        :param running: plans of the chains that run at the same time in this process and share its time; this one leaves them at its end.
        """
        saved = time.monotonic()
        torch.set_rng_state(state.random_state)
        if state.done:  # a GPU has a generator of its own, which is not saved: it goes on with new numbers, not with those of the first draws
            torch.cuda.manual_seed_all((self.seed * 1_000_003 + state.done) % 2**63)
        while state.done < self.total:
            if state.done == self.warmup_steps:
                kernel.end_warmup()
            start = time.perf_counter()
            if isinstance(kernel, Stepwise):
                state.params = yield from kernel.steps(state.params)
            else:
                state.params = kernel.sample(state.params)
            state.seconds += (time.perf_counter() - start) / len(running)
            if state.done >= self.warmup_steps:
                state.keep(kernel)
            state.done += 1
            state.random_state = torch.get_rng_state()
            is_last = state.done == self.total
            if is_last:
                state.diagnostics = dict(kernel.diagnostics())
            if self.file is not None and (is_last or time.monotonic() - saved > SAVE_EVERY):
                state.kernel = stateful(kernel).state_dict()
                self.file.write(state)
                saved = time.monotonic()
            if report is not None:
                report(state.done)
        running.remove(self)


def run_together(
    plans: Sequence[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], reports: Sequence[OwnProgress | None]
) -> list[ChainState]:
    """Run chains in this process, each with a copy of the kernel: one alone, or several of a :class:`Stepwise` kernel in step."""
    with module_local_parameters(*modules_of(without_whitening(kernel.model))), torch.random.fork_rng(devices=[]):
        states = [plan.saved(args) for plan in plans]
        left = [number for number, state in enumerate(states) if state is None or state.done < plans[number].total]
        kernels = {number: copy.deepcopy(kernel) for number in left}
        runs, running = [], [plans[number] for number in left]
        for number, own in kernels.items():
            state = states[number] = plans[number].set_up(own, args, states[number])
            runs.append(plans[number].iterations(own, state, reports[number], running))
        first = next(iter(kernels.values()), kernel)
        lockstep(runs, first.slopes if isinstance(first, Stepwise) else _no_slopes)
        for own in kernels.values():
            own.cleanup()
    return [state for state in states if state is not None]


def _no_slopes(positions: Any) -> Any:
    raise AssertionError("a kernel without steps asks for no slopes")
