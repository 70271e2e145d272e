"""Row arguments that training gave a model and a prediction leaves out."""

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    RBF,
    GaussianProcess,
    InducingPoints,
    PosteriorDraws,
    Variational,
    WhitenedNUTS,
    predict,
    run_chains,
)

N = 8


class Counts(PyroModule):
    """Counts with an exposure, at a plain site, and a second target beside the first."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None, exposure=None, other=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        rate = f.exp() if exposure is None else f.exp() * exposure
        pyro.sample("other", dist.Normal(f, 1.0).to_event(1), obs=None if other is None else other[:, 0])
        return pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)


def data():
    return torch.linspace(-1, 1, N)[:, None], torch.ones(N), torch.full((N,), 3.0), torch.zeros(N, 2)


def of_a_guide():
    x, y, exposure, other = data()
    guide = Variational(Counts(), InducingPoints(4))
    guide.initialize(x, y, exposure, other=other)
    return guide


def of_a_loaded_guide():
    guide = Variational(Counts(), InducingPoints(4))
    guide.load_state_dict(of_a_guide().state_dict())
    return guide


def of_a_sampler():
    return run_chains(WhitenedNUTS(Counts()), data(), num_samples=2, warmup_steps=1, num_chains=1)


def of_draws():
    chains = of_a_sampler()
    x, y, exposure, other = data()
    return PosteriorDraws(chains.model, chains.flat, (x, y), kwargs={"exposure": exposure, "other": other})


@pytest.mark.parametrize("fit", [of_a_guide, of_a_loaded_guide, of_a_sampler, of_draws])
def test_a_prediction_without_an_exposure_warns(fit):
    fitted, (x, _, exposure, _) = fit(), data()
    with pytest.warns(
        UserWarning, match=r"gave the model exposure= for each row, .*: pass predict\(fit, x, exposure="
    ) as said:
        predict(fitted, x, site="y")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default, tripled = (predict(fitted, x, 4, site="y", exposure=each).mean for each in (None, exposure))
    assert default.shape == tripled.shape == (N,)
