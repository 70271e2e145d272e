"""Kernels: one family a file, formulas only."""

from pyro_dgp.kernels.adapters import FromGPyTorch, FromPyroContrib
from pyro_dgp.kernels.base import Covariance, Kernel
from pyro_dgp.kernels.combine import ActiveDims, Product, Scaled, Sum
from pyro_dgp.kernels.constant import Constant, White
from pyro_dgp.kernels.dot_product import ArcCosine, Linear
from pyro_dgp.kernels.stationary import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Stationary

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
