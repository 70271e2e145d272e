"""What a prediction is asked for, and how kinds of fits answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, NamedTuple

from torch import Size, Tensor

from pyro_dgp.internal.call_arguments import remedy_for
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.user_warning import warn_user
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
        """Test inputs ``(..., N, D)``."""
        return self.rows.x

    def of_groups(self, groups: Size, *, whole: Collection[str] = ()) -> Request:
        """Return the same request to a fit with groups.

        :param whole: names of arguments that training passed whole, as each batch of a prediction then does.
        :raises ValueError: for x whose batch axes are not those of the groups, or NaN or infinity in a row argument.
        """
        batch = self.x.shape[:-2]
        if batch and batch != groups[len(groups) - len(batch) :]:
            holds = f"functions for groups of shape {tuple(groups)}" if groups else "one function in all"
            remedy = (
                "pass inputs (N, D) or (*groups, N, D)" if groups else "pass them as (N, D), x.reshape(-1, x.shape[-1])"
            )
            raise ValueError(f"test inputs have shape {tuple(self.x.shape)} and the fit holds {holds}: {remedy}")
        rows = self.rows.grouped(groups, whole=whole)
        rows.require_finite("prediction")
        return replace(self, rows=rows)

    def check_arguments(self, further: Collection[str], whole: Collection[str]) -> None:
        """Warn of arguments of the model, such as ``exposure``, that training gave and this request does not; raise for rows of another number.

        :param further: names of the tensors with rows that training gave besides inputs and targets, and ``whole``, of those without.
        """
        for name in self.rows.left_out(further, whole):
            remedy = remedy_for(name, f"predict(fit, x, {name}=...)")
            warn_user(f"training gave the model {name!r}, and this prediction does not: {remedy}")

    @property
    def wants_gradients(self) -> bool:
        """Whether a row argument asks for gradients."""
        return any(tensor.requires_grad for tensor in self.rows.tensors)


class Answer(NamedTuple):
    """A fit's answer to a request.

    :ivar evaluate: gives the mixture of a slice of rows.
    :ivar event_shape: ``()`` or ``(D_out,)``.
    :ivar groups: batch axes of groups, whose rows are one behind another in the mixture.
    :ivar inputs: the row arguments, which may want gradients.
    :ivar joins_rows: whether the value at a row depends on function values at other rows, so that all rows are evaluated together.
    :ivar components_of_draw: number of components of each posterior draw; the first ones of all draws come first.
    :ivar drawn_by_row: names of latent sites with a value for each row, and of functions with a part of each row, which are drawn from their priors as those of new rows.
    :ivar sampled: gives the mixture over posterior draws with the values that they have at the training rows, for a request at these rows.
    """

    evaluate: Callable[[slice], Mixture]
    event_shape: Size
    groups: Size = Size()
    inputs: Sequence[Tensor] = ()
    joins_rows: bool = False
    components_of_draw: int = 1
    drawn_by_row: Sequence[str] = ()
    sampled: Callable[[], Mixture] | None = None


@singledispatch
def answer(fit: Any, request: Request) -> Answer:
    """Return a fit's answer to a request; kinds of fits register a function of their own."""
    raise TypeError(
        f"predict takes a trained guide, chains, PosteriorDraws(model, draws, (x, y)) or InducingDraws, not {type(fit).__name__}"
    )
