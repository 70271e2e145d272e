"""What a user can set for every method."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_dgp.internal.progress import Progress as Progress
from pyro_dgp.training.loop import steps_for

#: Steps where the number of epochs is not given.
DEFAULT_STEPS = 2000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user can set for every method; a method reads what concerns it.

    ``epochs=None`` means as many passes as make about 2000 steps; ``minutes`` is the time that one fit of a variational method may take, in
    their place. ``beta`` weighs the KL of predictive losses; ``None`` has
    it chosen on validation rows. ``split`` is the number of the train/test split, and the seed of the validation rows.
    ``preset`` names the paper whose models the methods fit, of :data:`~pyro_dgp.zoo.presets.PRESETS`; ``None`` has the zoo's own.
    ``row_inducing`` is M of amortised methods, inducing points of each row in the first layer; layers above have half.
    """

    layers: int = 2
    width: int = 5
    inducing: int = 128
    row_inducing: int = 8
    samples: int = 10
    kernel: str = "matern52"
    batch_size: int = 100
    epochs: int | None = None
    minutes: float | None = None
    learning_rate: float = 0.02
    beta: float | None = None
    split: int = 0
    seed: int = 0
    mcmc_points: int = 100
    mcmc_samples: int = 100
    warmup: int = 100
    chains: int = 1
    preset: str | None = None

    def steps(self, rows: int, batch_size: int) -> int:
        """Training steps for ``rows`` observations."""
        per_epoch = steps_for(1, rows, batch_size)
        return per_epoch * (self.epochs if self.epochs is not None else -(-DEFAULT_STEPS // per_epoch))
