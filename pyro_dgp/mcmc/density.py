"""log p(y | whitened values, hyperparameters) of a model: what samplers evaluate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import Transform

from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.evaluation import Evaluate, Evaluation
from pyro_dgp.mcmc.sparse import INDUCING
from pyro_dgp.mcmc.surrogates import DrawSurrogates, EvaluateGiven, SurrogateEvaluation, Surrogates
from pyro_dgp.mcmc.whitening import SUFFIX, WhitenedModel


def _require_continuous(name: str, fn: Any) -> None:
    if fn.has_enumerate_support or fn.support.is_discrete:
        raise ValueError(f"the latent site {name!r} is discrete: sum it out in the model, or sample the rest of it")


def _summed(run: Evaluate) -> Evaluation:
    log_priors = {name: float(value) for name, value in run.log_priors.items()}
    return Evaluation(float(sum(run.observed)), log_priors, run.factors, run.priors).or_impossible()


class WhitenedDensity:
    """The parts of the posterior of a whitened model at fixed data.

    :ivar whitened: shapes of the whitened sites, ``(..., N, D_out)`` by name (``h_whitened``), in the order of the model.
    :ivar transforms: for each other latent site, the map from the real line to its support.
    """

    def __init__(self, model: WhitenedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        with torch.no_grad():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        for name, site in trace.nodes.items():
            if site_is_subsample(site) and (site["fn"].subsample_size or site["fn"].size) < site["fn"].size:
                raise ValueError(f"the plate {name!r} subsamples: this sampler needs all data at every step")
        sampled = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
        self.start = {name: trace.nodes[name]["value"].detach() for name in sampled}
        self.whitened: dict[str, torch.Size] = {}
        self.transforms: dict[str, Transform] = {}
        for name, value in self.start.items():
            site = trace.nodes[name]
            if name.endswith(SUFFIX):
                self.whitened[name] = value.shape
            else:
                _require_continuous(name, site["fn"])
                self.transforms[name] = biject_to(site["fn"].support)
        if self.transforms:
            self._require_fixed_supports()
        if not self.start:
            raise ValueError(
                "the model has nothing to sample: its only GP is integrated out and no hyperparameter has a prior (PyroSample)"
            )
        self._order = {name.removesuffix(SUFFIX): number for number, name in enumerate(self.start)}
        sparse = {name for name in self.whitened if name.removesuffix(SUFFIX) + INDUCING + SUFFIX in self.whitened}
        sparse |= {name.removesuffix(SUFFIX) + INDUCING + SUFFIX for name in sparse}
        self._dense = [name.removesuffix(SUFFIX) for name in self.whitened if name not in sparse]

    def _require_fixed_supports(self) -> None:
        """A second draw of the prior has the same supports."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            other = poutine.trace(self.model).get_trace(*self.args, **self.kwargs)
        for name, transform in self.transforms.items():
            point = transform.inv(self.start[name])
            if not torch.equal(transform(point), biject_to(other.nodes[name]["fn"].support)(point)):
                raise ValueError(
                    f"the support of the latent site {name!r} depends on other sites: sample it on a fixed one, such as "
                    "Uniform(0, 1), and scale it in the model"
                )

    def evaluate(
        self, values: Mapping[str, Tensor], known: Evaluation | None = None, changed: str | None = None
    ) -> Evaluation:
        """One run of the model; a matrix that cannot be factorised has log likelihood minus infinity.

        :param values: whitened values and latent values in their own space, by site.
        :param known: a run whose values differ in ``changed`` alone. Used again: log densities of other sites whose distribution is the same
            object (a ``PyroSample`` of fixed parameters), and factors of GPs that the model meets no later than ``changed``.
        :param changed: name of the site.
        """
        try:
            with torch.no_grad():
                run = self.run(values, self._reused(known, changed))
        except NotPositiveDefiniteError:
            return Evaluation(-math.inf)
        return _summed(run)

    def _reused(self, known: Evaluation | None, changed: str | None) -> Evaluation:
        if known is None or changed is None:
            return Evaluation(0.0)
        last = self._order[changed.removesuffix(SUFFIX)]
        factors = {name: factor for name, factor in known.factors.items() if self._order[name] <= last}
        priors = {name: prior for name, prior in known.priors.items() if name != changed}
        return Evaluation(0.0, known.log_priors, factors, priors)

    def surrogates(self, values: Mapping[str, Tensor], at: Evaluation, name: str, scale: float) -> Surrogates:
        """Surrogate data for the GPs whose values are sampled and may depend on a latent site: those that the model meets after it.

        :param at: the evaluation at these values.
        :param name: of the site.
        :param scale: of the noise in the data.
        :raises NotPositiveDefiniteError: if the scale is too small for the precision of the numbers.
        """
        names = [own for own in self._dense if self._order[own] > self._order[name]]
        width = next(iter(values.values())).new_tensor(scale)
        if not names:
            return Surrogates(width)
        with torch.no_grad(), DrawSurrogates(values, self._reused(at, name), self.model.inducing, names, width) as run:
            self.model.model(*self.args, **self.kwargs)
        return Surrogates(width, run.data, run.noise, run.log_density)

    def evaluate_given(
        self, surrogates: Surrogates, values: Mapping[str, Tensor], known: Evaluation, changed: str
    ) -> SurrogateEvaluation:
        """As :meth:`evaluate`, given surrogate data, which decide the whitened values of their GPs."""
        if not surrogates.data:
            return SurrogateEvaluation(self.evaluate(values, known, changed))
        try:
            with torch.no_grad():
                run = self.run_given(surrogates, values, self._reused(known, changed))
        except NotPositiveDefiniteError:
            return SurrogateEvaluation(Evaluation(-math.inf))
        return SurrogateEvaluation(_summed(run), float(sum(run.log_surrogates)), run.whitened)

    def run_given(self, surrogates: Surrogates, values: Mapping[str, Tensor], known: Evaluation) -> EvaluateGiven:
        """Run the model at these values, given surrogate data."""
        with EvaluateGiven(values, known, self.model.inducing, surrogates) as run:
            self.model.model(*self.args, **self.kwargs)
        return run

    def run(self, values: Mapping[str, Tensor], known: Evaluation) -> Evaluate:
        """Run the model at these values: tensors, with gradients where they are wanted."""
        with Evaluate(values, known, self.model.inducing) as run:
            self.model.model(*self.args, **self.kwargs)
        return run

    def unconstrained_start(self) -> dict[str, Tensor]:
        """The prior draw that it was built with, in unconstrained space."""
        return {k: self.transforms[k].inv(v) if k in self.transforms else v.clone() for k, v in self.start.items()}

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """Minus the log posterior density in unconstrained space, nats, up to a constant: what HMC differentiates.

        :param params: whitened values, and latent values through the inverses of ``transforms``.
        """
        values = {k: self.transforms[k](v) if k in self.transforms else v for k, v in params.items()}
        run = self.run(values, Evaluation(0.0))
        terms = [
            *run.observed,
            *run.log_priors.values(),
            *(-0.5 * params[name].square().sum() for name in self.whitened),
        ]
        for name, transform in self.transforms.items():
            terms.append(transform.log_abs_det_jacobian(params[name], values[name]).sum())
        return -torch.stack([torch.as_tensor(term) for term in terms]).sum()
