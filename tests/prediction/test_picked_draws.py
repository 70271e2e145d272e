"""Draws of mixtures come from the picked components, in little memory."""

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_dgp import Mixture
from pyro_dgp.internal.views import Joined
from pyro_dgp.prediction import picked_draws as module
from pyro_dgp.prediction.picked_draws import picked_draws
from pyro_dgp.prediction.point_values import PointValues

MEANS = torch.arange(12.0).reshape(4, 3) * 10


class Own(dist.Normal):
    """A user's distribution, which cannot be made of its parameters again."""

    def sample(self, sample_shape=()):
        Own.most = max(Own.most, torch.Size(sample_shape).numel() * self.batch_shape.numel())
        return super().sample(sample_shape)


Own.most = 0


def joint(means):
    return dist.MultivariateNormal(means.unsqueeze(-1) + torch.zeros(2), scale_tril=1e-3 * torch.eye(2))


@pytest.mark.parametrize(
    "components",
    [
        dist.Normal(MEANS, 1e-3),
        dist.Normal(MEANS.unsqueeze(-1).expand(4, 3, 2), 1e-3),
        PointValues(MEANS, "f"),
        Own(MEANS, 1e-3),
        joint(MEANS),
        Joined([Own(MEANS[:1], 1e-3), Own(MEANS[1:], 1e-3)], 0),
    ],
    ids=["elementwise", "outputs", "points", "own", "joint", "views"],
)
def test_each_row_has_the_component_that_was_picked(components, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 25)  # two numbers at a time
    index = torch.tensor([[0, 1, 2], [3, 3, 0], [2, 0, 1], [1, 2, 3], [0, 0, 0]])
    wanted = torch.stack([MEANS[row, torch.arange(3)] for row in index])
    for reparameterised in (False, True):
        drawn = picked_draws(components, index, reparameterised=reparameterised)
        extra = drawn.dim() - 2
        assert drawn.shape[:2] == (5, 3)
        assert (drawn - wanted.reshape(5, 3, *[1] * extra)).abs().max() < 0.02


def test_components_that_are_all_drawn_are_drawn_some_numbers_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 50)
    monkeypatch.setattr(Own, "most", 0)
    draws = Mixture(Own(MEANS, 1e-3), torch.full((4,), 0.25).log()).sample(200)
    assert Own.most == 48 and draws.shape == (200, 3)


@pytest.mark.parametrize("kind", [dist.Normal, Own])
def test_draws_have_the_weights_of_the_components(kind):
    torch.manual_seed(0)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    draws = Mixture(kind(MEANS, 1e-3), weights.log()).sample(20_000)
    shares = torch.stack([(draws - row).abs().lt(1).to(draws).mean(0) for row in MEANS])
    assert (shares - weights.unsqueeze(-1)).abs().max() < 5 * math.sqrt(0.24 / 20_000)


def test_draws_have_gradients_in_the_picked_components_alone():
    means = MEANS.clone().requires_grad_()
    index = torch.tensor([[0, 1, 2], [0, 1, 3]])
    picked_draws(dist.Normal(means, 1.0), index, reparameterised=True).sum().backward()
    assert means.grad is not None
    assert means.grad.tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 1]]
