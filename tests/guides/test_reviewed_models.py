"""Models in which a shape, a latent site or an argument stands where few users put it."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoNormalMessenger
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    PosteriorDraws,
    Variational,
    WhitenedNUTS,
    draw_functions,
    fit,
    predict,
)
from tests.examples import OneLayer, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("kind", [OneLayer, TwoSites])
@pytest.mark.parametrize("owner", ["lengthscale", "variance"])
def test_a_prior_with_more_values_than_the_parameter_is_refused(kind, owner):
    """Each target would count once for each value."""
    x, y = regression(6, 2)
    model = kind()
    setattr(model.gp.kernel, owner, PyroSample(dist.LogNormal(0.0, 0.5).expand([2]).to_event(1)))
    with pytest.raises(ValueError, match="more values than its kernel, mean or likelihood has"):
        Variational(model, InducingPoints(6)).initialize(x, y)
    with pytest.raises(ValueError, match="more values than its kernel, mean or likelihood has"):
        MCMC(WhitenedNUTS(model), 2, warmup_steps=1, disable_progbar=True).run(x, y)


class LatentAbove(PyroModule):
    """A latent site that depends on a hidden layer, beside one that does not."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(RBF(), num_outputs=2), GaussianProcess(RBF())
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        h = pyro.sample("h", self.hidden(x * a.exp()[..., None, None]))
        b = pyro.sample("b", dist.Normal(h[..., 0, 0], 1.0))
        return pyro.sample("y", self.likelihood(self.top(h + b[..., None, None])), obs=y)


def test_a_latent_site_above_a_hidden_layer_has_a_posterior():
    x, y = regression(6)
    model, losses = LatentAbove(), []
    for latents in (None, AutoNormalMessenger(model)):
        torch.manual_seed(0)
        guide = Variational(model, InducingPoints(5, "diagonal"), MonteCarlo(400), latents=latents)
        guide.initialize(x, y)
        losses.append(float(ELBO()(model, guide)(x, y).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


class NeedsTargets(OneLayer):
    def forward(self, x, y):
        return super().forward(x, y)


def test_exact_regression_trains_a_model_that_requires_targets():
    x, y = regression(8)
    losses = fit(MarginalLikelihood(NeedsTargets()), x, y, steps=3, batch_size=8).losses
    torch.manual_seed(0)
    assert losses == pytest.approx(fit(MarginalLikelihood(OneLayer()), x, y, steps=3, batch_size=8).losses)


def test_predictions_follow_a_model_that_changes():
    x, y = regression(8)
    model = OneLayer()
    posterior = PosteriorDraws(model, {}, (x, y))
    before = predict(posterior, x + 0.3).mean
    model.gp.kernel = Matern52(lengthscale=0.7)
    after = predict(posterior, x + 0.3).mean
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(after, predict(PosteriorDraws(model, {}, (x, y)), x + 0.3).mean)


def test_functions_of_groups_and_a_noise_given_by_place_are_refused(unannotated):
    x, y = regression(5)
    exact = PosteriorDraws(OneLayer(), {}, (x.expand(3, 5, 1), y.expand(3, 5)))
    with pytest.raises(ValueError, match="one function for each of"):
        draw_functions(exact, 3)(x)
    with pytest.raises(TypeError, match="give the noise by name"):
        Gaussian(0.1)
