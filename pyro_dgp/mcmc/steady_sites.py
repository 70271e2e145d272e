"""Latent sites of a model: the same ones in the same order in every run, or a sentence."""

from __future__ import annotations

from collections.abc import Collection


def sometimes_message(site: str) -> str:
    """Return the sentence for a latent site that the model does not always sample."""
    return f"the latent site {site!r} is sampled for some values of other sites alone: sample it in every call of the model, and use its value where it is wanted"


class SteadySites:
    """The latent sites that runs of a model meet.

    The density of a model that leaves a site out lacks its prior, and factors that are used again depend on the order.

    :param sites: those of the first draw of the prior.

    >>> from pyro_dgp.mcmc.steady_sites import SteadySites
    >>> steady = SteadySites(["t", "f"])
    >>> steady.require(["t", "f"])
    >>> try:
    ...     steady.require(["t"])
    ... except ValueError as error:
    ...     print(str(error).split(":")[0])
    the latent site 'f' is sampled for some values of other sites alone
    """

    def __init__(self, sites: Collection[str]) -> None:
        self._sites, self._met = list(sites), list[str]()

    def require_all(self, met: Collection[str]) -> None:
        """Raise where a run has not met all of the sites."""
        missing = [name for name in self._sites if name not in met]
        if missing:
            raise ValueError(sometimes_message(missing[0]))

    def require(self, met: Collection[str]) -> None:
        """Raise where a run has not met all of the sites, or in another order than the first run."""
        self.require_all(met)
        found = list(met)
        self._met = self._met or found
        if found != self._met:
            raise ValueError(
                f"the order in which the model samples its latent sites depends on their values ({', '.join(self._met)}, then {', '.join(found)}): sample them in "
                "one order, and use their values where they are wanted"
            )
