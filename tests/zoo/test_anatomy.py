"""What a model is made of, seen from outside."""

import copy

import pytest
import torch

from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.zoo.anatomy import anatomy_of
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings
from tests.comparison.own_models import Classes, Heavy, Skip, Switch
from tests.examples import TwoSites, regression


def test_sites_are_told_apart():
    x, y = regression(12, inputs=3)
    skip = anatomy_of(Skip(x), x, y)
    assert skip.functions == {"latent": 2, "positive/f": 1, "target/f": 1}
    assert (skip.hidden, skip.sampled, skip.layers, skip.width) == (("latent",), ("latent",), 2, 2)
    assert skip.latents == ("top.kernel.lengthscale",) and skip.discrete == ()
    assert skip.observed == ("positive", "target") and skip.response == "target" and skip.is_real
    assert skip.free == (
        "hidden.kernel.lengthscale",
        "hidden.kernel.variance",
        "top.kernel.variance",
        "side.kernel.lengthscale",
        "side.kernel.variance",
        "likelihood.variance",
    )
    heavy = anatomy_of(Heavy(x), x, y)
    assert (heavy.hidden, heavy.sampled, heavy.layers, heavy.width, heavy.free) == ((), ("f",), 1, 1, ())
    assert heavy.latents == ("gp.kernel.variance", "gp.kernel.lengthscale", "scale") and heavy.response == "y"
    assert anatomy_of(TwoSites(), x, y).functions == {"f": 1}
    assert anatomy_of(Switch(x), x, y).discrete == ("z",)
    assert not anatomy_of(Classes(x), x, (y > 0).double()).is_real
    three = anatomy_of(DeepGP(x, 3, 4), x, y)
    assert (three.layers, three.width, list(three.functions)) == (3, 4, ["h1", "h2", "y/f"])


def test_looking_leaves_random_numbers_and_parameters_alone():
    x, y = regression(12)
    model = Skip(x)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    anatomy_of(model, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["avdgp-ar1", "avdgp-ar2p"])
def test_amortised_families_follow_the_layers_whatever_the_sites_are_called(name):
    x, y = regression(20, inputs=2)
    guide = METHODS[name].inference.guide(Skip(x), x, Settings(row_inducing=6, samples=3))
    guide.initialize(x, y)
    found = {key: process.functions.sizes.num_inducing for key, process in guide.processes._modules.items()}
    assert found == {"latent": 6, "positive/f": 3, "target/f": 3}
