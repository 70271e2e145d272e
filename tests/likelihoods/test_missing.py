"""Targets of which some are missing: each term is that of the observed outputs, and nothing is filled in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from pyro import distributions as dist
from pyro.nn import PyroModule
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    Conditional,
    DeepGP,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingPoints,
    Likelihood,
    LinearCoregionalization,
    MarginalLikelihood,
    MissingOutputs,
    MonteCarlo,
    Poisson,
    PredictiveLogLikelihood,
    RowObservation,
    Softmax,
    Standardizer,
    StudentT,
    Validation,
    Variational,
    coverage,
    fit,
    fit_validated,
    module_local_parameters,
    predict,
    scores,
    whitened,
)
from pyro_dgp.likelihoods.moments import Moments

NAN = torch.nan


def moments(rows: int, functions: int, *, batch: tuple[int, ...] = ()) -> Moments:
    return Moments(torch.randn(*batch, rows, functions), torch.rand(*batch, rows, functions) + 0.1)


def with_holes(y: torch.Tensor) -> torch.Tensor:
    """Targets with every pattern of missing outputs."""
    y = y.clone()
    for row in range(len(y)):
        for output in range(y.shape[1]):
            if row >> output & 1:
                y[row, output] = NAN
    return y


TERMS = {
    "expected": lambda c, y, f: c.expected_log_prob(y, f),
    "predictive": lambda c, y, f: c.predictive_log_prob(y, f),
    "power": lambda c, y, f: c.log_expected_power(y, f, 0.5),
    "gamma": lambda c, y, f: c.log_expected_gamma_score(y, f, 1.2),
}


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("term", TERMS)
def test_terms_of_independent_outputs_are_those_of_the_observed_ones(term, batch):
    likelihood = Gaussian(3)
    likelihood.variance = torch.tensor([0.1, 0.5, 2.0])
    f, y = moments(8, 3, batch=batch), with_holes(torch.randn(8, 3))
    conditional = MissingOutputs(likelihood)._with_units(f.mean, {})
    found = TERMS[term](conditional, y, f)
    for row in range(8):
        wanted = torch.zeros(batch)
        for output in range(3):
            if not y[row, output].isnan():
                alone = Gaussian(variance=float(likelihood.variance[output].detach())).conditional()
                part = Moments(*(each[..., row : row + 1, output : output + 1] for each in f))
                wanted = wanted + TERMS[term](alone, y[row : row + 1, output], part)[..., 0]
        torch.testing.assert_close(found[..., row], wanted)


def test_predictive_densities_of_correlated_outputs_are_marginals_of_the_joint_normal():
    likelihood = LinearCoregionalization(3, 2)
    f, y = moments(8, 2), with_holes(torch.randn(8, 3))
    conditional = MissingOutputs(likelihood)._with_units(f.mean, {})
    joint = likelihood.conditional().components(f)
    assert isinstance(joint, LowRankMultivariateNormal)
    found = conditional.predictive_log_prob(y, f)
    assert found[7] == 0
    for row in range(7):
        seen = ~y[row].isnan()
        marginal = MultivariateNormal(joint.mean[row, seen], joint.covariance_matrix[row][seen][:, seen])
        torch.testing.assert_close(found[row], marginal.log_prob(y[row, seen]))


@pytest.mark.parametrize("term", ["expected", "power"])
def test_terms_of_correlated_outputs_are_integrals_over_the_functions(term):
    likelihood = LinearCoregionalization(3, 2)
    f, y = moments(8, 2), with_holes(torch.randn(8, 3))
    found = TERMS[term](MissingOutputs(likelihood)._with_units(f.mean, {}), y, f)
    nodes, weights = (torch.as_tensor(v) for v in hermegauss(90))
    weights = weights / weights.sum()
    grid = torch.stack(torch.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 1, 2)
    mass = torch.outer(weights, weights).reshape(-1, 1)
    values = f.mean + f.variance.sqrt() * grid
    elements = likelihood.given(values).base_dist.log_prob(y.nan_to_num())
    log_prob = torch.where(y.isnan(), 0.0, elements).sum(-1)
    wanted = (mass * log_prob).sum(0) if term == "expected" else (mass * (0.5 * log_prob).exp()).sum(0).log()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@dataclass(frozen=True)
class CorrelatedNoise(Conditional):
    """Each output reads a function of its own, and their noise is correlated."""

    covariance: torch.Tensor

    def given(self, f):
        if len(self.covariance) == 1:
            scale = self.covariance[0, 0].sqrt()
            return RowObservation(dist.Normal(f[..., 0], scale, validate_args=False), 1)
        return RowObservation(dist.MultivariateNormal(f, self.covariance, validate_args=False), 1)

    def of_outputs(self, chosen):
        return CorrelatedNoise(self.covariance[list(chosen)][:, list(chosen)]), list(chosen)


class WithCorrelatedNoise(Likelihood):
    """Two outputs."""

    def conditional(self):
        return CorrelatedNoise(torch.tensor([[1.0, 0.9], [0.9, 1.5]]))


@pytest.mark.parametrize("term", ["expected", "predictive"])
def test_correlated_noise_stays_correlated_where_another_row_has_a_hole(term):
    """Rows without a hole lost the correlation as soon as there were as many combinations of holes as outputs."""
    likelihood = WithCorrelatedNoise()
    f, y = Moments(torch.randn(3, 2), torch.full((3, 2), 1e-12)), torch.randn(3, 2)
    conditional, covariance = MissingOutputs(likelihood)._with_units(f.mean, {}), likelihood.conditional().covariance
    whole = MultivariateNormal(f.mean, covariance).log_prob(y)
    torch.testing.assert_close(TERMS[term](conditional, y, f), whole)
    y[2, 1] = torch.nan
    alone = torch.distributions.Normal(f.mean[2, 0], covariance[0, 0].sqrt()).log_prob(y[2, 0])
    torch.testing.assert_close(TERMS[term](conditional, y, f), torch.stack([*whole[:2], alone]))
    with pytest.raises(ValueError, match="one MultivariateNormal, of which NaN leaves a part out: integrate"):
        MissingOutputs(likelihood).given(f.mean[1:]).log_prob(y[1:])


def test_two_functions_an_output_stay_together():
    likelihood = HeteroscedasticGaussian(2)
    f, y = moments(4, 4), with_holes(torch.randn(4, 2))
    found = MissingOutputs(likelihood)._with_units(f.mean, {}).predictive_log_prob(y, f)
    alone = HeteroscedasticGaussian().conditional()
    second = alone.predictive_log_prob(y[1:2, 1], Moments(f.mean[1:2][:, [1, 3]], f.variance[1:2][:, [1, 3]]))
    torch.testing.assert_close(found[1:2], second)
    assert found[3] == 0


@pytest.mark.parametrize(
    ("likelihood", "functions", "y"),
    [
        (lambda: Bernoulli(), 1, [1.0, NAN, 0.0]),
        (lambda: Poisson(), 1, [3.0, NAN, 0.0]),
        (lambda: StudentT(), 1, [0.3, NAN, -2.0]),
        (lambda: Softmax(3), 3, [2.0, NAN, 0.0]),
    ],
)
@pytest.mark.parametrize("term", ["expected", "predictive"])
def test_rows_of_one_output_are_left_out(likelihood, functions, y, term):
    f, y = moments(3, functions), torch.tensor(y)
    found = TERMS[term](MissingOutputs(likelihood())._with_units(f.mean, {}), y, f)
    wanted = TERMS[term](likelihood().conditional(), y[[0, 2]], Moments(f.mean[[0, 2]], f.variance[[0, 2]]))
    torch.testing.assert_close(found[[0, 2]], wanted)
    assert found[1] == 0


def test_densities_of_targets_in_their_own_units_count_the_scale_of_observed_outputs():
    x, y = torch.randn(8, 1), with_holes(torch.randn(8, 2) * torch.tensor([5.0, 100.0]) + 7)
    units = Standardizer.fit(x, y)
    assert units.target_units is not None
    torch.testing.assert_close(units.target_units.mean, y.nanmean(0).double())
    f, plain = moments(8, 2), MissingOutputs(Gaussian(2))
    outside, inside = units.likelihood(MissingOutputs(Gaussian(2))), MissingOutputs(units.likelihood(Gaussian(2)))
    z = units.targets(y)
    scales = torch.where(y.isnan(), 0.0, units.target_units.scale.log()).sum(-1)
    for likelihood in (outside, inside):
        conditional = likelihood._with_units(f.mean, {})
        for term in ("expected", "predictive"):
            wanted = TERMS[term](plain._with_units(f.mean, {}), z, f) - scales
            torch.testing.assert_close(TERMS[term](conditional, y, f), wanted)
    with pytest.raises(ValueError, match="both have units"):
        units.likelihood(MissingOutputs(units.likelihood(Gaussian(2))))._with_units(f.mean, {})


class Several(PyroModule):
    """Independent outputs of one GP each, in one site."""

    def __init__(self, likelihood, outputs, sites=False):
        super().__init__()
        self.gp = GaussianProcess(RBF(), num_outputs=outputs)
        self.likelihood, self.sites = likelihood, sites

    def forward(self, x, y=None):
        if self.sites:
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", self.likelihood.given(f), obs=y)
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


@pytest.fixture(autouse=True)
def _parameters_of_each_model():
    with module_local_parameters():
        yield


def data(rows=40, outputs=2):
    x = torch.linspace(-2, 2, rows)[:, None]
    y = torch.stack([(x[:, 0] * (k + 1)).sin() for k in range(outputs)], -1) + 0.1 * torch.randn(rows, outputs)
    y[:10, 0], y[-10:, 1], y[15] = NAN, NAN, NAN
    return x, y


@pytest.mark.parametrize("kind", [ELBO, PredictiveLogLikelihood])
def test_losses_of_one_output_are_those_of_the_rows_that_were_observed(kind):
    x, y = data()
    seen = ~y[:, 0].isnan()
    found = []
    for likelihood, rows in ((MissingOutputs(Gaussian()), slice(None)), (Gaussian(), seen)):
        model = Several(likelihood, 1)
        guide = Variational(model, InducingPoints(5), MonteCarlo(1))
        guide.initialize(x, y[:, 0].nan_to_num())
        found.append(kind().differentiable_loss(model, guide, x[rows], y[rows, 0]).detach())
    torch.testing.assert_close(found[0], found[1])


def test_stock_losses_and_samplers_score_the_observed_outputs():
    x, y = data()
    model = Several(MissingOutputs(Gaussian(2)), 2, sites=True)
    trace = pyro.poutine.trace(pyro.poutine.condition(model, {"f": torch.zeros(40, 2)})).get_trace(x, y)
    trace.compute_log_prob(lambda name, site: name == "y")
    seen = y[~y.isnan()]
    wanted = Gaussian().given(torch.zeros(len(seen), 1)).log_prob(seen)
    torch.testing.assert_close(trace.nodes["y"]["log_prob_sum"], wanted)
    free = whitened(Several(MissingOutputs(Gaussian(2)), 2))
    trace = pyro.poutine.trace(free).get_trace(x, y)
    assert torch.isfinite(trace.log_prob_sum())
    assert "y_f_whitened" in trace.nodes


def test_a_deep_gp_learns_from_holes_and_predicts_them():
    torch.manual_seed(0)
    x, y = data(80)
    truth = torch.stack([x[:, 0].sin(), (2 * x[:, 0]).sin()], -1)
    model = DeepGP(x, layers=2, width=2, outputs=2)
    model.likelihood = MissingOutputs(LinearCoregionalization.fit(y, latents=2))
    guide = Variational(model, InducingPoints(10), MonteCarlo(3))
    guide.initialize(x, y)
    fit(ELBO(num_data=80)(model, guide), x, y, steps=300, learning_rate=0.03, batch_size=40)
    prediction = predict(guide, x, num_samples=10)
    assert prediction.mean.shape == (80, 2)
    seen = ~y.isnan()
    assert float((prediction.mean - truth)[seen].square().mean().sqrt()) < 0.15
    rows = prediction.log_prob(y)
    assert rows.shape == (80,) and bool(torch.isfinite(rows).all()) and float(rows[15]) == pytest.approx(0, abs=1e-6)
    first = seen[:, 0] & ~seen[:, 1]
    marginal = predict(guide, x[first], num_samples=10)
    covariance = marginal.covariance
    assert covariance.shape == (int(first.sum()), 2, 2)


def test_held_out_rows_may_have_holes():
    torch.manual_seed(0)
    x, y = data(80)
    model = Several(MissingOutputs(Gaussian(2)), 2)
    guide = Variational(model, InducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)

    def loss(beta, rows):
        return PredictiveLogLikelihood(num_data=rows, beta=beta)

    result = fit_validated(guide, loss, x, y, steps=30, validation=Validation(), batch_size=40)
    assert math.isfinite(result.validation_nll)


def test_scores_are_those_of_the_observed_outputs():
    torch.manual_seed(0)
    x, y = data(80)
    model = Several(MissingOutputs(Gaussian(2)), 2)
    guide = Variational(model, InducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)
    prediction = predict(guide, x)
    found = scores(prediction, y)
    errors = (prediction.mean - y).square().nanmean(0).sqrt()
    assert found["rmse"] == pytest.approx(float(errors.mean()))
    assert found["nll"] == pytest.approx(-float(prediction.log_prob(y).sum()) / 79)
    assert found["nll_per_output"] == pytest.approx(-float(prediction.log_prob(y).sum()) / int((~y.isnan()).sum()))
    scale = torch.tensor([3.0, 20.0])
    log_scales = (~y.isnan() * scale.log()).sum()  # of the entries that were observed
    original = float(log_scales - prediction.log_prob(y).sum()) / 79
    assert scores(prediction, y, scale)["nll_original"] == pytest.approx(original)
    seen = ~y[:, 0].isnan()
    alone = predict(guide, x[seen]).crps(torch.where(y.isnan(), 0.0, y)[seen])[:, 0].mean()
    second = predict(guide, x[~y[:, 1].isnan()]).crps(torch.where(y.isnan(), 0.0, y)[~y[:, 1].isnan()])[:, 1].mean()
    assert found["crps"] == pytest.approx(float(alone + second) / 2)
    inside = (2 * (prediction.cdf(y) - 0.5).abs())[~y.isnan()] <= 0.5
    assert float(coverage(prediction, y, [0.5])) == pytest.approx(float(inside.double().mean()))
    plain = Several(Gaussian(2), 2)
    other = Variational(plain, InducingPoints(8), MonteCarlo(1))
    other.initialize(x, y.nan_to_num())
    with pytest.raises(ValueError, match="the targets hold NaN"):
        predict(other, x).log_prob(y)


def test_scores_of_classes_leave_missing_ones_out():
    x = torch.linspace(-2, 2, 40)[:, None]
    y = (x[:, 0] > 0).double()
    holes = y.clone()
    holes[::3] = NAN
    model = Several(MissingOutputs(Bernoulli()), 1)
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, holes)
    fit(ELBO(num_data=40)(model, guide), x, holes, steps=50)
    seen = ~holes.isnan()
    found, wanted = scores(predict(guide, x), holes), scores(predict(guide, x[seen]), y[seen])
    assert found == pytest.approx(wanted)


def test_holes_are_refused_where_no_likelihood_takes_them():
    x, y = data()
    model = Several(Gaussian(2), 2)
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    with pytest.raises(ValueError, match="MissingOutputs"):
        guide.initialize(x, y)
    guide.initialize(x, y.nan_to_num())
    with pytest.raises(ValueError, match="MissingOutputs"):
        fit(ELBO(num_data=40)(model, guide), x, y, steps=1)
    told = Several(MissingOutputs(Gaussian(2)), 2)
    guide = Variational(told, InducingPoints(5), MonteCarlo(1))
    with pytest.raises(ValueError, match="'x'"):
        guide.initialize(x.masked_fill(x > 1.9, NAN), y)
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        fit(ELBO(num_data=40)(told, guide), x, y.nan_to_num(torch.inf), steps=1)
    with pytest.raises(ValueError, match="no closed form here where outputs may be missing"):
        fit(MarginalLikelihood(told), x, y, steps=1)


def test_a_batch_may_lack_every_target():
    x, y = data()
    model = Several(MissingOutputs(Gaussian(2)), 2)
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    batch = ELBO(num_data=40).differentiable_loss(model, guide, x[15:16], y[15:16])
    kl = guide.components(x, y).record(guide.components(x, y).trace.nodes["y"]).regularizer
    torch.testing.assert_close(batch, kl.sum())


def test_a_function_that_holds_the_likelihood_takes_missing_outputs():
    x, y = torch.randn(12, 1), torch.randn(12)
    y[3] = math.nan
    gp, likelihood = GaussianProcess(RBF()), MissingOutputs(Gaussian())

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    assert ELBO(12)(model, guide)(x, y).isfinite()
    x[2] = math.nan
    with pytest.raises(ValueError, match="argument 'x' of guide.initialize holds NaN or infinity"):
        guide.initialize(x, y)
