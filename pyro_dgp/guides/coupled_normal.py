"""Default posterior of hyperparameters with priors: one normal over all of them, with full covariance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from pyro.distributions import Distribution, TorchDistribution, TransformedDistribution, constraints
from pyro.infer.autoguide.effect import AutoNormalMessenger
from pyro.infer.autoguide.initialization import init_to_median
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroParam
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor
from torch.distributions import biject_to

from pyro_dgp.internal import linalg
from pyro_dgp.internal.moved_priors import device_of

#: Most numbers of a site that takes part in the joint normal; a larger one is independent of the others.
MOST = 100


def init_to_prior_median(site: dict[str, Any]) -> Tensor:
    """Return the median of a site's prior, which exists where the mean is infinite or missing; it may be estimated by draws."""
    fn = site["fn"]
    base = fn.base_dist if isinstance(fn, torch.distributions.Independent) else fn
    try:
        half = torch.full((), 0.5, dtype=torch.get_default_dtype(), device=device_of(fn))
        median: Tensor = base.icdf(half.expand(base.shape()))
    except (NotImplementedError, AttributeError):
        median = init_to_median(site, num_samples=101)
    if bool(torch.isfinite(median).all()):
        return median.to(torch.get_default_dtype())
    raise ValueError(
        f"the prior of {site['name']!r} has no finite median: give a starting point through latents=, an AutoNormalMessenger with "
        "init_loc_fn"
    )


class RowNormal(TorchDistribution):
    """The normal ``u = loc + T eps`` of the numbers of one site, ``eps ~ N(0, I)`` and T lower triangular.

    ``log_prob`` gives each number the term of its conditional given those before it, so that the terms may be summed over
    the event alone.

    :param loc: ``(*lead, *shape)``.
    :param factor: T ``(n, n)`` with n the product of ``shape``.
    :param dims: number of axes of ``shape``, all of them event axes.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(self, loc: Tensor, factor: Tensor, dims: int) -> None:
        self.loc, self.factor, self.dims = loc, factor, dims
        split = loc.dim() - dims
        super().__init__(loc.shape[:split], loc.shape[split:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers."""
        return constraints.independent(constraints.real, self.dims)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> RowNormal:
        """Return the same normal over more batches."""
        return RowNormal(self.loc.expand(Size(batch_shape) + self.event_shape), self.factor, self.dims)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw ``(*sample_shape, *lead, *shape)``."""
        shape = self._extended_shape(Size(sample_shape))
        eps = torch.randn(*shape[: len(shape) - self.dims], len(self.factor)).to(self.loc)
        return self.loc + (eps @ self.factor.mT).reshape(shape)

    def standardised(self, value: Tensor) -> Tensor:
        """Return eps of a value, ``(*lead, n)``."""
        deviation = (value - self.loc).flatten(-self.dims) if self.dims else (value - self.loc).unsqueeze(-1)
        return linalg.solve_triangular(self.factor, deviation.unsqueeze(-1), upper=False).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, in the shape of the batch."""
        eps = self.standardised(value)
        return (-0.5 * eps.square() - 0.5 * math.log(2 * math.pi) - self.factor.diagonal().log()).sum(-1)


class CoupledNormal(AutoNormalMessenger):  # type: ignore[misc]
    """Normal posterior with full covariance over hyperparameters, each mapped to the real line; starts at prior medians.

    The sites come one after the other: ``u_i = loc_i + W_i eps_(<i) + T_i eps_i``, with eps the standardised deviations of
    the sites before and T_i lower triangular. Together they have one covariance. A guide passes the deviations on to the
    processes, whose means move with them (:class:`~pyro_dgp.processes.whitened.WhitenedProcess`): a mean-field posterior
    would hold the hyperparameters that fit *one* function.

    Sites in plates, sites that are local to rows, and sites of more than :data:`MOST` numbers have independent normals.

    :ivar apart: names of the sites that are local to rows, whose values at new rows say nothing about those that were trained.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, init_loc_fn=init_to_prior_median)
        self.sizes: dict[str, int] = {}
        self.apart: frozenset[str] = frozenset()

    def total_of(self, names: Collection[str]) -> int:
        """Return the number of deviations of some sites."""
        return sum(size for name, size in self.sizes.items() if name in names)

    @property
    def total(self) -> int:
        """Number of deviations in all."""
        return sum(self.sizes.values())

    def get_posterior(self, name: str, prior: Any) -> Distribution:
        """Return the posterior of a site given the sites of the trace before it."""
        loc, _ = self._get_params(name, prior)
        if name not in self.sizes and not self._register(name, loc, biject_to(prior.support).domain.event_dim):
            return super().get_posterior(name, prior)
        names = list(self.sizes)
        own = self._given(name, prior, self.deviations(self.trace, names[: names.index(name)]))
        return TransformedDistribution(own, biject_to(prior.support).with_cache())

    def _register(self, name: str, loc: Tensor, dims: int) -> bool:
        """Take a site into the joint normal; tell whether it is one that takes part."""
        size = loc.numel()
        if loc.dim() != dims or size > MOST or name in self.apart:
            return False
        for attribute, columns in (("weights", self.total), ("lower", size if size > 1 else 0)):
            if columns and self._matrix(attribute, name) is None:  # a state dict may have brought it
                matrix = PyroParam(loc.detach().new_zeros(size, columns), event_dim=2)
                deep_setattr(self, f"{attribute}.{name}", matrix)
        self.sizes[name] = size
        return True

    def _matrix(self, attribute: str, name: str) -> Tensor | None:
        """Return the weights or the lower factor of a site; ``None`` where there is nothing to weigh."""
        try:
            matrix: Tensor = attrgetter(f"{attribute}.{name}")(self)
        except AttributeError:
            return None
        return matrix

    def _given(self, name: str, prior: Any, before: Tensor | None) -> RowNormal:
        """Return the normal of a site on the real line, given the deviations of the sites before it."""
        dims = biject_to(prior.support).domain.event_dim
        loc, scale = self._get_params(name, prior)
        flat, lower, weights = scale.reshape(-1), self._matrix("lower", name), self._matrix("weights", name)
        factor = torch.diag(flat)
        if lower is not None:
            factor = factor + flat.unsqueeze(-1) * lower.tril(-1)
        if before is not None and weights is not None:
            shift = flat * (before @ weights.mT)
            loc = loc + shift.reshape(shift.shape[:-1] + loc.shape)
        split = loc.dim() - dims
        lead = torch.broadcast_shapes(prior.batch_shape, loc.shape[:split])  # plates outside the guide come later
        return RowNormal(loc.expand(lead + loc.shape[split:]), factor, dims)

    def deviations(self, trace: Trace, names: Sequence[str] | None = None) -> Tensor | None:
        """Return the standardised deviations of the sites in a trace, ``(*lead, total)``; ``None`` if none is in it.

        The deviation of a site that is not in the trace is 0.

        :param names: the first sites of the joint normal; all of them if not given.
        """
        found: Tensor | None = None
        missing = 0
        for name in self.sizes if names is None else names:
            site = trace.nodes.get(name)
            if site is None or "prior" not in site["infer"]:
                missing += self.sizes[name]
                continue
            prior = site["infer"]["prior"]
            before = None if found is None else torch.nn.functional.pad(found, (0, missing))
            own = self._given(name, prior, before)
            eps = own.standardised(_on_the_real_line(site, prior))
            lead = eps.shape[:-1] if found is None else torch.broadcast_shapes(eps.shape[:-1], found.shape[:-1])
            parts = [eps.new_zeros(missing), eps] if found is None else [found, eps.new_zeros(missing), eps]
            found = torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], -1)
            missing = 0
        return None if found is None else torch.nn.functional.pad(found, (0, missing))


def _on_the_real_line(site: Mapping[str, Any], prior: Any) -> Tensor:
    """Return the value of a site mapped to the real line, by the transform that drew it: it remembers the number that it mapped."""
    fn, transform = site["fn"], biject_to(prior.support)
    while not isinstance(fn, TransformedDistribution) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if isinstance(fn, TransformedDistribution) and fn.transforms == [transform]:
        (transform,) = fn.transforms
    value: Tensor = transform.inv(site["value"])
    return value
