"""Several chains of a kernel of Pyro's MCMC, each in a process of its own."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from joblib import Parallel, delayed
from pyro.infer import MCMC
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.parameters import module_local_parameters

#: ``report(done, total)``: iterations of all chains, warm-up included.
Report = Callable[[int, int], object]


@dataclass(frozen=True)
class Chains:
    """What sampling leaves behind.

    :ivar draws: by site, ``(chains, draws, ...)``.
    :ivar diagnostics: of each chain, as its kernel has them.
    :ivar seconds: wall-clock time in all.
    """

    draws: dict[str, Tensor]
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def flat(self) -> dict[str, Tensor]:
        """The draws of all chains behind one another, ``(chains * draws, ...)``, as :func:`~pyro_dgp.predict_mcmc` takes them."""
        return {name: values.flatten(0, 1) for name, values in self.draws.items()}


def run_chains(
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    num_samples: int,
    warmup_steps: int,
    num_chains: int = 4,
    seed: int = 0,
    processes: int | None = None,
    report: Report | None = None,
) -> Chains:
    """Run independent chains and put their draws together.

    Pyro's ``MCMC`` starts as many processes as it has chains and refuses more than there are cores but one; here chains wait for a free
    process. Each has one thread and seed ``seed + 1000 * chain``, so that draws do not depend on how many processes there are.

    :param kernel: ``NUTS(whitened(model))``, ``EllipticalSlice(model)``; each chain has a copy.
    :param args: what the model is called with, ``(x, y)``.
    :param processes: at a time; as many as there are cores if not given. One runs the chains in this process, one after another.
    :param report: called after each iteration in this process, or after each chain in others.
    """
    if min(num_samples, num_chains) < 1 or warmup_steps < 0:
        raise ValueError(
            f"a run has at least one chain and one draw, got num_chains={num_chains}, num_samples={num_samples}, "
            f"warmup_steps={warmup_steps}"
        )
    start, each, total = time.perf_counter(), warmup_steps + num_samples, num_chains * (warmup_steps + num_samples)
    workers = min(num_chains, processes or torch.multiprocessing.cpu_count())
    results: list[tuple[dict[str, Tensor], dict[str, Any]]] = []
    if workers == 1:
        for chain in range(num_chains):
            hook = _hook(report, chain * each, warmup_steps, total)
            results.append(_run(copy.deepcopy(kernel), args, num_samples, warmup_steps, seed + 1000 * chain, hook))
    else:
        dtype, local = torch.get_default_dtype(), bool(pyro.settings.get("module_local_params"))
        jobs = (
            delayed(_run_elsewhere)(kernel, args, num_samples, warmup_steps, seed + 1000 * chain, dtype, local)
            for chain in range(num_chains)
        )
        for done, result in enumerate(Parallel(n_jobs=workers, return_as="generator")(jobs), 1):
            results.append(result)
            if report is not None:
                report(done * each, total)
    names = results[0][0]
    draws = {name: torch.stack([chain[name] for chain, _ in results]) for name in names}
    return Chains(draws, [diagnostics for _, diagnostics in results], time.perf_counter() - start)


def _run(
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    num_samples: int,
    warmup_steps: int,
    seed: int,
    hook: Callable[..., None] | None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One chain: draws by site and what the kernel says of it."""
    model = getattr(kernel.model, "model", kernel.model)
    scope = [model] if isinstance(model, torch.nn.Module) else []
    with module_local_parameters(*scope), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, hook_fn=hook)
        mcmc.run(*args)
        draws = {name: values.detach() for name, values in mcmc.get_samples().items()}
        return draws, dict(mcmc._diagnostics[0])  # mcmc.diagnostics() would add R-hat, and fails for few draws


def _run_elsewhere(
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    num_samples: int,
    warmup_steps: int,
    seed: int,
    dtype: torch.dtype,
    local: bool,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """In a process that knows nothing of the caller's settings."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    with pyro.settings.context(module_local_params=local):
        return _run(kernel, args, num_samples, warmup_steps, seed, None)


def _hook(report: Report | None, before: int, warmup: int, total: int) -> Callable[..., None] | None:
    if report is None:
        return None

    def hook(kernel: Any, samples: Any, stage: str, index: int) -> None:
        first = 0 if stage.lower().startswith("warm") else warmup
        report(before + first + index + 1, total)

    return hook
