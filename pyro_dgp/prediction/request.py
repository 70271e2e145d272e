"""What a prediction is asked for, and how kinds of fits answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

from torch import Size, Tensor

from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.prediction.mixture import Mixture


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`~pyro_dgp.predict` beside the fit.

    :ivar rows: arguments of the model at the test rows; the first is x.
    :ivar num_samples: number of mixture components.
    :ivar num_hyperparameter_draws: number of draws of latent sites besides GPs; ``None`` leaves it to the fit.
    :ivar site: the site to predict; ``None`` for the only observation.
    """

    rows: RowArguments
    num_samples: int = 100
    num_hyperparameter_draws: int | None = None
    site: str | None = None

    @property
    def x(self) -> Tensor:
        """Test inputs ``(N, D)``."""
        x: Tensor = self.rows.args[0]
        return x

    @property
    def wants_gradients(self) -> bool:
        """Whether a row argument asks for gradients."""
        return any(tensor.requires_grad for tensor in self.rows.tensors)


class Answer(NamedTuple):
    """A fit's answer to a request.

    :ivar evaluate: gives the mixture of a slice of rows.
    :ivar event_shape: ``()`` or ``(D_out,)``.
    :ivar groups: batch axes of groups, whose rows are one behind another in the mixture.
    """

    evaluate: Callable[[slice], Mixture]
    event_shape: Size
    groups: Size = Size()


@singledispatch
def answer(fit: Any, request: Request) -> Answer:
    """Return a fit's answer to a request; kinds of fits register a function of their own."""
    raise TypeError(
        f"predict takes a trained guide, chains, PosteriorDraws(model, draws, (x, y)) or InducingDraws, not {type(fit).__name__}"
    )
