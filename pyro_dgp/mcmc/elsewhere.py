"""Chains in other processes: what they take along from this one, and a check that the model is the same there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pickle import PicklingError
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.parameters import module_local_parameters, modules_of, pyro_parameters
from pyro_dgp.mcmc.whitening import without_whitening

#: Largest difference of log densities of one point, as a share of their size, that rounding in another process may make.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Surroundings:
    """What a model depends on besides its own parts: settings, values of ``pyro.param`` statements, and its log density at a draw of its prior.

    :ivar dtype: default dtype.
    :ivar is_local: whether modules keep their parameters to themselves.
    :ivar statements: state of Pyro's store, without the parameters of the model's modules.
    :ivar log_density: nats; ``None`` where the model cannot be evaluated at such a draw, or is not known.
    """

    dtype: torch.dtype
    is_local: bool
    statements: dict[str, dict[str, Any]] = field(default_factory=dict)
    log_density: float | None = None

    @classmethod
    def here(cls, kernel: MCMCKernel, args: tuple[Any, ...]) -> Surroundings:
        """Return those of this process."""
        is_local = bool(pyro.settings.get("module_local_params"))
        return cls(torch.get_default_dtype(), is_local, _statements(kernel), _log_density(kernel, args))

    @contextmanager
    def kept(self, kernel: MCMCKernel, args: tuple[Any, ...]) -> Iterator[None]:
        """A scope in another process with these surroundings.

        :raises ValueError: where the model has another log density there.
        """
        store = pyro.get_param_store()
        before = store.get_state()
        torch.set_default_dtype(self.dtype)
        with pyro.settings.context(module_local_params=self.is_local):
            if self.statements:
                store.set_state(self.statements)
            try:
                self._require_same(_log_density(kernel, args))
                yield
            finally:
                if self.statements:
                    store.set_state(before)

    def _require_same(self, there: float | None) -> None:
        here = self.log_density
        if here is None or there is None or math.isclose(here, there, rel_tol=ROUNDING, abs_tol=ROUNDING):
            return
        raise ValueError(
            f"at one draw of the prior the model has log density {here:.6g} in this process, and {there:.6g} in another one, which imports its functions anew, "
            "without the values that objects of their module have now: run the chains here, run_chains(..., processes=1), or let the model be a PyroModule "
            "that holds its parts"
        )


@contextmanager
def sending() -> Iterator[None]:
    """A scope in which a model that cannot be sent to other processes is refused in a sentence."""
    try:
        yield
    except PicklingError as error:
        reason = (
            str(error.__cause__ or error).replace('"""', "").strip().splitlines()[-1:]
        )  # a traceback of the process
        raise ValueError(
            f"the model, or an argument, cannot be sent to another process ({' '.join(reason)}): run the chains here, "
            "run_chains(..., processes=1)"
        ) from error


def _statements(kernel: MCMCKernel) -> dict[str, dict[str, Any]]:
    """Return the state of Pyro's store without the parameters of modules, which travel with these; nothing where it holds no others."""
    state: dict[str, dict[str, Any]] = pyro.get_param_store().get_state()
    modules = modules_of(without_whitening(getattr(kernel, "model", None)))
    parts = (part for module in modules for part in module.modules())
    own = {id(parameter) for part in parts for _, parameter in pyro_parameters(part)}
    values = {name: value.detach().clone() for name, value in state["params"].items() if id(value) not in own}
    return (
        {} if not values else {"params": values, "constraints": {name: state["constraints"][name] for name in values}}
    )


def _log_density(kernel: MCMCKernel, args: tuple[Any, ...]) -> float | None:
    """Return the log density of a draw of the prior, with the same random numbers in every process."""
    model = without_whitening(getattr(kernel, "model", None))
    if model is None:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad(), module_local_parameters(*modules_of(model)):
        torch.manual_seed(0)
        try:
            total: float | Tensor = poutine.trace(model).get_trace(*args).log_prob_sum()
        except Exception:  # which the chains raise where they meet it
            return None
    return float(total) if math.isfinite(float(total)) else None
