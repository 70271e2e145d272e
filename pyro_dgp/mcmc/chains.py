"""Several chains of a kernel of Pyro's MCMC, each in a process of its own, and resumable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.executors import require_processes
from pyro_dgp.internal.parent import end_if_orphaned
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.whole_file import remove_parts
from pyro_dgp.mcmc.chain_file import ChainState
from pyro_dgp.mcmc.chain_identity import identity
from pyro_dgp.mcmc.from_draws import PosteriorDraws, answer_from_draws
from pyro_dgp.mcmc.kernel_state import stateful
from pyro_dgp.mcmc.single_chain import ChainPlan, OwnProgress
from pyro_dgp.prediction.request import Answer, Request, answer


@dataclass(frozen=True)
class Chains:
    """The result of sampling: ``predict(chains, x)`` predicts from it.

    :ivar draws: by site, ``(chains, draws, ...)``.
    :ivar stats: the kernel's figures of each draw, by name, ``(chains, draws)``.
    :ivar diagnostics: the kernel's figures of each chain.
    :ivar seconds: wall-clock time of this call.
    :ivar sampling_seconds: time spent in iterations, warm-up included, summed over chains and over calls that were interrupted.
    :ivar model: the model that was sampled; ``None`` for a kernel that was given none.
    :ivar args: arguments that it was sampled with.
    """

    draws: dict[str, Tensor]
    _: KW_ONLY
    stats: dict[str, np.ndarray] = field(default_factory=dict)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    sampling_seconds: float = 0.0
    model: Any = None
    args: tuple[Any, ...] = ()

    @property
    def flat(self) -> dict[str, Tensor]:
        """The draws of all chains behind one another, ``(chains * draws, ...)``, as :class:`~pyro_dgp.PosteriorDraws` takes them."""
        return {name: values.flatten(0, 1) for name, values in self.draws.items()}

    @property
    def posterior(self) -> PosteriorDraws:
        """The draws with the model and the arguments that they belong to."""
        if self.model is None:
            raise ValueError(
                "these chains hold no model: take PosteriorDraws(model, chains.flat, (x, y)) in their place"
            )
        return PosteriorDraws(self.model, self.flat, self.args)


@answer.register
def answer_from_chains(chains: Chains, request: Request) -> Answer:
    """Return the answer of chains, by their own model and arguments."""
    return answer_from_draws(chains.posterior, request)


def run_chains(
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    *,
    num_samples: int,
    warmup_steps: int,
    num_chains: int = 4,
    seed: int = 0,
    processes: int | None = None,
    executor: Executor | None = None,
    report: Progress | None = None,
    folder: Path | str | None = None,
) -> Chains:
    """Run independent chains and put their draws together.

    Pyro's ``MCMC`` starts as many processes as it has chains and refuses more than there are cores but one; here chains wait for a free
    process. Each has one thread and seed ``seed + 1000 * chain``, so that draws do not depend on how many processes there are.

    :param kernel: ``WhitenedNUTS(model)``, ``EllipticalSlice(model)``, or any kernel of Pyro; each chain has a copy.
    :param args: arguments of the model, ``(x, y)``.
    :param num_samples: draws of each chain, after the warm-up.
    :param warmup_steps: iterations of each chain before its draws are kept.
    :param processes: number of processes at a time, the number of cores by default. One means this process, one chain after another.
    :param executor: engine that carries the chains out in the place of processes of this machine, such as Dask's ``client.get_executor()``.
        Its workers need the library, and see the folder if one is given.
    :param report: called with iterations of all chains, warm-up included: after each in this process, after each chain in others.
    :param folder: where each chain is saved every five seconds and at its end, as ``chain-0.safetensors`` and so on: files of tensors and
        numbers, which run no code when they are read. A call that is repeated goes on where the files end, on the CPU to the same bits as
        if it had not been interrupted, and one that asks for more draws adds them to a finished chain. Draws since the last saving are
        made again. A kernel of your own is saved if it has ``state_dict`` and ``load_state_dict``, as a module has.
    :raises ValueError: if the folder holds chains of other data, another model, kernel, seed or warm-up, or a file that cannot be read.
    """
    if min(num_samples, num_chains) < 1 or warmup_steps < 0:
        raise ValueError(
            f"a run has at least one chain and one draw, got num_chains={num_chains}, num_samples={num_samples}, "
            f"warmup_steps={warmup_steps}"
        )
    if executor is not None:
        require_processes(executor)
        if processes is not None:
            raise ValueError("processes are those of this machine, and an executor has its own: give one of both")
    start = time.perf_counter()
    plans = [ChainPlan(num_samples, warmup_steps, seed + 1000 * chain) for chain in range(num_chains)]
    if folder is not None:
        stateful(kernel)  # which raises where it cannot be saved
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        own = identity(kernel, args, warmup_steps)
        plans = [plan.saved_in(folder, chain, own) for chain, plan in enumerate(plans)]
    workers = min(num_chains, processes or torch.multiprocessing.cpu_count())
    if executor is not None:
        states = _run_by(executor, plans, kernel, args, report)
    elif workers == 1:
        states = _run_here(plans, kernel, args, report)
    else:
        states = list(_run_elsewhere(plans, kernel, args, workers=workers, report=report))
    draws = {
        name: torch.stack([torch.stack(state.draws[name][:num_samples]) for state in states])
        for name in states[0].draws
    }
    stats = {name: np.array([state.stats[name][:num_samples] for state in states]) for name in states[0].stats}
    return Chains(
        draws,
        stats=stats,
        diagnostics=[state.diagnostics for state in states],
        seconds=time.perf_counter() - start,
        sampling_seconds=sum(state.seconds for state in states),
        model=getattr(kernel, "model", None),
        args=args,
    )


def _run_here(
    plans: list[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], report: Progress | None
) -> list[ChainState]:
    """One chain after another, in this process."""
    each = plans[0].warmup_steps + plans[0].num_samples
    states = []
    for chain, plan in enumerate(plans):
        own = None if report is None else _among_all(report, before=chain * each, total=len(plans) * each)
        states.append(plan.run(kernel, args, own))
    return states


def _run_elsewhere(
    plans: list[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], *, workers: int, report: Progress | None
) -> Iterator[ChainState]:
    """The chains in processes of their own, in order."""
    from joblib import Parallel, delayed

    each = plans[0].warmup_steps + plans[0].num_samples
    run = _in_a_process_of_its_own()
    jobs = (delayed(run)(plan, kernel, args) for plan in plans)
    for done, state in enumerate(Parallel(n_jobs=workers, return_as="generator")(jobs), 1):
        yield state
        if report is not None:
            report(done * each, len(plans) * each, {})


def _run_by(
    executor: Executor, plans: list[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], report: Progress | None
) -> list[ChainState]:
    """The chains where and when an executor sees fit; an error of one ends those that have not begun."""
    each = plans[0].warmup_steps + plans[0].num_samples
    run = _in_a_process_of_its_own()
    chains = [executor.submit(run, plan, kernel, args) for plan in plans]
    try:
        for done, chain in enumerate(as_completed(chains), 1):
            chain.result()
            if report is not None:
                report(done * each, len(plans) * each, {})
        return [chain.result() for chain in chains]
    finally:
        for chain in chains:
            chain.cancel()


def _in_a_process_of_its_own() -> Callable[[ChainPlan, MCMCKernel, tuple[Any, ...]], ChainState]:
    """Return the function that runs a chain in a process by the settings of this one."""
    local = bool(pyro.settings.get("module_local_params"))
    return partial(_run_one, dtype=torch.get_default_dtype(), local=local)


def _run_one(
    plan: ChainPlan, kernel: MCMCKernel, args: tuple[Any, ...], *, dtype: torch.dtype, local: bool
) -> ChainState:
    """A chain in a process that knows nothing of the caller's settings."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    with pyro.settings.context(module_local_params=local):
        return plan.run(kernel, args, _while_the_parent_lives())


def _while_the_parent_lives() -> OwnProgress:
    """Ends this process after an iteration at which the one that started it is gone: another may go on in the same files."""
    parent = os.getppid()
    return lambda done: end_if_orphaned(parent)


def _among_all(report: Progress, before: int, total: int) -> OwnProgress:
    """The report of one chain as part of all, of whose iterations ``before`` are done when it begins."""
    return lambda done: report(before + done, total, {})
