"""States of features: one of other features is refused."""

import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import (
    ActivationFeatures,
    ActiveDims,
    ArcCosine,
    FourierFeatures,
    InducingPoints,
    Matern32,
    MonteCarlo,
    Orthogonal,
    PublishedActivationFeatures,
    SphericalHarmonics,
    Variational,
)
from tests.examples import OneLayer

pytestmark = pytest.mark.filterwarnings("ignore:the units of")


def test_a_state_of_other_features_is_refused():
    torch.manual_seed(0)
    x, y = torch.randn(20, 1), torch.randn(20)

    def guide(kernel, family):
        made = Variational(OneLayer(kernel), family, MonteCarlo(1))
        made.initialize(x, y)
        return made

    relu, harmonics = guide(ArcCosine(1), ActivationFeatures(4, "relu")), guide(ArcCosine(1), SphericalHarmonics(7))
    fresh = [
        (
            relu,
            Variational(OneLayer(ArcCosine(1)), ActivationFeatures(4, "softplus"), MonteCarlo(1)),
            "its levels are|its profile are",
        ),
        (
            relu,
            Variational(OneLayer(ArcCosine(1)), PublishedActivationFeatures(4, "relu"), MonteCarlo(1)),
            "its profile are",
        ),
        (harmonics, guide(ArcCosine(0), SphericalHarmonics(7)), r"with ArcCosine\(order=1\) at 'gp.kernel'"),
    ]
    for saved, other, match in fresh:
        with pytest.raises(ValueError, match=match):
            other.load_state_dict(saved.state_dict())
    fourier = guide(ActiveDims(Matern32(), [0]), FourierFeatures(5))
    other = Variational(OneLayer(ActiveDims(Matern32(), [0])), FourierFeatures(7), MonteCarlo(1))
    with pytest.raises(ValueError, match="the state has 11 features and FourierFeatures of this guide makes 15"):
        other.load_state_dict(fourier.state_dict())


@pytest.mark.parametrize("kinds", [("prior", "delta"), ("delta", "prior")])
def test_a_state_of_another_covariance_is_refused(kinds):
    x, y = torch.randn(20, 1), torch.randn(20)
    for wrap in (lambda family: family, lambda family: Orthogonal(InducingPoints(3), family)):
        first, second = (Variational(OneLayer(), wrap(InducingPoints(4, kind)), MonteCarlo(1)) for kind in kinds)
        first.initialize(x, y)
        with pytest.raises(
            ValueError, match=f"q\\(v\\) with the covariance '{kinds[0]}', and this guide has '{kinds[1]}'"
        ):
            second.load_state_dict(first.state_dict())


def test_a_state_of_another_size_is_refused_where_hyperparameters_have_priors():
    x, y = torch.rand(20, 1), torch.randn(20)

    def guide(frequencies):
        model = OneLayer(Matern32())
        model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.3))
        return Variational(model, FourierFeatures(frequencies), MonteCarlo(1))

    saved = guide(3)
    saved.initialize(x, y)
    with pytest.raises(ValueError, match="the state has 7 features and FourierFeatures of this guide makes 9"):
        guide(4).load_state_dict(saved.state_dict())
    again = guide(3)
    again.load_state_dict(saved.state_dict())
