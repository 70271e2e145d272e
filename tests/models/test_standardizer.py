import copy
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroSample
from scipy.integrate import quad

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    CompiledObjective,
    DeepGP,
    EllipticalSlice,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearCoregionalization,
    MarginalLikelihood,
    MonteCarlo,
    PosteriorDraws,
    PredictiveLogLikelihood,
    SigmaPoints,
    Standardizer,
    StochasticGradientHMC,
    StudentT,
    SurrogateSlice,
    Variational,
    draw_functions,
    fit,
    inducing_inputs,
    likelihoods,
    predict,
    run_chains,
    whitened,
    with_priors,
)
from pyro_dgp.export.likelihood_draws import likelihood_draws
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units, in_units
from tests.examples import OneLayer, TwoSites

pytestmark = pytest.mark.usefixtures("local")

ROWS = 24
SCALES = {1: (), 3: (3,)}


def raw_data(outputs=1):
    """Inputs and targets far from zero mean and unit variance, each column in units of its own."""
    x = torch.stack([2000 + 20 * torch.rand(ROWS), 1e-3 * torch.randn(ROWS)], -1)
    t = (x[:, 0] - 2010) / 5
    y = torch.stack([1e5 + 3e3 * torch.sin(t), -7 + 0.02 * t**2, 40 * torch.cos(t)], -1)[:, :outputs]
    y = y + 0.1 * y.std(0) * torch.randn(ROWS, outputs)
    return x, y[:, 0] if outputs == 1 else y


def pair(columns=1, likelihood=None, **settings):
    """Raw data, standardised data, and two models of one start: one carries the units, the other is for standardised data."""
    x, y = raw_data(columns)
    units = Standardizer.fit(x, y)
    ready = (x - x.mean(0)) / x.std(0, correction=0), (y - y.mean(0)) / y.std(0, correction=0)
    settings = {"layers": 2, "width": 2, **settings}
    models = []
    for data, standardizer in ((x, units), (ready[0], None)):
        torch.manual_seed(3)
        own = None if likelihood is None else likelihood()
        models.append(DeepGP(data, likelihood=own, standardizer=standardizer, **settings))
    return (x, y), ready, models


def volume(y):
    """Log of the units of one row."""
    return float(y.std(0, correction=0).log().sum())


def guides_of(models, datasets, propagation=MonteCarlo(5), covariance="full"):
    guides = []
    for model, data in zip(models, datasets, strict=True):
        torch.manual_seed(4)
        guides.append(Variational(model, InducingPoints(8, covariance), propagation))
        guides[-1].initialize(*data)
    return guides


def seeded(function, *args, seed=5, **kwargs):
    torch.manual_seed(seed)
    return function(*args, **kwargs)


def sgd(objective, learning_rate):
    """Gradients that are zero but for rounding, as those of hidden layers are at the start, move nothing: Adam makes steps of them."""
    return torch.optim.SGD(objective.parameters(), learning_rate)


def assert_equal_parameters(ours, theirs):
    for (name, first), (_, second) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(first, second, atol=1e-10, rtol=1e-9, msg=name)


def assert_same_predictions(ours, theirs, y):
    """Each figure of ours is that of theirs, put into units of y."""
    mean, scale = y.mean(0), y.std(0, correction=0)
    z = (y - mean) / scale
    expected = {
        "mean": (ours.mean, mean + scale * theirs.mean),
        "variance": (ours.variance, scale**2 * theirs.variance),
        "log_prob": (ours.log_prob(y), theirs.log_prob(z) - volume(y)),
        "cdf": (ours.cdf(y), theirs.cdf(z)),
        "quantile": (ours.quantile([0.1, 0.9]), mean + scale * theirs.quantile([0.1, 0.9])),
        "sample": (seeded(ours.sample, (3,)), mean + scale * seeded(theirs.sample, (3,))),
        "crps": (ours.crps(y), scale * theirs.crps(z)),
    }
    if y.dim() == 2:
        expected["covariance"] = ours.covariance, theirs.covariance * scale[:, None] * scale
    for name, (first, second) in expected.items():
        torch.testing.assert_close(first, second, atol=1e-8, rtol=1e-7, msg=f"{name} of {type(ours).__name__}")


LOSSES = {
    "elbo": ELBO,
    "predictive": PredictiveLogLikelihood,
    "gamma": GammaDivergence,
}


@pytest.mark.parametrize("outputs", SCALES)
@pytest.mark.parametrize("loss", LOSSES)
def test_training_and_predictions_are_those_of_standardised_data(loss, outputs):
    raw, ready, models = pair(outputs, outputs=outputs)
    guides = guides_of(models, (raw, ready), SigmaPoints("qr3", 4) if loss == "predictive" else MonteCarlo(3))
    losses = [
        seeded(fit, LOSSES[loss](ROWS)(guide.model, guide), *data, steps=6, batch_size=10).losses
        for guide, data in zip(guides, (raw, ready), strict=True)
    ]
    constant = 0.0 if loss == "gamma" else volume(raw[1])  # the gamma score is that of standardised targets
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]) + constant)
    assert_equal_parameters(*guides)
    assert_equal_parameters(*models)
    assert_same_predictions(
        seeded(predict, guides[0], raw[0], num_samples=20), seeded(predict, guides[1], ready[0], num_samples=20), raw[1]
    )


def test_the_likelihood_of_student_t():
    raw, ready, models = pair(1, StudentT)
    guides = guides_of(models, (raw, ready))
    for guide, data in zip(guides, (raw, ready), strict=True):
        seeded(fit, ELBO(ROWS)(guide.model, guide), *data, steps=4, optimizer=sgd)
    assert_equal_parameters(*models)
    ours, theirs = (
        seeded(predict, guide, data[0], num_samples=6) for guide, data in zip(guides, (raw, ready), strict=True)
    )
    assert_same_predictions(ours, theirs, raw[1])


def test_correlated_outputs():
    raw, ready, models = pair(3, lambda: LinearCoregionalization(3, 2), outputs=2)
    guides = guides_of(models, (raw, ready))
    for guide, data in zip(guides, (raw, ready), strict=True):
        seeded(fit, ELBO(ROWS)(guide.model, guide), *data, steps=4, optimizer=sgd)
    assert_equal_parameters(*models)
    predictions = [
        seeded(predict, guide, data[0], num_samples=6) for guide, data in zip(guides, (raw, ready), strict=True)
    ]
    assert_same_predictions(predictions[0], predictions[1], raw[1])
    one_layer = [OneLayer(likelihood=model.likelihood, outputs=2) for model in models]
    densities = [
        pyro.poutine.trace(model).get_trace(ready[0], data[1]).log_prob_sum()
        for model, data in zip(one_layer, (raw, ready), strict=True)
    ]
    torch.testing.assert_close(densities[0], densities[1] - ROWS * volume(raw[1]))


@pytest.mark.parametrize("outputs", SCALES)
def test_exact_regression(outputs):
    raw, ready, models = pair(outputs, layers=1, outputs=outputs)
    losses = [fit(MarginalLikelihood(m), *data, steps=5).losses for m, data in zip(models, (raw, ready), strict=True)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]) + volume(raw[1]))
    assert_equal_parameters(*models)
    fits = [PosteriorDraws(model, {}, data) for model, data in zip(models, (raw, ready), strict=True)]
    assert_same_predictions(predict(fits[0], raw[0]), predict(fits[1], ready[0]), raw[1])


def test_functions_are_standardised_and_their_targets_are_not():
    raw, ready, models = pair(3, layers=1, outputs=3)
    drawn = [
        draw_functions(PosteriorDraws(model, {}, data), 3, seed=0)
        for model, data in zip(models, (raw, ready), strict=True)
    ]
    torch.testing.assert_close(drawn[0](raw[0]), drawn[1](ready[0]))
    ours, theirs = drawn[0].joint(raw[0]), drawn[1].joint(ready[0])
    scale = raw[1].std(0, correction=0)
    torch.testing.assert_close(ours.covariance, theirs.covariance)
    torch.testing.assert_close(ours.target_covariance, theirs.target_covariance * scale[:, None, None] ** 2)
    torch.testing.assert_close(ours.log_prob(raw[1]), theirs.log_prob(ready[1]) - ROWS * volume(raw[1]))
    in_units_of_y = models[0].standardizer.to_target(drawn[0](raw[0]))
    torch.testing.assert_close(in_units_of_y, raw[1].mean(0) + scale * drawn[1](ready[0]))


def test_functions_of_a_guide():
    raw, ready, models = pair()
    guides = guides_of(models, (raw, ready))
    functions = [draw_functions(guide, 4, seed=0) for guide in guides]
    torch.testing.assert_close(functions[0](raw[0]), functions[1](ready[0]))
    ours, theirs = functions[0].joint(raw[0]).log_prob(raw[1]), functions[1].joint(ready[0]).log_prob(ready[1])
    torch.testing.assert_close(ours, theirs - ROWS * volume(raw[1]))


@pytest.mark.parametrize("sparse", [False, True])
def test_densities_of_samplers_differ_by_a_constant(sparse):
    raw, ready, models = pair()
    inducing = inducing_inputs(models[1], *ready, num_inducing=6) if sparse else None
    ours, theirs = (whitened(with_priors(model), inducing) for model in models)
    for _ in range(2):
        draw = pyro.poutine.trace(theirs).get_trace(*ready)
        values = {name: draw.nodes[name]["value"] for name in draw.stochastic_nodes}
        densities = [
            pyro.poutine.trace(pyro.condition(model, values)).get_trace(*data).log_prob_sum()
            for model, data in ((ours, raw), (theirs, ready))
        ]
        torch.testing.assert_close(densities[0], densities[1] - ROWS * volume(raw[1]), atol=1e-7, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [EllipticalSlice, SurrogateSlice])
def test_chains_are_those_of_standardised_data(kernel):
    raw, ready, models = pair()
    chains = [
        run_chains(kernel(with_priors(model)), data, num_samples=4, warmup_steps=2, num_chains=1, processes=1)
        for model, data in zip(models, (raw, ready), strict=True)
    ]
    for name, values in chains[1].draws.items():
        torch.testing.assert_close(chains[0].draws[name], values, atol=1e-7, rtol=1e-7)
    assert_same_predictions(seeded(predict, chains[0], raw[0]), seeded(predict, chains[1], ready[0]), raw[1])


def test_stochastic_gradient_hmc():
    raw, ready, models = pair()
    guides = guides_of(models, (raw, ready), MonteCarlo(1), "delta")
    sampler = StochasticGradientHMC(burn_in=6, thin=1)
    drawn = [
        sampler.run(guide, *data, num_samples=3, batch_size=10)
        for guide, data in zip(guides, (raw, ready), strict=True)
    ]
    for name, values in drawn[1].draws.items():
        torch.testing.assert_close(drawn[0].draws[name], values, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(drawn[0].potential, drawn[1].potential + ROWS * volume(raw[1]))
    ours, theirs = (seeded(predict, each, data[0]) for each, data in zip(drawn, (raw, ready), strict=True))
    assert_same_predictions(ours, theirs, raw[1])


class PlainSite(PyroModule):
    """Student's t noise, as a plain Pyro site. Its scale has a prior."""

    def __init__(self, units, noise):
        super().__init__()
        self.units, self.noise = units, noise
        self.gp = GaussianProcess(RBF(ard=2))
        self.scale = PyroSample(dist.LogNormal(-2.0, 0.3))

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(self.units.inputs(x)))
        of_standardised = self.noise(f[..., 0], self.scale.expand(f.shape[:-1])).to_event(1)
        return pyro.sample("y", self.units.distribution(of_standardised), obs=y)


NOISES = {
    "normal": dist.Normal,
    "t": lambda f, scale: dist.StudentT(torch.full_like(f, 5.0), f, scale),
    "laplace": dist.Laplace,
    "gumbel": dist.Gumbel,
}


@pytest.mark.parametrize("noise", NOISES)
def test_plain_sites(noise):
    x, y = raw_data()
    units = Standardizer.fit(x, y)
    raw, ready = (x, y), (units.inputs(x), units.targets(y))
    models = [seeded(PlainSite, each, NOISES[noise]) for each in (units, Standardizer(2))]
    guides = guides_of(models, (raw, ready))
    losses = (ELBO, GammaDivergence) if noise == "normal" else (ELBO,)
    for loss, constant in zip(losses, (volume(y), 0.0), strict=False):
        values = [
            seeded(fit, loss(ROWS)(guide.model, guide), *data, steps=3).losses
            for guide, data in zip(guides, (raw, ready), strict=True)
        ]
        torch.testing.assert_close(torch.tensor(values[0]), torch.tensor(values[1]) + constant)
    assert_equal_parameters(*guides)
    ours, theirs = (seeded(predict, g, d[0], num_samples=6) for g, d in zip(guides, (raw, ready), strict=True))
    torch.testing.assert_close(ours.mean, units.to_target(theirs.mean))
    if noise != "t":  # which has no distribution function in torch
        torch.testing.assert_close(ours.cdf(y), theirs.cdf(ready[1]))
        torch.testing.assert_close(ours.quantile(0.9), units.to_target(theirs.quantile(0.9)), rtol=1e-7, atol=0)
    torch.testing.assert_close(ours.log_prob(y), theirs.log_prob(ready[1]) - volume(y))


def test_plain_rows_in_a_plate():
    class InAPlate(PlainSite):
        def forward(self, x, y=None):
            f, scale = pyro.sample("f", self.gp(self.units.inputs(x))), self.scale
            with pyro.plate("rows", len(x)):
                return pyro.sample("y", self.units.distribution(self.noise(f[..., 0], scale)), obs=y)

    x, y = raw_data()
    model = InAPlate(Standardizer.fit(x, y), dist.Normal)
    (guide,) = guides_of([model], [(x, y)])
    loss = seeded(fit, ELBO(ROWS)(model, guide), x, y, steps=2).losses
    (other,) = guides_of([seeded(PlainSite, model.units, dist.Normal)], [(x, y)])
    torch.testing.assert_close(loss, seeded(fit, ELBO(ROWS)(other.model, other), x, y, steps=2).losses)
    assert (predict(guide, x, num_samples=5).mean > 5e4).all()


def test_two_sites_under_a_stock_loss_and_the_global_store():
    x, y = raw_data()
    units = Standardizer.fit(x, y)
    model = TwoSites(units.likelihood(Gaussian(variance=0.04)))
    other = TwoSites()
    elbos = []
    for each, target in ((model, y), (other, units.targets(y))):
        (guide,) = guides_of([each], [(units.inputs(x)[:, :1], target)])
        svi = SVI(each, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
        elbos.append(seeded(svi.step, units.inputs(x)[:, :1], target))
    assert elbos[0] == pytest.approx(elbos[1] + ROWS * volume(y))
    pyro.settings.set(module_local_params=False)
    (guide,) = guides_of([DeepGP(x, width=1, standardizer=units)], [(x, y)])
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO(ROWS))
    assert math.isfinite(svi.step(x, y))


class Groups(PyroModule):
    """A function for each of three groups."""

    def __init__(self, units):
        super().__init__()
        self.units, self.gp = units, GaussianProcess(RBF(ard=2))
        self.likelihood = units.likelihood(Gaussian())

    def forward(self, x, y=None):
        x = self.units.inputs(x)
        with pyro.plate("groups", 3):
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_groups():
    x, y = raw_data()
    groups = torch.stack([y, 2 * y, y + 1e3])
    units = Standardizer.fit(x.repeat(3, 1), groups.reshape(-1))
    raw, ready = (x, groups), (units.inputs(x), units.targets(groups))
    models = Groups(units), Groups(Standardizer(2))
    guides = guides_of(models, (raw, ready))
    ours, theirs = (ELBO()(g.model, g)(*data).detach() for g, data in zip(guides, (raw, ready), strict=True))
    log_scale = units.target_units.scale.log()
    torch.testing.assert_close(ours, theirs + 3 * ROWS * log_scale)
    ours, theirs = (seeded(predict, g, data[0]) for g, data in zip(guides, (raw, ready), strict=True))
    torch.testing.assert_close(ours.mean, units.to_target(theirs.mean))
    torch.testing.assert_close(ours.log_prob(groups), theirs.log_prob(ready[1]) - log_scale)


@pytest.mark.slow
def test_compiled_steps():
    class Recorded(CompiledObjective):
        backend = "eager"

    losses = []
    for wrap in (Recorded, lambda objective: objective):
        torch.manual_seed(0)
        raw, _, (model, _) = pair()
        (guide,) = guides_of([model], [raw], SigmaPoints("qr3", 3))
        losses.append(fit(wrap(ELBO(ROWS)(model, guide)), *raw, steps=4).losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_likelihood_draws_and_prior_draws_are_in_units_of_the_target():
    raw, ready, models = pair()
    guides = guides_of(models, (raw, ready))
    ours, theirs = (
        likelihood_draws(seeded(predict, guide, data[0], num_samples=5), data[1])
        for guide, data in zip(guides, (raw, ready), strict=True)
    )
    torch.testing.assert_close(ours.functions, theirs.functions)
    torch.testing.assert_close(ours.log_prob, theirs.log_prob - volume(raw[1]))
    torch.testing.assert_close(ours.replicates, models[0].standardizer.to_target(theirs.replicates))
    drawn = [seeded(model, data[0]) for model, data in zip(models, (raw, ready), strict=True)]
    torch.testing.assert_close(drawn[0], models[0].standardizer.to_target(drawn[1]))


@pytest.mark.parametrize("gamma", [1.03, 1.4])
def test_integrals_against_adaptive_quadrature(gamma):
    """Of a Gaussian whose noise and function are written in units of y; the gamma score by its definition, times its factor."""
    shift, scale, noise, mean, variance, y = 120.0, 7.0, 0.3, 0.4, 0.2, 131.0
    units = Units(torch.tensor(shift), torch.tensor(scale))
    likelihood = Gaussian(variance=noise)
    likelihood.units = units
    f = Moments(torch.tensor([[mean]]), torch.tensor([[variance]]))
    conditional = likelihood._with_units(f.mean, {})
    q = dist.Normal(shift + scale * mean, scale * variance**0.5)

    def density(f, at=y):
        return math.exp(float(dist.Normal(f, scale * noise**0.5).log_prob(torch.tensor(at))))

    def average(function):
        low, high = (float(q.mean + k * q.stddev) for k in (-9, 9))
        return quad(lambda f: math.exp(float(q.log_prob(torch.tensor(f)))) * function(f), low, high)[0]

    power = gamma - 1
    integral = quad(lambda at: density(shift, at) ** gamma, shift - 60, shift + 60)[0]
    score = average(lambda f: density(f) ** power) / integral ** (power / gamma)
    at = torch.tensor([y])
    expected = average(lambda f: math.log(density(f)))
    torch.testing.assert_close(conditional.expected_log_prob(at, f), torch.tensor([expected]))
    torch.testing.assert_close(conditional.predictive_log_prob(at, f), torch.tensor([math.log(average(density))]))
    own = conditional.log_expected_gamma_score(at, f, gamma) - power / gamma * math.log(scale)
    torch.testing.assert_close(own, torch.tensor([math.log(score)]))
    plain = likelihoods.log_gamma_score(conditional.given(f.mean), at, gamma)
    torch.testing.assert_close(
        plain, likelihoods.log_gamma_score(dist.Normal(mean, noise**0.5), units(at), gamma).sum()
    )


FAMILIES = {
    "normal": lambda s: dist.Normal(torch.randn(s), torch.rand(s) + 0.1),
    "t": lambda s: dist.StudentT(4.0, torch.randn(s), torch.rand(s) + 0.1),
    "laplace": lambda s: dist.Laplace(torch.randn(s), torch.rand(s) + 0.1),
    "cauchy": lambda s: dist.Cauchy(torch.randn(s), torch.rand(s) + 0.1),
    "gumbel": lambda s: dist.Gumbel(torch.randn(s), torch.rand(s) + 0.1),
    "torch": lambda s: torch.distributions.Normal(torch.randn(s), torch.rand(s) + 0.1),
    "multivariate": lambda s: dist.MultivariateNormal(torch.randn(s), torch.eye(3) + 0.5),
    "low rank": lambda s: dist.LowRankMultivariateNormal(torch.randn(s), torch.randn(3, 2), torch.rand(3) + 0.1),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_image_of_a_distribution_is_that_of_its_draws(family):
    z = FAMILIES[family](torch.Size((5, 3)))
    units = Units(torch.tensor([100.0, -3.0, 0.0]), torch.tensor([10.0, 0.5, 3.0]))
    y, image = in_units(z, units), units.image(z)
    assert type(image) is type(z) and (image.batch_shape, image.event_shape) == (z.batch_shape, z.event_shape)
    value = units.restored(seeded(z.sample))
    torch.testing.assert_close(seeded(y.sample), value)
    affine = torch.distributions.TransformedDistribution(
        z, [torch.distributions.AffineTransform(units.mean, units.scale)]
    )
    for each in (y, image, y.expand((2, *y.batch_shape))):
        torch.testing.assert_close(
            each.log_prob(value).expand((2, *y.batch_shape)), affine.log_prob(value).expand((2, *y.batch_shape))
        )
    if family not in ("cauchy", "t", "multivariate", "low rank"):
        torch.testing.assert_close(image.cdf(value), z.cdf(units(value)))
        torch.testing.assert_close(y.cdf(value), z.cdf(units(value)))
    if family != "cauchy":
        torch.testing.assert_close(y.mean, units.restored(z.mean))
        torch.testing.assert_close(y.variance, z.variance * units.scale**2)


def test_a_state_dict_loads_into_a_fresh_object_that_has_seen_no_data():
    raw, _, (model, _) = pair(3, outputs=3)
    (guide,) = guides_of([model], [raw])
    fit(ELBO(ROWS)(model, guide), *raw, steps=3)
    fresh = DeepGP(torch.zeros(4, 2), layers=2, width=2, outputs=3, standardizer=Standardizer(2, 3))
    other = Variational(fresh, InducingPoints(8), MonteCarlo(5))
    fresh.load_state_dict(copy.deepcopy(model.state_dict()))
    other.load_state_dict(copy.deepcopy(guide.state_dict()))
    ours, theirs = (seeded(predict, each, raw[0]) for each in (guide, other))
    assert torch.equal(ours.mean, theirs.mean) and torch.equal(ours.log_prob(raw[1]), theirs.log_prob(raw[1]))
    with pytest.raises(RuntimeError, match="size mismatch"):
        DeepGP(torch.zeros(4, 3), width=2, standardizer=Standardizer(3, 3), outputs=3).load_state_dict(
            model.state_dict()
        )


def test_float32_with_large_offsets_loses_nothing():
    exact = torch.linspace(2015.0, 2025.0, 41)[:, None]
    y = 1e6 + torch.arange(41) % 7
    x32, y32 = exact.float(), y.float()
    units = Standardizer.fit(x32, y32)
    assert units.inputs(x32).dtype == units.targets(y32).dtype == torch.float32
    expected = (exact - exact.mean()) / exact.std(correction=0)
    torch.testing.assert_close(units.inputs(x32).double(), expected, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(units.targets(y32).double(), (y - y.mean()) / y.std(correction=0), atol=1e-7, rtol=1e-7)
    assert torch.equal(units.to_target(units.targets(y32)), y32)
    moved = units.to(torch.float32)  # as a model is put into single precision
    assert moved.target_units.mean.dtype == torch.float64 and moved.target_units.mean == y.mean()
    torch.set_default_dtype(torch.float32)
    model = seeded(DeepGP, x32, layers=1, standardizer=units).float()
    (guide,) = guides_of([model], [(x32, y32)])
    prediction = predict(guide, x32)
    assert prediction.mean.dtype == torch.float32 and (prediction.mean - 1e6).abs().max() < 10
    by_hand = seeded(DeepGP, expected.float(), layers=1)
    z = ((y - y.mean()) / y.std(correction=0)).float()
    (other,) = guides_of([by_hand], [(expected.float(), z)])
    losses = [
        fit(ELBO(41)(each.model, each), *data, steps=5).losses[-1]
        for each, data in ((guide, (x32, y32)), (other, (expected.float(), z)))
    ]
    assert losses[0] == pytest.approx(losses[1] + volume(y), abs=1e-4)


def test_no_warning_for_a_model_that_carries_its_units(recwarn):
    x, y = raw_data()
    units = Standardizer.fit(x, y)
    for model in (DeepGP(x, width=1, standardizer=units), PlainSite(units, dist.Normal)):
        guides_of([model], [(x, y)])
    assert not recwarn.list
    with pytest.warns(UserWarning, match="target of the site 'y' has mean 9.99e.04.*Standardizer.fit"):
        guides_of([DeepGP(x, width=1, standardizer=Standardizer.fit(x))], [(x, y)])
    with pytest.warns(UserWarning, match="input column 1 .*Standardizer.fit"):
        guides_of([DeepGP(x, width=1)], [(x, units.targets(y))])


def test_inputs_alone_for_classes():
    x, _ = raw_data()
    y = (x[:, 0] > 2010).double()
    model = DeepGP(x, width=1, likelihood=Bernoulli(), standardizer=Standardizer.fit(x))
    (guide,) = guides_of([model], [(x, y)])
    assert ((predict(guide, x).mean - 0.5).abs() < 0.5).all()


class Skewed(likelihoods.Conditional):
    """Real targets, whose predictions are of a family that has no affine images here."""

    def given(self, f):
        return likelihoods.RowObservation(dist.Laplace(f[..., 0], torch.ones(f.shape[:-1])), 1)

    def components(self, f):
        return dist.SoftLaplace(f.mean[..., 0], f.variance[..., 0])


@pytest.mark.usefixtures("unannotated")
def test_what_has_no_units_is_refused():
    x, y = raw_data()
    units = Standardizer.fit(x, y)

    class SkewedLikelihood(likelihoods.Likelihood):
        def conditional(self):
            return Skewed()

    class OwnForward(Gaussian):
        def forward(self, prior):
            return super().forward(prior)

    def run(likelihood):
        model = DeepGP(x, width=1, likelihood=likelihood, standardizer=Standardizer.fit(x, y))
        pyro.poutine.trace(model).get_trace(x, y)  # before anything is trained or sampled

    cases = {
        "targets of Binary are not all real numbers": lambda: run(Bernoulli()),
        "through SoftLaplace": lambda: run(SkewedLikelihood()),
        "targets of Poisson are not": lambda: units.distribution(dist.Poisson(torch.ones(3))),
        "targets of LogNormal are not": lambda: units.distribution(dist.LogNormal(torch.ones(3), 1.0).to_event(1)),
        "takes a Likelihood such as Gaussian": lambda: units.likelihood(dist.Normal(0.0, 1.0)),
        "already in units": lambda: units.likelihood(units.likelihood(Gaussian())),
        "OwnForward makes its observations": lambda: units.likelihood(OwnForward()),
        "fitted to 3 outputs, and Gaussian has 1": lambda: DeepGP(x, standardizer=Standardizer.fit(*raw_data(3)))(x),
        "fitted to 3 outputs, and the targets have shape": lambda: Standardizer.fit(*raw_data(3)).distribution(
            dist.Normal(torch.zeros(3), 1.0)
        ),
        r"made for inputs \(N, 2\)": lambda: units.inputs(x[:, :1]),
        r"of torch.int64": lambda: units.inputs(x.long()),
    }
    for message, do in cases.items():
        with pytest.raises((ValueError, TypeError), match=message):
            do()


def test_data_without_statistics_are_refused():
    x, y = raw_data()
    constant, nan, infinite = x.clone(), x.clone(), torch.stack([y, y], -1)
    constant[:, 1], nan[3, 1], infinite[2, 1] = 7.0, math.nan, math.inf
    cases = {
        "input column 1 is constant": lambda: Standardizer.fit(constant, y),
        "input column 1 holds NaN or infinity": lambda: Standardizer.fit(nan, y),
        "target column 1 holds NaN or infinity": lambda: Standardizer.fit(x, infinite),
        "the target is constant": lambda: Standardizer.fit(x, torch.ones(ROWS)),
        "input column 0 is constant": lambda: Standardizer.fit(x[:1]),
        r"takes inputs \(N, D\)": lambda: Standardizer.fit(y),
        r"targets \(N,\) or \(N, D_out\)": lambda: Standardizer.fit(x, y[:, None]),
        "one target for each row": lambda: Standardizer.fit(x, y[1:]),
    }
    for message, do in cases.items():
        with pytest.raises(ValueError, match=message):
            do()


@pytest.mark.usefixtures("unannotated")
def test_whole_numbers_and_arrays_are_refused_with_what_to_do():
    x, y = raw_data()
    cases = {
        r"x is int64: pass floats, x.float\(\)": lambda: Standardizer.fit(torch.arange(3)[:, None], y[:3]),
        r"y is int64: pass floats, y.float\(\)": lambda: Standardizer.fit(x[:3], torch.arange(3)),
        r"inputs of .*, not ndarray: use torch.as_tensor\(x\)": lambda: Standardizer.fit(x.numpy(), y),
        r"targets of .*, not list: use torch.as_tensor\(y\)": lambda: Standardizer.fit(x, y.tolist()),
        r"the standardiser are .*, not ndarray: use torch.as_tensor\(x\)": lambda: Standardizer(2).inputs(x.numpy()),
    }
    for message, do in cases.items():
        with pytest.raises(TypeError, match=message):
            do()
