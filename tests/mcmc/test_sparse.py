from functools import partial

import pytest
import torch
from pyro import poutine

from pyro_dgp import (
    RBF,
    Bernoulli,
    EllipticalSlice,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern32,
    Matern52,
    Orthogonal,
    PosteriorDraws,
    WhitenedNUTS,
    bases_of,
    draw_functions,
    inducing_inputs,
    predict,
    run_chains,
    whitened,
)
from pyro_dgp.mcmc.chain_identity import identity
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.sparse import sparse_values
from tests.examples import OneLayer, Recorded, TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def test_inducing_inputs_are_those_of_a_guide():
    x, y = regression(20)
    inputs = inducing_inputs(TwoLayers(x), x, y, num_inducing=6)
    assert {name: tuple(z.shape) for name, z in inputs.items()} == {"h": (6, 1), "y/f": (6, 2)}
    assert not any(z.requires_grad for z in inputs.values())


@pytest.mark.parametrize("make", [lambda: None, Bernoulli])
def test_the_density_without_traces_is_that_of_the_reparameterised_model(make):
    x, y = regression(9)
    likelihood = make()
    y = y if likelihood is None else (y > 0).to(y)
    model = TwoLayers(x, likelihood=likelihood).requires_grad_(False)
    sparse = whitened(model, inducing_inputs(model, x, y, num_inducing=4))
    density = WhitenedDensity(sparse, (x, y), {})
    names = {"h_inducing_whitened": (4, 2), "h_whitened": (9, 2), "y_f_inducing_whitened": (4, 1)}
    assert {k: tuple(v.shape) for k, v in density.start.items()} == names | (
        {} if likelihood is None else {"y_f_whitened": (9, 1)}
    )
    start = density.unconstrained_start()
    trace = poutine.trace(poutine.condition(sparse, start)).get_trace(x, y)
    trace.compute_log_prob()
    expected = float(trace.nodes["y"]["log_prob_sum"])
    assert density.evaluate(start).log_likelihood == pytest.approx(expected)
    half_squares = sum(0.5 * float(v.square().sum()) for v in start.values())
    assert float(density.potential(start)) == pytest.approx(half_squares - expected)


def test_with_inducing_inputs_at_the_data_it_is_the_exact_density():
    """The rest of the function values has no variance then, and whitened inducing variables are whitened values."""
    x, y = regression(9)
    model = TwoLayers(x).requires_grad_(False)
    exact = WhitenedDensity(whitened(model), (x, y), {})
    h = model.hidden(x).unwhiten(exact.start["h_whitened"])
    sparse = WhitenedDensity(whitened(model, {"h": x}), (x, y), {})
    values = {"h_inducing_whitened": exact.start["h_whitened"], "h_whitened": torch.zeros(9, 2)}
    assert sparse.evaluate(values).log_likelihood == pytest.approx(exact.evaluate(exact.start).log_likelihood, rel=1e-4)
    predictions = [  # at the data, where the hidden values of a draw are what they are
        predict(PosteriorDraws(whitened(model, {"h": x}), {k: v[None] for k, v in values.items()}, (x, y)), x),
        predict(PosteriorDraws(model, {"h": h[None]}, (x, y)), x),
    ]
    torch.testing.assert_close(predictions[0].mean, predictions[1].mean, rtol=1e-3, atol=1e-3)


def test_function_values_given_inducing_variables_have_the_prior_s_variance():
    """Over 20,000 outputs, far from the inducing inputs and near them; close ones are nearly told by them."""
    gp = GaussianProcess(RBF(lengthscale=0.7, variance=2.0), num_outputs=20_000)
    x = torch.tensor([[0.0], [0.5], [5.0]])
    inputs = torch.tensor([[-0.1], [0.4]])
    with torch.no_grad():
        values = sparse_values(gp(x), inputs, torch.randn(2, 20_000), torch.randn(3, 20_000))
        told = sparse_values(gp(x), inputs, torch.randn(2, 20_000), torch.zeros(3, 20_000))
    torch.testing.assert_close(values.var(-1), torch.full((3,), 2.0), rtol=0.05, atol=0)
    assert told[:2].var(-1).min() > 1.8 and told[2].var() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [partial(WhitenedNUTS, max_tree_depth=4), EllipticalSlice])
def test_one_layer_with_inducing_inputs_at_the_data_has_the_closed_form_posterior(kernel):
    x = torch.linspace(-1, 1, 6)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = OneLayer(likelihood=Gaussian(variance=0.1)).requires_grad_(False)
    sparse = whitened(model, {"y/f": x})
    result = run_chains(kernel(sparse, density=Recorded), (x, y), num_samples=400, warmup_steps=50, num_chains=1)
    assert list(result.draws) == ["y_f_inducing_whitened"]
    prior = model.gp(x)
    f = prior.unwhiten(result.flat["y_f_inducing_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.25
    torch.testing.assert_close(f.std(0), sd, rtol=0.15, atol=0)
    new = torch.linspace(-1.5, 1.5, 9)[:, None]
    sampled = predict(PosteriorDraws(sparse, result.flat, (x, y)), new, num_samples=200)
    exact = predict(PosteriorDraws(model, {}, (x, y)), new)
    torch.testing.assert_close(sampled.mean, exact.mean, atol=0.2, rtol=0)
    torch.testing.assert_close(sampled.variance, exact.variance, atol=0.05, rtol=0.2)


def test_two_layers_predict_and_say_what_is_missing():
    x, y = regression(12)
    model = TwoLayers(x).requires_grad_(False)
    sparse = whitened(model, inducing_inputs(model, x, y, num_inducing=4))
    result = run_chains(EllipticalSlice(sparse), (x, y), num_samples=8, warmup_steps=2, num_chains=1)
    prediction = predict(PosteriorDraws(sparse, result.flat, (x, y)), x[:4])
    assert torch.isfinite(prediction.log_prob(y[:4])).all()
    with pytest.raises(ValueError, match="do not hold 'h_inducing_whitened'"):
        predict(PosteriorDraws(sparse, {"h": torch.zeros(1, 12, 2)}, (x, y)), x)
    with pytest.raises(ValueError, match=r"inducing inputs of 'hidden' have shape \(M, 1\), got \(4, 3\)"):
        run_chains(
            EllipticalSlice(whitened(model, {"h": torch.zeros(4, 3)})),
            (x, y),
            num_samples=1,
            warmup_steps=0,
            num_chains=1,
        )


def test_two_sites_are_sparse_too():
    x, y = regression(8)
    model = TwoSites().requires_grad_(False)
    result = run_chains(
        EllipticalSlice(whitened(model, {"f": x[:3]})), (x, y), num_samples=4, warmup_steps=2, num_chains=1
    )
    assert {k: tuple(v.shape) for k, v in result.draws.items()} == {
        "f_inducing_whitened": (1, 4, 3, 1),
        "f_whitened": (1, 4, 8, 1),
    }


def test_bases_of_inducing_points_have_the_density_of_inducing_inputs():
    x, y = regression(12)
    model = TwoLayers(x).requires_grad_(False)
    torch.manual_seed(0)
    inputs = inducing_inputs(model, x, y, num_inducing=4)
    torch.manual_seed(0)
    bases = bases_of(model, InducingPoints(4), x, y)
    assert all(not list(basis.parameters()) for basis in bases.values())
    by_inputs, by_bases = (WhitenedDensity(whitened(model, each), (x, y), {}) for each in (inputs, bases))
    values = {name: torch.randn_like(value) for name, value in by_inputs.start.items()}
    assert by_bases.start.keys() == by_inputs.start.keys()
    found, expected = by_bases.evaluate(values), by_inputs.evaluate(values)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-9)
    one = {name: value[None] for name, value in values.items()}
    torch.manual_seed(1)
    told = predict(PosteriorDraws(whitened(model, inputs), one, (x, y)), x + 0.1).mean
    torch.manual_seed(1)
    torch.testing.assert_close(predict(PosteriorDraws(whitened(model, bases), one, (x, y)), x + 0.1).mean, told)
    nuts = [WhitenedNUTS(whitened(model, each)) for each in (bases, {**bases, "h": inputs["h"] + 1}, bases)]
    first, other, again = (identity(kernel, (x, y), 5) for kernel in nuts)
    assert first == again != other


@pytest.mark.slow
def test_sampled_fourier_features_have_the_closed_form_posterior():
    """With many features on a wide interval little of the prior is left."""
    x = torch.linspace(-1, 1, 6)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = OneLayer(Matern52(), likelihood=Gaussian(variance=0.1)).requires_grad_(False)
    sparse = whitened(model, bases_of(model, FourierFeatures(12, margin=1.0), x, y))
    kernel = WhitenedNUTS(sparse, max_tree_depth=4, density=Recorded)
    result = run_chains(kernel, (x, y), num_samples=300, warmup_steps=50, num_chains=1)
    new = torch.linspace(-1.5, 1.5, 9)[:, None]
    sampled = predict(PosteriorDraws(sparse, result.flat, (x, y)), new, num_samples=200)
    exact = predict(PosteriorDraws(model, {}, (x, y)), new)
    torch.testing.assert_close(sampled.mean, exact.mean, atol=0.15, rtol=0)
    torch.testing.assert_close(sampled.variance, exact.variance, atol=0.05, rtol=0.2)
    drawn = draw_functions(PosteriorDraws(sparse, result.flat, (x, y)), 250, seed=0)(new)[..., 0]
    torch.testing.assert_close(drawn.mean(0), exact.mean, atol=0.25, rtol=0)


@pytest.mark.parametrize(
    "family", [Orthogonal(InducingPoints(3), InducingPoints(2)), Orthogonal(FourierFeatures(3), InducingPoints(2))]
)
def test_orthogonal_bases_are_sampled_and_predict(family):
    x, y = regression(12)
    model = OneLayer(Matern32()).requires_grad_(False)
    sparse = whitened(model, bases_of(model, family, x, y))
    chains = run_chains(WhitenedNUTS(sparse, max_tree_depth=3), (x, y), num_samples=3, warmup_steps=3, num_chains=1)
    draws = PosteriorDraws(sparse, chains.flat, (x, y))
    assert predict(draws, x[:4]).mean.shape == (4,)
    assert predict(draws, x[:4]).variance.min() > 0
