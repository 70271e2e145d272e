"""Checks of sites besides Gaussian processes: latent ones that a guide serves, and targets that their distribution has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyro.distributions import Delta, MaskedDistribution, Unit
from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily, TransformedDistribution, biject_to
from torch.distributions.constraints import Constraint, is_dependent

from pyro_dgp.guides.sites import Message, is_observation
from pyro_dgp.internal.distributions import ANGLES, ObservedPart, elementwise
from pyro_dgp.internal.errors import first_line
from pyro_dgp.likelihoods.supports import require_support


def require_served(sites: Iterable[Message]) -> None:
    """Raise for a ``pyro.factor``, whose rows nobody knows, for a discrete latent site, for values that ``obs_mask`` makes latent, and for targets of another kind."""
    for site in sites:
        name, fn = site["name"], site["fn"]
        if not hasattr(fn, "shape"):
            raise TypeError(
                f"the site {name!r} has a {type(fn).__name__} of torch.distributions, which lacks what Pyro's have: take that of pyro.distributions"
            )
        if name.endswith("_unobserved") and site["mask"] is not None:
            raise ValueError(
                f"the site {name!r} is what obs_mask leaves unobserved, a latent value for each row, which the loss does not need: mask the "
                f"distribution in its place, as in pyro.sample({name.removesuffix('_unobserved')!r}, distribution.mask(observed).to_event(1), obs=y)"
            )
        if isinstance(fn, Unit):
            raise ValueError(
                f"the factor {name!r} says neither which rows it is of nor what its target is, so that no loss can weight it and no prediction knows it: write "
                f"pyro.sample({name!r}, distribution, obs=y) in its place"
            )
        if site["is_observed"]:
            require_usable(site)
            continue
        require_density(name, fn)
        if is_discrete(fn):
            raise ValueError(
                f"the latent site {name!r} is discrete, which no normal approximates: sum it out in the model, as in MixtureSameFamily"
            )


def require_density(name: str, fn: Any) -> None:
    """Raise for a latent site of one value, whose density is infinite there and zero elsewhere, for an angle, and for a support that no map leads to."""
    require_no_angle(name, fn)
    _require_mapped_support(name, fn)
    if isinstance(elementwise(fn), Delta):
        raise ValueError(
            f"the latent site {name!r} is a Delta, which has a value and no density: write pyro.deterministic({name!r}, value)"
        )


def _require_mapped_support(name: str, fn: Any) -> None:
    """Raise where PyTorch has no map from the real line to the support of a latent site: positive-definite matrices, and mixtures."""
    if is_discrete(fn):
        return
    try:
        biject_to(fn.support)
    except NotImplementedError as error:
        kind = elementwise(fn)
        remedy = "for a covariance matrix sample LKJCholesky and positive scales, and multiply them"
        if isinstance(kind, MixtureSameFamily):
            remedy = (
                "take a prior of one part; a sampler also takes z = sample(name, wide) and pyro.factor('mixture', mixture.log_prob(z) - wide.log_prob(z)), wide such as "
                "Normal(0, 10)"
            )
        raise ValueError(
            f"the latent site {name!r} is a {type(kind).__name__}, and no map leads from the real line to its support: {remedy}"
        ) from error


def require_no_angle(name: str, fn: Any) -> None:
    """Raise for a latent angle, also one that is shifted or scaled: its density repeats itself along the line, so that it has no integral there."""
    kind = elementwise(fn)
    while isinstance(kind, TransformedDistribution):
        kind = elementwise(kind.base_dist)
    if isinstance(kind, ANGLES):
        raise ValueError(
            f"the latent site {name!r} is an angle, {type(kind).__name__}, whose density repeats itself without end along the line that is sampled: give it a prior on an "
            "interval, such as Uniform(-math.pi, math.pi)"
        )


def require_usable(site: Message) -> None:
    """Raise for targets of a distribution of PyTorch: classes and counts that it does not have, and whole numbers or booleans with which it does not compute."""
    name, fn, value = site["name"], site["fn"], site["value"]
    if is_observation(site) or not isinstance(value, Tensor):
        return
    _require_support(name, fn, value, mask=site["mask"])
    if value.is_floating_point():
        return
    try:
        fn.log_prob(value)
    except RuntimeError as error:
        kind, dtype = type(elementwise(fn)).__name__, str(value.dtype).removeprefix("torch.")
        raise TypeError(
            f"the target of the site {name!r} is {dtype}, which {kind} does not compute with ({first_line(error)}): pass y.to(x.dtype)"
        ) from error


def _require_support(name: str, fn: Any, value: Tensor, *, mask: Any) -> None:
    """Raise for a target that a distribution does not have, whether or not Pyro validates.

    Elements that a mask leaves out may be anything. A support that depends on parameters is asked only where it is one of classes or counts.
    """
    while isinstance(fn, Independent):
        fn = fn.base_dist
    if fn.event_shape or isinstance(mask, Tensor) or isinstance(fn, MaskedDistribution | ObservedPart):
        return
    if is_discrete(fn):
        try:
            require_support(fn, value)
        except ValueError as error:
            raise ValueError(f"at the site {name!r}, {error}") from error
    elif isinstance(support := type(fn).support, Constraint) and not is_dependent(support):
        outside = value[~support.check(value) & value.isfinite()]
        if len(outside):
            raise ValueError(
                f"at the site {name!r}, a target is {float(outside[0]):g}, outside the support of {type(fn).__name__}, {support}: recode the targets, or "
                "take another distribution"
            )


def is_discrete(fn: Any) -> bool:
    """Tell whether a distribution is over classes or counts; one that does not say is not."""
    try:
        return bool(fn.has_enumerate_support or fn.support.is_discrete)
    except (AttributeError, NotImplementedError):
        return False
