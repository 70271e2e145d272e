"""Kernels by name, as the command line offers them, and the additive and zonal forms of a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyro_dgp.kernels.base import Kernel, Sum
from pyro_dgp.kernels.dot_product import ArcCosine, Linear
from pyro_dgp.kernels.matern import Matern12, Matern32, Matern52
from pyro_dgp.kernels.rational_quadratic import RationalQuadratic
from pyro_dgp.kernels.rbf import RBF
from pyro_dgp.kernels.stationary import Stationary
from pyro_dgp.kernels.wrapping import ActiveDims
from pyro_dgp.kernels.zonal import Spherical

#: Builder of a kernel for a number of inputs, and a number of outputs or ``None``.
Builder = Callable[[int, int | None], Kernel]

ADDITIVE, SPHERICAL, ISOTROPIC = "-additive", "-spherical", "-isotropic"


def _ard(kind: type[Stationary], inputs: int, outputs: int | None) -> Kernel:
    return kind(inputs, outputs, lengthscale=inputs**0.5)


def _isotropic(kind: type[Stationary], inputs: int, outputs: int | None) -> Kernel:
    return kind(None, outputs, lengthscale=inputs**0.5)


def _additive(kind: type[Stationary], inputs: int, outputs: int | None) -> Kernel:
    terms = [ActiveDims(kind(None, outputs, variance=1 / inputs), [dim]) for dim in range(inputs)]
    return Sum(*terms) if inputs > 1 else terms[0]


def _spherical(kind: type[Stationary], inputs: int, outputs: int | None) -> Kernel:
    return Spherical(kind(None, outputs, variance=1 / (inputs + 1)), inputs, outputs)


def _sum(kinds: tuple[type[Stationary], ...], inputs: int, outputs: int | None) -> Kernel:
    return Sum(*[kind(inputs, outputs, variance=1 / len(kinds), lengthscale=inputs**0.5) for kind in kinds])


def _named(
    form: Callable[[type[Stationary], int, int | None], Kernel], behind: str, **kinds: type[Stationary]
) -> dict[str, Builder]:
    return {f"{name.replace('_', '-')}{behind}": partial(form, kind) for name, kind in kinds.items()}


_MATERN = {"matern12": Matern12, "matern32": Matern32, "matern52": Matern52}
_SMOOTH = {"rbf": RBF, **_MATERN}

#: Kernels by name. Each is built for a number of inputs and a number of outputs or ``None``. It has a lengthscale or weight for each input.
#: A sum has its own for each part. An isotropic one has one lengthscale for all, an additive one is a sum of kernels of one input, and a spherical one is zonal.
KERNELS: dict[str, Builder] = {
    **_named(_ard, "", **_SMOOTH, rational_quadratic=RationalQuadratic),
    "rbf+matern52": partial(_sum, (RBF, Matern52)),
    "linear": Linear,
    "arc-cosine": partial(ArcCosine, 1),
    **_named(_isotropic, ISOTROPIC, **_SMOOTH, rational_quadratic=RationalQuadratic),
    **_named(_additive, ADDITIVE, **_MATERN),
    **_named(_spherical, SPHERICAL, **_SMOOTH),
}


def named_kernel(name: str, inputs: int, outputs: int | None) -> Kernel:
    """Return the kernel of a name for a number of inputs, and a number of outputs or ``None``.

    :raises ValueError: if there is none.
    """
    require_kernel_name(name)
    return KERNELS[name](inputs, outputs)


def require_kernel_name(name: str) -> None:
    """Raise ``ValueError`` for a name that no kernel has."""
    if name not in KERNELS:
        raise ValueError(f"there is no kernel {name!r}: choose from {', '.join(KERNELS)}")


def additive_form(name: str) -> str:
    """Return the name of the additive form of a kernel: ``matern52-additive`` of ``matern52``.

    :raises ValueError: where it has none.
    """
    return _form(name, ADDITIVE, "Fourier features are those of additive Matern kernels")


def zonal_form(name: str) -> str:
    """Return the name of the zonal form of a kernel: ``matern52-spherical`` of ``matern52``. ``arc-cosine`` is one.

    :raises ValueError: where it has none.
    """
    return name if name == "arc-cosine" else _form(name, SPHERICAL, "features on the sphere are those of zonal kernels")


def rbf_form(name: str) -> str:
    """Return the radial basis function kernel in the place of a smooth one: ``rbf`` of ``matern52``, ``rbf-isotropic`` of ``matern52-isotropic``.

    :raises ValueError: for a kernel that is no function of the distance.
    """
    kind = name.removesuffix(ISOTROPIC)
    if kind not in _SMOOTH:
        raise ValueError(
            f"moment matching integrates radial basis function kernels, and kernel {name!r} has no such form: choose from {', '.join(_SMOOTH)}"
        )
    return "rbf" + name.removeprefix(kind)


def _form(name: str, form: str, why: str) -> str:
    found = name if name.endswith(form) else name.removesuffix(ISOTROPIC) + form
    if found not in KERNELS:
        choice = [kernel.removesuffix(form) for kernel in KERNELS if kernel.endswith(form)]
        raise ValueError(f"{why}, and kernel {name!r} has no such form: choose from {', '.join(choice)}")
    return found
