"""Priors of the hyperparameters around where they start, added to an objective."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.distributions.constraints import Constraint

from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.kernels import Kernel
from pyro_dgp.kernels.hyperparameters import is_positive
from pyro_dgp.means import LinearMean


class HyperparameterPrior(nn.Module):
    """Prior of the hyperparameters of a model around where they are when it is made; called, it returns minus its log density, nats.

    Every positive parameter of a kernel, such as a lengthscale, has a log-normal prior, and every weight of a :class:`~pyro_dgp.LinearMean` that is learned a normal one:

        log l ~ N(log l_0, spread^2),    W ~ N(W_0, spread^2 mean(W_0^2))

    where l_0 and W_0 are the values at which this object is made. The densities are those of ``log l`` and of W, and terms that do not depend on them are left out:

        sum (log l - log l_0)^2 / (2 spread^2) + sum (W - W_0)^2 / (2 spread^2 mean(W_0^2))

    A parameter is positive by its constraint, ``positive`` or ``softplus_positive``. Those of networks, of the noise and of q, those that do not train, those of kernels of other libraries, and hyperparameters with a prior of the model (``PyroSample``)
    have none of these terms.

    :param model: the model, or what a handler makes of it. Start it before: :func:`~pyro_dgp.start_from_one_layer`, ``guide.initialize``.
    :param spread: standard deviation of the logarithms; 1, a factor of e, if not given.
    :raises ValueError: for a spread that is not above 0, and for a model without such hyperparameters.

    >>> import math, torch
    >>> from pyro_dgp import DeepGP, HyperparameterPrior
    >>> model = DeepGP(torch.rand(20, 2), layers=1)
    >>> prior = HyperparameterPrior(model)
    >>> model.top.kernel.lengthscale = math.e * model.top.kernel.lengthscale.detach()
    >>> round(float(prior().detach()), 4)  # a half for each of two lengthscales
    1.0
    """

    def __init__(self, model: Any, spread: float = 1.0) -> None:
        super().__init__()
        if isinstance(spread, bool) or not isinstance(spread, Real) or not 0 < spread < math.inf:
            raise ValueError(f"the spread of a prior is a finite number above 0, got {spread!r}")
        self.spread: float = float(spread)
        self.terms: nn.ModuleList = nn.ModuleList(_terms(model))
        if not len(self.terms):
            raise ValueError(
                "the model has no positive parameter of a kernel, and no weight of a LinearMean, that training may change: leave the prior out"
            )

    def forward(self) -> Tensor:
        """Return minus the log density."""
        squares = [term().square().sum() for term in self.terms]
        return 0.5 * torch.stack(squares).sum() / self.spread**2


class WithPrior(nn.Module):
    """Objective plus minus the log density of a prior of hyperparameters: training finds the mode of their posterior.

    A deep GP has hundreds of hyperparameters, and an objective has a maximum over them that overfits few rows. With a prior it is regular. Losses of a fit are per row, and hold the prior's share.

    :param objective: ``loss(model, guide)`` or another objective of a model, such as :class:`~pyro_dgp.CollapsedELBO`.
    :param prior: such as :class:`HyperparameterPrior`.

    >>> import torch
    >>> from pyro_dgp import CollapsedELBO, DeepGP, HyperparameterPrior, InducingPoints, Variational, WithPrior, fit_lbfgs
    >>> x = torch.rand(30, 8)
    >>> y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(30)
    >>> def shortest(spread):
    ...     guide = Variational(DeepGP(x, layers=1), InducingPoints(20))
    ...     guide.initialize(x, y)
    ...     fit_lbfgs(WithPrior(CollapsedELBO(guide), HyperparameterPrior(guide.model, spread)), x, y)
    ...     return float(guide.model.top.kernel.lengthscale.detach().min())
    >>> shortest(0.1) > shortest(10.0)
    True
    """

    def __init__(self, objective: nn.Module, prior: HyperparameterPrior) -> None:
        super().__init__()
        if not hasattr(objective, "model"):
            raise TypeError(
                f"the objective is one of a model, such as ELBO(len(x))(model, guide) or CollapsedELBO(guide), not {type(objective).__name__}"
            )
        if not isinstance(prior, HyperparameterPrior):
            raise TypeError(f"the prior is a HyperparameterPrior(model), not {type(prior).__name__}")
        self.objective, self.prior = objective, prior

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the objective plus minus the log density of the prior."""
        loss: Tensor = self.objective(*args, **kwargs)
        prior: Tensor = self.prior()
        return loss + prior.to(loss)


class _Log(nn.Module):
    """Logarithm of a positive parameter, less that at the start."""

    start: Tensor

    def __init__(self, module: nn.Module, name: str, constraint: Constraint) -> None:
        super().__init__()
        self._of = (module,)  # a tuple: the module is that of the model alone
        self._name, self._to_positive = name, transform_to(constraint)
        self.register_buffer("start", self._value().detach())

    def _value(self) -> Tensor:
        value: Tensor = self._to_positive(self._of[0]._parameters[self._name]).log()
        return value

    def forward(self) -> Tensor:
        return self._value() - self.start


class _Weight(nn.Module):
    """Weight of a mean, less that at the start, in units of the root mean square of this."""

    start: Tensor

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self._of, self._name = (module,), name
        self.register_buffer("start", self._value().detach().clone())

    def _value(self) -> Tensor:
        value = self._of[0]._parameters[self._name]
        assert value is not None
        return value

    def forward(self) -> Tensor:
        size = self.start.square().mean().sqrt()
        return (self._value() - self.start) / torch.where(size > 0, size, torch.ones_like(size))


def _terms(model: Any) -> Iterator[nn.Module]:
    """Iterate over the hyperparameters with a prior; those that two modules share come once."""
    seen = set()
    for module in (part for whole in modules_of(model) for part in whole.modules()):
        if not isinstance(module, Kernel | LinearMean):
            continue
        for name, (constraint, _) in module._pyro_params.items():
            own = f"{name}_unconstrained"
            parameter = module._parameters.get(own)
            if parameter is None or not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if isinstance(module, Kernel) and is_positive(constraint):
                yield _Log(module, own, constraint)
            elif isinstance(module, LinearMean) and name == "weight":
                yield _Weight(module, own)
