"""Guide for any model: an effect handler that runs the model with variational processes in the place of its GPs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from pyro.infer.autoguide.effect import AutoMessenger
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroModule, pyro_method
from pyro.poutine import block
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.coupled_normal import CoupledNormal
from pyro_dgp.guides.data_scales import check_scales, warn_of_far_counts
from pyro_dgp.guides.guide_pass import GuidePass, Site, SiteRecord, WeightedTrace
from pyro_dgp.guides.handler import PassHandler, process_of
from pyro_dgp.guides.hidden_draws import require_no_hidden_draws
from pyro_dgp.guides.joined_data import joins_data_rows
from pyro_dgp.guides.joint_rows import guide_joins_rows
from pyro_dgp.guides.latents import LatentGuides
from pyro_dgp.guides.leading_axes import require_leading_axes
from pyro_dgp.guides.loading import missing_latents, missing_processes
from pyro_dgp.guides.networks import pyro_networks, try_network
from pyro_dgp.guides.other_rows import warn_of_other_rows
from pyro_dgp.guides.row_dependence import RowDependence, row_dependence
from pyro_dgp.guides.scales_and_masks import require_scaled_subsamples
from pyro_dgp.guides.served_sites import require_served
from pyro_dgp.guides.sites import (
    is_random,
    real_observations,
    require_finite,
    require_groups,
    require_kernel_fits,
    require_slopes,
    require_whole_groups,
    warn_of_repeated,
    warn_of_unread_priors,
)
from pyro_dgp.guides.structure import ModelStructure, latent_sites
from pyro_dgp.internal.callers import refuse_pairs_of_traces
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.internal.parameters import (
    check_parameters_found,
    keep_parameters_local,
    module_local_parameters,
    modules_of,
    require_names_of_their_own,
    require_own_parameters,
    show_networks_to_svi,
)
from pyro_dgp.internal.rows import Call
from pyro_dgp.internal.site_names import is_inside_observation, site_of
from pyro_dgp.internal.tensors import require_tensors_among
from pyro_dgp.likelihoods import Observation
from pyro_dgp.processes.families import Families, family_of, require_families, require_used
from pyro_dgp.processes.reading import POSTERIOR, Reading
from pyro_dgp.propagation import MonteCarlo, Propagation


class Variational(PassHandler):
    """A guide for any Pyro model of Gaussian processes: processes for the GPs, a propagation between the layers.

    The guide runs the model unchanged and swaps distributions at its sites. At a GP it swaps the prior for a variational
    process at the same inputs. At an observation that wraps GPs it swaps in the observation with the last layer
    integrated out. Other latent sites get the posterior that ``latents`` or ``networks`` gives. By default hyperparameters
    with priors get one normal with full covariance, with which the means of inducing points move
    (:class:`~pyro_dgp.guides.coupled_normal.CoupledNormal`), and sites with a value for each row independent normals.

    ``guide(*args)`` is one ancestral draw in the prior's shapes. The S components of the propagation exist in losses of this library and in predictions
    alone. Call :meth:`initialize` once on training data before anything else.

    :param model: the model. Its sites have one value ``(..., N, D_out)`` for each GP, and observations of any name.
    :param processes: one family for all GPs, or a mapping to families from site names (``"y"``) or process names
        (``"y/f"``).
    :param propagation: how hidden layers are carried; ten samples if not given. A model without hidden layers needs none.
    :param latents: a Pyro messenger guide whose ``get_posterior`` serves the other latent sites. One that holds values
        for each row of the data, as the default and Pyro's ``AutoNormalMessenger`` do, leaves new rows to the prior; any other serves
        new rows too.
    :param networks: amortised guides of other latent sites, by site name. A network is called with the arguments of the
        model and returns a distribution of the prior's shape, a tensor (a point estimate), or ``None`` for the prior.
        Predictions call it without ``y``: give ``y`` a default. A network serves new rows too. That of a site with one
        value for all rows is called with the rows of the batch in training and with all test rows in a prediction. A
        network is made a Pyro module in place, so that stock ``SVI`` trains it, and serves one guide.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=2), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)
    >>> guide.hidden, list(guide(x, y))
    (['h1'], ['h1', 'y'])
    """

    def __init__(
        self,
        model: Any,
        processes: Families,
        propagation: Propagation = MonteCarlo(10),
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
        self.latents = CoupledNormal(model) if latents is None else latents
        self.networks = pyro_networks(networks or {})
        self._latent_guides = LatentGuides(self.latents, self.networks)
        self._structure: ModelStructure | None = None
        self._modules_of_model: tuple[nn.Module, ...] = ()
        self._pass = GuidePass()

    @torch.no_grad()
    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Run the model once on training inputs, all or some of them, and create every process.

        Pass the arguments of a training step, ``initialize(x, y)``. Inducing points are k-means centres of the inputs, carried
        through the means of the layers. A second call replaces the processes. NaN or infinity in a tensor raises.
        """
        _require_arguments(self.model, args, kwargs)
        with one_thread:
            self.processes, self._structure, run = PyroModule(), None, GuidePass(initializing=True)
            self._modules_of_model = tuple(modules_of(self.model))
            with module_local_parameters(self, *self._modules_of_model):
                dependence = row_dependence(self.model, args, kwargs)
                self._run_model(run, args, kwargs)
                _check_parameters_and_plates(self)
                self._create_processes(run)
                self._create_latents(dependence.sites, args, kwargs)
                self._couple_processes(run)
                _require_one_model(self, (args, kwargs), dependence)
                joins = bool(run.means) and guide_joins_rows(self, (args, kwargs))
                joined = joins and joins_data_rows(self.model, args, kwargs, dependence)
                self._structure = ModelStructure.of(
                    self.trace, run.gps, dependence, joins_rows=joins, joins_data_rows=joined
                )
                _warn_of_model(self, run, (args, kwargs))

    def _create_processes(self, run: GuidePass) -> None:
        if not run.gps:
            raise ValueError(
                "the model has no Gaussian process site: use a stock Pyro guide, or sample a GaussianProcess in the model"
            )
        for key, prior in run.gps:
            if "." in key or hasattr(nn.Module, site_of(key)):
                raise ValueError(f"the site {key!r} cannot name a module of torch: rename it, without a dot")
            require_kernel_fits(key, prior)
            process = family_of(self._families, key).create(run.whole[key], hidden=key in run.below)
            require_groups(key, process, run.whole[key])
            setattr(self.processes, key, process)
        sampled = {key: prior for key, prior in run.gps if not is_inside_observation(key)}
        self.propagation.initialize(sampled, run.reads)
        require_used(self._families, [key for key, _ in run.gps])

    def _create_latents(self, local: Collection[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Create the posteriors of latent sites that are no GP, and try their networks; some sites are ``local`` to rows."""
        guides, latent = self._latent_guides, latent_sites(self.trace)
        guides.keep_apart({site["name"] for site in latent} & set(local))
        require_whole_groups(latent, map(site_of, self.processes._modules), self.trace)
        seen = [site for site in self.trace.nodes.values() if is_random(site) and site["is_observed"]]
        require_served([*latent, *seen])
        observed = [site["value"] for site in seen]
        for site in latent:
            name, prior = site["name"], site["fn"]
            network = guides.network(name)
            if network is not None:
                try_network(name, network, prior, args, kwargs, observed)
                continue
            guides.create(site, call=(args, kwargs), trace=self.trace, by_row=name in local)
        for parameter in self.latents.parameters():  # the rows of an expanded prior share one number in memory
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        _require_latent(self.networks._modules, [site["name"] for site in latent])

    def _couple_processes(self, run: GuidePass) -> None:
        """Let each process move with the hyperparameters that the model reads before its GP, where these have a joint posterior."""
        names = list(self.trace.nodes)
        for key, prior in run.gps:
            deviations = self._latent_guides.num_deviations(names[: names.index(site_of(key))])
            if deviations:
                family, process = family_of(self._families, key), process_of(self.processes, key)
                moving = family.coupled(process, prior, hidden=key in run.below, deviations=deviations)
                setattr(self.processes, key, moving)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load a state dict, and create the parameters that it holds and this guide lacks."""
        state = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, parameter in missing_latents(state, self.state_dict()):
            deep_setattr(self, name, parameter)
        for key, process in missing_processes(state, self._families, self.processes._modules):
            setattr(self.processes, key, process)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the structure of the model, which the state dict holds."""
        return {} if self._structure is None else self._structure.to_state(self.model_modules)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Set the structure of the model from a state dict; raise for a model of other kinds of parts."""
        self._structure = ModelStructure.from_state(state, self.model_modules) if state else None
        self._latent_guides.keep_apart(self._structure.local if self._structure else ())

    @pyro_method
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site once, as an ordinary Pyro guide. With ``y=None`` the draw includes the observation."""
        self.require_initialized()
        require_own_parameters(self)
        show_networks_to_svi(*self.model_modules, self)
        require_names_of_their_own(*self.model_modules)
        if self.hidden:
            refuse_pairs_of_traces(self.hidden)
        run = GuidePass()
        if self.propagation.looks_at_mean:
            first = GuidePass(self.propagation)
            with block(hide_types=["sample", "observe"]):  # a plate over the caller's particles has no components
                self._run_model(first, args, kwargs)
            run.references = first.references
            run.fixed = {s["name"]: s["value"] for s in self.trace.nodes.values() if _is_shared(s)}
        with one_thread:
            self._pass = run
            samples: dict[str, Tensor] = super().__call__(*args, **kwargs)
        return samples

    @pyro_method
    def components(
        self,
        *args: Any,
        propagation: Propagation | None = None,
        new_rows: bool = False,
        fixed: Mapping[str, Tensor] | None = None,
        reading: Reading = POSTERIOR,
        wanted: Collection[str] = (),
        **kwargs: Any,
    ) -> WeightedTrace:
        """Make one pass with the S components of the propagation, for losses and predictions.

        :param propagation: propagation in the place of the guide's own.
        :param new_rows: whether sites that are local to data are drawn from the prior.
        :param fixed: values of global latent sites that were drawn before.
        :param reading: what is taken from the processes: the posterior, or a :class:`~pyro_dgp.processes.reading.Cavity`.
        :param wanted: names of the sites after which the pass ends; the whole model runs if there are none.
        """
        self.require_initialized()
        run = GuidePass(propagation or self.propagation, reading, new_rows=new_rows, fixed=fixed or {})
        run.wanted = frozenset(wanted)
        self._run_model(run, args, kwargs)
        return _weighted(self, run)

    @property
    def global_latents(self) -> list[str]:
        """Names of the latent sites that are neither GPs nor local to data, known after a pass."""
        others = self.structure.local.keys() | self.structure.responses
        return [name for name, site in self.trace.nodes.items() if _is_latent(site) and name not in others]


def _require_one_model(guide: Variational, call: Call, dependence: RowDependence) -> None:
    """Raise for a model that is another one in each run, or at function values with axes in front."""
    modules = guide._modules_of_model
    require_no_hidden_draws(guide.model, call, modules=modules, groups=dependence.group_plates)
    require_leading_axes(guide.model, call, dependence, modules=modules)


def _weighted(guide: Variational, run: GuidePass) -> WeightedTrace:
    """Return the result of a pass with components."""
    assert run.propagation is not None
    structure, log_weights = guide.structure, run.propagation.log_weights(next(guide.processes.parameters()))
    plates = None if structure.inputs is None else structure.data_plates
    groups, axes = structure.group_plates, structure.row_axes
    return WeightedTrace(guide.trace, log_weights, plates, groups, guide.groups, axes)


def held_rows(guide: Variational) -> list[str]:
    """Return the names of the latent sites of which a guide holds a value for each training row, in the order of these rows."""
    return [name for name in guide.structure.local if guide._latent_guides.holds_rows(name)]


def _require_latent(networks: Collection[str], names: Collection[str]) -> None:
    """Raise for a network of a site that is none of the latent ones."""
    for name in networks:
        if name not in names:
            raise ValueError(
                f"networks= names {name!r}, which is no latent site besides the Gaussian processes: choose from {names}"
            )


def _require_arguments(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise for inputs or targets that are no tensors, and for NaN or infinity in a tensor."""
    require_tensors_among(args, kwargs)
    require_finite(model, args, kwargs)


def _check_parameters_and_plates(guide: Variational) -> None:
    """Raise for parameters that no optimiser finds, for rows that a plate takes for no site, and for densities without a gradient in drawn functions."""
    check_parameters_found(guide.trace, (guide, *guide.model_modules))
    require_scaled_subsamples(guide.trace)
    require_slopes(guide.trace)


def _warn_of_model(guide: Variational, run: GuidePass, call: Call) -> None:
    """Warn of inputs and targets far from the scale that kernels start at, of priors that nothing reads, of one GP at several inputs, and of inputs that look at other rows."""
    check_scales(run.gps, real_observations(guide.trace))
    warn_of_far_counts(guide.trace)
    warn_of_unread_priors(guide.model_modules, guide.trace)
    warn_of_repeated(run.gps)
    warn_of_other_rows(guide.model, call, guide.model_modules)


def _is_latent(site: Site) -> bool:
    """Tell whether a site is latent and no GP."""
    record = SiteRecord.of(site)
    is_gp = record is not None and isinstance(record.prior, FunctionPrior | Observation)
    return is_random(site) and not site["is_observed"] and not is_gp


def _is_shared(site: Site) -> bool:
    """Tell whether all components share the draw of a site: a subsample, or a latent site that depends on no hidden layer."""
    if site["type"] != "sample" or site["is_observed"]:
        return False
    record = SiteRecord.of(site)
    return site_is_subsample(site) or (_is_latent(site) and record is not None and not record.carried)
