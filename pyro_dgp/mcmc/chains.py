"""Several chains of a kernel of Pyro's MCMC, each in a process of its own, and resumable."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.mcmc.whitening import WhitenedModel

#: ``report(done, total)``: iterations of all chains, warm-up included.
Report = Callable[[int, int], object]

#: Seconds between two savings of a chain, at least.
SAVE_EVERY = 5.0


@dataclass(frozen=True)
class Chains:
    """What sampling leaves behind.

    :ivar draws: by site, ``(chains, draws, ...)``.
    :ivar stats: figures of each draw that the kernel has, by name, ``(chains, draws)``.
    :ivar diagnostics: of each chain, as its kernel has them.
    :ivar seconds: wall-clock time in all, of this call.
    :ivar sampling_seconds: time spent in iterations, warm-up included, summed over chains, also in calls that were interrupted.
    """

    draws: dict[str, Tensor]
    _: KW_ONLY
    stats: dict[str, np.ndarray] = field(default_factory=dict)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    sampling_seconds: float = 0.0

    @property
    def flat(self) -> dict[str, Tensor]:
        """The draws of all chains behind one another, ``(chains * draws, ...)``, as :func:`~pyro_dgp.predict_mcmc` takes them."""
        return {name: values.flatten(0, 1) for name, values in self.draws.items()}


def run_chains(
    kernel: MCMCKernel,
    args: tuple[Any, ...],
    *,
    num_samples: int,
    warmup_steps: int,
    num_chains: int = 4,
    seed: int = 0,
    processes: int | None = None,
    report: Report | None = None,
    folder: Path | str | None = None,
) -> Chains:
    """Run independent chains and put their draws together.

    Pyro's ``MCMC`` starts as many processes as it has chains and refuses more than there are cores but one; here chains wait for a free
    process. Each has one thread and seed ``seed + 1000 * chain``, so that draws do not depend on how many processes there are.

    :param kernel: ``WhitenedNUTS(model)``, ``EllipticalSlice(model)``, any of Pyro's; each chain has a copy.
    :param args: what the model is called with, ``(x, y)``.
    :param processes: at a time; as many as there are cores if not given. One runs the chains in this process, one after another.
    :param report: called after each iteration in this process, or after each chain in others.
    :param folder: (on the CPU) where each chain is saved after its last draw and every five seconds until then, as ``chain-0.pickle`` and so on (load only
        your own: a pickle runs code); what it drew since is lost where it is interrupted. A call that is repeated goes on where the files end, draw for draw as if it had not been interrupted; one that asks
        for more draws adds them.
    :raises ValueError: if the folder holds chains of other data, another model, kernel, seed or warm-up.
    """
    if min(num_samples, num_chains) < 1 or warmup_steps < 0:
        raise ValueError(
            f"a run has at least one chain and one draw, got num_chains={num_chains}, num_samples={num_samples}, "
            f"warmup_steps={warmup_steps}"
        )
    start, each, total = time.perf_counter(), warmup_steps + num_samples, num_chains * (warmup_steps + num_samples)
    workers = min(num_chains, processes or torch.multiprocessing.cpu_count())
    folder = None if folder is None else Path(folder)
    plans = [
        _Plan(
            num_samples, warmup_steps, seed + 1000 * chain, None if folder is None else folder / f"chain-{chain}.pickle"
        )
        for chain in range(num_chains)
    ]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        identity = _identity(kernel, args, warmup_steps)
        plans = [plan.of(identity) for plan in plans]
    results: list[_Chain] = []
    if workers == 1:
        for chain, plan in enumerate(plans):
            results.append(plan.run(kernel, args, None if report is None else _shifted(report, chain * each, total)))
    else:
        from joblib import Parallel, delayed

        dtype, local = torch.get_default_dtype(), bool(pyro.settings.get("module_local_params"))
        jobs = (delayed(_run_elsewhere)(plan, kernel, args, dtype, local) for plan in plans)
        for done, result in enumerate(Parallel(n_jobs=workers, return_as="generator")(jobs), 1):
            results.append(result)
            if report is not None:
                report(done * each, total)
    draws = {
        name: torch.stack([torch.stack(r.draws[name][:num_samples]) for r in results]) for name in results[0].draws
    }
    stats = {name: np.array([r.stats[name][:num_samples] for r in results]) for name in results[0].stats}
    spent = sum(result.seconds for result in results)
    return Chains(
        draws,
        stats=stats,
        diagnostics=[result.diagnostics for result in results],
        seconds=time.perf_counter() - start,
        sampling_seconds=spent,
    )


@dataclass
class _Chain:
    """A chain as far as it has come: everything that its next draw depends on."""

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
        """Add the present values, in their own space, and the kernel's figures of them."""
        transforms = getattr(self.kernel, "transforms", None) or {}
        for name, value in self.params.items():
            own = transforms[name].inv(value) if name in transforms else value
            self.draws.setdefault(name, []).append(own.detach().clone())
        for name, figure in getattr(self.kernel, "stats", {}).items():
            self.stats.setdefault(name, []).append(figure)


@dataclass(frozen=True)
class _Plan:
    """What one chain is to do."""

    num_samples: int
    warmup_steps: int
    seed: int
    path: Path | None
    identity: str = ""

    def of(self, identity: str) -> _Plan:
        """The same for a kernel and data of this identity, and this seed."""
        return _Plan(self.num_samples, self.warmup_steps, self.seed, self.path, f"{identity}-{self.seed}")

    def run(self, kernel: MCMCKernel, args: tuple[Any, ...], report: Callable[[int], object] | None) -> _Chain:
        """Go on where the file ends, or start."""
        model = _inner(kernel.model)
        with module_local_parameters(*modules_of(model)), torch.random.fork_rng(devices=[]):
            chain = self._load() or self._begin(copy.deepcopy(kernel), args)
            torch.set_rng_state(chain.random_state)
            self._draw(chain, report)
            chain.diagnostics = dict(chain.kernel.diagnostics())
            chain.kernel.cleanup()
        return chain

    def _begin(self, kernel: MCMCKernel, args: tuple[Any, ...]) -> _Chain:
        torch.manual_seed(self.seed)
        kernel.setup(self.warmup_steps, *args)
        return _Chain(self.identity, kernel, dict(kernel.initial_params), torch.get_rng_state())

    def _draw(self, chain: _Chain, report: Callable[[int], object] | None) -> None:
        kernel, saved = chain.kernel, time.monotonic()
        total = self.warmup_steps + self.num_samples
        while chain.done < total:
            if chain.done == self.warmup_steps:
                kernel.end_warmup()
            start = time.perf_counter()
            chain.params = kernel.sample(chain.params)
            chain.seconds += time.perf_counter() - start
            if chain.done >= self.warmup_steps:
                chain.keep()
            chain.done += 1
            chain.random_state = torch.get_rng_state()
            if self.path is not None and (chain.done == total or time.monotonic() - saved > SAVE_EVERY):
                self._save(chain)
                saved = time.monotonic()
            if report is not None:
                report(chain.done)

    def _save(self, chain: _Chain) -> None:
        """Only ever after a whole iteration: a draw that is interrupted half-way is made again."""
        import cloudpickle

        assert self.path is not None
        temporary = self.path.with_suffix(".part")
        temporary.write_bytes(cloudpickle.dumps(chain))
        temporary.replace(self.path)

    def _load(self) -> _Chain | None:
        if self.path is None or not self.path.exists():
            return None
        chain: _Chain = pickle.loads(self.path.read_bytes())
        if chain.identity != self.identity:
            raise ValueError(
                f"{str(self.path)!r} holds a chain of other data, or of another model, kernel, seed or warm-up: name another folder"
            )
        return chain


def _identity(kernel: MCMCKernel, args: tuple[Any, ...], warmup_steps: int) -> str:
    """Equal for equal data, parameters, priors, options and warm-up, in whatever process."""
    import joblib

    model = _inner(kernel.model)
    state = {
        f"{i}.{name}": value
        for i, module in enumerate(modules_of(model))
        for name, value in module.state_dict().items()
    }
    inducing: dict[str, Tensor] = getattr(kernel.model, "inducing", {})
    given = [
        value for held in vars(kernel).values() if isinstance(held, dict) for value in held.values()
    ]  # where it starts
    values = (*args, *state.values(), *inducing.values(), *given)
    tensors = [value.detach().cpu().numpy() for value in values if isinstance(value, Tensor)]
    options = [*vars(kernel).items(), *vars(getattr(kernel, "_adapter", object)).items()]
    plain = {name: value for name, value in options if isinstance(value, int | float | str | None)}
    plain |= {name: repr(value) for name, value in options if is_dataclass(value)}
    plain |= {name: value.__qualname__ for name, value in options if isinstance(value, FunctionType)}
    kinds = [getattr(kind, "__qualname__", type(kind).__qualname__) for kind in (type(kernel), model)]
    others = [value for value in args if isinstance(value, int | float | str | None)]
    prior = _prior(kernel.model, args)
    return str(joblib.hash((kinds, plain, list(state), list(inducing), tensors, others, prior, warmup_steps)))


def _prior(model: Any, args: tuple[Any, ...]) -> list[tuple[str, str, str, str]]:
    """One draw of the prior by a fixed seed and its log density, site by site: what names and parameters do not tell, such as priors."""
    if model is None:
        return []
    model = copy.deepcopy(model)  # a whitened one remembers the inputs that it was run at
    inner = _inner(model)
    with module_local_parameters(*modules_of(inner)), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            trace = poutine.trace(model).get_trace(*args)
            trace.compute_log_prob()
        except NotPositiveDefiniteError:
            return []
    sites = [(name, site) for name, site in trace.nodes.items() if is_random(site)]
    # In float32 the last digits hang on the number of threads.
    digits = [6 if site["value"].dtype == torch.float64 else 2 for _, site in sites]
    return [
        (
            name,
            type(site["fn"]).__qualname__,
            f"{float(site['value'].double().sum()):.{count}g}",
            f"{float(site['log_prob_sum']):.{count}g}",
        )
        for (name, site), count in zip(sites, digits, strict=True)
    ]


def _inner(model: Any) -> Any:
    """What a whitened model runs; any other itself."""
    return model.model if isinstance(model, WhitenedModel) else model


def _run_elsewhere(plan: _Plan, kernel: MCMCKernel, args: tuple[Any, ...], dtype: torch.dtype, local: bool) -> _Chain:
    """In a process that knows nothing of the caller's settings."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    with pyro.settings.context(module_local_params=local):
        return plan.run(kernel, args, _while_the_parent_lives())


def _while_the_parent_lives() -> Callable[[int], object]:
    """Ends this process after an iteration at which the one that started it is gone: another may go on in the same files."""
    parent = os.getppid()

    def check(done: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    return check


def _shifted(report: Report, before: int, total: int) -> Callable[[int], object]:
    return lambda done: report(before + done, total)
