"""A likelihood of standardised targets, as one of targets in their own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units, in_units


@dataclass(frozen=True)
class StandardizedConditional(Conditional):
    """``p(y | f) = p(z | f) / prod_d scale_d`` for targets ``y = mean + scale z``. Functions stay in the units of z.

    Log densities of a row are those of z less ``sum_d log scale_d``, so that losses and log densities differ from those of a model of
    standardised targets by ``N sum_d log scale_d``, and their gradients do not differ.

    :ivar inner: the likelihood of z.
    :ivar outputs: number of outputs of y.
    :ivar units: mean and scale of the targets.
    """

    inner: Conditional
    outputs: int
    units: Units

    @property
    def integration(self) -> str:  # type: ignore[override]
        """How the likelihood of z integrates the last layer."""
        return self.inner.integration

    @property
    def takes_integers(self) -> bool:  # type: ignore[override]
        """Whether targets may be integers: as those of z."""
        return self.inner.takes_integers

    def _in_units(self, log_prob: Tensor, rows: float = 1.0) -> Tensor:
        return log_prob - rows * self.units.log_scale(self.outputs).to(log_prob.dtype)

    def given(self, f: Tensor) -> RowObservation:
        """p(y | f), an image of p(z | f)."""
        rows = self.inner.given(f)
        return RowObservation(in_units(rows.base_dist, self.units), rows.reinterpreted_batch_ndims)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``E log p(z | f) - sum_d log scale_d``."""
        return self._in_units(self.inner.expected_log_prob(self.units(y), f))

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log E p(z | f) - sum_d log scale_d``."""
        return self._in_units(self.inner.predictive_log_prob(self.units(y), f))

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """``log E p(z | f)^power - power sum_d log scale_d``."""
        return self._in_units(self.inner.log_expected_power(self.units(y), f, power), power)

    def components(self, f: Moments) -> Distribution:
        """Images of the components of z, in their family."""
        image: Distribution = self.units.image(self.inner.components(f))
        return image

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """Return the score of z, so that the loss does not depend on the units of y.

        With ``p(y) = p(z) / s`` the integral of ``p(y)^gamma`` is ``s^-c`` times that of ``p(z)^gamma``, ``c = gamma - 1``, and the score of y is
        ``s^(-c / gamma)`` times that of z: a factor that would weigh all data against the KL.
        """
        return self.inner.log_expected_gamma_score(self.units(y), f, gamma)

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """``log p(z) - N sum_d log scale_d``."""
        return self._in_units(self.inner.joint_log_prob(self.units(y), prior), float(prior.event_shape[0]))

    def location(self, f: Tensor) -> Tensor | None:
        """Values that the noise of z is put around, in the units of the targets."""
        values = self.inner.location(f)
        return None if values is None else self.units.restored(values)

    def check(self, y: Tensor) -> None:
        """Raise for standardised targets that the likelihood of z cannot have produced."""
        self.inner.check(self.units(y))

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """The likelihood of these outputs, in their units."""
        inner, functions = self.inner.of_outputs(chosen)
        return StandardizedConditional(inner, len(chosen), self.units.of_columns(chosen)), functions

    def noise_variance(self) -> Tensor | None:
        """Noise variance of z."""
        return self.inner.noise_variance()
