"""Kernels, one family a file."""

from pyro_dgp.kernels.adapters import FromGPyTorch, FromPyroContrib
from pyro_dgp.kernels.base import Constant, Kernel, Product, Scaled, Sum
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.dot_product import ArcCosine, Linear
from pyro_dgp.kernels.from_function import FromFunction
from pyro_dgp.kernels.matern import Matern12, Matern32, Matern52
from pyro_dgp.kernels.periodic import Periodic
from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.rational_quadratic import RationalQuadratic
from pyro_dgp.kernels.rbf import RBF
from pyro_dgp.kernels.stationary import Stationary
from pyro_dgp.kernels.white import White
from pyro_dgp.kernels.wrapping import ActiveDims
from pyro_dgp.kernels.zonal import Spherical, ZonalCovariance

__all__ = [
    "RBF",
    "ActiveDims",
    "ArcCosine",
    "Constant",
    "Covariance",
    "FromFunction",
    "FromGPyTorch",
    "FromPyroContrib",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "Radial",
    "RationalQuadratic",
    "Scaled",
    "Spherical",
    "Stationary",
    "Sum",
    "White",
    "ZonalCovariance",
]
