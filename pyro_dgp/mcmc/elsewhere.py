"""The model of chains: a check that it is the same in other processes, with what they take along from this one, and afterwards."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pickle import PicklingError
from types import MappingProxyType
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.global_store import pyro_parameters
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.mcmc.remembered import Remembered
from pyro_dgp.mcmc.whitening import without_whitening

#: Largest difference of log densities of one draw, as a share of their size, that rounding may make in double and in single precision: on another machine,
#: and on one like this.
ELSEWHERE, HERE = {torch.float64: 1e-5, torch.float32: 0.1}, {torch.float64: 1e-6, torch.float32: 1e-4}
#: Rows at which the density is evaluated.
ROWS = 50


@dataclass(frozen=True)
class Surroundings:
    """Settings of a process that a model depends on, besides its own parts, values of ``pyro.param`` statements, and its log density at a draw of its prior.

    :ivar dtype: default dtype.
    :ivar is_local: whether modules keep their parameters to themselves.
    :ivar draw: the draw.
    :ivar statements: values in Pyro's store that the model reads, and their constraints.
    """

    dtype: torch.dtype
    is_local: bool
    draw: PriorDraw
    statements: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def here(cls, model: Any, draw: PriorDraw) -> Surroundings:
        """Return those of this process, where a draw of the prior of the model was made."""
        is_local = bool(pyro.settings.get("module_local_params"))
        return cls(torch.get_default_dtype(), is_local, draw, _statements(model, draw.statements))

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
                there = PriorDraw.of(getattr(kernel, "model", None), args)
                if self.draw.agrees(there, ELSEWHERE) is False:
                    raise ValueError(
                        f"at one draw of the prior the model has log density {self.draw.log_density:.6g} in this process, and {there.log_density:.6g} in another "
                        "one, which imports its functions anew, without the values that objects of their module have now: run the chains here, "
                        "run_chains(..., processes=1), or let the model be a PyroModule that holds its parts"
                    )
                yield
            finally:
                if self.statements:
                    store.set_state(before)


class PriorDraw(NamedTuple):
    """A draw of a model's prior, by random numbers that are the same in every process.

    :ivar log_density: nats, of latent values and observations; ``None`` where the model cannot be run, or is not known.
    :ivar dtype: of the inputs.
    :ivar statements: names of the ``pyro.param`` statements that the model meets; ``None`` where it cannot be run.
    """

    log_density: float | None = None
    dtype: torch.dtype = torch.float64
    statements: frozenset[str] | None = None

    @classmethod
    def of(cls, model: Any, args: tuple[Any, ...]) -> PriorDraw:
        """Draw, at some of the rows. The model and its modules stay as they are."""
        model = without_whitening(model)
        if model is None:
            return cls()
        try:
            model = copy.deepcopy(model)
            args, kwargs = RowArguments(args, {})[slice(0, ROWS)]
        except Exception:  # a model that cannot be copied, and arguments without rows
            kwargs = {}
        modules = modules_of(model)
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(),
            torch.no_grad(),
            module_local_parameters(*modules),
            evaluating(*modules),
            ExitStack() as stack,
        ):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # as in the processes of chains, for the same rounding
            torch.manual_seed(0)
            warnings.simplefilter("ignore")  # the chains say what there is to say
            try:
                trace = poutine.trace(model).get_trace(*args, **kwargs)
                total = float(trace.log_prob_sum())
            except Exception:  # which the chains raise where they meet it
                return cls()
        dtype = next((value.dtype for value in args if isinstance(value, Tensor)), torch.float64)
        return cls(total if math.isfinite(total) else None, dtype, frozenset(trace.param_nodes))

    def agrees(self, other: PriorDraw, rounding: Mapping[torch.dtype, float]) -> bool | None:
        """Tell whether the model has the same log density up to rounding; ``None`` where it has none."""
        if self.log_density is None or other.log_density is None:
            return None
        share = rounding.get(self.dtype, rounding[torch.float32])
        return math.isclose(self.log_density, other.log_density, rel_tol=share, abs_tol=share)


class ModelWhenSampled(NamedTuple):
    """A model as it was when chains were sampled.

    :ivar parameters: those of its modules, and ``draw`` its log density at a draw of its prior.
    :ivar statements: values of the ``pyro.param`` statements that it meets.
    """

    parameters: Remembered
    draw: PriorDraw
    statements: Mapping[str, Tensor] = MappingProxyType({})

    @classmethod
    def of(cls, model: Any, args: tuple[Any, ...]) -> ModelWhenSampled:
        """Remember a model."""
        draw = PriorDraw.of(model, args)
        statements = _statements(model, draw.statements).get("params", {})
        return cls(Remembered(modules_of(without_whitening(model))), draw, statements)

    def changed(self, model: Any, args: tuple[Any, ...]) -> str | None:
        """Return what has changed in the model, or in a copy of it, so that its log density is another one; nothing where it has not changed.

        Where there is no log density at a draw of the prior, changed parameters count, and changed attributes are not noticed.
        """
        now = PriorDraw.of(model, args)
        is_same = self.draw.agrees(now, HERE)
        if is_same:
            return None
        names = self.parameters.changed(modules=modules_of(without_whitening(model)))
        store = _statements(model, now.statements).get("params", {})
        names += [name for name, value in self.statements.items() if name in store and not store[name].equal(value)]
        if names:
            return f"the parameter {names[0].removesuffix('_unconstrained')!r} of the model, or something else that it reads,"
        return None if is_same is None else "an attribute of the model, or an object that it reads,"


@contextmanager
def sending() -> Iterator[None]:
    """A scope in which a model that cannot be sent to other processes is refused in a sentence."""
    try:
        yield
    except PicklingError as error:
        lines = str(error.__cause__ or error).replace('"""', "").strip().splitlines()  # of a traceback
        raise ValueError(
            f"the model, or an argument, cannot be sent to another process ({lines[-1] if lines else error!r}): run the chains here, "
            "run_chains(..., processes=1)"
        ) from error


def _statements(model: Any, met: frozenset[str] | None) -> dict[str, dict[str, Any]]:
    """Return what Pyro's store holds of the statements that a model meets, without the parameters of modules, which travel with these; all where that is not known."""
    state: dict[str, dict[str, Any]] = pyro.get_param_store().get_state()
    parts = (part for module in modules_of(without_whitening(model)) for part in module.modules())
    own = {id(parameter) for part in parts for _, parameter in pyro_parameters(part)}
    names = [name for name, value in state["params"].items() if id(value) not in own and (met is None or name in met)]
    values = {name: state["params"][name].detach().clone() for name in names}
    return {} if not values else {"params": values, "constraints": {name: state["constraints"][name] for name in names}}
