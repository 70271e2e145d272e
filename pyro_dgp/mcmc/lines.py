"""Lines through a point of a chain along which slices are taken: one output of one GP, or one number of a hyperparameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor
from torch.distributions.transforms import Transform

from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import Evaluation


@runtime_checkable
class HasLogDensity(Protocol):
    """The result of an evaluation."""

    @property
    def log_density(self) -> float:
        """Log density in the space of each site, nats."""


Result = TypeVar("Result", bound=HasLogDensity)


class Position:
    """One point of a chain, written in two spaces.

    :ivar params: by site, whitened values and hyperparameters in unconstrained space: what Pyro's ``MCMC`` hands over.
    :ivar values: the same, hyperparameters in their own space: what the model is run at.
    :ivar transforms: by hyperparameter, the map from unconstrained space to its own.
    """

    def __init__(self, params: Mapping[str, Tensor], transforms: Mapping[str, Transform]) -> None:
        self.params, self.transforms = dict(params), transforms
        self.values = {name: transforms[name](v) if name in transforms else v for name, v in params.items()}

    def put(self, name: str, index: int, number: float) -> None:
        """Set one number of a hyperparameter in unconstrained space, in place."""
        self.params[name].view(-1)[index] = number
        self.values[name] = self.transforms[name](self.params[name])

    def log_volume(self, name: str) -> float:
        """Log of the Jacobian determinant of a hyperparameter's transform, nats."""
        return float(self.transforms[name].log_abs_det_jacobian(self.params[name], self.values[name]).sum())


class ColumnLine:
    """The density as a function of one output of one GP, given all else. A call leaves its point in ``values``."""

    def __init__(
        self, density: WhitenedDensity, values: dict[str, Tensor], at: Evaluation, *, name: str, column: int
    ) -> None:
        self.density, self.values, self.name, self.column, self.at = density, values, name, column, at
        self.old, self.last = values[name], at
        self.start = self.old[..., column]

    def __call__(self, point: Tensor) -> float:
        """Log density, nats, with that of every prior: one of another site may depend on these function values."""
        self.values[self.name] = self.old.clone()
        self.values[self.name][..., self.column] = point
        self.last = self.density.evaluate(self.values, self.at, self.name)
        return self.last.log_density

    def restore(self) -> None:
        """Go back to the start."""
        self.values[self.name], self.last = self.old, self.at


class NumberLine(Generic[Result]):
    """The density as a function of one number of a hyperparameter in unconstrained space, given all else. A call leaves its point in
    the position.

    :param at: the result of the evaluation at the position.
    :param evaluate: the evaluation at the position as it is then.
    """

    def __init__(
        self, position: Position, name: str, index: int, *, at: Result, evaluate: Callable[[], Result]
    ) -> None:
        self.position, self.name, self.index = position, name, index
        self.at, self.last, self.evaluate = at, at, evaluate
        self.start = float(position.params[name].view(-1)[index])

    def log_density(self) -> float:
        """Log density in unconstrained space at the last point, nats."""
        return self.last.log_density + self.position.log_volume(self.name)

    def __call__(self, point: float) -> float:
        """Log density in unconstrained space, nats."""
        self.position.put(self.name, self.index, point)
        self.last = self.evaluate()
        return self.log_density()

    def restore(self) -> None:
        """Go back to the start."""
        self.position.put(self.name, self.index, self.start)
        self.last = self.at
