"""Presets: the models and settings that a paper states, by name, so that its tables can be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_dgp.kernels import RBF
from pyro_dgp.losses import Loss
from pyro_dgp.means import LinearMean, Zero
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.processes import AffineMaps, AmortizedInducingPoints, InducingPoints, Orthogonal
from pyro_dgp.propagation import Propagation
from pyro_dgp.training.validation import Validation
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_guide import ByGuide, ByValidatedGuide
from pyro_dgp.zoo.by_layer import ByLayer
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.recipes import (
    approximate_ep,
    elbo,
    inducing_points,
    matched,
    monte_carlo,
    points_of_outputs,
    predictive,
    sigma_points,
)
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Preset:
    """The methods of a paper with the models and settings that it states.

    Give ``PRESETS["meng2024"].settings`` to :func:`~pyro_dgp.compare` or :func:`~pyro_dgp.sweep`, with names of its methods.

    :ivar paper: where they are stated.
    :ivar settings: values in the place of the defaults; they name the preset.
    :ivar methods: models and inferences by name of the method.
    :ivar stated: names of the settings that its models and guides state themselves.

    >>> from pyro_dgp import PRESETS
    >>> PRESETS["meng2024"].settings.samples, list(PRESETS["ashman2020"].methods)
    (32, ['svgp', 'dsvi', 'aep'])
    """

    paper: str
    settings: Settings
    methods: Mapping[str, Method]
    stated: tuple[str, ...] = ()


#: Widths of the two hidden layers of Meng and Zhang, and inducing points of the three layers of DS-DGP and DSPP (C.1, C.2).
WIDTHS, SIZES = (16, 4), {"h1": 256, "h2": 128, "y": 128}
#: Inducing points of SOLVE-GP, and orthogonal ones beside them (C.1).
TWO_SETS = Orthogonal(InducingPoints(512), InducingPoints(512))
#: One ninth of nine tenths of the data are validation rows, once; the model is not trained on them.
ONCE, SEARCHED = Validation(betas=(1.0,), folds=1), Validation(folds=1)


def _three(settings: Settings) -> None:
    if settings.layers != 3:
        raise ValueError(
            f"preset meng2024 has 3 layers, of widths {WIDTHS[0]} and {WIDTHS[1]}, and layers is {settings.layers}: leave it out"
        )


def linear_means(x: Tensor, settings: Settings) -> DeepGP:
    """Three GPs with isotropic Matern 5/2 kernels; linear means with learned weights in the hidden layers."""
    _three(settings)
    return DeepGP(x, 3, WIDTHS, kernel="matern52-isotropic", mean=LinearMean.fit).to(x)


def zero_means(x: Tensor, settings: Settings) -> DeepGP:
    """Three GPs with isotropic Matern 5/2 kernels and no mean functions."""
    _three(settings)
    return DeepGP(x, 3, WIDTHS, kernel="matern52-isotropic", mean=lambda inputs, width: Zero()).to(x)


def isotropic(x: Tensor, settings: Settings) -> DeepGP:
    """One GP with an isotropic Matern 5/2 kernel."""
    return DeepGP(x, 1, kernel="matern52-isotropic").to(x)


@dataclass(frozen=True)
class ThreeSizes:
    """Inducing points of three layers: M 256, 128, 128, diagonal covariance.

    :ivar hidden_scale: standard deviation of v in the hidden layers at the start, which the paper leaves open.
    """

    hidden_scale: float

    def __call__(self, settings: Settings) -> dict[str, InducingPoints]:
        """Return the inducing points of each site."""
        return {site: InducingPoints(m, "diagonal", hidden_scale=self.hidden_scale) for site, m in SIZES.items()}


def narrow_points(settings: Settings) -> ByLayer:
    """M of each row in the first layer and half of it above; hidden layers of the networks as wide as the smaller of inputs and outputs."""
    narrow = AffineMaps(narrowest=1)
    above = max(1, settings.row_inducing // 2)
    return ByLayer(AmortizedInducingPoints(settings.row_inducing, narrow), AmortizedInducingPoints(above, narrow))


def _meng(
    name: str,
    hidden_scale: float,
    propagation: Callable[[Settings], Propagation],
    loss: Callable[[Settings, int], Loss],
    validation: Validation,
) -> Method:
    inference = ByValidatedGuide(ThreeSizes(hidden_scale), propagation, loss, validation=validation)
    return replace(METHODS[name], architecture=Architecture(linear_means, is_deep=True), inference=inference)


def _amortized(name: str) -> Method:
    inference = METHODS[name].inference
    assert isinstance(inference, ByValidatedGuide)
    validation = replace(inference.validation, folds=1)
    own = replace(inference, processes=narrow_points, validation=validation, first=None, fallback=None)
    return replace(METHODS[name], architecture=Architecture(zero_means, is_deep=True), inference=own)


def _shallow(name: str, inference: ByValidatedGuide) -> Method:
    return replace(METHODS[name], architecture=Architecture(isotropic, is_deep=False), inference=inference)


def _amortized_shallow(name: str) -> Method:
    inference = METHODS[name].inference
    assert isinstance(inference, ByValidatedGuide)
    return _shallow(name, replace(inference, first=None, validation=replace(inference.validation, folds=1)))


MENG = (
    _meng("dsvi", 0.01, monte_carlo, elbo, ONCE),
    _meng("dspp", 1.0, sigma_points, predictive, replace(SEARCHED, runs=(0.25, 1.0))),
    *(_amortized(name) for name in ("avdgp-ar1", "avdgp-ar2", "avdgp-ar2p", "avdgp-ar2pp")),
    _amortized_shallow("idsgp"),
    _amortized_shallow("sgp-avi"),
    _shallow("solve-gp", ByValidatedGuide(TWO_SETS, monte_carlo, elbo, validation=ONCE)),
)


def wide(x: Tensor, settings: Settings) -> DeepGP:
    """GPs with RBF kernels, a lengthscale for each input, hidden layers of min(30, D) outputs with the fixed means of [DSVI] 3.12.

    All lengthscales and variances begin at one.
    """
    return _from_one(DeepGP(x, settings.layers, min(30, x.shape[-1]), kernel="rbf").to(x))


def wide_isotropic(x: Tensor, settings: Settings) -> DeepGP:
    """Build the model of :func:`wide` with one lengthscale for all inputs of a layer."""
    return _from_one(DeepGP(x, settings.layers, min(30, x.shape[-1]), kernel="rbf-isotropic").to(x))


def wide_shallow(x: Tensor, settings: Settings) -> DeepGP:
    """One GP with an RBF kernel."""
    return _from_one(DeepGP(x, 1, kernel="rbf").to(x))


def narrow(x: Tensor, settings: Settings) -> DeepGP:
    """GPs with RBF kernels, hidden layers of two outputs with a kernel each and linear means that begin at principal directions and are learned."""
    return _from_one(DeepGP(x, settings.layers, 2, kernel="rbf", per_output=True, mean=LinearMean.fit).to(x))


def _from_one(model: DeepGP) -> DeepGP:
    with torch.no_grad():
        for gp in (*model.hidden, model.top):
            assert isinstance(gp.kernel, RBF)
            gp.kernel.lengthscale = torch.ones_like(gp.kernel.lengthscale)
    return model


ASHMAN = (
    replace(
        METHODS["svgp"],
        architecture=Architecture(wide_shallow, is_deep=False),
        inference=ByGuide(inducing_points, monte_carlo, elbo),
    ),
    replace(
        METHODS["dsvi"],
        architecture=Architecture(wide, is_deep=True),
        inference=ByGuide(inducing_points, monte_carlo, elbo),
    ),
    replace(
        METHODS["aep"],
        architecture=Architecture(narrow, is_deep=True),
        inference=ByGuide(points_of_outputs, matched, approximate_ep),
    ),
)

#: Models and settings that papers state, by name, such as ``PRESETS["meng2024"].settings``.
PRESETS: dict[str, Preset] = {
    "meng2024": Preset(
        "Meng, Zhang 2024, Amortized Variational Inference for Deep Gaussian Processes, Appendix C",
        Settings(
            preset="meng2024", layers=3, row_inducing=8, samples=32, batch_size=100, epochs=100, learning_rate=0.005
        ),
        {method.name: method for method in MENG},
        ("layers", "width", "kernel", "inducing", "orthogonal"),
    ),
    "ashman2020": Preset(
        "Ashman, Branigan, Tsetis, Xia 2020, a report on doubly stochastic variational inference, section 3, with its 20,000 steps of at most 10,000 rows",
        Settings(
            preset="ashman2020",
            inducing=100,
            samples=1,
            batch_size=10_000,
            steps=20_000,
            learning_rate=0.01,
            alpha=1.0,
        ),
        {method.name: method for method in ASHMAN},
        ("width", "kernel"),
    ),
}


def methods_of(preset: str | None) -> Mapping[str, Method]:
    """Return the methods by name: the zoo's own, or those of a preset."""
    return METHODS if preset is None else named_preset(preset).methods


def named_preset(name: str) -> Preset:
    """Return a preset by its name.

    :raises ValueError: if there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def refuse_stated(settings: Settings) -> None:
    """Raise for settings that would change nothing, since the models of their preset state them."""
    if settings.preset is None:
        return
    preset = named_preset(settings.preset)
    given = [name for name in preset.stated if getattr(settings, name) != getattr(preset.settings, name)]
    if given:
        values = ", ".join(f"{name}={getattr(settings, name)!r}" for name in given)
        raise ValueError(
            f"preset {settings.preset} has models that state their own {', '.join(preset.stated)}, so that {values} would change nothing: leave {'it' if len(given) == 1 else 'them'} out, or "
            "the preset"
        )
