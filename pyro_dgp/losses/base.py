"""Base class of the losses: one weighted pass through model and guide, and a sum over its sites."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import reduce
from typing import Any

import torch
from pyro.infer import ELBO as PyroELBO
from pyro.infer.elbo import ELBOModule
from pyro.infer.util import torch_item
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import SiteRecord, WeightedTrace
from pyro_dgp.guides.scales_and_masks import (
    require_rows_unmasked,
)
from pyro_dgp.guides.sites import is_random, require_finite
from pyro_dgp.guides.structure import ModelStructure
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.finite import require_finite_gradients, require_finite_loss
from pyro_dgp.internal.parameters import require_names_of_their_own, require_own_parameters, show_networks_to_svi
from pyro_dgp.internal.rows import Call, inputs_among, num_rows
from pyro_dgp.internal.training_step import require_weight_of_all_rows
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.likelihoods.observation import Observation
from pyro_dgp.losses.row_axes import rows_of_functions
from pyro_dgp.losses.row_terms import unmasked
from pyro_dgp.losses.scaled_priors import (
    checked_scale,
    power_of_prior,
    require_function_priors_unscaled,
)
from pyro_dgp.processes.reading import POSTERIOR, Reading

Site = dict[str, Any]


class Loss(PyroELBO):  # type: ignore[misc]
    """Base of the losses: a stock ``SVI`` loss, and as ``loss(model, guide)`` a ``torch.nn.Module``.

    ``loss(model, guide)(x, y)`` is a stochastic estimate of minus the objective, in nats in total over ``num_data``
    observations. It takes one pass of the guide and calls no prior's ``log_prob`` at a GP. Terms that
    ``pyro.poutine.mask`` hides are left out.

    Groups, a plate around the GPs or a batch of data sets, add up: the objective is the sum of those of the groups.

    :param num_data: size of the whole training set when batches are passed; ``None`` if all data are passed. With groups it
        is the number of rows of each group, not that of all together, and so weights each as it would alone. It weights
        a site that observes the rows of the batch by ``num_data / N_batch``, on top of the scale of a plate that takes some of them. One that observes some of them alone,
        or several values of each, is refused in a batch, and has weight 1 where all rows are passed, as has each site of a model that cannot be run on fewer rows. A model
        that joins rows of function values is refused in a batch. The rows of the data are those of the first argument
        of ``guide.initialize``. A site whose shape does not follow them, such as a second data set that every step
        passes whole, has weight 1.

    >>> from pyro_dgp import ELBO, GammaDivergence, Loss, PredictiveLogLikelihood
    >>> losses = [ELBO(100), GammaDivergence(100, gamma=1.05), PredictiveLogLikelihood(100, beta=0.2)]
    >>> [loss.figures() for loss in losses if isinstance(loss, Loss)]
    [{}, {'gamma': 1.05}, {'beta': 0.2}]
    """

    #: Whether the optimum of the objective over all q is the posterior.
    approximates_posterior = False
    #: Whether it trains the density of the targets itself, which can become far too sure at the rows that it is trained on.
    trains_density = False

    def __init__(self, num_data: int | None = None) -> None:
        super().__init__()
        if num_data is not None and not hasattr(num_data, "__index__"):
            raise TypeError(
                f"num_data is a number of rows, not {type(num_data).__name__}: write loss(num_data=len(x))(model, guide)"
            )
        if num_data is not None and num_data < 1:
            raise ValueError(f"num_data must be a positive number of observations, got {num_data}: give len(x)")
        self.num_data = num_data

    def __call__(self, model: Any, guide: Any) -> ELBOModule:
        """Return the loss of a model and its guide as a module.

        The guide must be initialised first, since an optimiser would miss parameters that are created later.
        """
        objective = super().__call__(model, guide)
        if isinstance(guide, Variational):
            guide.require_initialized()
            if not isinstance(model, torch.nn.Module):
                objective.model_modules = torch.nn.ModuleList(guide.model_modules)
        return objective

    @abstractmethod
    def observed(self, site: Site, weighted: WeightedTrace) -> Tensor:
        """Return the term of one observed site before weighting: a scalar, in nats."""

    @property
    def reading(self) -> Reading:
        """Reading of the processes that the pass makes: the posterior, or a cavity."""
        return POSTERIOR

    def regularizer_weight(self) -> float:
        """Return the factor of every KL term."""
        return 1.0

    def figures(self) -> dict[str, float]:
        """Return the loss's own settings by name, such as ``beta``, for a table of results."""
        return {}

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return minus the objective, with gradients."""
        require_weight_of_all_rows(type(self).__name__, (args, kwargs), self.num_data)
        terms = self.terms(model, guide, *args, **kwargs).values()
        return -reduce(torch.add, terms) if terms else torch.zeros(())

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the terms whose sum is the objective, by what they are, as in "the likelihood at 'y'", with gradients."""
        self._check(model, guide)
        weighted = guide.components(*args, reading=self.reading, **kwargs)
        sites = [site for site in weighted.trace.nodes.values() if is_random(site)]
        _require_observed(sites)
        terms: dict[str, Tensor] = {}
        batch = _rows_passed(guide.structure, (args, kwargs), sites)
        common = checked_scale(sites)
        sites = [site for site in sites if not _is_masked_out(site)]
        self._require_one_count(sites, weighted, guide.structure, batch)
        if self.num_data not in (None, batch):
            _require_rows(sites, guide.structure, batch, what=f"num_data={self.num_data}")
            _require_scales_of_all_rows(sites, guide.structure, what=f"num_data={self.num_data}")
        require_function_priors_unscaled(sites, common)
        for site in sites:
            if site["is_observed"]:
                weight = self._weight(site, guide.structure, batch)
                terms[f"the likelihood at {site['name']!r}"] = weight * self.observed(site, weighted)
            regularizer = self.regularizer_weight() * self._regularizer(site, weighted, guide, batch, common)
            if isinstance(regularizer, Tensor):
                terms[f"the regulariser at {site['name']!r}"] = -regularizer
        return terms

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Return minus the objective as a number."""
        with torch.no_grad():
            value = float(torch_item(self.differentiable_loss(model, guide, *args, **kwargs)))
        if math.isnan(value):
            require_finite(model, args, kwargs, "the loss")
        return value

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Return minus the objective as a number, and add its gradient to those of the parameters.

        :raises ValueError: for NaN or infinity, before a gradient reaches a parameter.
        """
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        require_names_of_their_own(*guide.model_modules)
        show_networks_to_svi(*guide.model_modules, guide)
        value = float(torch_item(loss))
        if not math.isfinite(value):
            require_finite(model, args, kwargs, "a training step")
        modules = (guide, *guide.model_modules)
        require_finite_loss(value, modules, lambda: self.terms(model, guide, *args, **kwargs))
        loss.backward()  # type: ignore[no-untyped-call]
        require_finite_gradients(modules)
        return value

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        raise ValueError(
            "the losses of pyro_dgp use one pass of the guide, not Pyro's pair of traces: call loss.differentiable_loss"
        )

    def _check(self, model: Any, guide: Any) -> None:
        if not isinstance(guide, Variational):
            raise TypeError(
                f"the losses of pyro_dgp take a pyro_dgp.Variational guide, not {type(guide).__name__}: "
                "use a stock Pyro loss for it"
            )
        if model is not guide.model:
            raise ValueError(
                "the model of the loss is not the guide's: the guide would run its own and ignore this one; "
                "build the guide on the very object that the loss gets (a conditioned or reparameterised model is another)"
            )
        require_own_parameters(*guide.model_modules, guide)

    def _weight(self, site: Site, structure: ModelStructure, batch: int | None) -> float | Tensor:
        """Return num_data over the rows of the batch, or of the data plate that these are taken from, times the scale of the site's plates.

        A site whose shape does not follow the rows of the data counts once, and each of a model that cannot be run on fewer rows where all are passed.
        """
        if self.num_data in (None, batch) or _takes_rows(site, structure, batch, self.num_data):
            return site["scale"]
        size = count_of_rows(site, structure)
        if size is None and site["is_observed"] and isinstance(site["fn"], FunctionPrior):
            raise ValueError(
                f"num_data={self.num_data} cannot weight the observed function values at {site['name']!r}, which have one joint density of all rows: pass all "
                "data in every step"
            )
        if size is None and site["is_observed"] and site["name"] not in structure.without_rows:
            raise ValueError(
                f"num_data={self.num_data} cannot weight the observed site {site['name']!r}, which is in no data plate and "
                "whose distribution has no rows: make them an event, as in Poisson(f[..., 0].exp()).to_event(1), or use a likelihood "
                "of this library, as in likelihood(gp(x))"
            )
        size = batch if size is None and site["name"] in structure.local else size  # rows in an event, or in no plate
        if size is None:
            return site["scale"]
        if batch is not None and _follows_rows(site, structure):
            size = batch  # the site may have some of the rows, or several values for each
        if self.num_data < size:
            raise ValueError(
                f"num_data={self.num_data} is less than the {size} rows of the site {site['name']!r}: it is the size of the whole "
                "training set, of which a step passes a part; give len(x) of all data"
            )
        return site["scale"] * self.num_data / max(size, 1)

    def _require_one_count(
        self, sites: list[Site], weighted: WeightedTrace, structure: ModelStructure, batch: int | None
    ) -> None:
        """Raise if num_data is to weight a model that joins rows, or an observed site that has not one value for each row of a step, which has not all rows."""
        if self.num_data not in (None, batch):
            _require_all_rows(structure, batch, what=f"num_data={self.num_data}")
            _require_counts(sites, structure, batch, what=f"num_data={self.num_data}")

    def _regularizer(
        self, site: Site, weighted: WeightedTrace, guide: Variational, batch: int | None, common: float
    ) -> Tensor | float:
        """Return the KL term of a latent site whose prior has a power: that of a ``poutine.scale``, beside the common one of all sites."""
        fn, record = site["fn"], weighted.record(site)
        if (terms := record.regularizer) is not None:
            return site["scale"] * (weighted.average(terms) if terms.dim() else terms)
        if site["is_observed"]:
            return 0.0
        if not fn.has_rsample:
            raise ValueError(
                f"the latent site {site['name']!r} has no reparameterised guide: give one through latents="
            )
        # A scale that follows the rows of a step stands for those that it leaves out, here as at the observations.
        power = 1.0 if site["name"] in guide.structure.rescaled else power_of_prior(site, common)
        difference = fn.log_prob(site["value"]) - power * record.prior.log_prob(site["value"])
        difference = unmasked(difference, site["name"], site["mask"])
        total = weighted.average(difference) if record.carried else difference.sum()
        plates = {frame.name for frame in site["cond_indep_stack"] if frame.vectorized}
        by_rows = site["name"] in guide.structure.local or bool(plates & guide.structure.data_plates)
        return (self._weight(site, guide.structure, batch) if by_rows else site["scale"]) * total / power


def count_of_rows(site: Site, structure: ModelStructure) -> int | None:
    """Return the number of rows of the data that a site holds; ``None`` if its shape does not follow them."""
    sizes = [f.full_size or f.size for f in site["cond_indep_stack"] if f.name in structure.data_plates]
    if sizes:
        return int(sizes[0])
    if site["name"] in structure.without_rows:
        return None
    has_rows = isinstance(site["fn"], CollapsedObservation | torch.distributions.Independent)
    return int(site["fn"].event_shape[0]) if has_rows else None


def _require_observed(sites: list[Site]) -> None:
    """Raise for a model that observes nothing."""
    if not any(site["is_observed"] for site in sites):
        raise ValueError(
            "nothing is observed: pass y to the loss, as in svi.step(x, y), and hand it on in the model, as in "
            "pyro.sample('y', likelihood(gp(x)), obs=y)"
        )


def _rows_passed(structure: ModelStructure, call: Call, sites: list[Site]) -> int | None:
    """Return the number of rows of a step, ``None`` where it is not known: those of the inputs, or, where the model could not be asked which
    these are, of the first argument that may be; of its axes before the last, the one that is as long as the first Gaussian process."""
    inputs = inputs_among(*call)
    if structure.inputs is not None or not inputs:
        return structure.batch_of(*call)
    of_gp = rows_of_functions(sites)
    return of_gp if of_gp in inputs[0].shape[:-1] else num_rows(inputs[0])


def _require_all_rows(structure: ModelStructure, batch: int | None, *, what: str) -> None:
    """Raise for a model that joins rows of function values, of which a step has some alone."""
    if structure.joins_data_rows:
        rows = "a step" if batch is None else f"the {batch} rows of a step"
        raise ValueError(
            f"{what} cannot weight {rows}, since a part of the model joins rows of function values, which a batch of some rows changes: pass all rows in every step, "
            "and num_data=len(x) or none"
        )


def _require_counts(sites: list[Site], structure: ModelStructure, batch: int | None, *, what: str) -> None:
    """Raise for an observed site that has not one value for each row of a step, which num_data is to weight."""
    counts = {site["name"]: count_of_rows(site, structure) for site in sites if site["is_observed"]}
    counts = {name: count for name, count in counts.items() if count is not None}
    other = next((name for name, count in counts.items() if batch is not None and count != batch), None)
    if other is not None and structure.inputs is None:
        raise ValueError(
            f"{what} cannot weight {other!r}, which has {counts[other]} values for {batch} rows, in a model that cannot be run on fewer rows: pass all data "
            "in every step, and num_data=len(x) or none"
        )
    if other is not None:
        raise ValueError(
            f"{what} cannot weight the observed site {other!r}, which has {counts[other]} values for the {batch} rows of a step: observe all rows, and "
            "hide some by a mask, as in Normal(f, 0.1).mask(kept).to_event(1); several values of a row are outputs, (N, D_out); or pass all data in every step"
        )
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise ValueError(
            f"{what} cannot weight observed sites of different numbers of rows ({named}): pass all data "
            "in every step and leave num_data out"
        )


def _require_scales_of_all_rows(sites: list[Site], structure: ModelStructure, *, what: str) -> None:
    """Raise for a ``poutine.scale`` that follows the rows of a step, which num_data is to weight too."""
    name = next((site["name"] for site in sites if site["name"] in structure.rescaled), None)
    if name is not None:
        raise ValueError(
            f"the site {name!r} stands in a poutine.scale that follows the number of rows, and {what} weights the rows of a step already, which would count "
            "them twice: leave the scale out of the model"
        )


def _require_rows(sites: list[Site], structure: ModelStructure, batch: int | None, *, what: str) -> None:
    """Raise if no observed site follows the rows of a step, which num_data is to weight."""
    observed = [site for site in sites if site["is_observed"]]
    if batch is None or not observed:
        return
    if all(site["name"] in structure.without_rows and not _follows_rows(site, structure) for site in observed):
        raise ValueError(
            f"{what} weights the {batch} rows of a step, the last axis but one of its inputs, and the observed site {observed[0]['name']!r} does not "
            "follow them: pass inputs (N, D), and give them another shape in the model; or leave num_data out where all data are passed"
        )


def _takes_rows(site: Site, structure: ModelStructure, batch: int | None, num_data: int | None) -> bool:
    """Tell whether a site is in a plate of all rows that takes those of a step, as ``pyro.plate("data", N, subsample=rows)``, which weights them by itself."""
    taking = structure.taking
    frames = [frame for frame in site["cond_indep_stack"] if taking is None or frame.name in taking]
    return any(frame.size == batch and frame.full_size == num_data for frame in frames)


def _follows_rows(site: Site, structure: ModelStructure) -> bool:
    """Tell whether a site, or a plate that it is in, is known to follow the rows of a call."""
    plates = {frame.name for frame in site["cond_indep_stack"]} & structure.data_plates
    return bool(plates) or site["name"] in structure.with_rows


def _is_masked_out(site: Site) -> bool:
    """Tell whether ``poutine.mask`` hides the whole site; raise for a mask over rows that have no term of their own."""
    mask = site["mask"]
    if not isinstance(mask, Tensor) or mask.dim() == 0:
        return mask is not None and not bool(mask)
    record = SiteRecord.of(site)
    is_function = record is not None and isinstance(record.prior, FunctionPrior | Observation)
    by_rows = any(frame.vectorized for frame in site["cond_indep_stack"])
    if is_function or (isinstance(site["fn"], torch.distributions.Independent) and not by_rows):
        require_rows_unmasked(site)
    return False
