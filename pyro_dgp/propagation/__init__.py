"""Propagation strategies, chosen by the user of a guide and never by a model."""

from pyro_dgp.propagation.base import Propagation
from pyro_dgp.propagation.monte_carlo import MonteCarlo
from pyro_dgp.propagation.sigma_points import SigmaPoints

__all__ = ["MonteCarlo", "Propagation", "SigmaPoints"]
