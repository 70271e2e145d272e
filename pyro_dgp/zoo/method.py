"""A named method, the models that named methods fit, and the inferences that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.inference import Inference
from pyro_dgp.zoo.recipes import (
    TWO_KERNELS,
    WithFeatures,
    deep,
    deep_learned,
    deep_with_priors,
    elbo,
    inducing_points,
    monte_carlo,
    points_of_outputs,
    shallow,
    shallow_with_priors,
)
from pyro_dgp.zoo.settings import Settings
from pyro_dgp.zoo.starts import one_layer_first


@dataclass(frozen=True)
class Method:
    """A named method: a model and an inference.

    :ivar summary: what it is, in one line.
    :ivar paper: where it comes from.
    :ivar architecture: what model it fits.
    :ivar inference: how the model is fitted.
    """

    name: str
    summary: str
    paper: str
    architecture: Architecture
    inference: Inference

    def layers(self, settings: Settings) -> int:
        """Number of layers of the model."""
        return self.architecture.layers(settings)


SHALLOW = Architecture(shallow, is_deep=False)
SHALLOW_WITH_PRIORS = Architecture(shallow_with_priors, is_deep=False, has_priors=True)
DEEP = Architecture(deep, is_deep=True)
#: What amortised methods and inferences made by hand fit; samplers and the inference gap keep fixed means, which have no hyperparameters.
DEEP_LEARNED = Architecture(deep_learned, is_deep=True)
#: The same with a kernel of two parts.
SHALLOW_TWO_KERNELS = Architecture(partial(shallow, kernel=TWO_KERNELS), is_deep=False)
DEEP_TWO_KERNELS = Architecture(partial(deep_learned, kernel=TWO_KERNELS), is_deep=True)
DEEP_WITH_PRIORS = Architecture(deep_with_priors, is_deep=True, has_priors=True)
SHALLOW_ON_FEATURES = Architecture(WithFeatures(shallow), is_deep=False, has_network=True)
DEEP_ON_FEATURES = Architecture(WithFeatures(deep_learned), is_deep=True, has_network=True)

#: The inferences of svgp and dsvi, which predictive methods of one and of more layers fall back on.
BY_ELBO = ByGuide(inducing_points, monte_carlo, elbo, batch_size=500, samples=1)
DEEP_BY_ELBO = replace(BY_ELBO, processes=points_of_outputs, first=one_layer_first)
