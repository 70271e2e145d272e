"""What a fit holds of a posterior over functions: processes of the GPs, and values of the other latent sites."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, cast

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.functions.posterior_path import Functions, hidden_functions, posterior_functions
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.handler import process_of
from pyro_dgp.guides.row_dependence import row_dependence
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import (
    evaluating,
    keep_parameters_local,
    module_local_parameters,
    modules_of,
)
from pyro_dgp.internal.rows import Call
from pyro_dgp.internal.site_names import is_inside_observation
from pyro_dgp.mcmc.chains import Chains
from pyro_dgp.mcmc.conditioning import condition_on
from pyro_dgp.mcmc.from_draws import PosteriorDraws
from pyro_dgp.mcmc.sghmc import InducingDraws
from pyro_dgp.mcmc.whitening import without_whitening
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import FunctionMarginal, Process
from pyro_dgp.processes.base import KnownCoefficients, KnownValues
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.propagation import MonteCarlo, Propagation, WithMean


@dataclass(frozen=True)
class Setting:
    """One setting of all that is not a function, for K draws that share it.

    :ivar num_draws: number of draws, K.
    :ivar processes: by process key.
    :ivar latents: values of the other latent sites.
    """

    num_draws: int
    processes: Mapping[str, Process]
    latents: Mapping[str, Tensor] = field(default_factory=dict)


def shared_out(num_draws: int, count: int) -> list[int]:
    """Return the share of each of ``count`` settings in ``num_draws`` draws, as equal as can be."""
    ends = [(number + 1) * num_draws // count for number in range(count)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Fit(ABC):
    """A fit from which functions are drawn.

    :ivar model: called as ``model(x)``.
    :ivar keys: process keys of the model's GPs, in its order.
    """

    model: Callable[..., Any]
    keys: list[str]

    @abstractmethod
    def modules(self) -> list[nn.Module]:
        """Return the modules that the functions depend on."""

    @abstractmethod
    def was_observed(self, name: str) -> bool:
        """Tell whether a site that is neither a GP nor in the settings was observed in training."""

    @abstractmethod
    def settings(self, num_draws: int, row: Call) -> list[Setting]:
        """Return the settings of ``num_draws`` draws; those of a guide are drawn.

        :param row: arguments of the model at one row of inputs.
        """

    def functions(
        self,
        key: str,
        setting: Setting,
        prior: FunctionPrior,
        *,
        num_frequencies: int,
        memory: dict[str, Any],
    ) -> Functions:
        """Draw the functions of one GP.

        :param memory: values that the layers share.
        """
        return posterior_functions(
            prior, setting.processes[key], num_draws=setting.num_draws, num_frequencies=num_frequencies
        )

    def require_joint(self, site: str) -> None:
        """Raise where the function at a site has no joint distribution in closed form, given its inputs."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Set all modules to evaluation with their own parameters, which take no gradients, for a while."""
        modules = self.modules()
        trained = [p for module in modules for p in module.parameters() if p.requires_grad]
        require_none_loaded(*modules)
        with ExitStack() as stack:
            stack.enter_context(module_local_parameters(*modules))
            stack.enter_context(evaluating(*modules))
            try:
                for parameter in trained:
                    parameter.requires_grad_(False)
                yield
            finally:
                for parameter in trained:
                    parameter.requires_grad_(True)


class GuideFit(Fit):
    """The posterior that a guide holds, or the draws of its processes' parameters in the place of one q(f).

    :param states: values of parameters of the guide's processes, by name; the present values if there are none.
    """

    def __init__(self, guide: Variational, states: Sequence[Mapping[str, Tensor]] = ()) -> None:
        structure = guide.structure
        if structure.local:
            raise ValueError(
                f"the latent site {min(structure.local)!r} has a value for each row of the data, so that the model is no function of "
                "its inputs alone: functions can be drawn where all latent sites beside the Gaussian processes are shared by the rows"
            )
        self.guide, self.model, self.keys = guide, guide.model, list(guide.processes._modules)
        for key in self.keys:
            process_of(guide.processes, key).require_functions(key)
        self.states = states

    def modules(self) -> list[nn.Module]:
        """See :class:`Fit`."""
        return [self.guide, *modules_of(self.model)]

    def was_observed(self, name: str) -> bool:
        """See :class:`Fit`."""
        return name in self.guide.structure.responses

    def settings(self, num_draws: int, row: Call) -> list[Setting]:
        """Return one setting, or, with latent sites beside the GPs, a draw of these for each function."""
        guide, states = self.guide, [self.states[i] for i in equally_spaced(len(self.states), num_draws)]
        by_state = [self._processes(state) for state in states or [{}]]
        shares = shared_out(num_draws, len(by_state))
        self._pass_of_one_draw(row)
        names = guide.global_latents
        by_network = [name for name in names if name in guide.networks._modules]
        if by_network:
            raise ValueError(
                f"the posterior of {by_network[0]!r} is a network of the rows that it is called with, so that a function would change with "
                "the other rows: give this site a mean-field posterior, as Variational does without networks="
            )
        if not names:
            return [Setting(*each) for each in zip(shares, by_state, strict=True)]
        sets = []
        for share, processes in zip(shares, by_state, strict=True):
            for _ in range(share):
                trace = self._pass_of_one_draw(row)
                latents = {name: trace.nodes[name]["value"].detach() for name in names}
                sets.append(Setting(1, _moved(processes, guide.deviations(trace)), latents))
        return sets

    def _processes(self, state: Mapping[str, Tensor]) -> dict[str, Process]:
        """Return the guide's processes, or, for a state, copies that hold its values."""
        processes = {key: process_of(self.guide.processes, key) for key in self.keys}
        if not state:
            return processes
        copies: nn.Module = copy.deepcopy(self.guide.processes)
        parameters = dict(copies.named_parameters(prefix="processes"))
        for name, value in state.items():
            parameters[name].data.copy_(value)
        keep_parameters_local(copies)
        return {key: cast(Process, copies._modules[key]) for key in self.keys}

    def _pass_of_one_draw(self, row: Call) -> Trace:
        args, kwargs = row
        return self.guide.components(*args, new_rows=True, propagation=MonteCarlo(1), **kwargs).trace

    def functions(
        self,
        key: str,
        setting: Setting,
        prior: FunctionPrior,
        *,
        num_frequencies: int,
        memory: dict[str, Any],
    ) -> Functions:
        """Draw the functions of one GP, as the guide's propagation carries them if its values are a site."""
        propagation: Propagation = MonteCarlo(1) if is_inside_observation(key) else self.guide.propagation
        return hidden_functions(
            propagation,
            key,
            setting.processes[key],
            prior,
            num_draws=setting.num_draws,
            num_frequencies=num_frequencies,
            memory=memory,
        )

    def require_joint(self, site: str) -> None:
        """Raise for values that sigma points carry."""
        if site in self.guide.hidden and not isinstance(self.guide.propagation, MonteCarlo | WithMean):
            raise ValueError(
                f"the values of {site!r} are carried by {type(self.guide.propagation).__name__}, which puts them at points and gives them "
                "no density: ask for the joint distribution under the likelihood"
            )


class _Moved(Process):
    """A process at given deviations of the hyperparameters, with which it moves."""

    def __init__(self, process: WhitenedProcess, deviations: Tensor) -> None:
        super().__init__()
        self._held = (process, deviations)  # not a part: the process belongs to its guide

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        process, deviations = self._held
        marginal: FunctionMarginal = process(prior, at, deviations)
        return marginal

    def known_values(
        self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None
    ) -> KnownValues | KnownCoefficients:
        process, own = self._held
        return process.known_values(prior, num_draws, own)


def _moved(processes: Mapping[str, Process], deviations: Tensor | None) -> dict[str, Process]:
    """Return the processes as they are at deviations of the hyperparameters."""
    if deviations is None:
        return dict(processes)
    return {
        key: _Moved(process, deviations.detach())
        if isinstance(process, WhitenedProcess) and process.q.num_deviations
        else process
        for key, process in processes.items()
    }


class DrawsFit(Fit):
    """The posterior in draws of MCMC at the training rows; without draws, that of exact regression."""

    def __init__(self, posterior: PosteriorDraws, num_draws: int) -> None:
        self.model, args, kwargs = without_whitening(posterior.model), posterior.args, dict(posterior.kwargs)
        chosen, conditioned = condition_on(posterior.model, posterior.draws, args, kwargs, num_draws=num_draws)
        self.chosen, self.conditioned, self.keys = chosen, conditioned, list(conditioned[0])
        for key, process in conditioned[0].items():
            process.require_functions(key)
        with torch.no_grad(), self.running():
            dependence = row_dependence(self.model, args, kwargs)
        if dependence.groups:
            raise ValueError(
                f"the model has one function for each of {tuple(dependence.groups)} groups, and functions are drawn from models of one: take "
                "predict(fit, x), or write the groups as outputs of one GaussianProcess(..., num_outputs=)"
            )
        local = dependence.sites
        per_row = sorted(name for name in chosen[0] if name in local and name not in self.keys)
        self.latents = [{name: v for name, v in draw.items() if name not in local} for draw in chosen]
        if per_row:
            raise ValueError(
                f"the latent site {per_row[0]!r} has a value for each row of the data, so that the model is no function of its inputs "
                "alone: functions can be drawn where all latent sites beside the Gaussian processes are shared by the rows"
            )

    def modules(self) -> list[nn.Module]:
        """See :class:`Fit`."""
        return modules_of(self.model)

    def was_observed(self, name: str) -> bool:
        """See :class:`Fit`: all latent sites have draws."""
        return True

    def settings(self, num_draws: int, row: Call) -> list[Setting]:
        """Return one setting for each draw of MCMC; functions are shared out among them."""
        shares = shared_out(num_draws, len(self.conditioned))
        return [Setting(*each) for each in zip(shares, self.conditioned, self.latents, strict=True)]


@singledispatch
def functions_of(fit: Any, num_draws: int) -> Fit:
    """Return what functions are drawn from; kinds of fits register a function of their own."""
    raise TypeError(
        "draw_functions takes a trained guide, chains, PosteriorDraws(model, draws, (x, y)) or InducingDraws, not "
        f"{type(fit).__name__}"
    )


@functions_of.register
def _of_guide(fit: Variational, num_draws: int) -> Fit:
    return GuideFit(fit)


@functions_of.register
def _of_inducing_draws(fit: InducingDraws, num_draws: int) -> Fit:
    return GuideFit(fit.guide, fit.states())


@functions_of.register
def _of_draws(fit: PosteriorDraws, num_draws: int) -> Fit:
    return DrawsFit(fit, num_draws)


@functions_of.register
def _of_chains(fit: Chains, num_draws: int) -> Fit:
    return DrawsFit(fit.posterior, num_draws)
