"""What a user can set for every method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from pyro_dgp.internal.progress import Progress as Progress
from pyro_dgp.kernels.named import require_kernel_name
from pyro_dgp.training.loop import steps_for

#: Steps where neither steps nor epochs are given.
DEFAULT_STEPS = 2000
#: Rows of a step, and samples of each, where neither the settings nor the method say.
DEFAULT_ROWS, DEFAULT_SAMPLES = 100, 10


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        remedy = (
            "; a model of your own may have a width for each layer, as DeepGP(x, 3, (16, 4)) has"
            if name == "width"
            else ""
        )
        raise ValueError(f"{name} is a whole number, got {value!r}{remedy}")
    return int(value)


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} is a number, got {value!r}")
    return value if isinstance(value, int | float) else float(value)


#: Checks of settings, by the type of the setting.
_KINDS: dict[str, Callable[[str, Any], Any]] = {"int": _whole, "float": _real}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all methods, of which each method reads what concerns it.

    :param layers: number of layers.
    :param width: outputs of each hidden layer.
    :param inducing: number of inducing points of a layer, M.
    :param row_inducing: M of amortised methods: inducing points of each row in the first layer. Layers above have half.
    :param orthogonal: number of points in the second, orthogonal part of methods that have one; as many as ``inducing`` if ``None``.
    :param neighbors: rows that each row is conditioned on in methods with a Vecchia approximation.
    :param frequencies: number of Fourier frequencies of each input of a layer, which has ``2 * frequencies + 1`` features.
    :param samples: Monte Carlo samples or sigma points for each row of a training step. ``None`` leaves it to the method: ``svgp``, ``dsvi`` and
        ``gamma-dgp`` take one sample of 500 rows, which has less noise than ten samples of 100 rows in the same time. ``dsvi-collapsed`` takes ten of up to
        300 rows, as many as make 3,000 rows times samples of more, and one of 3,000 rows or more. All others take ten of 100.
    :param kernel: name of the kernel of every layer, such as ``"matern52"``, with a lengthscale for each input, or ``"rbf-isotropic"``, with a single
        one. ``None`` leaves it to the method: ``exact-gp``, ``sgpr``, ``svgp``, ``ppgpr``, ``dsvi``, ``dsvi-collapsed``, ``gamma-dgp``, ``mc-predictive``, ``dspp`` and ``dspp-*`` take ``"rbf+matern52"``, a sum of two kernels,
        each with its own lengthscales; all others take ``"matern52"``.
    :param batch_size: rows of a training step; ``None`` leaves it to the method, as for ``samples``.
    :param epochs: passes over the training rows; as many as make about 2000 steps if ``None``.
    :param steps: training steps, in the place of ``epochs``, however many rows there are.
    :param minutes: time that one fit by a guide or by the collapsed bound may take, in the place of ``epochs``. The fit of one layer that comes first in deep methods takes a third of it at most.
    :param learning_rate: learning rate of Adam. ``exact-gp`` takes 0.1 at least, ``vecchia-gp`` 0.03, and the main steps of ``sgpr`` and ``dsvi-collapsed`` rates of their own.
    :param beta: weight of the KL in predictive losses; chosen on held-out training rows if ``None``.
    :param alpha: power of approximate expectation propagation, above 0 and at most 1.
    :param split: number of the train/test split, which also seeds the choice of held-out training rows.
    :param seed: seed of the random numbers.
    :param mcmc_points: training rows that a sampler of exact layers takes at most, drawn at random where there are more.
    :param mcmc_samples: draws of a chain.
    :param warmup: draws of a chain that come first and are thrown away.
    :param chains: number of chains.
    :param preset: name of the paper whose models the methods fit, one of :data:`~pyro_dgp.zoo.presets.PRESETS`; ``None`` has the zoo's own.
    :param task: kind of the target, one of :data:`~pyro_dgp.data.tasks.TASKS`. ``compare`` of arrays reads it; a data set brings its own, and the
        next two are counted.
    :param classes: number of classes.
    :param outputs: number of target columns.
    :raises ValueError: for a kernel that there is not, for less than one epoch or step, for both of these, and for a value of another type. The other settings are checked when they are used.
    """

    layers: int = 2
    width: int = 5
    inducing: int = 128
    row_inducing: int = 8
    orthogonal: int | None = None
    frequencies: int = 30
    neighbors: int = 30
    samples: int | None = None
    kernel: str | None = None
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
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

    def __new__(cls, **given: Any) -> Settings:
        """Raise ``TypeError`` for a setting that there is not, with the name of one that is near."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                near = get_close_matches(name, cls.__dataclass_fields__, 1, cutoff=0.5)
                meant = f"did you mean {near[0]!r}? " if near else ""
                raise TypeError(f"there is no setting {name!r}: {meant}there are {', '.join(cls.__dataclass_fields__)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (kept := _KINDS.get(str(field.type).removesuffix(" | None"))) is not None:
                object.__setattr__(self, field.name, kept(field.name, value))
        if self.kernel is not None:
            require_kernel_name(self.kernel)
        for name, count in (("epochs", self.epochs), ("steps", self.steps)):
            if count is not None and not count >= 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                f"the length of training is given twice, as {self.epochs} epochs and {self.steps} steps: give one of them, and of settings that have the other "
                "write replace(settings, steps=None, epochs=...)"
            )

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

    @property
    def has_length(self) -> bool:
        """Whether they say how long training is, but for a time."""
        return self.epochs is not None or self.steps is not None

    def num_steps(self, rows: int, batch_size: int) -> int:
        """Training steps for ``rows`` observations."""
        if self.steps is not None:
            return self.steps
        per_epoch = steps_for(1, rows, batch_size)
        return per_epoch * (self.epochs if self.epochs is not None else -(-DEFAULT_STEPS // per_epoch))


_OF_INIT = inspect.signature(Settings.__init__)
#: The signature that help and the reference show: that of ``__new__`` takes any name.
type.__setattr__(Settings, "__signature__", _OF_INIT.replace(parameters=list(_OF_INIT.parameters.values())[1:]))
