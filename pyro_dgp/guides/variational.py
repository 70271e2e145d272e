"""The guide: an effect handler that runs the unmodified model with variational processes in the place of its GPs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from pyro.distributions import Delta
from pyro.infer.autoguide.effect import AutoMessenger, AutoNormalMessenger
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroModule, PyroParam, pyro_method
from pyro.poutine import block
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Components, Run
from pyro_dgp.guides.row_dependence import RowDependence, row_dependence
from pyro_dgp.guides.sites import (
    Message,
    counted,
    expanded,
    from_network,
    is_observation,
    is_random,
    is_shared,
    pyro_networks,
    require_finite,
    try_network,
)
from pyro_dgp.internal.parameters import keep_parameters_local, module_local_parameters, require_own_parameters
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.processes import Process
from pyro_dgp.processes.base import require_kernel_fits
from pyro_dgp.processes.families import Families, family_of, require_families, require_used
from pyro_dgp.propagation import Propagation


class Variational(AutoMessenger):
    """A guide for any Pyro model of Gaussian processes: processes for the GPs, a propagation between the layers.

    At a GP site it swaps the prior for a variational process at those very inputs; at an observation that wraps GPs,
    for the observation with the last layer integrated out; other latent sites (hyperparameters with priors, latent
    inputs) get a mean-field normal, or what ``latents`` gives them. ``guide(*args)`` is one ancestral draw in the
    prior's shapes; the S components of the propagation exist only in this library's losses and in predictions.

    :param model: the model, unmodified. Sites: one value ``(..., N, D_out)`` for each GP, ``y`` as the user named it.
    :param processes: one family for all GPs, or a mapping from site names (``"y"``), or from the process names
        (``"y/f"``), to families.
    :param propagation: how hidden layers are carried.
    :param latents: a Pyro messenger guide whose ``get_posterior`` serves the other latent sites. One that holds values
        for each row of the data (the default's mean-field normal) leaves new rows to the prior; any other serves them.
    :param networks: amortised guides of other latent sites, by name: a module that is called with the arguments of the model and
        returns the site's posterior: a distribution of the prior's shape, a tensor (a point estimate), or nothing for the prior
        (where ``y`` is not there to look at, as in predictions: give ``y`` a default). It serves new rows too; that of a site with one
        value for all rows is called with the rows of the batch in training and with all test rows in a prediction. It is made a
        Pyro module in place, so that stock ``SVI`` trains it, and serves one guide.

    Call :meth:`initialize` once on training data before anything else.
    """

    def __init__(
        self,
        model: Any,
        processes: Families,
        propagation: Propagation,
        *,
        latents: AutoMessenger | None = None,
        networks: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(model)
        require_families(processes)
        self._families = processes
        self.processes = PyroModule()
        if not isinstance(propagation, Propagation):
            raise TypeError(f"propagation is an object such as MonteCarlo(10), not {propagation!r}")
        own = copy.deepcopy(propagation)
        keep_parameters_local(own)
        self.propagation = own
        self.latents = AutoNormalMessenger(model) if latents is None else latents
        self.networks = pyro_networks(networks or {})
        self._axes: dict[str, int] = {}
        self._local: dict[str, tuple[int, ...]] = {}
        self._response: set[str] = set()
        self._data_plates: set[str] = set()
        self._run = Run()

    @torch.no_grad()
    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Run the model once on training inputs (all, or a stated subset) and create every process.

        Pass what a training step passes, ``initialize(x, y)``; inducing points are k-means centres of the inputs
        carried through the means of the layers. A second call starts afresh. NaN or infinity in a tensor raises.
        """
        require_finite(args, kwargs)
        self.processes = PyroModule()
        self._axes, self._local, self._response = {}, {}, set()
        run = Run(initializing=True)
        with module_local_parameters(*[m for m in (self, self.model) if isinstance(m, nn.Module)]):
            dependence = row_dependence(self.model, args, kwargs)
            self._pass(run, args, kwargs)
            try:
                self._create(run, dependence)
                self._sort_sites(dependence, args, kwargs)
            except BaseException:
                self._axes = {}  # not initialised
                raise

    def _create(self, run: Run, dependence: RowDependence) -> None:
        if not run.gps:
            raise ValueError("the model has no Gaussian process site: nothing to give a variational process to")
        top = self._top(run)
        for key, prior in run.gps:
            if "." in key or hasattr(nn.Module, key.split("/")[0]):
                raise ValueError(f"the site {key!r} cannot name a module of torch: rename it, without a dot")
            require_kernel_fits(key, prior)
            setattr(self.processes, key, family_of(self._families, key).create(prior, hidden=key not in top))
            self._axes[key] = prior.x.dim()
        self.propagation.initialize({key: prior for key, prior in run.gps if "/" not in key})
        require_used(self._families, self._axes)
        self._data_plates = dependence.plates

    def _top(self, run: Run) -> set[str]:
        observed = {key for key, _ in run.gps if "/" in key}
        return observed or {run.gps[-1][0]}

    def _sort_sites(self, dependence: RowDependence, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Which foreign sites are responses, and which are local to data."""
        sites = [site for site in self.trace.nodes.values() if is_random(site)]
        foreign = [s for s in sites if not isinstance(s["infer"].get("prior"), FunctionPrior)]
        self._response = {s["name"] for s in foreign if s["is_observed"] or is_observation(s)}
        if not self._response and foreign and foreign[-1] is sites[-1]:
            self._response = {sites[-1]["name"]}
        latent: list[str] = []
        for site in foreign:
            self._axes[site["name"]] = len(site["fn"].batch_shape)
            if site["name"] in self._response:
                continue
            prior = site["infer"]["prior"]
            if site["name"] in dependence.sites:
                self._local[site["name"]] = tuple(prior.shape())
            latent.append(site["name"])
            if site["name"] in self.networks._modules:
                network = cast(nn.Module, self.networks._modules[site["name"]])
                try_network(site["name"], network, prior, args, kwargs, [s["value"] for s in sites if s["is_observed"]])
            else:
                self._from_latents(site["name"], prior, (), (args, kwargs))
        for parameter in self.latents.parameters():  # a start taken from an expanded prior has one number for all rows
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        for name in self.networks._modules:
            if name not in latent:
                raise ValueError(
                    f"networks= names {name!r}, which is no latent site besides the Gaussian processes: those are {latent}"
                )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Create what the state dict holds and this guide lacks, in its shapes."""
        state = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in state.items():
            owner, _, rest = name.partition(".")
            if owner == "processes":
                key, _, attribute = rest.partition(".")
                groups.setdefault(key, {})[attribute.removesuffix("_unconstrained")] = value
            elif name.startswith(("latents.locs", "latents.scales")) and name not in self.state_dict():
                constraint = torch.distributions.constraints.positive if "scales" in name else None
                parameter = PyroParam(torch.ones_like(value), constraint=constraint or _REAL)
                deep_setattr(self, name.removesuffix("_unconstrained"), parameter)
        for key, tensors in groups.items():
            if key not in self.processes._modules:
                setattr(self.processes, key, family_of(self._families, key).restore(tensors))

    def get_extra_state(self) -> dict[str, Any]:
        """What ``initialize`` learned about the sites, saved with the state dict."""
        plates, response = sorted(self._data_plates), sorted(self._response)
        return {"axes": self._axes, "local": self._local, "plates": plates, "response": response}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`get_extra_state`."""
        self._axes, self._local, self._response = state["axes"], state["local"], set(state["response"])
        self._data_plates = set(state["plates"])

    @pyro_method
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """One ancestral draw of every site, an ordinary Pyro guide. With ``y=None`` it predicts."""
        self.require_initialized()
        require_own_parameters(self)
        run = Run()
        if self.propagation.looks_at_mean:
            first = Run(self.propagation)
            with block(hide_types=["sample", "observe"]):  # plates of the caller's particles are not the components'
                self._pass(first, args, kwargs)
            run.references = first.references
            run.fixed = {s["name"]: s["value"] for s in self.trace.nodes.values() if is_shared(s)}
        self._run = run
        samples: dict[str, Tensor] = super().__call__(*args, **kwargs)
        return samples

    @pyro_method
    def components(
        self,
        *args: Any,
        propagation: Propagation | None = None,
        new_rows: bool = False,
        fixed: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> Components:
        """One pass with the S components of the propagation, for losses and predictions.

        :param propagation: instead of the guide's own.
        :param new_rows: sites local to data are drawn from the prior.
        :param fixed: values of global latent sites, drawn before.
        """
        self.require_initialized()
        run = Run(propagation or self.propagation, new_rows=new_rows, fixed=fixed or {})
        self._pass(run, args, kwargs)
        assert run.propagation is not None
        like = next(self.processes.parameters())
        return Components(self.trace, run.propagation.log_weights(like))

    def _pass(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._run, self._outer_plates, self.args_kwargs = run, (), (args, kwargs)
        try:
            with self:
                self.model(*args, **kwargs)
        finally:
            self._run = Run()
            del self._outer_plates, self.args_kwargs

    @property
    def is_initialized(self) -> bool:
        """Whether the processes exist."""
        return bool(self._axes)

    def require_initialized(self) -> None:
        """Raise before :meth:`initialize`."""
        if not self.is_initialized:
            raise ValueError("the guide has no parameters yet: call guide.initialize(x, y) on training data first")

    def _pyro_sample(self, msg: Message) -> None:  # type: ignore[override]
        fn = msg["fn"]
        if site_is_subsample(msg):
            msg["value"] = self._run.fixed.get(msg["name"], msg["value"])
            return
        if isinstance(fn, Observation):
            msg["infer"]["prior"] = fn
            msg["fn"] = self._initial(msg, fn) if self._run.initializing else self._collapse(msg, fn)
        elif msg["is_observed"]:
            if is_random(msg) and not self._run.initializing:
                msg["infer"]["carried"] = self._has_component_axis(msg["name"], fn.batch_shape)
        elif isinstance(fn, FunctionPrior):
            msg["infer"]["prior"] = fn
            self._draw(msg, fn)
        elif not self._run.initializing:
            self._draw_foreign(msg)
        else:
            msg["infer"]["prior"] = fn

    def _initial(self, msg: Message, fn: Observation) -> Observation:
        for name, prior in fn.priors.items():
            self._run.gps.append((f"{msg['name']}/{name}", prior))
        if msg["value"] is None:
            msg["value"] = next(iter(fn.priors.values())).mean.new_zeros(fn.event_shape)
        return fn

    def _collapse(self, msg: Message, fn: Observation) -> CollapsedObservation:
        marginals, regularizers = {}, []
        for name, prior in fn.priors.items():
            key = f"{msg['name']}/{name}"
            msg["infer"]["carried"] = carried = self._is_carried(key, prior)
            marginals[name] = q = self._process(key)(prior, self._reference(key, prior, carried))
            regularizers.append(counted(q.regularizer, prior, carried))
        msg["infer"]["regularizer"] = torch.stack(torch.broadcast_tensors(*regularizers)).sum(0)
        return fn.collapse(marginals)

    def _draw(self, msg: Message, prior: FunctionPrior) -> None:
        key = msg["name"]
        if self._run.initializing:
            self._run.gps.append((key, prior))
            msg["value"] = prior.mean
            return
        carried = self._is_carried(key, prior)
        marginal = self._process(key)(prior, self._reference(key, prior, carried))
        if marginal.batch_shape != prior.batch_shape:
            marginal = marginal.expand(prior.batch_shape)
        if self._run.propagation is None:
            msg["fn"] = self.propagation.draw(key, marginal, self._run.memory)
        else:
            msg["infer"]["marginal"] = marginal
            msg["infer"]["regularizer"] = counted(marginal.regularizer, prior, carried)
            msg["fn"] = self._run.propagation.propagate(key, marginal, carried)
            msg["infer"]["carried"], self._run.components = True, msg["fn"].batch_shape[0]

    def _reference(self, key: str, prior: FunctionPrior, carried: bool) -> Tensor:
        """What inference functions look at: of the propagation, or of the weighted pass made before an ancestral draw."""
        if self._run.propagation is None:
            reference = self._run.references.get(key, prior.x)
            return reference.reshape(*[1] * (prior.x.dim() - reference.dim()), *reference.shape)
        reference = self._run.propagation.reference(prior.x, carried)
        self._run.references[key] = reference.squeeze(0) if carried and len(reference) == 1 else reference
        return reference

    def _is_carried(self, key: str, prior: FunctionPrior) -> bool:
        """Whether the prior's inputs have the axis of components already."""
        self._process(key)
        extra = prior.x.dim() - self._axes[key]
        if self._run.extra_axes is None:
            self._run.extra_axes = extra  # the first GP of a pass sees the caller's inputs
        return extra > self._run.extra_axes

    def _has_component_axis(self, name: str, shape: torch.Size) -> bool:
        """Whether a site that is no GP leads with the axis of components."""
        if name not in self._axes:
            raise ValueError(
                f"the site {name!r} was not met by guide.initialize: call it with what a training step passes, initialize(x, y)"
            )
        return self._run.leads_with_components(shape, self._axes[name])

    def _draw_foreign(self, msg: Message) -> None:
        name = msg["name"]
        msg["infer"]["prior"] = prior = msg["fn"]
        msg["infer"]["carried"] = self._has_component_axis(name, prior.batch_shape)
        by_network = name in self.networks._modules
        per_row = name in self._local and not by_network and isinstance(self.latents, AutoNormalMessenger)
        if name in self._response or (per_row and self._run.new_rows):
            return
        subsampled = any(frame.full_size not in (None, frame.size) for frame in msg["cond_indep_stack"])
        if per_row and not subsampled and prior.shape() != self._local[name]:
            raise ValueError(
                f"the latent site {name!r} is local to data: the guide holds {self._local[name]} and this call asks for "
                f"{tuple(prior.shape())}: pass the training rows; if the site depends on a hidden layer, or for new rows, "
                "give an amortised guide through latents="
            )
        if name in self._run.fixed:
            msg["value"] = self._run.fixed[name]
        posterior = self.get_posterior(name, prior)
        if posterior is None:
            return
        if isinstance(posterior, Tensor):
            posterior = Delta(posterior, event_dim=prior.event_dim)
        if posterior.batch_shape != prior.batch_shape:
            posterior = expanded(name, posterior, prior)
        msg["fn"] = posterior

    def _process(self, key: str) -> Process:
        if key not in self.processes._modules:
            raise ValueError(
                f"the guide has no process for the GP {key!r}: initialize did not meet it, but {list(self.processes._modules)}"
            )
        return cast(Process, self.processes._modules[key])

    def get_posterior(self, name: str, prior: Any) -> Any:
        """The posterior of a latent site that is no GP; nothing for its prior."""
        if name in self.networks._modules:
            return from_network(name, cast(nn.Module, self.networks._modules[name]), prior, *self.args_kwargs)
        return self._from_latents(name, prior, self._outer_plates, self.args_kwargs)

    def _from_latents(self, name: str, prior: Any, plates: tuple[Any, ...], args_kwargs: tuple[Any, Any]) -> Any:
        """What ``latents`` gives: it may look at plates, arguments and upstream values, as any messenger guide of Pyro."""
        self.latents._outer_plates, self.latents.trace, self.latents.args_kwargs = plates, self.trace, args_kwargs
        try:
            return self.latents.get_posterior(name, prior)
        finally:
            del self.latents.args_kwargs

    @property
    def data_plates(self) -> set[str]:
        """Names of the plates that hold the rows of the data, as ``initialize`` met them."""
        return self._data_plates

    @property
    def responses(self) -> set[str]:
        """Names of the observation sites, as ``initialize`` met them."""
        return self._response

    @property
    def hidden(self) -> list[str]:
        """Names of the GP sites that the propagation carries, as ``initialize`` met them."""
        return [key for key in self.processes._modules if "/" not in key]

    @property
    def local_latents(self) -> set[str]:
        """Names of the latent sites besides the GPs that have values for each row of the data."""
        return set(self._local)

    @property
    def global_latents(self) -> list[str]:
        """Names of the latent sites that are neither GPs nor local to data, known after a pass."""
        return [
            site["name"]
            for site in self.trace.nodes.values()
            if is_random(site)
            and not site["is_observed"]
            and not isinstance(site["infer"].get("prior"), FunctionPrior | Observation)
            and site["name"] not in self._local.keys() | self._response
        ]


_REAL = torch.distributions.constraints.real
