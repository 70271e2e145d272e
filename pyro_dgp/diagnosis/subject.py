"""What is looked at: a fit, the rows that it is judged at, and its predictions there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, singledispatch
from typing import Any, ClassVar, NamedTuple

import torch
from pyro.distributions import constraints
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor, nn

from pyro_dgp.diagnosis.symptoms import Finding, causes_first
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.sites import is_random, real_observations
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.rows import Call, RowArguments
from pyro_dgp.likelihoods import Gaussian
from pyro_dgp.prediction.predict import predict
from pyro_dgp.prediction.prediction import Prediction

#: Rows that are looked at, at most.
MOST_ROWS = 500


class Noise(NamedTuple):
    """Noise variances of a likelihood, one number for each output or one for all, in units of standardised targets, and the least that each may be."""

    name: str
    variance: Tensor
    floor: float


@dataclass(frozen=True)
class Rows:
    """Rows that a fit is judged at.

    :ivar x: inputs ``(N, D)``, and ``y``, their targets: tensors, or for a fit of a comparison arrays in their own units.
    :ivar site: the observation that ``y`` belongs to, if the model has several.
    :ivar arguments: further arguments of the model.
    """

    x: Any
    y: Any
    site: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def some(self, groups: Size = Size()) -> Call:
        """Return equally spaced rows, at most :data:`MOST_ROWS`."""
        if not isinstance(self.x, Tensor) or self.x.dim() < 2 or not self.x.shape[-2]:
            shape = tuple(getattr(self.x, "shape", ()))
            raise ValueError(
                f"a fit is judged at rows of inputs, a tensor (N, D) as in training, not {type(self.x).__name__} of shape {shape}: pass such a tensor as x"
            )
        rows = self.x.shape[-2]
        number = torch.linspace(0, rows - 1, min(MOST_ROWS, rows), device=self.x.device).long()
        return RowArguments((self.x, self.y), self.arguments, groups=groups)[number]


class Subject(ABC):
    """A fit at some rows, as the checks see it.

    :cvar checks: what is looked for.
    :ivar x: inputs of the rows that are looked at, and ``y`` their targets.
    :ivar total: number of all rows.
    """

    checks: ClassVar[Sequence[Check]]

    def __init__(self, fit: Any, rows: Rows, groups: Size = Size()) -> None:
        (self.x, self.y), self.arguments = rows.some(groups)
        self.fit, self.site, self.total = fit, rows.site, rows.x.shape[-2]

    @property
    @abstractmethod
    def modules(self) -> Sequence[nn.Module]:
        """Modules whose parameters the fit depends on; those of the model among them."""

    @cached_property
    @abstractmethod
    def trace(self) -> Trace:
        """Trace of the model at the rows, with their targets."""

    @abstractmethod
    def priors(self) -> Iterator[tuple[str, FunctionPrior]]:
        """Iterate over the Gaussian processes at the rows, by process key."""

    @property
    def fewest(self) -> int:
        """Number of functions that a fit may spend on noise by chance."""
        return 10

    def noises(self) -> Iterator[Noise]:
        """Iterate over the noise variances that are point estimates."""
        for name, module in (pair for each in self.modules for pair in each.named_modules()):
            if isinstance(module, Gaussian) and "variance" in module._pyro_params:
                yield Noise(
                    name or "the likelihood", torch.as_tensor(module.variance).detach().reshape(-1), floor_of(module)
                )

    def predict(self, x: Tensor) -> Prediction:
        """Predict at other inputs for the same rows."""
        return predict(self.fit, x, site=self.site, **self.arguments)

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction at the rows."""
        return self.predict(self.x)

    @cached_property
    def mean(self) -> Tensor | None:
        """Predictive mean at the rows; nothing for classes and for distributions that have none."""
        if not self.y.is_floating_point():
            return None
        try:
            return self.prediction.mean
        except (ValueError, NotImplementedError):
            return None

    @cached_property
    def observed(self) -> dict[str, Tensor]:
        """Targets by site that a distribution of real numbers explains, standardised where the model does it."""
        return real_observations(self.trace)

    @property
    def standardised(self) -> Tensor | None:
        """The targets ``y`` as :attr:`observed` has them; nothing where they are no real numbers."""
        names = [name for name, site in self.trace.nodes.items() if is_random(site) and site["is_observed"]]
        if self.site is not None:
            names = [self.site]
        elif len(names) > 1:
            names = [name for name in names if self.trace.nodes[name]["value"] is self.y]
        return next((self.observed[name] for name in names if name in self.observed), None)

    def require_targets(self) -> None:
        """Raise for a site that the model does not have, for several of which none is named, and for targets of another shape than predictions."""
        with self.scope():
            shape = self.prediction.shape()
        if not isinstance(self.y, Tensor) or self.y.shape != shape:
            own = tuple(self.y.shape) if isinstance(self.y, Tensor) else type(self.y).__name__
            raise ValueError(
                f"y is {own} and the prediction at x has shape {tuple(shape)}: pass one target for each row of x"
            )

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Evaluate the model with a seed of its own and without gradients."""
        with (
            torch.no_grad(),
            torch.random.fork_rng(),
            module_local_parameters(*self.modules),
            evaluating(*self.modules),
        ):
            torch.manual_seed(0)
            yield

    def findings(self) -> list[Finding]:
        """Run every check."""
        with self.scope():
            return causes_first([finding for check in self.checks for finding in check(self)])


#: Function of one symptom or of a few that are seen in one place.
Check = Callable[[Any], Iterator[Finding]]


def floor_of(likelihood: Gaussian) -> float:
    """Return the least noise variance that a likelihood may have."""
    constraint: Any = likelihood._pyro_params["variance"][0]
    return float(constraint.lower_bound) if isinstance(constraint, constraints.greater_than) else 0.0


@singledispatch
def subject_of(fit: Any, rows: Rows) -> Subject:
    """Return what is looked at of a fit; kinds of fits register a function of their own."""
    raise TypeError(
        f"diagnose takes a trained guide, chains, PosteriorDraws(model, draws, (x, y)) or a fit of compare, not {type(fit).__name__}: "
        "pass what predict takes"
    )
