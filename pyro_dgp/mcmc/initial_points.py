"""First points of chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.site_names import function_site, process_key, whitened_site
from pyro_dgp.likelihoods import Observation
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE

#: A function from a density to the first point of a chain, in unconstrained space, by site.
Start = Callable[[WhitenedDensity], dict[str, Tensor]]


def require_start(start: object) -> None:
    """Raise for a class, as ``start=Ascent``, where an object, ``start=Ascent()``, is wanted."""
    if isinstance(start, type | torch.nn.Module | Variational) or not callable(start):
        raise TypeError(f"start is an object such as PriorDraw(), Ascent() or GuideMean(guide), not {start!r}")


@dataclass(frozen=True)
class PriorDraw:
    """Start at a draw of the prior. Chains start as far apart as they can, which makes R-hat most telling."""

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """Whitened values and latent values in unconstrained space, by site."""
        return density.unconstrained_start()


@dataclass(frozen=True)
class Ascent:
    """Start at the end of an ascent of the posterior density from a draw of the prior, by Adam at a rate that falls to zero.

    ``WhitenedNUTS(model, start=Ascent())``. Under little noise, a chain that starts at the prior climbs for longer than a whole warm-up
    lasts; an ascent takes seconds. Each chain ascends from draws of its own and may end in a mode of its own. A mode is not a typical
    draw: the warm-up has to leave it.

    A posterior with modes that explain the data much worse than others holds a chain that ascends to one of them. ``Ascent(300, draws=8)`` ascends from
    eight draws of the prior and starts at the highest end. R-hat of chains that start so says less of modes that none of them has found.

    :param steps: largest number of gradients of an ascent; it ends earlier where the density is not finite.
    :param rate: first learning rate of Adam, in whitened and unconstrained coordinates, where the prior has unit scale.
    :param draws: number of draws of the prior, with an ascent from each.
    """

    steps: int = 1000
    rate: float = 0.05
    _: KW_ONLY
    draws: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or self.draws < 1:
            raise ValueError(
                f"an ascent has a positive number of steps and draws and a positive rate, got {self.steps}, {self.draws} and {self.rate}"
            )

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """The highest point of all ascents, by site."""
        starts = [density.unconstrained_start(), *(prior_draw(density) for _ in range(self.draws - 1))]
        ends = [self._ascend(density, start) for start in starts]
        return min(ends, key=lambda end: end[0])[1]

    def _ascend(self, density: WhitenedDensity, best: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        """Ascend from one point, and return minus the log density at the highest point, and that point."""
        point = {name: value.detach().clone().requires_grad_() for name, value in best.items()}
        optimizer = torch.optim.Adam(point.values(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        lowest = math.inf
        with torch.enable_grad():
            for _ in range(self.steps):
                optimizer.zero_grad()
                try:
                    energy = density.potential(point)
                except IMPOSSIBLE:
                    break
                if not math.isfinite(energy.item()):
                    break
                if energy.item() < lowest:
                    lowest, best = energy.item(), {name: value.detach().clone() for name, value in point.items()}
                energy.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
        return lowest, best


def prior_draw(density: WhitenedDensity) -> dict[str, Tensor]:
    """Draw a point of the prior of a density, in unconstrained space."""
    with torch.no_grad():
        trace = poutine.trace(density.model).get_trace(*density.args, **density.kwargs)
    return density.unconstrained({name: trace.nodes[name]["value"].detach() for name in density.start})


@dataclass(frozen=True)
class GuideMean:
    """Start at the means of the functions of a guide that was trained on the same model and rows.

    ``WhitenedNUTS(model, start=GuideMean(guide))``. Hyperparameters without priors have the values that the guide was trained with. Hyperparameters with
    priors, and other latent sites, start at a draw of the prior, which may be far from what the functions were trained with: this start is for models
    whose hyperparameters have no priors. All chains start at one point, so that R-hat tells less than where chains start at draws of the prior.

    :param guide: an initialised guide of the model, or of the model inside :func:`~pyro_dgp.whitened` or :func:`~pyro_dgp.vecchia`.

    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational, WhitenedNUTS
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> model = DeepGP(x, layers=2, width=1)
    >>> guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> kernel = WhitenedNUTS(model, start=GuideMean(guide))
    """

    guide: Variational

    def __post_init__(self) -> None:
        if not isinstance(self.guide, Variational):
            raise TypeError(f"GuideMean takes a guide, Variational(model, ...), got a {type(self.guide).__name__}")

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """Whitened means and latent values in unconstrained space, by site."""
        if not self.guide.is_initialized:
            raise ValueError("the guide of GuideMean was not initialised: call guide.initialize(x, y), and train it")
        handler = _WhitenMeans(self.guide, density.start)
        own = modules_of(density.model.model)
        with torch.no_grad(), module_local_parameters(self.guide), evaluating(*own), handler:
            density.model.model(*density.args, **density.kwargs)
        start = density.unconstrained_start()
        missing = [name for name in density.whitened if name not in handler.found]
        if missing:
            raise ValueError(
                f"the guide has no function values for {missing[0]!r}: start a model with inducing variables at PriorDraw() or Ascent()"
            )
        return start | {name: handler.found[name] for name in density.whitened}


class _WhitenMeans(SiteHandler, Messenger):
    """Runs a model with all functions at the means of a guide, and keeps their whitened values."""

    def __init__(self, guide: Variational, latents: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.processes, self.latents = dict(guide.processes.named_children()), latents
        self.found: dict[str, Tensor] = {}

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Keep the whitened means of each GP, and set a value that is not observed."""
        if not msg["is_observed"] and msg["name"] in self.latents:
            msg["value"] = self.latents[msg["name"]]
        for gp, prior in observation.priors.items():
            self._mean(process_key(msg["name"], gp), function_site(msg["name"], gp), prior)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set the function values to their means, and keep these, whitened."""
        if not msg["is_observed"]:
            msg["value"] = self._mean(msg["name"], msg["name"], prior)

    def at_other(self, msg: Message) -> None:
        """Set a latent value."""
        if not msg["is_observed"]:
            msg["value"] = self.latents[msg["name"]]

    def _mean(self, key: str, site: str, prior: FunctionPrior) -> Tensor:
        if key not in self.processes:
            raise ValueError(
                f"the guide has no process of {key!r}, a Gaussian process of the model: give the guide of this model"
            )
        mean: Tensor = self.processes[key](prior).mean
        self.found[whitened_site(site)] = prior.whiten(mean)
        return mean
