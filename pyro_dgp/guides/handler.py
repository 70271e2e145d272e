"""Handler of one pass: the guide's action at each site of the model."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from typing import Any, cast

import torch
from pyro.infer.autoguide.effect import AutoMessenger
from pyro.nn import PyroModule
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.carried_arguments import led_by_components
from pyro_dgp.guides.guide_pass import EndOfPass, GuidePass, SiteRecord
from pyro_dgp.guides.latents import LatentGuides, shaped_posterior
from pyro_dgp.guides.site_handler import SiteHandler
from pyro_dgp.guides.sites import (
    Message,
    is_random,
    require_likelihood_fits,
    require_told_apart,
    require_values_of_rows,
    shape_errors_explained,
    taken_groups,
    total_regularizer,
    with_all_groups,
)
from pyro_dgp.guides.structure import ModelStructure
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.internal.plates import known_groups, refuse_draws_beside_rows
from pyro_dgp.internal.site_names import is_inside_observation, process_key
from pyro_dgp.likelihoods import Observation
from pyro_dgp.processes import FunctionMarginal, Process
from pyro_dgp.processes.process_in_pass import ProcessInPass
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.propagation import Propagation


class _Copyable(AutoMessenger):
    """A guide whose copies can be copied. Pyro takes the trace of the last run out of the state of a guide, and a copy has none."""

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the trace of the last run."""
        for part in self.modules():
            if isinstance(part, GuideMessenger):  # a guide of the other latent sites, which may be Pyro's
                vars(part).setdefault("trace", Trace())
        return {name: value for name, value in vars(self).items() if name != "trace"}


class PassHandler(SiteHandler, _Copyable):
    """Handler that runs the model with processes in the place of its GPs; the base of :class:`~pyro_dgp.Variational`.

    :ivar processes: the processes by name, ``h`` or ``y/f``.
    :ivar propagation: how hidden layers are carried.
    """

    processes: PyroModule
    propagation: Propagation
    _latent_guides: LatentGuides
    _structure: ModelStructure | None
    _pass: GuidePass
    _modules_of_model: tuple[nn.Module, ...]
    trace: Trace

    def _run_model(self, run: GuidePass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pass, self._outer_plates, self.args_kwargs = run, (), (args, kwargs)
        groups = () if self._structure is None else self._structure.group_plates
        grad = torch.is_grad_enabled() or run.initializing
        try:
            with (
                one_thread,
                self,
                known_groups(groups),
                torch.set_grad_enabled(grad),
                shape_errors_explained(run.propagation is not None),
                suppress(EndOfPass),
            ):
                self.model(*args, **kwargs)
        finally:
            self._pass = GuidePass()
            del self._outer_plates, self.args_kwargs

    def _pyro_sample(self, msg: Message) -> None:
        if self._pass.wanted and self._pass.wanted <= self.trace.nodes.keys():
            raise EndOfPass
        super()._pyro_sample(msg)

    @property
    def model_modules(self) -> tuple[nn.Module, ...]:
        """Modules that the model runs: the model itself, or those that a function or a handler around a model names."""
        if not self._modules_of_model:
            self._modules_of_model = tuple(modules_of(self.model))
        return self._modules_of_model

    def deviations(self, trace: Trace) -> Tensor | None:
        """Return the standardised deviations of the hyperparameters in a trace of this guide; ``None`` if it has none."""
        return self._latent_guides.deviations(trace)

    @property
    def is_initialized(self) -> bool:
        """Whether :meth:`initialize` has created the processes."""
        return self._structure is not None

    @property
    def hidden(self) -> list[str]:
        """Names of the GP sites that the propagation carries, as ``initialize`` met them."""
        return [key for key in self.processes._modules if not is_inside_observation(key)]

    @property
    def groups(self) -> Size:
        """Batch axes of the model's Gaussian processes, each index of which has a posterior of its own; ``()`` for one function."""
        return max((process.groups for process in self.processes.children()), key=len, default=Size())

    def require_initialized(self) -> None:
        """Raise if ``initialize`` has not been called."""
        if not self.is_initialized:
            raise ValueError("the guide has no parameters yet: call guide.initialize(x, y) on training data first")

    @property
    def structure(self) -> ModelStructure:
        """Sites of the model, as ``initialize`` met them."""
        self.require_initialized()
        assert self._structure is not None
        return self._structure

    def at_subsample(self, msg: Message) -> None:
        """Take the rows that an earlier pass drew, if it drew any."""
        msg["value"] = self._pass.fixed.get(msg["name"], msg["value"])

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Swap the observation for the one whose last layer is integrated out."""
        gps = {name: (process_key(msg["name"], name), prior) for name, prior in observation.priors.items()}
        if self._pass.initializing:
            for key, prior in gps.values():
                self._pass.meet(key, prior, whole=with_all_groups(prior, msg))
            require_likelihood_fits(msg["name"], observation)
            if msg["value"] is None:
                msg["value"] = next(iter(observation.priors.values())).mean.new_zeros(observation.event_shape)
            SiteRecord(observation).write(msg)
            return
        marginals, regularizers, priors, any_carried, run = {}, [], {}, False, self._pass
        for name, (key, prior) in gps.items():
            carried = self._pass.inputs_are_carried(prior, self._axes_of_gp(key))
            any_carried |= carried
            require_told_apart(msg, carried, self._pass.components, self.structure.data_plates)
            if self._pass.reading.reads_observed:
                marginals[name] = q = self._marginal(key, prior, carried, msg)
                regularizers.append(total_regularizer(q.regularizer, prior, carried))
                priors[name] = _at_components_of(q, prior, carried)
        if marginals and not any_carried:
            marginals, any_carried = led_by_components(observation, marginals, run, msg["name"])
        read = Observation(observation.conditional, priors, observation.outputs) if priors else observation
        SiteRecord(read, any_carried, reduce(torch.add, regularizers) if regularizers else None).write(msg)
        msg["fn"] = observation.collapse(marginals) if marginals else observation

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Swap the prior of function values for the process, carried by the propagation."""
        if msg["is_observed"]:
            require_values_of_rows(msg, prior)
            self.at_other(msg)
            return
        key, run = msg["name"], self._pass
        if run.initializing:
            run.meet(key, prior, whole=with_all_groups(prior, msg))
            msg["value"] = run.mean_of(key, prior)
            SiteRecord(prior).write(msg)
            return
        carried = run.inputs_are_carried(prior, self._axes_of_gp(key))
        require_told_apart(msg, carried, self._pass.components, self.structure.data_plates)
        marginal = self._marginal(key, prior, carried, msg)
        prior = _at_components_of(marginal, prior, carried)
        if self.structure.joins_rows:
            marginal = marginal.jointly()
        shape = torch.broadcast_shapes(marginal.batch_shape, prior.batch_shape)
        marginal = marginal if marginal.batch_shape == shape else marginal.expand(shape)
        if run.propagation is None:
            SiteRecord(prior).write(msg)
            msg["fn"] = self.propagation.draw(key, marginal, run.memory)
            return
        SiteRecord(prior, True, total_regularizer(marginal.regularizer, prior, carried), marginal).write(msg)
        msg["fn"] = run.propagation.propagate(key, marginal, carried)
        run.components = msg["fn"].batch_shape[0]

    def at_other(self, msg: Message) -> None:
        """Note a plain observation; give a latent site that is no GP its posterior."""
        fn, run = msg["fn"], self._pass
        refuse_draws_beside_rows(msg["name"], fn.batch_shape, outer=self._outer_plates)
        if run.initializing:
            if not msg["is_observed"]:
                SiteRecord(fn).write(msg)
        elif not msg["is_observed"]:
            self._draw_latent(msg)
        elif is_random(msg):
            axes = self.structure.axes_of(msg["name"])
            carried = run.leads_with_components(fn.batch_shape, axes)
            require_told_apart(msg, carried, self._pass.components, self.structure.data_plates)
            if carried and run.propagation is not None:
                run.propagation.require_plain_site(msg["name"])
            SiteRecord(fn, carried).write(msg)

    def _axes_of_gp(self, key: str) -> int:
        process_of(self.processes, key)  # raises a message about GPs for a GP that initialize did not meet
        return self.structure.axes[key]

    def _marginal(self, key: str, prior: FunctionPrior, carried: bool, msg: Message) -> FunctionMarginal:
        process, run = process_of(self.processes, key), self._pass
        moving = isinstance(process, WhitenedProcess) and process.q.num_deviations
        deviations = self._latent_guides.deviations(self.trace) if moving else None
        numbers = {len(process.groups) + axis: taken for axis, taken in taken_groups(msg, self.trace).items()}
        in_pass = ProcessInPass(process, run.reading, deviations, numbers)
        if run.propagation is None:
            # Inference functions look at what they saw in the weighted pass before, if there was one.
            reference = run.references.get(key, prior.x)
            return in_pass(prior, reference.reshape(*[1] * (prior.x.dim() - reference.dim()), *reference.shape))
        marginal = run.propagation.marginal(in_pass, prior, carried)
        if (seen := in_pass.looked_at) is not None:
            run.references[key] = seen.squeeze(0) if carried and len(seen) == 1 else seen
        return marginal

    def _draw_latent(self, msg: Message) -> None:
        name, prior, run = msg["name"], msg["fn"], self._pass
        structure = self.structure
        carried = run.leads_with_components(torch.Size(prior.batch_shape), structure.axes_of(name))
        if carried and run.propagation is not None:
            run.propagation.require_plain_site(name)
        SiteRecord(prior, carried).write(msg)
        per_row = name in structure.local and self._latent_guides.holds_rows(name)
        if name in structure.responses or (per_row and run.new_rows):
            return
        shape, frames = prior.shape()[int(carried) :], msg["cond_indep_stack"]
        subsampled = any(frame.full_size not in (None, frame.size) for frame in frames)
        if per_row and not subsampled and shape != structure.local[name]:
            raise ValueError(
                f"the latent site {name!r} has a value for each row: the guide holds {tuple(structure.local[name])}, those of the training rows, and this call has {tuple(shape)}. "
                f"Pass all training rows, without batch_size=; or give a network that finds the values of the rows of a call, Variational(..., networks={{{name!r}: network}})"
            )
        if name in run.fixed:
            msg["value"] = run.fixed[name]
        posterior = self.get_posterior(name, prior)
        if posterior is not None:
            msg["fn"] = shaped_posterior(name, posterior, prior)

    def get_posterior(self, name: str, prior: Any) -> Any:
        """Return the posterior of a latent site that is no GP; ``None`` stands for the prior."""
        return self._latent_guides.posterior(
            name, prior, plates=self._outer_plates, call=self.args_kwargs, trace=self.trace
        )


def process_of(processes: PyroModule, key: str) -> Process:
    """Return the process of a GP; raise for one that ``initialize`` did not meet."""
    known = processes._modules
    if key not in known:
        raise ValueError(
            f"the guide has no process for the GP {key!r}, and initialize met {list(known)}: call it on this model; if {key!r} was observed there, pass its values "
            "to this call too"
        )
    return cast(Process, known[key])


def _at_components_of(marginal: FunctionMarginal, prior: FunctionPrior, carried: bool) -> FunctionPrior:
    """Return the prior at as many components as a marginal has, which may be fewer than those of its inputs."""
    count, own = marginal.batch_shape, prior.batch_shape
    if carried and len(count) == len(own) and count[0] < own[0]:
        return prior.at(prior.x[: count[0]])
    return prior
