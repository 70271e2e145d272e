"""Elliptical slice sampling of function values, and slice sampling of hyperparameters, as one kernel of Pyro's MCMC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.density_kernel import DensityKernel
from pyro_dgp.mcmc.evaluation import Evaluation
from pyro_dgp.mcmc.initial_points import PriorDraw, Start
from pyro_dgp.mcmc.lines import ColumnLine, NumberLine, Position, Result
from pyro_dgp.mcmc.slices import elliptical_slice, slice_sample

#: How often a slice is widened at most: while its width is being learned, and after that, when it mostly fits.
_STEPS_WARMING, _STEPS = 8, 2

#: Names of what is saved of the last evaluation, and of what is carried from sweep to sweep.
_SAVED = ("log_likelihood", "log_priors", "factors")
_CARRIED = ("params", "widths", "moves", "sweeps", "evaluations")


class EllipticalSlice(DensityKernel):
    """A Gibbs sweep over the exact prior: whitened function values by elliptical slices, hyperparameters by slices.

    Needs no gradient and no step size: ``MCMC(EllipticalSlice(model), num_samples=1000).run(x, y)``. One iteration updates, some times
    over, each output of each GP whose values are sampled (Murray, Adams and MacKay 2010; with a Gaussian likelihood the last GP stays
    integrated out), and then once each number of each other latent site (Neal 2003) in unconstrained space, whose slice widths are
    learned in the warm-up. After a change only the Cholesky factors of the layers above it are computed again. Where little noise ties
    hyperparameters to function values, :class:`~pyro_dgp.SurrogateSlice` mixes better.

    Draws have the names of :func:`~pyro_dgp.whitened`, so that :class:`~pyro_dgp.PosteriorDraws` takes them.

    :param model: the model, or ``whitened(model)``.
    :param function_updates: of every output in one iteration. An update of function values takes fewer runs of the model than one of
        all the hyperparameters, and predictions depend on the function values most.
    :param density: the class that evaluates the posterior density, :class:`~pyro_dgp.CompiledDensity` for long chains.
    :param start: the first point unless ``initial_params`` is set: a draw of the prior, or the end of an :class:`~pyro_dgp.Ascent`.
    :ivar stats: of the last draw: ``lp`` (log density in unconstrained space up to a constant, nats) and ``runs`` (of the model).
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        function_updates: int = 4,
        density: type[WhitenedDensity] = WhitenedDensity,
        start: Start = PriorDraw(),
    ) -> None:
        if function_updates < 1:
            raise ValueError(
                f"function_updates must be at least 1, got {function_updates}: without it the draws would stay where they are"
            )
        self.function_updates = function_updates
        self.stats: dict[str, float | int] = {}
        super().__init__(model, density, start)

    def forget(self) -> None:
        """See :class:`DensityKernel`."""
        super().forget()
        self._at: Evaluation | None = None
        self._widths: dict[str, Tensor] = {}
        self._moves: dict[str, Tensor] = {}
        self._warmup, self._sweeps, self._evaluations = 0, 0, 0

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See Pyro's ``MCMCKernel``."""
        self.forget()
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

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make one sweep and return the new draw in unconstrained space."""
        density = self.require_density()
        position, before = Position(params, density.transforms), self._evaluations
        if self._at is None or not self.is_at(params):
            self._at = density.evaluate(position.values)
            if not math.isfinite(self._at.log_likelihood):
                raise ValueError(
                    f"the posterior density is zero or not finite where the chain starts: {density.remedy()}, or give other initial_params"
                )
        for name, shape in list(density.whitened.items()) * self.function_updates:
            for column in range(shape[-1]):
                line = ColumnLine(density, position.values, self._at, name=name, column=column)
                self._at = self._update_column(line)
            position.params[name] = position.values[name]
        for name in self.transforms:
            position.params[name] = position.params[name].clone()
            self._at = self.update_site(position, name, self._at)
        self._sweeps += 1
        if self._warming and self._sweeps >= 10:
            self._widths = {k: (3 * moved / self._sweeps).clamp_min(1e-3) for k, moved in self._moves.items()}
        self._params = position.params
        self.stats = {"lp": self._log_posterior(density, position), "runs": self._evaluations - before}
        return position.params

    def state_dict(self) -> dict[str, Any]:
        """Return what the next sweep depends on, for a kernel that is set up with the same data, warm-up and first point."""
        at = self._at
        return {
            "at": None if at is None else {name: getattr(at, name) for name in _SAVED},
            **{name: getattr(self, f"_{name}") for name in _CARRIED},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned. Distributions of priors are no part of it: the first sweep evaluates them."""
        at = state["at"]
        self._at = None if at is None else Evaluation(**{name: at[name] for name in _SAVED})
        for name in _CARRIED:
            setattr(self, f"_{name}", state[name])

    def _log_posterior(self, density: WhitenedDensity, position: Position) -> float:
        """Log density in unconstrained space at the last evaluation, nats."""
        assert self._at is not None
        values = position.values
        normal = sum(-0.5 * float(values[name].square().sum()) for name in density.whitened)
        volume = sum(
            float(transform.log_abs_det_jacobian(transform.inv(values[name]), values[name]).sum())
            for name, transform in density.transforms.items()
        )
        return self._at.log_density + normal + volume

    def _update_column(self, line: ColumnLine) -> Evaluation:
        """One output of one GP, given all else."""
        point, evaluations = elliptical_slice(line, line.start, line.at.log_density)
        self._evaluations += evaluations
        if point is line.start:
            line.restore()
        return line.last

    def update_site(self, position: Position, name: str, at: Evaluation) -> Evaluation:
        """Update every number of one hyperparameter, given all else.

        :param position: the point of the chain, which is changed in place.
        :param at: the evaluation there.
        :returns: the evaluation at the new point.
        """
        density = self.require_density()
        for index in range(position.params[name].numel()):

            def evaluate(known: Evaluation = at) -> Evaluation:
                return density.evaluate(position.values, known, name)

            at = self.update_number(NumberLine(position, name, index, at=at, evaluate=evaluate))
        return at

    def update_number(self, line: NumberLine[Result]) -> Result:
        """Update one number of a hyperparameter in unconstrained space and return the evaluation at the new point."""
        width = float(self._widths[line.name].view(-1)[line.index])
        steps = _STEPS_WARMING if self._warming else _STEPS
        point, evaluations = slice_sample(line, line.start, at_start=line.log_density(), width=width, most_steps=steps)
        self._evaluations += evaluations
        if point == line.start:
            line.restore()
        if self._warming:
            self._moves[line.name].view(-1)[line.index] += abs(point - line.start)
        return line.last

    def logging(self) -> dict[str, str]:
        """Runs of the model for each sweep, as text for a progress bar."""
        return {"runs": f"{self.diagnostics()['runs_per_sweep']:.1f}"}

    def diagnostics(self) -> dict[str, float]:
        """Runs of the model for each sweep."""
        return {"runs_per_sweep": self._evaluations / max(self._sweeps, 1)}
