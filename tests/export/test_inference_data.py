import math
import warnings

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS

from pyro_dgp import (
    RBF,
    Bernoulli,
    EllipticalSlice,
    Gaussian,
    InducingPoints,
    Mixture,
    MonteCarlo,
    PosteriorDraws,
    Prediction,
    StudentT,
    Variational,
    White,
    WhitenedNUTS,
    inducing_inputs,
    predict,
    run_chains,
    whitened,
)
from pyro_dgp.export.arviz_groups import from_groups, import_arviz
from pyro_dgp.export.inference_data import to_arviz
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.sparse import sparse_moments, sparse_values
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.priors import with_priors
from tests.examples import OneLayer, TwoLayers, TwoSites, posterior, regression

az = import_arviz()


def prediction(outputs=None):
    shape = (3, 5) if outputs is None else (3, 5, outputs)
    components = dist.Normal(torch.randn(shape), 1.0)
    event = torch.Size() if outputs is None else torch.Size([outputs])
    return Prediction(lambda rows: Mixture(components, torch.full((3,), 1 / 3).log()), 5, event)


@pytest.mark.parametrize("outputs", [None, 2])
def test_groups_and_dimensions(outputs):
    y = torch.randn(5) if outputs is None else torch.randn(5, outputs)
    p = prediction(outputs)
    x, rows = torch.randn(5, 2), torch.tensor([3, 5, 7, 9, 11])
    data = to_arviz(p, x, y, rows=rows, new=(prediction(outputs), x + 1, y + 1), num_samples=11)
    assert data.log_likelihood["y"].shape == (1, 12, 5)  # each of three components as often as the others
    found = torch.as_tensor(data.log_likelihood["y"].values[0])
    np.testing.assert_allclose(found[:3], p.component_log_prob(y))
    np.testing.assert_allclose(found.logsumexp(0) - math.log(12), p.log_prob(y), rtol=1e-6)
    outputs = [] if outputs is None else ["output"]
    for group, dims in (
        ("posterior_predictive", ["chain", "draw", "row", *outputs]),
        ("observed_data", ["row", *outputs]),
        ("predictions", ["chain", "draw", "new_row", *outputs]),
        ("predictions_constant_data", ["new_row", *outputs]),
    ):
        assert list(data[group]["y"].dims) == dims
    assert data.constant_data["x"].dims == ("row", "input")
    assert data.predictions_constant_data["x"].dims == ("new_row", "input")
    assert data.observed_data["row"].values.tolist() == rows.tolist()
    assert data.predictions["y"].shape[1] == 11 and data.posterior_predictive["y"].shape[1] == 12
    np.testing.assert_allclose(data.predictions_constant_data["x"].values, x + 1)


@pytest.mark.slow
def test_log_likelihoods_are_those_of_the_functions_beside_them_and_those_have_their_posterior(local):
    """One GP with Gaussian noise, integrated out: f has the closed form posterior, log_likelihood is log p(y | f)."""
    x, y = regression(6)
    model = OneLayer(likelihood=Gaussian(variance=0.2))
    model.requires_grad_(False)
    p = predict(PosteriorDraws(model, {"unused": torch.zeros(4000)}, (x, y)), x, num_samples=4000)
    data = to_arviz(p, x, y)
    f = torch.as_tensor(data.posterior["f"].values)[0, ..., 0]
    assert f.shape == (4000, 6)
    mean, sd = posterior(model.gp(x), y, 0.2)
    torch.testing.assert_close(f.mean(0), mean, atol=0.05, rtol=0)
    torch.testing.assert_close(f.std(0), sd, rtol=0.06, atol=0)
    replicates = torch.as_tensor(data.posterior_predictive["y"].values)[0]
    assert float((replicates - f).var()) == pytest.approx(0.2, rel=0.05)
    expected = dist.Normal(f, math.sqrt(0.2)).log_prob(y)
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], expected)


@pytest.mark.parametrize("likelihood", [None, Bernoulli()])
def test_a_guide_s_functions_have_the_moments_of_its_components(likelihood):
    x, y = regression(8)
    y = y if likelihood is None else (y > 0).to(y)
    guide = Variational(TwoLayers(x, likelihood=likelihood), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    p = predict(guide, x, num_samples=3000)
    moments = p.functions().components
    assert moments.mean.shape == (3000, 8, 1)
    data = to_arviz(p, x, y)
    f = torch.as_tensor(data.posterior["f"].values)[0]
    error = (f - moments.mean) / moments.variance.sqrt()
    assert float(error.mean()) == pytest.approx(0.0, abs=0.03) and float(error.std()) == pytest.approx(1.0, abs=0.03)
    given = guide.model.likelihood.given(f).base_dist.log_prob(y)
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], given.detach(), rtol=1e-6)


def test_one_component_is_drawn_from_as_often_as_asked(local):
    """A shallow guide has one normal component: its draws of f have that component's moments."""
    x, y = regression(6)
    guide = Variational(OneLayer(), InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    p = predict(guide, x)
    f = torch.as_tensor(to_arviz(p, x, y, num_samples=3000).posterior["f"].values)[0]
    assert f.shape == (3000, 6, 1)
    moments = p.functions().components
    torch.testing.assert_close(f.mean(0), moments.mean[0], atol=0.08, rtol=0)
    torch.testing.assert_close(f.std(0), moments.stddev[0], rtol=0.06, atol=0)


def test_functions_that_are_sampled_sites_are_refused_with_a_word():
    with pytest.raises(ValueError, match="is given sampled values"):
        prediction().functions()


def test_it_agrees_with_from_pyro_where_that_exists(local):
    if not hasattr(az, "from_pyro"):
        assert int(az.__version__.split(".")[0]) >= 1
        return
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    mcmc = MCMC(NUTS(whitened(model), max_tree_depth=3), num_samples=10, warmup_steps=5, disable_progbar=True)
    mcmc.run(x, y)
    theirs = az.from_pyro(mcmc, log_likelihood=False)
    ours = from_groups({"posterior": {k: v[None].numpy() for k, v in mcmc.get_samples().items()}})
    np.testing.assert_allclose(ours.posterior["f_whitened"].values, theirs.posterior["f_whitened"].values)


def test_what_arviz_offers_works_on_a_sampled_deep_gp(local, tmp_path):
    """Saved, loaded, summarised, drawn, and PSIS-LOO close to leaving rows out by the closed form where there is one."""
    x, y = regression(12)
    model = TwoLayers(x).requires_grad_(False)
    result = run_chains(WhitenedNUTS(model, max_tree_depth=3), (x, y), num_samples=60, warmup_steps=30, num_chains=2)
    p = predict(PosteriorDraws(model, result.flat, (x, y)), x, num_samples=120)
    data = to_arviz(p, x, y, draws=result.draws, sample_stats=result.stats, new=(p, x, y))
    data.to_netcdf(str(tmp_path / "a.nc"))
    loaded = az.from_netcdf(str(tmp_path / "a.nc"))
    assert loaded.posterior["h_whitened"].shape == (2, 60, 12, 2)
    assert loaded.log_likelihood["y"].shape[:2] == (2, 60) and np.isfinite(loaded.posterior["f"].values).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert {"mean", "r_hat", "ess_bulk"} <= set(az.summary(loaded, var_names=["h_whitened"]).columns)
        loo = az.loo(loaded, pointwise=True)
        assert loo.loo_i.shape == (12,) and np.isfinite(loo.elpd_loo)
        for plot in ("plot_trace", "plot_ppc", "plot_loo_pit", "plot_energy", "plot_rank"):
            if hasattr(az, plot):
                arguments = {"y": "y"} if plot == "plot_loo_pit" else {}
                getattr(az, plot)(loaded, **arguments)


def test_an_object_of_some_of_the_draws_has_those_in_every_group(local):
    """Function values are those of the draw with the same label, and nothing is filled up with NaN."""
    x, y = regression(6)
    model = with_priors(DeepGP(x, 1, 1))
    result = run_chains(EllipticalSlice(model), (x, y), num_samples=20, warmup_steps=5, num_chains=2, processes=1)

    def made(num_draws):
        p = predict(PosteriorDraws(model, result.flat, (x, y)), x, num_samples=num_draws)
        torch.manual_seed(0)
        return to_arviz(p, x, y, draws=result.draws, sample_stats=result.stats, new=(p, x, y), num_samples=7)

    whole = made(40)
    with pytest.warns(UserWarning, match=r"made from 10 of the 40 draws.*num_samples=40"):
        some = made(10)
    labels = [0, 4, 8, 12, 16]
    for group in ("posterior", "log_likelihood", "posterior_predictive", "sample_stats"):
        assert some[group]["draw"].values.tolist() == labels, group
    assert some.predictions["y"].shape[:2] == (1, 7)
    for name in ("top.kernel.lengthscale", "f"):
        assert np.isfinite(some.posterior[name].values).all()
    np.testing.assert_array_equal(
        some.posterior["top.kernel.lengthscale"].values,
        whole.posterior["top.kernel.lengthscale"].sel(draw=labels).values,
    )
    np.testing.assert_array_equal(some.sample_stats["lp"].values, whole.sample_stats["lp"].sel(draw=labels).values)
    for numbers in (7, 15):  # not as many of each chain
        with pytest.raises(ValueError, match=rf"has {numbers} components and there are 2 chains of 20 draws"):
            made(numbers)


def test_draws_without_their_chains_are_refused(local):
    p = prediction()
    x, y = torch.zeros(5, 1), torch.zeros(5)
    with pytest.raises(ValueError, match="give chains.draws, not chains.flat"):
        to_arviz(p, x, y, draws={"a": torch.zeros(6), "b": torch.zeros(6, 5, 1)})
    with pytest.raises(ValueError, match="same .chains, draws."):
        to_arviz(p, x, y, draws={"b": torch.zeros(6, 5, 1)}, sample_stats={"lp": np.zeros((2, 3))})


@pytest.mark.slow
def test_psis_loo_of_a_gp_is_leaving_out_by_the_closed_form(local):
    """Rasmussen and Williams 2006, Eqs. 5.10 to 5.12: the mean and variance of y_n given the others."""
    x, y = regression(30)
    model = OneLayer(likelihood=Gaussian(variance=0.1)).requires_grad_(False)
    p = predict(PosteriorDraws(model, {"unused": torch.zeros(4000)}, (x, y)), x, num_samples=4000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few Pareto shapes above 0.7 at the edges of the data
        loo = az.loo(to_arviz(p, x, y))
    inverse = torch.linalg.inv(model.gp(x).covariance_matrix[0] + 0.1 * torch.eye(30))
    exact = dist.Normal(y - inverse @ y / inverse.diagonal(), inverse.diagonal().rsqrt()).log_prob(y).sum()
    assert float(loo.elpd_loo) == pytest.approx(float(exact), abs=0.7)


def test_log_likelihoods_stand_for_the_mixture_even_if_its_weights_differ():
    """Equal averages of them are the density of the mixture; a component of weight 0 is not there."""
    components = dist.Normal(torch.randn(3, 5), 0.5)
    weights = torch.tensor([0.75, 0.0, 0.25])
    p = Prediction(lambda rows: Mixture(components, weights.log()), 5)
    y = torch.randn(5)
    log_likelihood = to_arviz(p, torch.randn(5, 2), y).log_likelihood["y"].values[0]
    assert len(log_likelihood) == 200
    np.testing.assert_allclose(np.exp(log_likelihood).mean(0), p.log_prob(y).exp(), rtol=1e-6)
    each = p.component_log_prob(y).numpy()
    assert {int(np.abs(each[:, 0] - value).argmin()) for value in log_likelihood[:, 0]} == {0, 2}


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2, 0.8)], ids=["equal", "different"])
def test_each_replicate_of_a_plain_site_is_a_draw_of_its_own(weights):
    """Two components were drawn once each, and these two values stood for all replicates."""
    weights = torch.tensor(weights, dtype=torch.float64)
    components = dist.Laplace(torch.tensor([[-1.0] * 3, [1.0] * 3]).double(), 0.5)
    p = Prediction(lambda rows: Mixture(components, weights.log()), 3)
    replicates = to_arviz(p, torch.zeros(3, 1), torch.zeros(3), num_samples=4000).posterior_predictive["y"].values[0]
    assert replicates.shape == (4000, 3)
    np.testing.assert_allclose(replicates.mean(0), p.mean, atol=0.1)
    np.testing.assert_allclose(replicates.var(0), p.variance, rtol=0.1)
    assert len(np.unique(replicates[:, 0])) == 4000


def test_numpy_alone_makes_the_object():
    """The last step knows no torch, so that an environment that holds only ArviZ can run it."""
    import ast
    import inspect

    from pyro_dgp.export import arviz_groups as groups

    tree = ast.parse(inspect.getsource(groups))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert {str(name).split(".")[0] for name in modules} <= {
        "__future__",
        "warnings",
        "collections",
        "typing",
        "numpy",
        "arviz",
    }


class WithOffsets(OneLayer):
    """A layer with a latent offset of each row."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        with pyro.plate("rows", len(x)):
            offset = pyro.sample("offset", dist.Normal(torch.zeros((), dtype=x.dtype), 2.0))
            return pyro.sample("y", dist.Normal(f[..., 0] + offset, 0.3), obs=y)


class SparseTop(OneLayer):
    """Student's t noise, so that function values are sampled beside inducing variables."""

    def __init__(self, **kwargs):
        super().__init__(likelihood=StudentT(), **kwargs)


class DeepSparse(TwoLayers):
    """Two layers under Student's t noise."""

    def __init__(self):
        super().__init__(regression(8)[0], likelihood=StudentT())


def white():
    kernel = White()
    kernel.variance = 0.3
    return RBF() + kernel


#: Models of which a prediction at their training rows draws something anew, with whether they have inducing inputs.
AFRESH = {
    "offsets": (WithOffsets, False),
    "white noise": (lambda: SparseTop(kernel=white()), False),
    "inducing inputs": (SparseTop, True),
    "a deep model with inducing inputs": (DeepSparse, True),
}


@pytest.mark.parametrize("kind", AFRESH)
def test_log_likelihoods_at_the_training_rows_are_those_of_the_draws(kind, local):
    """They were those of function values drawn anew, up to 7 nats lower in all, and LOO by them was 10 to 200 nats off."""
    torch.manual_seed(0)
    make, is_sparse = AFRESH[kind]
    (x, y), model = regression(8), make().requires_grad_(False)
    sampled = whitened(model, inducing_inputs(model, x, y, num_inducing=3) if is_sparse else None)
    density = WhitenedDensity(sampled, (x, y), {})
    draws = {name: torch.randn(5, *value.shape) for name, value in density.start.items()}
    fit = PosteriorDraws(sampled, draws, (x, y))
    each = [{name: values[draw] for name, values in draws.items()} for draw in range(5)]
    expected = [density.evaluate(values).log_likelihood for values in each]
    with_chain = {name: values[None] for name, values in draws.items()}
    data = to_arviz(predict(fit, x, num_samples=5), x, y, draws=with_chain)
    assert data.log_likelihood["y"].values.sum(-1)[0].tolist() == pytest.approx(expected)
    thin = to_arviz(predict(fit, x, num_samples=5), x, y, draws=with_chain, row_step=3)
    assert thin.log_likelihood["row"].values.tolist() == [0, 3, 6]
    np.testing.assert_array_equal(thin.log_likelihood["y"].values, data.log_likelihood["y"].values[..., ::3])
    with pytest.raises(ValueError, match=r"has a part for each row, which .* predict at all training rows"):
        to_arviz(predict(fit, x[:4], num_samples=5), x[:4], y[:4], draws=with_chain)


class WithArguments(OneLayer):
    """Inducing inputs, and arguments beside inputs and targets."""

    def forward(self, x, y=None, exposure=None, names=()):
        shift = 0.0 if exposure is None else exposure.log()
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(f[..., 0] + shift, 0.3).to_event(1), obs=y)


class GatheringArguments(WithArguments):
    """The same, but that the model gathers its arguments beside inputs and targets."""

    def forward(self, x, y=None, **further):
        return super().forward(x, y, **further)


@pytest.mark.parametrize(
    ("made", "by_name"),
    [(WithArguments, True), (WithArguments, False), (GatheringArguments, True)],
    ids=["by name", "by position", "gathered"],
)
def test_training_rows_are_known_by_all_of_their_arguments(made, by_name, local):
    (x, y), exposure = regression(8), torch.rand(8) + 0.5
    model = made().requires_grad_(False)
    sampled = whitened(model, inducing_inputs(model, x, y, num_inducing=3))
    args, kwargs = ((x, y), {"exposure": exposure}) if by_name else ((x, y, exposure), {})
    density = WhitenedDensity(sampled, args, kwargs)
    draws = {name: value[None] for name, value in density.start.items()}
    fit = PosteriorDraws(sampled, draws, args, kwargs=kwargs)
    data = to_arviz(predict(fit, x, exposure=exposure.clone()), x, y)
    expected = density.evaluate(density.start).log_likelihood
    assert float(data.log_likelihood["y"].values.sum(-1).mean()) == pytest.approx(expected)
    with pytest.raises(ValueError, match="predict at all training rows"):
        to_arviz(predict(fit, x, exposure=2 * exposure), x, y)
    values = as_sampled(predict(fit, x, exposure=exposure, site="f")).mean
    torch.testing.assert_close(values, sampled_values(sampled, draws, x)[:, 0])
    for names, equal in ((np.ones(2), np.ones(2)), ([exposure, exposure], [exposure.clone(), exposure.clone()])):
        again = PosteriorDraws(sampled, draws, args, kwargs=kwargs | {"names": names})
        assert predict(again, x, exposure=exposure, names=equal).mean.shape == (8,)


def as_sampled(prediction):
    assert prediction.sampled is not None
    return prediction.sampled()


def sampled_values(sampled, draws, x):
    white, rest = draws["f_inducing_whitened"][0], draws["f_whitened"][0]
    return sparse_values(sampled.model.gp(x), sampled.inducing["f"], white, rest)


def test_functions_that_were_integrated_out_are_drawn_given_the_targets(local):
    """Of a sparse sampler p(f_n | u, y_n), and with white noise in the kernel p(f_n | y) with the noise of that row."""
    torch.manual_seed(0)
    (x, y), noise = regression(8), 0.1
    model = OneLayer(likelihood=Gaussian(variance=noise)).requires_grad_(False)
    inputs = inducing_inputs(model, x, y, num_inducing=3)
    white_draw = torch.randn(1, 3, 1)
    fit = PosteriorDraws(whitened(model, inputs), {"y_f_inducing_whitened": white_draw}, (x, y))
    moments = as_sampled(predict(fit, x)).functions()
    f = sparse_moments(model.gp(x), inputs["y/f"], white_draw[0])
    variance = 1 / (1 / f.variance + 1 / noise)
    torch.testing.assert_close(moments.variance, variance)
    torch.testing.assert_close(moments.mean, variance * (f.mean / f.variance + y[:, None] / noise))

    noisy = OneLayer(kernel=white(), likelihood=Gaussian(variance=noise)).requires_grad_(False)
    moments = as_sampled(predict(PosteriorDraws(noisy, {}, (x, y)), x)).functions()
    prior = noisy.gp(x).covariance_matrix[0]
    gain = torch.linalg.solve(prior + noise * torch.eye(8), prior)
    torch.testing.assert_close(moments.mean[:, 0], gain.mT @ y)
    torch.testing.assert_close(moments.variance[:, 0], (prior - prior @ gain).diagonal())


def test_latent_values_of_rows_which_a_guide_draws_anew_are_refused(local):
    x, y = regression(8)
    guide = Variational(WithOffsets().requires_grad_(False), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="the site 'offset' has a part for each row"):
        to_arviz(predict(guide, x, num_samples=8), x, y)
