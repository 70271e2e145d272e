"""Priors of the hyperparameters around where they start, added to an objective."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import transform_to

from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.kernels import Kernel
from pyro_dgp.kernels.hyperparameters import POSITIVE
from pyro_dgp.means import LinearMean


class WithHyperparameterPrior(nn.Module):
    """Objective plus the prior of hyperparameters around their start: training finds the mode of their posterior.

    A deep GP has hundreds of hyperparameters, and the objective has a maximum over them that overfits few rows. Here every positive
    parameter of a kernel, such as a lengthscale, has a log-normal prior, and every weight of a :class:`~pyro_dgp.LinearMean` that is learned a normal one:

        log l ~ N(log l_0, spread^2),    W ~ N(W_0, spread^2 mean(W_0^2))

    where l_0 and W_0 are the values at which this object is made. The densities are those of ``log l`` and of W, and terms that do not depend on them are left out. So the loss is, in nats in total,

        objective(x, y) + sum (log l - log l_0)^2 / (2 spread^2) + sum (W - W_0)^2 / (2 spread^2 mean(W_0^2))

    Parameters that do not train, those of networks, of the noise and of q, and hyperparameters with a prior of the model (``PyroSample``) have none of these terms.
    Losses of a fit are per row, and hold the prior's share.

    :param objective: ``loss(model, guide)`` or another objective of a model, such as :class:`~pyro_dgp.CollapsedELBO`. Make it first, and start the
        model before: :func:`~pyro_dgp.start_from_one_layer`, ``guide.initialize``.
    :param spread: standard deviation of the logarithms; 1, a factor of e, if not given.
    :raises ValueError: for a spread that is not above 0, and for a model without such hyperparameters.

    >>> import torch
    >>> from pyro_dgp import CollapsedELBO, DeepGP, InducingPoints, Variational, WithHyperparameterPrior, fit_lbfgs
    >>> x = torch.rand(30, 8)
    >>> y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(30)
    >>> def shortest(spread):
    ...     guide = Variational(DeepGP(x, layers=1), InducingPoints(20))
    ...     guide.initialize(x, y)
    ...     fit_lbfgs(WithHyperparameterPrior(CollapsedELBO(guide), spread), x, y)
    ...     return float(guide.model.top.kernel.lengthscale.min())
    >>> shortest(0.1) > shortest(10.0)
    True
    """

    def __init__(self, objective: nn.Module, spread: float = 1.0) -> None:
        super().__init__()
        if not 0 < spread < math.inf:
            raise ValueError(f"the spread of a prior is a finite number above 0, got {spread}")
        if not hasattr(objective, "model"):
            raise TypeError(
                f"the objective is one of a model, such as ELBO(len(x))(model, guide) or CollapsedELBO(guide), not {type(objective).__name__}"
            )
        self.objective, self.spread = objective, spread
        self.terms_of_prior = nn.ModuleList(_terms(objective.model))
        if not len(self.terms_of_prior):
            raise ValueError(
                "the model has no positive parameter of a kernel, and no weight of a LinearMean, that training may change: take the objective alone"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the objective plus the terms of the prior."""
        loss: Tensor = self.objective(*args, **kwargs)
        return loss + self.penalty().to(loss)

    def penalty(self) -> Tensor:
        """Return minus the log density of the prior, nats, without terms that do not depend on hyperparameters."""
        squares = [term().square().sum() for term in self.terms_of_prior]
        return 0.5 * torch.stack(squares).sum() / self.spread**2


class _Log(nn.Module):
    """Logarithm of a positive parameter, less that at the start."""

    start: Tensor

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self._of, self._to_positive = (
            (parameter,),
            transform_to(POSITIVE),
        )  # a tuple: the parameter is that of the model alone
        self.register_buffer("start", self._value().detach())

    def _value(self) -> Tensor:
        value: Tensor = self._to_positive(self._of[0]).log()
        return value

    def forward(self) -> Tensor:
        return self._value() - self.start


class _Weight(nn.Module):
    """Weight of a mean, less that at the start, in units of the root mean square of this."""

    start: Tensor

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self._of = (parameter,)
        self.register_buffer("start", parameter.detach().clone())

    def forward(self) -> Tensor:
        size = self.start.square().mean().sqrt()
        return (self._of[0] - self.start) / torch.where(size > 0, size, torch.ones_like(size))


def _terms(model: Any) -> Iterator[nn.Module]:
    """Iterate over the hyperparameters with a prior; those that two modules share come once."""
    seen = set()
    for module in (part for whole in modules_of(model) for part in whole.modules()):
        if not isinstance(module, Kernel | LinearMean):
            continue
        for name, (constraint, _) in module._pyro_params.items():
            parameter = module._parameters.get(f"{name}_unconstrained")
            if parameter is None or not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if isinstance(module, Kernel) and constraint is POSITIVE:
                yield _Log(parameter)
            elif isinstance(module, LinearMean) and name == "weight":
                yield _Weight(parameter)
