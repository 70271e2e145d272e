"""Elliptical slice sampling whose hyperparameters move given surrogate data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.elliptical import EllipticalSlice
from pyro_dgp.mcmc.evaluation import Evaluation
from pyro_dgp.mcmc.initial_points import PriorDraw, Start
from pyro_dgp.mcmc.lines import NumberLine, Position
from pyro_dgp.mcmc.surrogate_density import SurrogateDensity, SurrogateEvaluation
from pyro_dgp.mcmc.surrogates import SurrogateScale


class SurrogateSlice(EllipticalSlice):
    """:class:`EllipticalSlice` for little noise: hyperparameters are updated given surrogate data (Murray and Adams 2010).

    For each hyperparameter, noisy copies of the function values that may depend on it are drawn, and the hyperparameter moves given
    these copies, where :class:`EllipticalSlice` holds the whitened values. An iteration costs about half as much again.

    :param scale: standard deviations of the noise in the surrogate data, drawn for each update.

    The other parameters are those of :class:`EllipticalSlice`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        function_updates: int = 4,
        *,
        scale: SurrogateScale = SurrogateScale(),
        density: type[WhitenedDensity] = WhitenedDensity,
        start: Start = PriorDraw(),
    ) -> None:
        if not isinstance(scale, SurrogateScale):
            raise TypeError(f"scale is an object such as SurrogateScale(0.05, 2.0), not {scale!r}")
        self.scale = scale
        super().__init__(model, function_updates=function_updates, density=density, start=start)

    def forget(self) -> None:
        """See :class:`~pyro_dgp.mcmc.density_kernel.DensityKernel`."""
        super().forget()
        self._surrogates: SurrogateDensity | None = None

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See Pyro's ``MCMCKernel``."""
        super().setup(warmup_steps, *args, **kwargs)
        self._surrogates = SurrogateDensity(self.require_density())

    def update_site(self, position: Position, name: str, at: Evaluation) -> Evaluation:
        """Update every number of one hyperparameter, given surrogate data and all values that the hyperparameter cannot change."""
        density = self._surrogates
        assert density is not None
        surrogates = density.draw(position.values, at, name=name, scale=self.scale.draw())
        state = SurrogateEvaluation(at, surrogates.log_density)
        for index in range(position.params[name].numel()):

            def evaluate(known: Evaluation = state.evaluation) -> SurrogateEvaluation:
                return density.evaluate(surrogates, position.values, known=known, changed=name)

            state = self.update_number(NumberLine(position, name, index, at=state, evaluate=evaluate))
            position.values.update(state.whitened)
        position.params.update(state.whitened)
        return state.evaluation
