"""One GaussianProcess that a model calls several times: one function for each call, which a warning says once."""

import re
import warnings

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingPoints,
    MarginalLikelihood,
    PosteriorDraws,
    Variational,
    fit,
    predict,
    whitened,
)
from tests.examples import OneLayer, TwoSites, regression

DIFFERENT = (
    "the sites 'y/f' and 'z/f' sample one GaussianProcess at different inputs, and each is a function of its own"
)
TWICE = (
    "the site 'y' is given one GaussianProcess twice, as f and as log_noise, which makes two independent functions with the hyperparameters in common: "
    "make a second GaussianProcess, as in likelihood(gp(x), other_gp(x))"
)


class Shifted(OneLayer):
    """One process at x and at x + 1."""

    def forward(self, x, y=None, z=None):
        super().forward(x, y)
        return pyro.sample("z", self.likelihood(self.gp(x + 1)), obs=z)


class Twice(PyroModule):
    """Mean and log noise from one process, or from two."""

    def __init__(self, second=False):
        super().__init__()
        self.gp = GaussianProcess(RBF())
        self.noise_gp = GaussianProcess(RBF()) if second else self.gp
        self.likelihood = HeteroscedasticGaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x), self.noise_gp(x)), obs=y)


def guided(model, x, y):
    guide = Variational(model, InducingPoints(4))
    guide.initialize(x, y)
    return guide


def warned(use):
    """Return the warnings of repeated processes that a call makes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    return [str(each.message) for each in caught if "one GaussianProcess" in str(each.message)]


def test_exact_regression_and_exact_predictions_warn_once_of_one_process_at_two_inputs(local):
    x, y = regression(12)
    loss = MarginalLikelihood(Shifted())
    (message,) = warned(lambda: [loss(x, y, y + 1) for _ in range(3)])
    assert message.startswith(DIFFERENT)
    posterior = PosteriorDraws(loss.model, {}, (x, y, y + 1))
    again = warned(lambda: [predict(posterior, x[:5], site=site) for site in ("y", "z", "y")])
    assert again == [message]


def test_draws_of_a_whitened_model_leave_the_warning_to_the_model(local):
    x, y = regression(12)
    model = whitened(Shifted())
    assert len(warned(lambda: model(x, y, y))) == 1
    assert not warned(lambda: predict(PosteriorDraws(model, {}, (x, y, y)), x[:5], site="y"))


def test_one_process_twice_in_one_observation_warns(local):
    x, y = regression(12)
    for use in (lambda: guided(Twice(), x, y), lambda: whitened(Twice())(x, y)):
        (message,) = warned(use)
        assert re.fullmatch(re.escape(TWICE), message)


class Shared(OneLayer):
    """One call of a process under two likelihoods."""

    def forward(self, x, y=None, z=None):
        f = self.gp(x)
        pyro.sample("z", Gaussian()(f), obs=x[:, 0] if z is None else z)
        return pyro.sample("y", self.likelihood(f), obs=y)


def test_one_call_under_two_likelihoods_warns(local):
    x, y = regression(12)
    exact = PosteriorDraws(Shared(), {}, (x, y))
    uses = [
        lambda: guided(Shared(), x, y),
        lambda: whitened(Shared())(x, y),
        lambda: MarginalLikelihood(Shared())(x, y),
        lambda: predict(exact, x, site="y"),
    ]
    for use in uses:
        (message,) = warned(use)
        assert message.startswith(
            "the sites 'z/f' and 'y/f' are given one GaussianProcess by one call, f = gp(x), and each makes a function of its own"
        )


class Layers(OneLayer):
    """Two layers, and a second site of the top process at the same inputs: two functions, as it is written."""

    def __init__(self):
        super().__init__()
        self.hidden = GaussianProcess(RBF())

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        pyro.sample("z", Gaussian()(self.gp(h)), obs=x[:, 0] if self.training else None)
        return super().forward(h, y)


@pytest.mark.parametrize("make", [OneLayer, TwoSites, lambda: Twice(second=True), Layers])
def test_sound_models_do_not_warn_in_passes_chunks_and_predictions(make, local):
    x, y = regression(12)

    def use():
        model = make()
        guide = guided(model, x, y)
        fit(ELBO(num_data=12)(model, guide), x, y, steps=2, batch_size=6)
        predict(guide, x, site="y").log_prob(y)
        whitened(make())(x, y)

    assert not warned(use)


def test_sound_exact_models_do_not_warn(local):
    x, y = regression(12)
    model = OneLayer()

    def use():
        fit(MarginalLikelihood(model), x, y, steps=2)
        predict(PosteriorDraws(model, {}, (x, y)), torch.cat([x, x]))

    assert not warned(use)
