"""The anatomy of a model: which Gaussian processes, other latent sites, observations and free hyperparameters it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.guides.model_sites import sites_of
from pyro_dgp.guides.served_sites import is_discrete
from pyro_dgp.internal.distributions import elementwise, is_real
from pyro_dgp.likelihoods.observation import Observation, join


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model, by name, in the order in which the model meets them.

    :ivar functions: number of outputs of each Gaussian process: of a site ``"h"``, or of one under a likelihood ``"y/f"``.
    :ivar hidden: Gaussian processes that another one takes its inputs from.
    :ivar sampled: sites of Gaussian processes whose values are latent.
    :ivar latents: latent sites besides Gaussian processes: hyperparameters with priors, latent inputs.
    :ivar discrete: those latent sites that are discrete.
    :ivar observed: sites that hold data.
    :ivar response: the site that holds y.
    :ivar is_real: whether the response is a real number: no class, no count and no number that must be positive.
    :ivar classes: number of classes of the response; 0 where it is no class.
    :ivar exact: Gaussian processes whose function values are observed, without noise.
    :ivar free: parameters without a prior that training may change.
    """

    functions: dict[str, int]
    hidden: tuple[str, ...]
    sampled: tuple[str, ...]
    latents: tuple[str, ...]
    discrete: tuple[str, ...]
    observed: tuple[str, ...]
    response: str | None
    is_real: bool
    classes: int
    exact: tuple[str, ...]
    free: tuple[str, ...]

    @property
    def layers(self) -> int:
        """Number of hidden Gaussian processes, and one for those above them."""
        return len(self.hidden) + 1

    @property
    def width(self) -> int:
        """Outputs of the widest hidden Gaussian process; 1 where none is hidden."""
        return max((self.functions[name] for name in self.hidden), default=1)


def anatomy_of(model: nn.Module, x: Tensor, y: Tensor | None) -> Anatomy:
    """Run ``model(x, y)`` once, with Gaussian processes at their means, and say what it is made of.

    The model, Pyro's stores and the state of the random numbers are left as they were.
    """
    sites = sites_of(model, [model], (x, y), {})
    response = _response(sites.observed, y)
    return Anatomy(
        functions={name: prior.num_outputs for name, prior in sites.functions.items()},
        hidden=tuple(sites.hidden),
        sampled=tuple(sites.sampled),
        latents=tuple(sites.latents),
        discrete=tuple(name for name, fn in sites.latents.items() if is_discrete(fn)),
        observed=tuple(sites.observed),
        response=response,
        is_real=response is None or is_real(sites.observed[response][1]),
        classes=0 if response is None else _classes(sites.observed[response][1]),
        exact=tuple(sites.exact),
        free=free_parameters(model),
    )


def _classes(fn: Any) -> int:
    """Number of classes of a distribution of y; 0 for one of other values."""
    rows = (
        fn.conditional.given(join({k: prior.mean for k, prior in fn.priors.items()}))
        if isinstance(fn, Observation)
        else fn
    )
    kind = elementwise(rows)
    if isinstance(kind, torch.distributions.Categorical):
        return int(kind.probs.shape[-1])
    return 2 if isinstance(kind, torch.distributions.Bernoulli) else 0


def free_parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters without a prior that training may change."""
    named = model.named_parameters()
    return tuple(name.removesuffix("_unconstrained") for name, value in named if value.requires_grad)


def _response(observed: dict[str, tuple[Any, Any]], y: Tensor | None) -> str | None:
    """The site whose value is y: the one called ``y`` if there are several, else the last of them."""
    holding = [name for name, (value, _) in observed.items() if value is y]
    holding = holding or [
        name for name, (value, _) in observed.items() if isinstance(value, Tensor) and _equal(value, y)
    ]
    if not holding:
        return None
    return "y" if "y" in holding else holding[-1]


def _equal(value: Tensor, y: Tensor | None) -> bool:
    return y is not None and value.numel() == y.numel() and torch.equal(value.reshape(-1), y.reshape(-1))
