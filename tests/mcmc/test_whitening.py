import logging
import math
import pickle
import subprocess
import sys

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    Bernoulli,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    PosteriorDraws,
    Projection,
    inducing_inputs,
    predict,
    run_chains,
    whitened,
)
from tests.examples import OneLayer, TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def score(model, *args, **values):
    return float(poutine.trace(poutine.condition(model, values)).get_trace(*args).log_prob_sum().detach())


@pytest.mark.parametrize("make", [TwoLayers, lambda x: TwoSites()])
def test_changing_a_latent_changes_the_density_of_the_data(make):
    x, y = regression(8)
    model = make(x)
    trace = poutine.trace(model).get_trace(x, y)
    for name in trace.stochastic_nodes:
        value = trace.nodes[name]["value"]
        seen = []
        for factor in (1.0, 3.0):
            changed = poutine.trace(poutine.condition(model, {name: factor * value})).get_trace(x, y)
            changed.compute_log_prob()
            seen.append(float(changed.nodes["y"]["log_prob_sum"].detach()))
        assert abs(seen[0] - seen[1]) > 1e-3
    assert trace.stochastic_nodes


def test_whitened_and_plain_models_have_the_same_density():
    x, y = regression(8)
    model = TwoLayers(x)
    prior = poutine.trace(model).get_trace(x, y).nodes["h"]["fn"]
    eps = torch.randn(8, 2)
    plain = score(model, x, y, h=prior.unwhiten(eps))
    white = score(whitened(model), x, y, h_whitened=eps)
    assert white - plain == pytest.approx(float(prior.half_log_determinant().detach()))


def test_a_bernoulli_observation_expands_into_whitened_values():
    x, y = regression(8)
    target = (y > 0).double()
    model = OneLayer(likelihood=Bernoulli())
    trace = poutine.trace(whitened(model)).get_trace(x, target)
    assert trace.stochastic_nodes == ["y_f_whitened"]
    f = model.gp(x).unwhiten(trace.nodes["y_f_whitened"]["value"])
    expected = model.likelihood.given(f).log_prob(target)
    trace.compute_log_prob()
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected)


def test_it_remembers_its_inputs_and_refuses_others():
    x, y = regression(8)
    model = whitened(TwoLayers(x))
    model(x, y)
    model(x.clone(), y)
    for other in (x[:5], x + 1.0):
        with pytest.raises(ValueError, match=r"run at 8 inputs and is now called with others .*pyro_dgp.predict"):
            model(other)


def test_it_pickles_before_and_after_use():
    x, y = regression(8)
    model = whitened(TwoLayers(x))
    for _ in range(2):
        copied = pickle.loads(pickle.dumps(model))
        eps = torch.randn(8, 2)
        assert score(copied, x, y, h_whitened=eps) == pytest.approx(score(model, x, y, h_whitened=eps))


def test_point_estimates_are_named_aloud(caplog):
    x, _ = regression(8)
    model = OneLayer()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.gp.mean = torch.nn.Linear(1, 1)  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, logger="pyro_dgp"):
        whitened(model)
    assert "gp.mean.function.weight, gp.mean.function.bias" in caplog.text
    assert "keeps these point estimates" in caplog.text
    assert "gp.kernel.variance" in caplog.text and "likelihood.variance" in caplog.text
    assert "lengthscale" not in caplog.text


def sample(model, x, y, count, warmup=150, depth=5):
    mcmc = MCMC(NUTS(model, max_tree_depth=depth), num_samples=count, warmup_steps=warmup, disable_progbar=True)
    mcmc.run(x, y)
    return {name: values.detach() for name, values in mcmc.get_samples().items()}


@pytest.mark.slow
def test_nuts_on_one_layer_gives_the_closed_form_posterior():
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    draws = sample(whitened(model), x, y, 350, warmup=60, depth=4)
    prior = model.gp(x)
    f = prior.unwhiten(draws["f_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.2
    torch.testing.assert_close(f.std(0), sd, rtol=0.2, atol=0)
    new = torch.linspace(-1.5, 1.5, 9)[:, None]
    sampled = predict(PosteriorDraws(model, draws, (x, y)), new, num_samples=250)
    exact = predict(PosteriorDraws(OneLayer(likelihood=Gaussian(variance=0.1)), {}, (x, y)), new)
    torch.testing.assert_close(sampled.mean, exact.mean, atol=0.12, rtol=0)
    torch.testing.assert_close(sampled.variance, exact.variance, atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_nuts_integrates_a_hyperparameter_out_like_a_grid_does():
    x = torch.linspace(-1, 1, 10)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = OneLayer(likelihood=Gaussian(variance=0.05))
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.requires_grad_(False)
    draws = sample(whitened(model), x, y, 500)["gp.kernel.lengthscale"].log()
    grid = torch.linspace(-3, 3, 400)
    log_density = torch.tensor([score(model, x, y, **{"gp.kernel.lengthscale": g.exp()}) for g in grid]) + grid
    weights = torch.softmax(log_density, 0)
    mean = (weights * grid).sum()
    sd = (weights * (grid - mean).square()).sum().sqrt()
    assert abs(draws.mean() - mean) < 0.25 * sd
    assert float(draws.std()) == pytest.approx(float(sd), rel=0.25)


def test_nuts_starts_and_runs_on_two_layers_from_stock_settings_too():
    x, y = regression(10)
    model = TwoLayers(x).requires_grad_(False)
    draws = sample(whitened(model), x, y, 20, warmup=20, depth=3)
    assert draws["h_whitened"].shape == (20, 10, 2)
    prediction = predict(PosteriorDraws(model, draws, (x, y)), torch.linspace(-2, 2, 7)[:, None], num_samples=20)
    assert torch.isfinite(prediction.log_prob(torch.zeros(7))).all()
    assert prediction.component_log_prob(torch.zeros(7)).shape == (20, 7)
    few = predict(PosteriorDraws(model, draws, (x, y)), x, num_samples=5)
    assert few.component_log_prob(y).shape == (5, 10)


def test_prediction_conditions_every_layer_on_its_draw():
    x, y = regression(9)
    model = TwoLayers(x, width=1).requires_grad_(False)
    h = model.hidden(x).rsample()
    prediction = predict(PosteriorDraws(model, {"h": h[None]}, (x, y)), x)
    # At the training inputs the hidden values are the drawn ones: what is left is exact regression on them.
    k = model.top.kernel().matrix(h.unsqueeze(-3))[0]
    mean = k @ torch.linalg.solve(k + 0.04 * torch.eye(9), y)
    torch.testing.assert_close(prediction.mean, mean, atol=1e-3, rtol=1e-3)


def test_missing_draws_are_one_sentence():
    x, y = regression(6)
    model = TwoLayers(x)
    with pytest.raises(ValueError, match="hold neither 'h' nor 'h_whitened'"):
        predict(PosteriorDraws(model, {"other": torch.zeros(2, 1)}, (x, y)), x)
    assert math.isfinite(score(model, x, y, h=Projection.fit(x, 2)()(x)))
    assert pyro.settings.get("module_local_params")


def test_latents_of_new_rows_come_from_the_prior():
    from tests.examples import LatentInputs

    x, y = regression(8)
    model = LatentInputs()
    draws = {"w": torch.full((30, 8), 50.0)}
    prediction = predict(PosteriorDraws(model, draws, (x, y)), x)  # as many rows as in training, but new ones
    torch.testing.assert_close(
        prediction.mean, torch.zeros(8), atol=1e-6, rtol=0
    )  # far from the latents of the training rows


def test_a_user_s_attribute_called_model_is_left_alone():
    class Wrapper(OneLayer):
        def __init__(self):
            super().__init__()
            self.model = OneLayer(likelihood=Gaussian(variance=3.0))

    x, y = regression(8)
    wrapper = Wrapper()
    prediction = predict(PosteriorDraws(wrapper, {}, (x, y)), x)
    assert prediction.variance.max() < 0.2


def test_other_inputs_by_keyword_are_refused_too():
    x, y = regression(8)
    model = whitened(OneLayer())
    model(x=x, y=y)
    with pytest.raises(ValueError, match="now called with others"):
        model(x=x + 1, y=y)


def test_draws_that_do_not_fit_are_one_sentence():
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    draws = {"f_whitened": torch.randn(4, 6, 1)}
    assert predict(PosteriorDraws(model, draws, (x, y)), x).mean.shape == (6,)
    with pytest.raises(
        ValueError, match=r"'f_whitened' has shape \(4, 6, 1\) and the model wants \(6, 1\).*chains.flat"
    ):
        predict(PosteriorDraws(model, {"f_whitened": draws["f_whitened"][None]}, (x, y)), x)
    with pytest.raises(ValueError, match=r"'f_whitened' has shape \(6, 1\) and the model wants \(5, 1\)"):
        predict(PosteriorDraws(model, draws, (x[:5], y[:5])), x)
    with pytest.raises(ValueError, match=r"shapes \(6, 1\) and \(6, 2\)"):
        predict(PosteriorDraws(model, draws, (x, y)), torch.cat([x, x], -1))
    with pytest.raises(ValueError, match=r"as many draws of each site.*'a': 3"):
        predict(PosteriorDraws(model, draws | {"a": torch.zeros(3)}, (x, y)), x)


def test_sparse_draws_want_the_model_with_its_inducing_inputs():
    x, y = regression(8)
    model = TwoLayers(x).requires_grad_(False)
    sparse = whitened(model, inducing_inputs(model, x, y, num_inducing=4))
    draws = run_chains(EllipticalSlice(sparse), (x, y), num_samples=2, warmup_steps=1, num_chains=1).flat
    assert predict(PosteriorDraws(sparse, draws, (x, y)), x).mean.shape == (8,)
    with pytest.raises(ValueError, match="h_inducing_whitened.*give the whitened"):
        predict(PosteriorDraws(model, draws, (x, y)), x)


def test_point_estimates_are_named_once_for_a_model(caplog):
    x, _ = regression(5)
    model = TwoLayers(x)
    for _ in range(3):
        whitened(model)
    assert caplog.text.count("keeps these point estimates") == 1
    model.hidden.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    whitened(model)
    assert caplog.text.count("keeps these point estimates") == 2


def test_a_sampled_tensor_is_no_starting_value_of_a_kernel():
    """It would be read once, whatever is sampled later."""
    for make in ("RBF(lengthscale=tensor)", "Gaussian(variance=tensor)"):
        program = f"import torch; from pyro_dgp import RBF, Gaussian; tensor = torch.tensor(1.0); {make}"
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True
        )  # without the tests' type checks
        assert "TypeError: a parameter starts at a number, not at a tensor: for a prior assign PyroSample" in run.stderr


class Named(PyroModule):
    """A latent offset of a name of the user's, beside function values that are sampled."""

    def __init__(self, name):
        super().__init__()
        self.site, self.gp, self.likelihood = name, GaussianProcess(RBF()), Bernoulli()

    def forward(self, x, y=None):
        offset = pyro.sample(self.site, dist.Normal(3.0, 1.0).expand([1]).to_event(1))
        return pyro.sample("y", self.likelihood(self.gp(x + offset)), obs=y)


def test_names_of_the_library_s_own_sites_are_refused():
    """A site whose name ended in _whitened had a second, standard normal, prior; one called y_f had the factors of another point."""
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.tensor([0.0, 1.0, 1.0, 0.0])
    for name in (
        "offset_whitened",
        "y_f",
        "offset_inducing_whitened",
    ):  # also beside function values that are integrated out
        with pytest.raises(
            ValueError, match=f"the latent site '{name}' has a name that samplers give to function values"
        ):
            run_chains(EllipticalSlice(Named(name)), (x, y), num_samples=1, warmup_steps=1, num_chains=1, processes=1)
    for name in ("offset", "whitened", "f"):
        chains = run_chains(
            EllipticalSlice(Named(name)), (x, y), num_samples=1, warmup_steps=1, num_chains=1, processes=1
        )
        assert set(chains.draws) == {name, "y_f_whitened"}
