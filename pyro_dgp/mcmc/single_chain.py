"""One chain: what it is to do, and how it goes on from its file."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.mcmc.chain_file import SENSELESS, ChainFile, ChainState
from pyro_dgp.mcmc.kernel_state import stateful
from pyro_dgp.mcmc.whitening import without_whitening

#: Seconds between two savings of a chain, at least.
SAVE_EVERY = 5.0

#: ``report(done)``, called after each iteration of one chain, warm-up included.
OwnProgress = Callable[[int], object]


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

    def run(self, kernel: MCMCKernel, args: tuple[Any, ...], report: OwnProgress | None) -> ChainState:
        """Go on where the file ends, or start."""
        scope = modules_of(without_whitening(kernel.model))
        with module_local_parameters(*scope), torch.random.fork_rng(devices=[]):
            device = next((value.device for value in args if isinstance(value, Tensor)), torch.device("cpu"))
            state = None if self.file is None else self.file.read(device, warmup_steps=self.warmup_steps)
            if state is not None and state.done >= self.total:
                return state
            kernel = copy.deepcopy(kernel)
            state = self._begin(kernel, args) if state is None else self._go_on(kernel, args, state)
            torch.set_rng_state(state.random_state)
            self._draw(kernel, state, report)
            kernel.cleanup()
        return state

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

    def _draw(self, kernel: MCMCKernel, state: ChainState, report: OwnProgress | None) -> None:
        saved = time.monotonic()
        while state.done < self.total:
            if state.done == self.warmup_steps:
                kernel.end_warmup()
            start = time.perf_counter()
            state.params = kernel.sample(state.params)
            state.seconds += time.perf_counter() - start
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
