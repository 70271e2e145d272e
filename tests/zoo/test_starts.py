"""What is done to the model of a named method before it is fitted."""

import pytest
import torch

from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.zoo import starts
from pyro_dgp.zoo.recipes import shallow
from pyro_dgp.zoo.settings import Settings

SETTINGS = Settings(epochs=75, inducing=20)
NOISE = 0.5


def planted():
    x = torch.rand(200, 2, dtype=torch.float64) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + NOISE * torch.randn(200, dtype=torch.float64)


def test_the_hyperparameters_of_one_layer_begin_where_a_sparse_gp_ends():
    x, y = planted()
    model = shallow(x, SETTINGS)
    before = model.likelihood.variance.item()
    starts.sparse_gp_first(model, x, y, SETTINGS)
    noise, lengthscales = model.likelihood.variance.item(), model.top.kernel.lengthscale.reshape(-1)
    assert before < 0.11 and noise == pytest.approx(NOISE**2, rel=0.3)
    assert lengthscales[1] > 2 * lengthscales[0]


def test_the_start_leaves_the_course_of_random_numbers_alone():
    x, y = planted()
    model = shallow(x, SETTINGS)
    state = torch.random.get_rng_state()
    starts.sparse_gp_first(model, x, y, SETTINGS)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_whose_sparse_gp_cannot_be_factorised_stays_as_it_is(monkeypatch):
    def breaks(objective, *_, **__):
        torch.nn.init.zeros_(next(iter(objective.model.parameters())))
        raise NotPositiveDefiniteError("planted")

    monkeypatch.setattr(starts, "fit", breaks)
    x, y = planted()
    model: DeepGP = shallow(x, SETTINGS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    starts.sparse_gp_first(model, x, y, SETTINGS)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
