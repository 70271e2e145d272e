"""What a user can set for every method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyro_dgp.internal.progress import Progress as Progress
from pyro_dgp.training.loop import steps_for

#: Steps where the number of epochs is not given.
DEFAULT_STEPS = 2000
#: Rows of a step, and samples of each, where neither the settings nor the method say.
DEFAULT_ROWS, DEFAULT_SAMPLES = 100, 10


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all methods, of which each method reads what concerns it.

    ``epochs=None`` means as many passes as make about 2000 steps; ``minutes`` is the time that one fit of a variational method may take, in
    their place. ``beta`` weighs the KL of predictive losses; ``None`` has
    it chosen on validation rows. ``alpha`` is the power of approximate expectation propagation. ``split`` is the number of the train/test split, and the seed of the validation rows.
    ``preset`` names the paper whose models the methods fit, of :data:`~pyro_dgp.zoo.presets.PRESETS`; ``None`` has the zoo's own.
    ``row_inducing`` is M of amortised methods, inducing points of each row in the first layer; layers above have half.
    ``orthogonal`` is the number of points in the second, orthogonal part of methods that have one; ``None`` has as many as ``inducing``.
    ``frequencies`` is the number of Fourier frequencies of each input of a layer: ``2 * frequencies + 1`` features.
    ``task`` is the kind of the target, of :data:`~pyro_dgp.data.tasks.TASKS`, ``classes`` the number of classes and ``outputs`` that of the targets of a row; those who run a data set fill them in.
    ``batch_size`` is the number of rows in a step, and ``samples`` that of Monte Carlo samples or sigma points for each of them. ``None`` leaves
    them to the method: ``svgp``, ``dsvi`` and ``gamma-dgp`` take one sample of 500 rows, which has less noise than ten samples of 100 rows in
    the same time. All others take ten of 100.
    """

    layers: int = 2
    width: int = 5
    inducing: int = 128
    row_inducing: int = 8
    orthogonal: int | None = None
    frequencies: int = 30
    samples: int | None = None
    kernel: str = "matern52"
    batch_size: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    learning_rate: float = 0.02
    beta: float | None = None
    alpha: float = 0.5
    split: int = 0
    seed: int = 0
    mcmc_points: int = 100
    mcmc_samples: int = 100
    warmup: int = 100
    chains: int = 1
    preset: str | None = None
    task: str = "regression"
    classes: int = 0
    outputs: int = 1

    @property
    def rows_of_step(self) -> int:
        """Rows of a training step."""
        return DEFAULT_ROWS if self.batch_size is None else self.batch_size

    @property
    def num_samples(self) -> int:
        """Monte Carlo samples or sigma points for each row."""
        return DEFAULT_SAMPLES if self.samples is None else self.samples

    @property
    def orthogonal_points(self) -> int:
        """Points of an orthogonal part."""
        return self.inducing if self.orthogonal is None else self.orthogonal

    def filled(self, *, batch_size: int, samples: int) -> Settings:
        """Return these settings with the values of a method where they leave the choice to it."""
        return replace(
            self,
            batch_size=batch_size if self.batch_size is None else self.batch_size,
            samples=samples if self.samples is None else self.samples,
        )

    def steps(self, rows: int, batch_size: int) -> int:
        """Training steps for ``rows`` observations."""
        per_epoch = steps_for(1, rows, batch_size)
        return per_epoch * (self.epochs if self.epochs is not None else -(-DEFAULT_STEPS // per_epoch))
