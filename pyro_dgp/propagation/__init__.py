"""Propagation strategies, chosen by the user of a guide and never by a model."""

from pyro_dgp.propagation.base import Propagation
from pyro_dgp.propagation.moment_matching import MomentMatching
from pyro_dgp.propagation.monte_carlo import MonteCarlo
from pyro_dgp.propagation.sigma_points import SigmaPoints
from pyro_dgp.propagation.with_mean import WithMean

__all__ = ["MomentMatching", "MonteCarlo", "Propagation", "SigmaPoints", "WithMean"]
