"""log p(y | whitened values, hyperparameters) of a model: what samplers evaluate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import Transform

from pyro_dgp.guides.served_sites import require_density
from pyro_dgp.guides.sites import takes_missing
from pyro_dgp.internal.compiled_function import Function
from pyro_dgp.internal.parameters import evaluating, modules_of
from pyro_dgp.internal.site_names import is_whitened, without_whitened
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE, Evaluate, Evaluation, rounded_away
from pyro_dgp.mcmc.repeatable import require_repeatable
from pyro_dgp.mcmc.sparse import Inputs
from pyro_dgp.mcmc.steady_sites import SteadySites, require_fixed_supports
from pyro_dgp.mcmc.whitening import WhitenedModel


def _require_continuous(name: str, fn: Any) -> None:
    require_density(name, fn)
    if fn.has_enumerate_support or fn.support.is_discrete:
        raise ValueError(f"the latent site {name!r} is discrete: sum it out in the model, or sample the rest of it")


def _is_incomplete(value: Any, *, has_missing: bool) -> bool:
    """Tell whether observations hold infinity, or NaN where no likelihood takes that for a missing output."""
    if not isinstance(value, Tensor):
        return False
    return bool((value.isinf() if has_missing else ~value.isfinite()).any())


#: A handler that evaluates the model.
Run = TypeVar("Run", bound=Evaluate)


class WhitenedDensity:
    """The parts of the posterior of a whitened model at fixed data.

    :ivar whitened: shapes of the whitened sites, ``(..., N, D_out)`` by name (``h_whitened``), in the order of the model.
    :ivar transforms: for each other latent site, the map from the real line to its support.
    :cvar takes_several: whether slopes at several points take less time than at one after another.
    """

    takes_several: ClassVar[bool] = False

    def __init__(self, model: WhitenedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        with torch.no_grad():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        for name, site in trace.nodes.items():
            if site_is_subsample(site) and (site["fn"].subsample_size or site["fn"].size) < site["fn"].size:
                raise ValueError(f"the plate {name!r} subsamples: this sampler needs all data at every step")
        sampled = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
        self.start = {name: trace.nodes[name]["value"].detach() for name in sampled}
        self._modules = modules_of(model.model)
        observed, takes = trace.observation_nodes, takes_missing(*self._modules)
        self._incomplete = [name for name in observed if _is_incomplete(trace.nodes[name]["value"], has_missing=takes)]
        self.whitened: dict[str, torch.Size] = {}
        self.transforms: dict[str, Transform] = {}
        self._supports: dict[str, Constraint] = {}
        for name, value in self.start.items():
            site = trace.nodes[name]
            if is_whitened(name):
                self.whitened[name] = value.shape
            else:
                _require_continuous(name, site["fn"])
                support = self._supports[name] = site["fn"].support
                self.transforms[name] = biject_to(support)
        if not self.start:
            raise ValueError(
                "the model has nothing to sample: its only GP is integrated out and no hyperparameter has a prior (PyroSample)"
            )
        self._order = {without_whitened(name): number for number, name in enumerate(self.start)}
        self._steady = SteadySites(self.start)
        require_fixed_supports(lambda: poutine.trace(model).get_trace(*args, **kwargs), self.start, self.transforms)
        require_repeatable(lambda: self.run(self.start, Evaluation(0.0)).evaluation().log_density, self.start)

    def remedy(self) -> str:
        """Return what may be done where no point has a finite density."""
        if not self._incomplete:
            return "check the data for NaN, or narrow the priors"
        return f"the observations of {self._incomplete[0]!r} hold NaN or infinity: drop or fill such rows"

    def evaluate(
        self, values: Mapping[str, Tensor], known: Evaluation | None = None, changed: str | None = None
    ) -> Evaluation:
        """One run of the model; it has log likelihood minus infinity where a matrix cannot be factorised or a latent value has left its support.

        :param values: whitened values and latent values in their own space, by site.
        :param known: a run whose values differ in ``changed`` alone. Used again: log densities of other sites whose distribution is the same
            object (a ``PyroSample`` of fixed parameters) under equal scales and masks, and factors of GPs that the model meets no later than ``changed``.
        :param changed: name of the site.
        """
        try:
            with torch.no_grad():
                run = self.run(values, self.reused(known, changed))
        except IMPOSSIBLE:
            return Evaluation(-math.inf)
        return run.evaluation()

    def reused(self, known: Evaluation | None, changed: str | None) -> Evaluation:
        """The parts of an evaluation that hold where the value of one site changes; see :meth:`evaluate`."""
        if known is None or changed is None:
            return Evaluation(0.0)
        last = self._order[without_whitened(changed)]
        factors = {
            k: factor for k, factor in known.factors.items() if self._may_reuse_factors and self._order[k] <= last
        }
        priors = {name: prior for name, prior in known.priors.items() if name != changed}
        return Evaluation(0.0, known.log_priors, factors, priors)

    @cached_property
    def _may_reuse_factors(self) -> bool:
        return _meets_all_with_factors(self) and _factors_hold(self)

    def sites_after(self, function_site: str) -> list[str]:
        """Return the latent sites, besides whitened ones, that the model meets after the values of a GP."""
        return [site for site in self.transforms if self._order[site] > self._order[function_site]]

    def is_after(self, function_site: str, site: str) -> bool:
        """Whether the model meets the values of a GP after another site, so that they may depend on it."""
        return self._order[function_site] > self._order[site]

    @property
    def inducing(self) -> Inputs:
        """Inducing inputs of the whitened model by process key."""
        return self.model.inducing

    def compiled(self, what: str, function: Function, points: list[Tensor]) -> list[Tensor] | None:
        """Results of a function of tensors by a compiled program; nothing where there is none, as here.

        :param what: name of the function in the log; equal names are the same function.
        """
        return None

    def run(self, values: Mapping[str, Tensor], known: Evaluation) -> Evaluate:
        """Run the model at these values: tensors, with gradients where they are wanted."""
        return self.run_in(Evaluate(values, known, self.inducing))

    def run_in(self, handler: Run) -> Run:
        """Run the model in a handler, which is returned. Networks are in evaluation mode, as in predictions.

        :raises RoundedAwayError: where the model raises ``ValueError`` and rounding may have done away with a latent value.
        """
        try:
            with handler, evaluating(*self._modules):
                self.model.model(*self.args, **self.kwargs)
        except ValueError as error:
            rounded_away(self._supports, handler.values, self.start, error)
            raise
        self._steady.require(handler.met, handler.observed, uses_factors=bool(handler.known.factors))
        return handler

    def unconstrained(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whitened values, and latent values in their own space, as a point in unconstrained space."""
        return {k: self.transforms[k].inv(values[k]) if k in self.transforms else values[k].clone() for k in self.start}

    def unconstrained_start(self) -> dict[str, Tensor]:
        """The prior draw made when the density was built, in unconstrained space."""
        return self.unconstrained(self.start)

    @cached_property
    def _layout(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (value.shape, value.dtype) for name, value in self.unconstrained_start().items()}

    def vector(self, params: Mapping[str, Tensor]) -> Tensor:
        """All values of a point in unconstrained space behind one another, in the order of the sites of the model, in the widest type of any."""
        missing = [name for name in self._layout if name not in params]
        if missing or len(params) > len(self._layout):
            others = [name for name in params if name not in self._layout]
            raise ValueError(
                f"a point has a value for each of {list(self._layout)}: it lacks {missing} and also has {others}"
            )
        return torch.cat([params[name].reshape(-1) for name in self._layout])

    def tensor(self, vectors: np.ndarray) -> Tensor:
        """Vectors as a tensor of the type and on the device of :meth:`vector`."""
        return torch.from_numpy(vectors).to(self._like)

    @cached_property
    def _like(self) -> Tensor:
        return self.vector(self.unconstrained_start())

    def params(self, vector: Tensor) -> dict[str, Tensor]:
        """The point of a vector, by site; the inverse of :meth:`vector`."""
        parts = vector.split([shape.numel() for shape, _ in self._layout.values()])
        return {
            name: part.reshape(shape).to(dtype)
            for part, (name, (shape, dtype)) in zip(parts, self._layout.items(), strict=True)
        }

    def slopes(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior densities in unconstrained space at some points, nats up to a constant, and their gradients.

        A point that is not finite, where a matrix cannot be factorised, or where a latent value has left its support by rounding, has log density
        minus infinity and gradient zero.

        :param vectors: the points, ``(C, n)``, see :meth:`vector`.
        :returns: ``(C,)`` and ``(C, n)``.
        """
        found = [self._slope(vector) for vector in vectors]
        return torch.stack([density for density, _ in found]), torch.stack([gradient for _, gradient in found])

    def _slope(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        nowhere = vector.new_tensor(-math.inf), torch.zeros_like(vector)
        if not bool(vector.isfinite().all()):
            return nowhere
        try:
            energy, gradient = self.energy_and_gradient(vector)
        except IMPOSSIBLE:
            return nowhere
        return -energy, -gradient

    def energy_and_gradient(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`potential` at the point of a vector, and its gradient ``(n,)``."""
        with torch.enable_grad():
            leaf = vector.detach().requires_grad_()
            energy = WhitenedDensity.potential(self, self.params(leaf))
            return energy.detach(), torch.autograd.grad(energy, leaf)[0]

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """Minus the log posterior density in unconstrained space, nats, up to a constant: what HMC differentiates.

        :param params: whitened values, and latent values through the inverses of ``transforms``.
        """
        values = {k: self.transforms[k](v) if k in self.transforms else v for k, v in params.items()}
        run = self.run(values, Evaluation(0.0))
        of_whitened = (-0.5 * params[name].square().sum() for name in self.whitened)
        terms = [*run.observed, *run.log_priors.values(), *of_whitened]
        for name, transform in self.transforms.items():
            terms.append(transform.log_abs_det_jacobian(params[name], values[name]).sum())
        return -torch.stack([torch.as_tensor(term) for term in terms]).sum()


def _meets_all_with_factors(density: WhitenedDensity) -> bool:
    """Tell whether a run with known factors meets all sites: a kernel that reads a latent site in its matrix is not asked for one then."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            factors = density.run(density.start, Evaluation(0.0)).factors
        except (ValueError, *IMPOSSIBLE):
            return True
        try:
            density.run(density.start, Evaluation(0.0, {}, factors))
        except ValueError:
            return False
    return True


def _factors_hold(density: WhitenedDensity) -> bool:
    """Tell whether the factor of each GP stays where the sites change that the model meets after it; a kernel that reads one in its matrix has another."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        start = density.start
        try:
            other = poutine.trace(density.model).get_trace(*density.args, **density.kwargs).nodes
        except (ValueError, *IMPOSSIBLE):
            return True
        for name, factor in _factors_at(density, start).items():
            moved = {site: other[site]["value"] for site in density.sites_after(name) if site in other}
            if moved and not _is_same_factor(factor, _factors_at(density, start | moved).get(name)):
                return False
    return True


def _factors_at(density: WhitenedDensity, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return density.run(values, Evaluation(0.0)).factors
    except (ValueError, *IMPOSSIBLE):
        return {}


def _is_same_factor(one: Tensor, other: Tensor | None) -> bool:
    """Tell whether factors are the same; nothing is known of one that there is not."""
    if other is None:
        return True
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6 * float(one.abs().max()))
