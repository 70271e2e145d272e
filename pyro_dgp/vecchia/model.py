"""A model whose Gaussian processes have Vecchia approximations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation
from pyro_dgp.vecchia.neighbors import NeighborSearch
from pyro_dgp.vecchia.prior import VecchiaPrior


class _Approximate(SiteHandler, Messenger):
    """Puts Vecchia approximations in the place of exact priors."""

    def __init__(self, search: Callable[[str], NeighborSearch]) -> None:
        super().__init__()
        self.search = search

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Approximate each GP of an observation."""
        priors: dict[str, FunctionPrior] = {
            gp: VecchiaPrior(prior, self.search(process_key(msg["name"], gp)))
            for gp, prior in observation.priors.items()
        }
        msg["fn"] = Observation(observation.conditional, priors, observation.outputs)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Approximate a GP whose values are sampled."""
        msg["fn"] = VecchiaPrior(prior, self.search(msg["name"]))


class VecchiaModel:
    """The model that :func:`vecchia` returns. It pickles, as parallel chains need.

    :ivar model: the model itself.
    :ivar num_neighbors: m.
    :ivar seed: seed of the order of the rows.
    """

    def __init__(self, model: Callable[..., Any], num_neighbors: int, seed: int) -> None:
        self.model, self.num_neighbors, self.seed = model, num_neighbors, seed
        self._searches: defaultdict[str, NeighborSearch] = defaultdict(self._new)

    def _new(self) -> NeighborSearch:
        return NeighborSearch(self.num_neighbors, self.seed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with approximate priors."""
        with _Approximate(self._searches.__getitem__):
            return self.model(*args, **kwargs)


def vecchia(model: Callable[..., Any], *, num_neighbors: int = 30, seed: int = 0) -> VecchiaModel:
    """Return the model with a Vecchia approximation of every Gaussian process (Vecchia 1988; Sauer, Cooper and Gramacy 2022 for deep ones).

    Each row is conditioned on its nearest earlier rows alone, in a random order, so that all costs are linear in the rows. It takes the place of
    the model for any sampler, whitened or not, and in :class:`PosteriorDraws`, whose predictions condition each new row on its nearest
    training rows.

    Near are rows whose inputs to the Gaussian process itself are near: for a layer above another, the hidden values. The neighbours follow
    these values, so that the density has small jumps, of the size of its error. It is that of a proper prior all the same, and samplers with an accept step are
    exact for it.

    The approximation is close where ``num_neighbors`` is large enough: 30 for rough kernels (Matern) of few inputs, more for smooth ones and for many inputs.

    :param num_neighbors: m, the number of rows that a row is conditioned on.
    :param seed: seed of the order of the rows.

    >>> import torch
    >>> from pyro_dgp import DeepGP, WhitenedNUTS, predict, run_chains, vecchia, whitened
    >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.randn(40)
    >>> approximate = whitened(vecchia(DeepGP(x, layers=2, width=1), num_neighbors=5))
    >>> chains = run_chains(WhitenedNUTS(approximate, max_tree_depth=2), (x, y), num_samples=3, warmup_steps=2, num_chains=1)
    >>> predict(chains, torch.zeros(7, 1)).mean.shape
    torch.Size([7])
    """
    NeighborSearch(num_neighbors)  # raises for numbers that are none
    return VecchiaModel(model, num_neighbors, seed)
