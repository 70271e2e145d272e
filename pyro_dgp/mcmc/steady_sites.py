"""Latent sites of a model: the same ones in every run, on the same supports and in one order where that counts, or a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import Transform

from pyro_dgp.internal.site_names import is_whitened


def sometimes_message(site: str) -> str:
    """Return the sentence for a latent site that the model does not always sample."""
    return f"the latent site {site!r} is sampled only for some values of other sites: sample it in every call of the model, and use its value where it is wanted"


def require_fixed_supports(
    draw: Callable[[], Trace], start: Mapping[str, Tensor], maps: Mapping[str, Transform]
) -> None:
    """Raise unless another draw of the prior has the same latent sites, on the same supports.

    :param draw: draws from the prior, without moving the random numbers of the caller.
    :param start: a draw, by site.
    :param maps: maps from the real line to the support of each site besides whitened ones.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        other = draw()
    missing = [name for name in start if name not in other.nodes]
    if missing and float(other.log_prob_sum()) != -math.inf:
        raise ValueError(sometimes_message(missing[0]))
    for name, transform in maps.items():
        point = transform.inv(start[name])
        if name not in missing and not torch.equal(transform(point), biject_to(other.nodes[name]["fn"].support)(point)):
            raise ValueError(
                f"the support of the latent site {name!r} depends on other sites: sample it on a fixed one, such as "
                "Uniform(0, 1), and scale it in the model"
            )


class SteadySites:
    """The latent sites that runs of a model meet.

    A density without the prior of a site is no density. A factor of a Gaussian process serves again only if the same sites come before it.

    :param sites: those of a draw of the prior.

    >>> from pyro_dgp.mcmc.steady_sites import SteadySites
    >>> steady = SteadySites(["t", "f_whitened"])
    >>> steady.require(["t", "f_whitened"], [], uses_factors=False)
    >>> try:
    ...     steady.require(["t"], [], uses_factors=False)
    ... except ValueError as error:
    ...     print(str(error).split(":")[0])
    the latent site 'f_whitened' is sampled only for some values of other sites
    """

    def __init__(self, sites: Collection[str]) -> None:
        self._sites = list(sites)
        self._met: list[str] = []

    def require(self, met: Collection[str], observed: Sequence[Tensor], *, uses_factors: bool) -> None:
        """Raise where a run has left out a site and has a density, or has used factors again behind other sites than those of the first run.

        :param met: the sites that the run has met, in its order.
        :param observed: log densities of what it has observed.
        :param uses_factors: whether it was given factors of another run.
        """
        found = list(met)
        if found == self._met:
            return
        missing = [name for name in self._sites if name not in met]
        if missing and not (observed and float(sum(observed)) == -math.inf):
            raise ValueError(sometimes_message(missing[0]))
        if missing:
            return
        self._met = self._met or found
        if uses_factors and _before_functions(found) != _before_functions(self._met):
            raise ValueError(
                f"the order in which the model samples its latent sites depends on their values ({', '.join(self._met)}, then {', '.join(found)}): sample them in "
                "one order, and use their values where they are wanted"
            )


def _before_functions(met: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the sites before the values of each Gaussian process."""
    return {name: frozenset(met[:number]) for number, name in enumerate(met) if is_whitened(name)}
