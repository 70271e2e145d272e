"""Kernels: one family a file, each with its formula."""

from pyro_dgp.kernels.adapters import FromGPyTorch, FromPyroContrib
from pyro_dgp.kernels.base import Covariance, Kernel, Product, Sum
from pyro_dgp.kernels.constant import Constant, White
from pyro_dgp.kernels.dot_product import ArcCosine, Linear
from pyro_dgp.kernels.matern import Matern12, Matern32, Matern52
from pyro_dgp.kernels.periodic import Periodic
from pyro_dgp.kernels.rational_quadratic import RationalQuadratic
from pyro_dgp.kernels.rbf import RBF
from pyro_dgp.kernels.stationary import Stationary
from pyro_dgp.kernels.wrapping import ActiveDims, Scaled

__all__ = [
    "RBF",
    "ActiveDims",
    "ArcCosine",
    "Constant",
    "Covariance",
    "FromGPyTorch",
    "FromPyroContrib",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Stationary",
    "Sum",
    "White",
]
