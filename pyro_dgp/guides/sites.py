"""Predicates and checks of the sites of a trace."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.distributions import Delta, MaskedDistribution
from pyro.nn import PyroModule
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Independent

from pyro_dgp.gp import FunctionPrior, too_many_values_message
from pyro_dgp.internal import linalg
from pyro_dgp.internal.call_arguments import arguments_by_name
from pyro_dgp.internal.distributions import elementwise, is_real, is_real_where_observed
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.internal.recording import recording
from pyro_dgp.internal.site_names import is_inside_observation, process_key, require_no_slash, site_of
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.likelihoods import CollapsedObservation, Observation, RowObservation
from pyro_dgp.likelihoods.observation import join
from pyro_dgp.likelihoods.units import standardised_value
from pyro_dgp.processes import Process

Message = dict[str, Any]


def is_observation(site: Message) -> bool:
    """Tell whether the model's distribution at a site is an observation of this library."""
    return isinstance(site["infer"].get("prior", site["fn"]), Observation | RowObservation)


def require_exact(site: Message, rows: int) -> None:
    """Raise for an observed site that prediction cannot condition its Gaussian processes on in closed form.

    :param rows: number of rows of the data.
    """
    fn, name = site["fn"], site["name"]
    if isinstance(fn, Observation):
        if fn.conditional.noise_variance() is None:
            raise ValueError(
                f"exact predictions of {name!r} need Gaussian noise around each function, as Gaussian() has it, and its likelihood is another: run "
                "MCMC on whitened(model), or give the model a guide"
            )
    elif not isinstance(fn, FunctionPrior):
        require_separate_rows(site, rows)


def require_separate_rows(site: Message, rows: int) -> None:
    """Raise for an observed site of a distribution that correlates rows: its prediction at new rows would leave out the training rows.

    :param rows: number of rows of the data.
    """
    inner = elementwise(site["fn"])
    if isinstance(inner, Delta):  # a factor, or a value that is kept: no row correlates with another
        return
    if rows > 1 and rows in inner.event_shape and rows not in inner.batch_shape:
        raise ValueError(
            f"the site {site['name']!r} has one {type(inner).__name__} of all {rows} rows, which predictions at other rows cannot be conditioned on: "
            "write it as a Gaussian process, likelihood(gp(x)), or make each row an observation of its own"
        )


def is_random(site: Message) -> bool:
    """Tell whether a site is a draw or an observation: a sample site that is no subsample and no ``pyro.deterministic``."""
    return site["type"] == "sample" and not site_is_subsample(site) and not site["infer"].get("_deterministic")


def total_regularizer(regularizer: Tensor, prior: FunctionPrior, carried: bool) -> Tensor:
    """Return the regulariser of a marginal, nats in total over the batches of inputs: ``()``, or one for each component.

    :param carried: whether the prior's inputs lead with the axis of components.
    """
    if regularizer.dim() == 0:
        return regularizer * prior.batch_shape[int(carried) :].numel()
    return regularizer.reshape(*regularizer.shape[: int(carried)], -1).sum(-1)


def takes_missing(*modules: Any) -> bool:
    """Tell whether one of the modules, or a part of one, is a likelihood for which NaN is an output that was not observed."""
    parts = (part for module in modules if isinstance(module, nn.Module) for part in module.modules())
    return any(getattr(part, "takes_missing", False) for part in parts)


def require_finite(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: str = "guide.initialize") -> None:
    """Raise if a tensor argument of the model holds NaN or infinity.

    :param call: what got the arguments, as the message says it.
    """
    incomplete = takes_missing(*modules_of(model))
    for number, (name, value) in enumerate(arguments_by_name(model, args, kwargs).items()):
        if not isinstance(value, Tensor):
            continue
        bad = ~torch.isfinite(value)
        if incomplete and number:  # the first argument is the inputs
            bad = bad & ~value.isnan()
        if bool(bad.any()):
            first = tuple(torch.nonzero(bad)[0].tolist())
            missing = (
                "; where some targets of a row are missing, wrap the likelihood, MissingOutputs(likelihood), or mask a distribution of Pyro, "
                ".mask(observed)"
            )
            raise ValueError(
                f"argument {name!r} of {call} holds NaN or infinity, of shape {tuple(value.shape)} first at {first}: drop or fill such rows"
                f"{missing if number else ''}"
            )


def require_slopes(trace: Trace) -> None:
    """Raise for a likelihood that is a step function of function values which the model draws, as two sites: no gradient reaches them."""
    for site in trace.nodes.values():
        if is_random(site) and isinstance(site["fn"], RowObservation) and site["fn"].is_flat:
            raise ValueError(
                f"the likelihood at {site['name']!r} has no gradient in the function values that the model draws, so that a guide would learn nothing from it: "
                f"write pyro.sample({site['name']!r}, likelihood(gp(x)), obs=y), which integrates them out, or take Softmax"
            )


def real_observations(trace: Trace) -> dict[str, Tensor]:
    """Return the observed values of a trace that a Gaussian or another real distribution explains, by site.

    Where the model standardises its targets, they are the standardised ones.
    """
    sites = [site for site in trace.nodes.values() if is_random(site) and site["is_observed"]]
    return {
        site["name"]: _standardised(site["fn"], shown_values(site)) for site in sites if _explains_reals(site["fn"])
    }


def shown_values(site: Message) -> Tensor:
    """Return the values of a site, NaN where a mask of the site or of its distribution hides them."""
    value, fn, masks = torch.as_tensor(site["value"]), site["fn"], [site["mask"]]
    while isinstance(fn, Independent | MaskedDistribution):
        masks += [fn._mask] if isinstance(fn, MaskedDistribution) else []
        fn = fn.base_dist
    for mask in (mask for mask in masks if isinstance(mask, Tensor)):
        is_of_rows = mask.shape == value.shape[: mask.dim()]  # and not of the outputs behind them
        shown = mask.reshape(mask.shape + (1,) * (value.dim() - mask.dim())) if is_of_rows else mask
        if linalg.fits(shown, value):
            value = torch.where(shown, value if value.is_floating_point() else value.double(), torch.nan)
    return value


def _explains_reals(fn: Any) -> bool:
    """Tell whether targets are real numbers; an observation with its functions integrated out is asked by p(y | f)."""
    if isinstance(fn, CollapsedObservation):
        return is_real_where_observed(fn.conditional.given(fn.moments.mean))
    return is_real(fn)


def _standardised(fn: Any, value: Tensor) -> Tensor:
    by_likelihood = isinstance(fn, Observation | CollapsedObservation)
    return fn.conditional.units(value) if by_likelihood else standardised_value(fn, value)


def warn_of_unread_priors(models: Iterable[nn.Module], trace: Trace) -> None:
    """Warn of priors on attributes that no forward reads, as a misspelt name leaves them."""
    for module in (module for model in models for module in model.modules() if isinstance(module, PyroModule)):
        for attribute in module._pyro_samples:
            name = f"{module._pyro_name}.{attribute}" if module._pyro_name else attribute
            if name not in trace.nodes:
                warn_user(
                    f"the prior on {name!r} is read by no forward of the model, so it changes nothing: look at the spelling of the attribute"
                )


def gps_of_site(name: str, fn: Any) -> list[tuple[str, FunctionPrior]]:
    """Return the Gaussian processes of a site by process key: itself, or those in its observation; none for another distribution."""
    if isinstance(fn, FunctionPrior):
        require_no_slash(name)
        return [(name, fn)]
    return [(process_key(name, gp), prior) for gp, prior in fn.priors.items()] if isinstance(fn, Observation) else []


def require_values_of_rows(site: Message, prior: FunctionPrior) -> None:
    """Raise for observed function values of another number of rows than the inputs have, as of a conditioned model at new rows."""
    rows, given = prior.event_shape[0], site["value"].shape[-2] if site["value"].dim() > 1 else None
    if given != rows:
        raise ValueError(
            f"the function values at {site['name']!r} are observed with shape {tuple(site['value'].shape)}, and their inputs have {rows} rows, "
            "where N rows of inputs have values of shape (N, D): pass the values at these rows, and leave out a pyro.condition of those of other rows"
        )


def warn_of_repeated(gps: Iterable[tuple[str, FunctionPrior]]) -> None:
    """Warn of one Gaussian process at several sites, or twice in one observation: it may be meant as one function, and is one for each site.

    :param gps: priors by process key.
    """
    first: dict[int, tuple[str, FunctionPrior]] = {}
    for key, prior in gps:
        if prior.source is None:
            continue
        before, other = first.setdefault(prior.source, (key, prior))
        if key == before:
            continue
        if is_inside_observation(key) and site_of(key) == site_of(before):
            site, one, two = site_of(key), *(each.rpartition("/")[2] for each in (before, key))
            warn_user(
                f"the site {site!r} is given one GaussianProcess twice, as {one} and as {two}, which makes two independent functions with the "
                "hyperparameters in common: make a second GaussianProcess, as in likelihood(gp(x), other_gp(x))"
            )
        elif other.x.shape != prior.x.shape or not torch.equal(other.x, prior.x):
            warn_user(
                f"the sites {before!r} and {key!r} sample one GaussianProcess at different inputs, and each is a function of its own, with the "
                "hyperparameters in common: for one function at both, sample it once at torch.cat([x1, x2], -2) and split its values; "
                "for two functions on purpose, make two GaussianProcess objects that share a kernel"
            )
        elif other is prior:
            warn_user(
                f"the sites {before!r} and {key!r} are given one GaussianProcess by one call, f = gp(x), and each makes a function of its own, with the hyperparameters in common: for one "
                "function under both, write f = pyro.sample('f', gp(x)), and give each site likelihood.given(f); for two functions on purpose, call gp(x) for each"
            )


def require_kernel_fits(key: str, prior: FunctionPrior) -> None:
    """Raise, with the name of the GP, if the prior is an approximation that a guide has no use for, or the kernel does not fit the inputs."""
    if not prior.is_dense:
        raise ValueError(
            f"the Gaussian process {key!r} has a Vecchia approximation, which a guide would not use: give Variational the model itself, not vecchia(model)"
        )
    try:
        shape = prior.covariance.matrix(prior.x[..., :1, :].unsqueeze(-3)).shape[:-3]
    except ValueError as error:
        raise ValueError(f"at the Gaussian process {key!r}, {error}") from error
    if torch.broadcast_shapes(shape, prior.batch_shape) != prior.batch_shape:
        raise ValueError(too_many_values_message(key, tuple(shape), tuple(prior.batch_shape)))


def require_likelihood_fits(name: str, observation: Observation) -> None:
    """Raise if a parameter of the likelihood has more values than it should."""
    means = join({gp: prior.mean for gp, prior in observation.priors.items()})
    found = observation.conditional.given(means).shape()
    if found != observation.shape():
        raise ValueError(too_many_values_message(name, tuple(found), tuple(observation.shape())))


def require_groups(key: str, process: Process, prior: FunctionPrior) -> None:
    """Raise if a GP in a plate, or over a batch of data sets, gets a process that holds one function."""
    if process.groups != prior.batch_shape:
        raise ValueError(
            f"the Gaussian process {key!r} is one function for each of {tuple(prior.batch_shape)} groups, and {type(process).__name__} "
            "holds one function in all: use InducingPoints for it"
        )


def taken_groups(site: Message, trace: Trace) -> dict[int, Tensor]:
    """Return the numbers of the groups that the plates around a GP take, by their batch axis from the right, ``-1``.

    A plate that takes all groups is left out.
    """
    return {frame.dim: trace.nodes[frame.name]["value"] for frame in site["cond_indep_stack"] if _takes_part(frame)}


def require_whole_groups(latent: Iterable[Message], gps: Iterable[str], trace: Trace) -> None:
    """Raise for a latent value of each group in a plate around a GP that takes a part of its groups.

    :param gps: names of the sites of Gaussian processes.
    """
    partial = {frame.name for name in gps for frame in trace.nodes[name]["cond_indep_stack"] if _takes_part(frame)}
    for site in latent:
        for frame in site["cond_indep_stack"]:
            if frame.name in partial:
                raise ValueError(
                    f"the latent site {site['name']!r} has a value for each group of the plate {frame.name!r}, which takes {frame.size} of "
                    f"{frame.full_size}, and its posterior would hold these alone: let the plate take all groups, or sample it before the plate"
                )


def _takes_part(frame: Any) -> bool:
    return bool(frame.vectorized and frame.full_size not in (None, frame.size))


def with_all_groups(prior: FunctionPrior, site: Message) -> FunctionPrior:
    """Return a GP as it is where the plates around it take all groups: the inputs of those that are seen, over and over."""
    x = prior.x
    for frame in site["cond_indep_stack"]:
        if _takes_part(frame):
            x = x.index_select(frame.dim - 2, torch.arange(frame.full_size, device=x.device) % frame.size)
    return prior if x is prior.x else prior.at(x)


def require_told_apart(site: Message, carried: bool, components: int | None, data_plates: Collection[str]) -> None:
    """Raise for a site without the axis of components in a plate of groups of the same size: either axis could be the other.

    :param carried: whether the site leads with the axis of components.
    :param components: size of this axis, if a site has it already.
    :param data_plates: names of the plates over rows.
    """
    if carried or components is None:
        return
    for frame in site["cond_indep_stack"]:
        if frame.vectorized and frame.size == components and frame.name not in data_plates:
            raise ValueError(
                f"the site {site['name']!r} in the plate {frame.name!r} of {frame.size} comes after a hidden layer in as many samples, and "
                "their axes cannot be told apart: take another number of samples; if the site depends on the layer, give its values an "
                "axis for the plate, h.unsqueeze(-3)"
            )


@contextmanager
def shape_errors_explained(has_components: bool) -> Iterator[None]:
    """A scope in which errors of shapes that the axis of components makes are one sentence.

    :param has_components: whether hidden values have this axis; without it errors pass as they are.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not has_components or recording():
            raise
        if isinstance(error, ValueError) and "inside plate" in str(error):
            raise ValueError(
                f"the model ran on its own and failed in the guide, where hidden values are (S, N, D) with the samples in front "
                f"({first_line(error)}): inside a plate give them an axis for it, as in gp(h.unsqueeze(-3))"
            ) from error
        if isinstance(error, RuntimeError) and re.search(
            "dimensions|size of tensor|Sizes of tensors|shape|running_mean", str(error)
        ):
            raise ValueError(
                f"the model ran on its own and failed in the guide, where hidden values are (S, N, D) with one axis more in front "
                f"({first_line(error)}): join them with inputs by concatenate_inputs(h, x), and use operations that take leading axes, such as LayerNorm for BatchNorm1d"
            ) from error
        raise
