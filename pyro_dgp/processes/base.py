"""Base class of variational processes, which a guide puts in the place of the prior of a GP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.grouped import Grouped
from pyro_dgp.processes.marginal import FunctionMarginal


@dataclass(frozen=True)
class KnownValues:
    """Draws of the function values, exact or noisy, that determine a process up to the prior: ``u = m(Z) + L v``.

    :ivar x: Z, ``(1, M, D)``, or ``(D_out, M, D)`` for a set per output.
    :ivar factor: L, the Cholesky factor of ``k(Z, Z)``, with the variance of the noise and the jitter on its diagonal: ``(E, M, M)``.
    :ivar white: v, ``(num_draws, D_out, M)``.
    """

    x: Tensor
    factor: Tensor
    white: Tensor


@dataclass(frozen=True)
class KnownCoefficients:
    """Draws of the coefficients of a basis, which determine a process up to the prior: ``f(x) = m(x) + a(x)' v + r(x)``.

    :ivar columns: function from the prior at some inputs to A, ``(..., E, M, N)``.
    :ivar white: v, ``(num_draws, D_out, M)``.
    """

    columns: Callable[[FunctionPrior], Tensor]
    white: Tensor


class Process(Grouped):
    """A variational distribution q(f) over one GP.

    ``process(prior)`` is the marginal of q(f) at the prior's inputs. Kernel and mean are those of the prior.

    >>> import torch
    >>> from pyro_dgp import GaussianProcess, InducingPoints, Matern52, Process
    >>> prior = GaussianProcess(Matern52(), num_outputs=2)(torch.randn(20, 3))
    >>> process = InducingPoints(20).create(prior, hidden=False)
    >>> isinstance(process, Process), process(prior).mean.shape
    (True, torch.Size([20, 2]))
    """

    @property
    def size(self) -> int:
        """Number of numbers that are held."""
        return sum(value.numel() for value in self.state_dict().values())

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the marginal of q(f) at ``prior.x``.

        :param at: inputs that the inference functions of an amortised process look at, ``prior.x`` if not given. Other
            processes ignore it.
        """
        raise NotImplementedError

    def known_values(
        self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None
    ) -> KnownValues | KnownCoefficients:
        """Draw the function values, or the coefficients of a basis, that determine q(f) up to the prior, ``num_draws`` times: functions are drawn from them.

        Kernel and mean are those of ``prior``, whose inputs do not matter.

        :param deviations: standardised deviations of the hyperparameters, with which some processes move.
        :raises ValueError: for a process that has no such values.
        """
        raise ValueError(
            f"{type(self).__name__}, the process of {prior.name!r}, says nothing of function values at several rows together: give it "
            "a method known_values, or take InducingPoints"
        )

    def require_functions(self, key: str) -> None:
        """Raise unless the process of the GP ``key`` is a distribution over functions."""


def require_dtype(dtype: torch.dtype, prior: FunctionPrior) -> None:
    """Raise for a process of another precision than the model."""
    if dtype != prior.x.dtype:
        guide, model = (str(each).removeprefix("torch.") for each in (dtype, prior.x.dtype))
        raise TypeError(
            f"the guide of {prior.name!r} is {guide} and the model {model}: convert both, as in model.double() and guide.double()"
        )
