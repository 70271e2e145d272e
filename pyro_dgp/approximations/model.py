"""A model whose Gaussian processes have Vecchia approximations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger

from pyro_dgp.approximations.neighbors import NeighborSearch
from pyro_dgp.approximations.prior import VecchiaPrior
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation


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

    def at_other(self, msg: Message) -> None:
        """Raise where a Gaussian process has been changed to something else before it comes here."""
        name, fn = msg["name"], msg["fn"]
        while hasattr(fn, "base_dist"):
            fn = fn.base_dist
        if isinstance(fn, FunctionPrior | Observation):
            raise ValueError(
                f"the Gaussian process of the site {name!r} is wrapped in another distribution, where it cannot be approximated: write a mask as "
                "poutine.mask around the sample statement"
            )


class VecchiaModel:
    """The model that :func:`vecchia` returns. It pickles, as parallel chains need.

    :ivar model: the model itself.
    :ivar num_neighbors: rows that a row is conditioned on, m at most.
    :ivar seed: seed of the order of the rows.
    """

    def __init__(self, model: Callable[..., Any], num_neighbors: int, seed: int) -> None:
        search = NeighborSearch(num_neighbors, seed)
        self.model, self.num_neighbors, self.seed = model, search.num_neighbors, search.seed
        self._searches: defaultdict[str, NeighborSearch] = defaultdict(self._new)

    def _new(self) -> NeighborSearch:
        return NeighborSearch(self.num_neighbors, self.seed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with approximate priors."""
        with _Approximate(self._searches.__getitem__):
            return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        return f"VecchiaModel({self.model!r}, num_neighbors={self.num_neighbors}, seed={self.seed})"


def vecchia(model: Callable[..., Any], *, num_neighbors: int = 30, seed: int = 0) -> VecchiaModel:
    """Return the model with a Vecchia approximation of every Gaussian process (Vecchia 1988; Sauer, Cooper and Gramacy 2022 for deep ones).

    Rows are put in a random order, and each is conditioned on the nearest rows before it alone. Time and memory are linear in the rows once the
    neighbours are known; these are found by trees, in ``N log N`` for few inputs. The result takes the place of the model for any sampler, whitened or
    not, for :class:`MarginalLikelihood`, and in :class:`PosteriorDraws`. Predictions condition each new row on its nearest training rows, four times
    as many where targets are noisy.

    Distance is measured between the inputs of each Gaussian process, each divided by the length at which its kernel loses half of the correlation
    (Katzfuss, Guinness and Lawrence 2022). For an upper layer these are the hidden values, so that the neighbours change as a sampler moves, and the
    density has small jumps. Lengths are rounded to powers of the square root of two: parameters that move a little leave the neighbours as they are. The approximation is a proper prior: given the layers
    below, the density of each layer integrates to one. Samplers with an accept step are exact for it, in spite of the jumps.

    The approximation is close where ``num_neighbors`` is large enough: 30 for function values under rough kernels (Matern) of few inputs, more for smooth
    kernels, for many inputs, and where the noise is large beside the function.

    Whitened draws belong to their own number of neighbours and seed: give :class:`PosteriorDraws` the model that was sampled. Guides take the model
    itself, and :class:`CompiledDensity` has no program for an approximation and runs it uncompiled.

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
    if not callable(model):
        raise TypeError(f"vecchia takes a model, a function of x and y, got {model!r}")
    if getattr(model, "is_whitened", False):
        raise ValueError("a whitened model has no priors left to approximate: write whitened(vecchia(model))")
    return VecchiaModel(model, num_neighbors, seed)
