"""MCMC on the exact prior: whitened models, samplers, chains, and prediction from draws."""

from pyro_dgp.mcmc import chain_checks  # noqa: F401  # registers chains with diagnose
from pyro_dgp.mcmc.chains import Chains, run_chains
from pyro_dgp.mcmc.compiled_density import CompiledDensity
from pyro_dgp.mcmc.elliptical import EllipticalSlice
from pyro_dgp.mcmc.from_draws import PosteriorDraws
from pyro_dgp.mcmc.initial_points import Ascent, GuideMean, PriorDraw
from pyro_dgp.mcmc.nuts import WhitenedNUTS
from pyro_dgp.mcmc.sparse import bases_of, inducing_inputs
from pyro_dgp.mcmc.surrogate_slice import SurrogateSlice
from pyro_dgp.mcmc.surrogates import SurrogateScale
from pyro_dgp.mcmc.whitening import WhitenedModel, Whitening, whitened

__all__ = [
    "Ascent",
    "Chains",
    "CompiledDensity",
    "EllipticalSlice",
    "GuideMean",
    "PosteriorDraws",
    "PriorDraw",
    "SurrogateScale",
    "SurrogateSlice",
    "WhitenedModel",
    "WhitenedNUTS",
    "Whitening",
    "bases_of",
    "inducing_inputs",
    "run_chains",
    "whitened",
]
