"""The density of a whitened model given surrogate data."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_dgp.internal.site_names import inducing_site, is_inducing, whitened_site, without_whitened
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE, Evaluation
from pyro_dgp.mcmc.surrogates import DrawSurrogates, EvaluateGiven, Surrogates


@dataclass(frozen=True)
class SurrogateEvaluation:
    """One run of the model given surrogate data.

    :ivar evaluation: the run at the whitened values that the noise became.
    :ivar log_surrogates: log density of the surrogate data, nats.
    :ivar whitened: those whitened values, by site.
    """

    evaluation: Evaluation
    log_surrogates: float = 0.0
    whitened: dict[str, Tensor] = field(default_factory=dict)

    @property
    def log_density(self) -> float:
        """Log density of the observations, the hyperparameters and the surrogate data, nats."""
        return self.evaluation.log_density + self.log_surrogates


class SurrogateDensity:
    """Draws surrogate data for a model, and evaluates its density given them.

    :param density: the density of the model, which may be a compiled one.
    """

    def __init__(self, density: WhitenedDensity) -> None:
        self.density = density
        sites = [without_whitened(site) for site in density.whitened if not is_inducing(site)]
        self._dense = [site for site in sites if inducing_site(site) not in density.whitened]

    def draw(self, values: Mapping[str, Tensor], at: Evaluation, *, name: str, scale: float) -> Surrogates:
        """Surrogate data for the GPs whose values are sampled and may depend on a hyperparameter: those that the model meets after it.

        :param values: whitened values and latent values in their own space, by site.
        :param at: the evaluation at these values.
        :param name: site of the hyperparameter.
        :param scale: standard deviation of the noise in the data.
        :raises NotPositiveDefiniteError: if the scale is too small for the precision of the numbers.
        """
        density, names = self.density, [site for site in self._dense if self.density.is_after(site, name)]
        width = next(iter(values.values())).new_tensor(scale)
        if not names:
            return Surrogates(width)
        known = density.reused(at, name)
        with torch.no_grad():
            run = density.run_in(DrawSurrogates(values, known, density.inducing, names=names, scale=width))
        return Surrogates(width, run.data, run.noise, run.log_density)

    def evaluate(
        self, surrogates: Surrogates, values: Mapping[str, Tensor], *, known: Evaluation, changed: str
    ) -> SurrogateEvaluation:
        """Evaluate the density given surrogate data, which decide the whitened values of their GPs; see :meth:`WhitenedDensity.evaluate`."""
        if not surrogates.data:
            return SurrogateEvaluation(self.density.evaluate(values, known, changed))
        compiled = self._evaluate_compiled(surrogates, values)
        if compiled is not None:
            return compiled
        try:
            with torch.no_grad():
                run = self._run(surrogates, values, self.density.reused(known, changed))
        except IMPOSSIBLE:
            return SurrogateEvaluation(Evaluation(-math.inf))
        return SurrogateEvaluation(run.evaluation(), float(sum(run.log_surrogates)), run.whitened)

    def _run(self, surrogates: Surrogates, values: Mapping[str, Tensor], known: Evaluation) -> EvaluateGiven:
        return self.density.run_in(EvaluateGiven(values, known, self.density.inducing, surrogates=surrogates))

    def _evaluate_compiled(self, surrogates: Surrogates, values: Mapping[str, Tensor]) -> SurrogateEvaluation | None:
        """The evaluation by a compiled function, one for each set of GPs; nothing where the density has none."""
        sites = tuple(surrogates.data)
        points = [surrogates.scale, *(values[name] for name in self._others(sites))]
        points += [*surrogates.data.values(), *surrogates.noise.values()]
        function = functools.partial(self._numbers, sites)
        results = self.density.compiled(f"the density given {', '.join(sites)}", function, points)
        if results is None:
            return None
        log_likelihood, log_surrogates, *log_priors = results[0].tolist()
        evaluation = Evaluation.of_numbers(log_likelihood, self.density.transforms, log_priors)
        whitened = dict(zip(map(whitened_site, sites), results[1:], strict=True))
        return SurrogateEvaluation(evaluation, log_surrogates, whitened)

    def _others(self, sites: tuple[str, ...]) -> list[str]:
        """The sites whose values surrogate data do not decide."""
        return [name for name in self.density.start if without_whitened(name) not in sites]

    def _numbers(self, sites: tuple[str, ...], scale: Tensor, *points: Tensor) -> tuple[Tensor, ...]:
        """The evaluation as a function of tensors: log densities in a row, then the whitened values of each site."""
        count = len(sites)
        data, noise = points[-2 * count : -count], points[-count:]
        values = dict(zip(self._others(sites), points[: -2 * count], strict=True))
        given = Surrogates(scale, dict(zip(sites, data, strict=True)), dict(zip(sites, noise, strict=True)))
        with torch.no_grad():
            run = self._run(given, values, Evaluation(0.0))
        log_surrogates = torch.stack(run.log_surrogates).sum()
        numbers = run.numbers(self.density.transforms, log_surrogates)
        return numbers, *(run.whitened[whitened_site(site)] for site in sites)
