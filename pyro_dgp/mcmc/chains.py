"""Several chains of a kernel of Pyro's MCMC, each in a process of its own, and resumable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, as_completed
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.executors import require_processes
from pyro_dgp.internal.parent import end_if_orphaned
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.whole_file import remove_parts
from pyro_dgp.mcmc.chain_arguments import require_arguments, warn_of_no_observation
from pyro_dgp.mcmc.chain_file import ChainState
from pyro_dgp.mcmc.chain_identity import identity
from pyro_dgp.mcmc.elsewhere import ModelWhenSampled, Surroundings, sending
from pyro_dgp.mcmc.from_draws import PosteriorDraws, answer_from_draws
from pyro_dgp.mcmc.kernel_state import stateful
from pyro_dgp.mcmc.single_chain import ChainPlan, OwnProgress, Stepwise, run_together
from pyro_dgp.prediction.request import Answer, Request, answer

#: A function that runs chains of a kernel in another process.
Run = Callable[[list[ChainPlan], MCMCKernel, tuple[Any, ...]], list[ChainState]]


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
    _then: ModelWhenSampled | None = field(default=None, repr=False, compare=False)

    @property
    def flat(self) -> dict[str, Tensor]:
        """The draws of all chains behind one another, ``(chains * draws, ...)``, as :class:`~pyro_dgp.PosteriorDraws` takes them."""
        return {name: values.flatten(0, 1) for name, values in self.draws.items()}

    @property
    def posterior(self) -> PosteriorDraws:
        """The draws with the model and the arguments that they belong to.

        :raises ValueError: after parameters or attributes of the model have changed, on which the draws depend.
        """
        if self.model is None:
            raise ValueError(
                "these chains hold no model: take PosteriorDraws(model, chains.flat, (x, y)) in their place"
            )
        changed = None if self._then is None else self._then.changed(self.model, self.args)
        if changed is not None:
            raise ValueError(
                f"{changed} has changed since the chains were sampled, by training or by hand: sample again, or give each way to fit a model of its own, "
                "copy.deepcopy(model)"
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
    Chains of :class:`~pyro_dgp.WhitenedNUTS` with :class:`~pyro_dgp.CompiledDensity` are divided among the processes, and those of one process share
    their gradients: their draws depend on who shares with whom by rounding, which a chain magnifies.

    :param kernel: ``WhitenedNUTS(model)``, ``EllipticalSlice(model)``, or any kernel of Pyro; each chain has a copy.
    :param args: arguments of the model, ``(x, y)``, as a tuple. Without targets, ``(x,)``, chains sample the prior, with a warning.
    :param num_samples: draws of each chain, after the warm-up.
    :param warmup_steps: iterations of each chain before its draws are kept.
    :param processes: number of processes at a time, the number of cores by default. One means this process.
    :param executor: engine that carries the chains out in the place of processes of this machine, such as Dask's ``client.get_executor()``.
        Its workers need the library, and see the folder if one is given.
    :param report: function that is called as ``report(done, total, figures)`` while chains run: how many iterations of all chains are done, of how
        many, warm-up included; ``figures`` is an empty dictionary. With ``processes=1`` it is called after each iteration, otherwise after each chain,
        or after chains that share gradients.
    :param folder: where each chain is saved every five seconds and at its end, as ``chain-0.safetensors`` and so on: files of tensors and
        numbers, which run no code when they are read. A call that is repeated goes on where the files end, on the CPU to the same bits as
        if it had not been interrupted (up to rounding where chains share gradients), and one that asks for more draws adds them to a finished chain. Draws since the last saving are
        made again. A kernel of your own is saved if it has ``state_dict`` and ``load_state_dict``, as a module has.
    :raises TypeError: for a kernel of a guide, and for arguments that are no tuple or hold NumPy arrays.
    :raises ValueError: if the folder holds chains of other data, another model, kernel, seed or warm-up, or a file that cannot be read.
    """
    if min(num_samples, num_chains) < 1 or warmup_steps < 0:
        raise ValueError(
            f"a run has at least one chain and one draw, got num_chains={num_chains}, num_samples={num_samples}, "
            f"warmup_steps={warmup_steps}"
        )
    require_arguments(kernel, args)
    warn_of_no_observation(kernel, args)
    if executor is not None:
        require_processes(executor)
        if processes is not None:
            raise ValueError("processes are those of this machine, and an executor has its own: give one of both")
    start, model = time.perf_counter(), getattr(kernel, "model", None)
    sampled = ModelWhenSampled.of(model, args)
    plans = [ChainPlan(num_samples, warmup_steps, seed + 1000 * chain) for chain in range(num_chains)]
    if folder is not None:
        stateful(kernel)  # which raises where it cannot be saved
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        own = identity(kernel, args, warmup_steps)
        plans = [plan.saved_in(folder, chain, own) for chain, plan in enumerate(plans)]
    run = partial(_run_some, surroundings=Surroundings.here(model, sampled.draw))
    workers = min(num_chains, processes or torch.multiprocessing.cpu_count())
    if executor is not None:
        states = _run_by(executor, run, plans, kernel, args, report=report)
    elif workers == 1:
        states = _run_here(plans, kernel, args, report)
    else:
        states = _run_elsewhere(run, plans, kernel, args, workers=workers, report=report)
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
        model=model,
        args=args,
        _then=sampled,
    )


def _run_here(
    plans: list[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], report: Progress | None
) -> list[ChainState]:
    """The chains in this process: together, or one after another."""
    counts = _Counts(plans, report)
    reports = [None if report is None else counts.of(chain) for chain in range(len(plans))]
    states = []
    for group in _groups(len(plans), 1, kernel):
        states += run_together(plans[group], kernel, args, reports[group])
    return states


def _run_elsewhere(
    run: Run,
    plans: list[ChainPlan],
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    *,
    workers: int,
    report: Progress | None,
) -> list[ChainState]:
    """The chains in processes of their own, in order."""
    from joblib import Parallel, delayed

    each = plans[0].warmup_steps + plans[0].num_samples
    jobs = (delayed(run)(plans[group], kernel, args) for group in _groups(len(plans), workers, kernel))
    states: list[ChainState] = []
    with sending():
        for group in Parallel(n_jobs=workers, return_as="generator")(jobs):
            states += group
            if report is not None:
                report(len(states) * each, len(plans) * each, {})
    return states


def _groups(chains: int, workers: int, kernel: MCMCKernel) -> list[slice]:
    """The chains that run together: as many groups as processes where the kernel can share gradients, otherwise each alone."""
    count = workers if isinstance(kernel, Stepwise) and kernel.takes_several else chains
    ends = [chains * number // count for number in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


def _run_by(
    executor: Executor,
    run: Run,
    plans: list[ChainPlan],
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    *,
    report: Progress | None,
) -> list[ChainState]:
    """The chains where and when an executor sees fit; an error of one ends those that have not begun."""
    each = plans[0].warmup_steps + plans[0].num_samples
    chains = [executor.submit(run, [plan], kernel, args) for plan in plans]
    try:
        for done, chain in enumerate(as_completed(chains), 1):
            chain.result()
            if report is not None:
                report(done * each, len(plans) * each, {})
        return [state for chain in chains for state in chain.result()]
    finally:
        for chain in chains:
            chain.cancel()


def _run_some(
    plans: list[ChainPlan], kernel: MCMCKernel, args: tuple[Any, ...], *, surroundings: Surroundings
) -> list[ChainState]:
    """Chains in a process that knows nothing of the caller's settings."""
    torch.set_num_threads(1)
    with surroundings.kept(kernel, args):
        return run_together(plans, kernel, args, [_while_the_parent_lives()] * len(plans))


def _while_the_parent_lives() -> OwnProgress:
    """Ends this process after an iteration at which the one that started it is gone: another may go on in the same files."""
    parent = os.getppid()
    return lambda done: end_if_orphaned(parent)


class _Counts:
    """The iterations of all chains of this process, of which each chain reports its own."""

    def __init__(self, plans: list[ChainPlan], report: Progress | None) -> None:
        self.report, self.total = report, sum(plan.total for plan in plans)
        self.done = [0] * len(plans)

    def of(self, chain: int) -> OwnProgress:
        """The report of one chain."""

        def told(done: int) -> None:
            self.done[chain] = done
            if self.report is not None:
                self.report(sum(self.done), self.total, {})

        return told
