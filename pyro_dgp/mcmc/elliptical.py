"""Elliptical slice sampling of function values, and slice sampling of hyperparameters, as one kernel of Pyro's MCMC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import Evaluation
from pyro_dgp.mcmc.initial_points import PriorDraw, Start, require_start
from pyro_dgp.mcmc.slices import elliptical_slice, slice_sample
from pyro_dgp.mcmc.surrogates import SurrogateEvaluation, Surrogates, SurrogateScale
from pyro_dgp.mcmc.whitening import WhitenedModel, whitened

#: How often a slice is widened at most: while its width is being learned, and after that, when it mostly fits.
_STEPS_WARMING, _STEPS = 8, 2


class EllipticalSlice(MCMCKernel):  # type: ignore[misc]
    """A Gibbs sweep over the exact prior: whitened function values by elliptical slices, hyperparameters by slices.

    Needs no gradient and no step size: ``MCMC(EllipticalSlice(model), num_samples=1000).run(x, y)``. One iteration updates, some times
    over, each output of each GP whose values are sampled (Murray, Adams and MacKay 2010; with a Gaussian likelihood the last GP stays
    integrated out), and then once each number of each other latent site (Neal 2003) in unconstrained space, whose slice widths are
    learned in the warm-up. A Cholesky factor is computed for the layers above the one that changes; nothing else is.

    Draws have the names of :func:`~pyro_dgp.whitened`, so that :func:`~pyro_dgp.predict_mcmc` takes them.

    :param model: the model, or ``whitened(model)``.
    :param function_updates: of every output in one iteration. An update of function values takes fewer runs of the model than one of
        all the hyperparameters, and the figures that users read hang on it.
    :param density: what evaluates it, :class:`~pyro_dgp.CompiledDensity` for long chains.
    :param start: where it starts unless ``initial_params`` says: at a draw of the prior, or after an :class:`~pyro_dgp.Ascent` from one.
    :param surrogate_scale: where little noise ties hyperparameters to function values: scales of the surrogate data (Murray and Adams 2010)
        given which hyperparameters are updated, anew for each site. None holds the whitened values, which costs a third less.
    :ivar stats: of the last draw: ``lp`` (log density in unconstrained space up to a constant, nats) and ``runs`` (of the model).
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        function_updates: int = 4,
        density: type[WhitenedDensity] = WhitenedDensity,
        start: Start = PriorDraw(),
        surrogate_scale: SurrogateScale | None = None,
    ) -> None:
        if function_updates < 1:
            raise ValueError(
                f"function_updates must be at least 1, got {function_updates}: without it the draws would stay where they are"
            )
        require_start(start)
        if surrogate_scale is not None and not isinstance(surrogate_scale, SurrogateScale):
            raise TypeError(f"surrogate_scale is an object such as SurrogateScale(0.05, 2.0), not {surrogate_scale!r}")
        self.function_updates, self.density, self.start = function_updates, density, start
        self.surrogate_scale = surrogate_scale
        self.model = model if isinstance(model, WhitenedModel) else whitened(model)
        self.transforms: dict[str, Any] = {}
        self.stats: dict[str, float | int] = {}
        self._given: dict[str, Tensor] | None = None
        self._forget()

    def _forget(self) -> None:
        self._density: WhitenedDensity | None = None
        self._started: dict[str, Tensor] | None = None
        self._at: Evaluation | None = None
        self._params: dict[str, Tensor] = {}
        self._widths: dict[str, Tensor] = {}
        self._moves: dict[str, Tensor] = {}
        self._warmup, self._sweeps, self._evaluations = 0, 0, 0

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See Pyro's ``MCMCKernel``."""
        self._forget()
        self._density = self.density(self.model, args, kwargs)
        self.transforms = {name: transform.inv for name, transform in self._density.transforms.items()}
        self._warmup = warmup_steps
        for name, value in self.initial_params.items():
            if name in self.transforms:
                self._widths[name], self._moves[name] = torch.ones_like(value), torch.zeros_like(value)

    @property
    def _warming(self) -> bool:
        """Whether widths are learned still: Pyro's ``MCMC`` does not say when the warm-up ends."""
        return self._sweeps < self._warmup

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """In unconstrained space: what was given, or where :attr:`start` leads."""
        if self._given is not None:
            return self._given
        if self._started is None:
            assert self._density is not None
            self._started = self.start(self._density)
        return self._started

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._given = params

    def _values(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: self.transforms[k].inv(v) if k in self.transforms else v for k, v in params.items()}

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """One sweep."""
        density = self._density
        if density is None:
            raise ValueError("the kernel has no data yet: run it by pyro.infer.MCMC")
        values = self._values(params)
        if self._at is None or params is not self._params:
            self._at = density.evaluate(values)
            if not math.isfinite(self._at.log_likelihood):
                raise ValueError(
                    "the posterior density is zero or not finite where the chain starts: check the data for NaN, narrow the priors, or "
                    "give other initial_params"
                )
        params, before = dict(params), self._evaluations
        for name, shape in list(density.whitened.items()) * self.function_updates:
            for column in range(shape[-1]):
                self._at = self._update_column(_Column(density, values, name, column, self._at))
            params[name] = values[name]
        for name in self.transforms:
            params[name] = params[name].clone()
            self._at = self._update_site(density, values, params, name, self._at)
        self._sweeps += 1
        if self._warming and self._sweeps >= 10:
            self._widths = {k: (3 * moved / self._sweeps).clamp_min(1e-3) for k, moved in self._moves.items()}
        self._params = params
        self.stats = {"lp": self._log_posterior(density, values), "runs": self._evaluations - before}
        return params

    def _log_posterior(self, density: WhitenedDensity, values: dict[str, Tensor]) -> float:
        """In unconstrained space, at the values of the last evaluation."""
        assert self._at is not None
        normal = sum(-0.5 * float(values[name].square().sum()) for name in density.whitened)
        volume = sum(
            float(transform.log_abs_det_jacobian(transform.inv(values[name]), values[name]).sum())
            for name, transform in density.transforms.items()
        )
        return self._at.log_density + normal + volume

    def _update_column(self, line: _Column) -> Evaluation:
        """One output of one GP, given all else."""
        point, evaluations = elliptical_slice(line, line.start, line.at.log_density)
        self._evaluations += evaluations
        if point is line.start:
            line.values[line.name], line.last = line.old, line.at
        return line.last

    def _update_site(
        self,
        density: WhitenedDensity,
        values: dict[str, Tensor],
        params: dict[str, Tensor],
        name: str,
        at: Evaluation,
    ) -> Evaluation:
        """Every number of one hyperparameter, given all else or, of the function values that may depend on it, surrogate data."""
        surrogates = Surrogates()
        if self.surrogate_scale is not None:
            surrogates = density.surrogates(values, at, name, self.surrogate_scale.draw())
        state = SurrogateEvaluation(at, surrogates.log_density)
        for index in range(params[name].numel()):
            state = self._update_number(_Number(density, surrogates, values, params, name, index, state))
        params.update(state.whitened)
        return state.evaluation

    def _update_number(self, line: _Number) -> SurrogateEvaluation:
        """One number of it in unconstrained space."""
        width = float(self._widths[line.name].view(-1)[line.index])
        steps = _STEPS_WARMING if self._warming else _STEPS
        point, evaluations = slice_sample(line, line.start, line.log_density(), width, steps)
        self._evaluations += evaluations
        if point == line.start:
            line.put(point)
            line.last = line.at
        line.values.update(line.last.whitened)
        if self._warming:
            self._moves[line.name].view(-1)[line.index] += abs(point - line.start)
        return line.last

    def logging(self) -> dict[str, str]:
        """Runs of the model for each sweep."""
        return {"runs": f"{self._evaluations / max(self._sweeps, 1):.1f}"}

    def diagnostics(self) -> dict[str, float]:
        """The same as a number."""
        return {"runs_per_sweep": self._evaluations / max(self._sweeps, 1)}

    def cleanup(self) -> None:
        """Let go of the data."""
        self._forget()


class _Column:
    """The density along one output of one GP; it writes into the values."""

    def __init__(
        self, density: WhitenedDensity, values: dict[str, Tensor], name: str, column: int, at: Evaluation
    ) -> None:
        self.density, self.values, self.name, self.column, self.at = density, values, name, column, at
        self.old, self.last = values[name], at
        self.start = self.old[..., column]

    def __call__(self, point: Tensor) -> float:
        """Nats, priors too: that of another site may depend on these function values."""
        self.values[self.name] = self.old.clone()
        self.values[self.name][..., self.column] = point
        self.last = self.density.evaluate(self.values, self.at, self.name)
        return self.last.log_density


class _Number:
    """The density along one number of a hyperparameter in unconstrained space; it writes into the values and parameters."""

    def __init__(
        self,
        density: WhitenedDensity,
        surrogates: Surrogates,
        values: dict[str, Tensor],
        params: dict[str, Tensor],
        name: str,
        index: int,
        at: SurrogateEvaluation,
    ) -> None:
        self.density, self.surrogates, self.values, self.params, self.name = density, surrogates, values, params, name
        self.index, self.at, self.last = index, at, at
        self.start = float(params[name].view(-1)[index])

    def put(self, point: float) -> None:
        """The number, there."""
        self.params[self.name].view(-1)[self.index] = point
        self.values[self.name] = self.density.transforms[self.name](self.params[self.name])

    def log_density(self) -> float:
        """At the last point."""
        transform = self.density.transforms[self.name]
        volume = transform.log_abs_det_jacobian(self.params[self.name], self.values[self.name]).sum()
        return self.last.log_density + float(volume)

    def __call__(self, point: float) -> float:
        """Nats."""
        self.put(point)
        self.last = self.density.evaluate_given(self.surrogates, self.values, self.at.evaluation, self.name)
        return self.log_density()
