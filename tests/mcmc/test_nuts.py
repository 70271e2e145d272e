import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import Gaussian, WhitenedNUTS, run_chains, whitened
from pyro_dgp.mcmc.density import WhitenedDensity
from tests.examples import OneLayer, TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def with_noise_prior(x):
    model = TwoLayers(x)
    model.likelihood.variance = PyroSample(dist.LogNormal(-2.0, 0.5))
    return model.requires_grad_(False)


def test_figures_of_a_draw_belong_to_it():
    x, y = regression(9)
    model = with_noise_prior(x)
    kernel = WhitenedNUTS(model, max_tree_depth=4, target_accept_prob=0.9)
    result = run_chains(kernel, (x, y), num_samples=20, warmup_steps=20, num_chains=1)
    density = WhitenedDensity(whitened(model), (x, y), {})
    for index in (0, 19):
        own = {name: values[0, index] for name, values in result.draws.items()}
        params = {k: density.transforms[k].inv(v) if k in density.transforms else v for k, v in own.items()}
        assert result.stats["lp"][0, index] == pytest.approx(-float(density.potential(params)), rel=1e-9)
    stats = {name: values[0] for name, values in result.stats.items()}
    assert set(stats) == {"lp", "energy", "n_steps", "tree_depth", "acceptance_rate", "step_size", "diverging"}
    assert (stats["energy"][1:] > -stats["lp"][:-1]).all()  # kinetic energy is positive
    assert ((2 ** (stats["tree_depth"] - 1) <= stats["n_steps"]) & (stats["n_steps"] < 2 ** stats["tree_depth"])).all()
    assert stats["tree_depth"].max() <= 4 and len(set(stats["step_size"])) == 1 and not stats["diverging"].any()
    assert 0.3 < stats["acceptance_rate"].mean() <= 1 and stats["acceptance_rate"].std() > 0


def test_a_divergence_is_seen_in_the_draw_that_has_it():
    x, y = regression(9)
    kernel = WhitenedNUTS(with_noise_prior(x), max_tree_depth=3, step_size=50.0)
    result = run_chains(kernel, (x, y), num_samples=3, warmup_steps=0, num_chains=1)
    assert result.stats["diverging"].tolist() == [[True, True, True]] and result.diagnostics[0]["divergences"] == [
        0,
        1,
        2,
    ]


def test_one_layer_has_the_closed_form_posterior():
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    result = run_chains(WhitenedNUTS(model), (x, y), num_samples=400, warmup_steps=100, num_chains=1)
    prior = model.gp(x)
    f = prior.unwhiten(result.flat["f_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.25
    torch.testing.assert_close(f.std(0), sd, rtol=0.15, atol=0)


def test_a_start_that_no_prior_draw_gives_is_one_sentence():
    x, y = regression(6)
    model = with_noise_prior(x)
    with pytest.raises(
        ValueError, match="none of 100 prior draws has a finite posterior density: the observations of 'y' hold NaN"
    ):
        run_chains(WhitenedNUTS(model), (x, torch.full_like(y, math.inf)), num_samples=1, warmup_steps=0, num_chains=1)


def test_one_layer_without_priors_is_named():
    x, y = regression(6)
    with pyro.settings.context(module_local_params=True), pytest.raises(ValueError, match="nothing to sample"):
        WhitenedNUTS(OneLayer()).setup(1, x, y)
