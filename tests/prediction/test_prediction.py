import math
from functools import partial

import numpy as np
import pytest
import scipy
import torch
from pyro import distributions as dist
from scipy.integrate import quad

from pyro_dgp import Bernoulli, DeepGP, InducingPoints, Mixture, MonteCarlo, Prediction, Variational, predict
from pyro_dgp.likelihoods.bernoulli import Binary
from pyro_dgp.prediction.mixture import join_rows, stack_mixtures
from pyro_dgp.prediction.scores import coverage, pit, scores


def mixture(rows=4, outputs=None):
    shape = (3, rows) if outputs is None else (3, rows, outputs)
    return Mixture(dist.Normal(torch.randn(shape), torch.rand(shape) + 0.3), torch.tensor([0.2, 0.5, 0.3]).log())


def prediction(rows=4, outputs=None, batch_size=3, keep=10**6):
    whole = mixture(rows, outputs)

    def evaluate(part):
        c = whole.components
        return Mixture(dist.Normal(c.loc[:, part], c.scale[:, part]), whole.log_weights)

    event = () if outputs is None else (outputs,)
    return whole, Prediction(evaluate, rows, torch.Size(event), batch_size=batch_size, keep=keep)


def density(m, row, y):
    c = m.components
    parts = [
        math.exp(w) * math.exp(float(dist.Normal(c.loc[s, row], c.scale[s, row]).log_prob(torch.tensor(y))))
        for s, w in enumerate(m.log_weights.tolist())
    ]
    return sum(parts)


def test_moments_density_and_cdf_against_numerical_integration():
    m = mixture()
    for row in range(2):
        p = lambda y, row=row: density(m, row, y)
        mean = quad(lambda y: y * p(y), -12, 12, limit=300)[0]
        variance = quad(lambda y: (y - mean) ** 2 * p(y), -12, 12, limit=300)[0]
        assert float(m.mean[row]) == pytest.approx(mean, abs=1e-7)
        assert float(m.variance[row]) == pytest.approx(variance, abs=1e-6)
        assert float(m.log_prob(torch.full((4,), 0.4))[row]) == pytest.approx(math.log(p(0.4)))
        assert float(m.cdf(torch.full((4,), 0.4))[row]) == pytest.approx(quad(p, -12, 0.4, limit=300)[0], abs=1e-7)


def test_crps_against_numerical_integration():
    m = mixture()
    y = torch.tensor([0.4, -1.0, 3.0, 0.0])
    for row in range(4):
        cdf = lambda v, row=row: float(m.cdf(torch.full((4,), v))[row])
        below = quad(lambda v: cdf(v) ** 2, -15, float(y[row]), limit=300)[0]
        above = quad(lambda v: (1 - cdf(v)) ** 2, float(y[row]), 15, limit=300)[0]
        assert float(m.crps(y)[row]) == pytest.approx(below + above, abs=1e-6)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_have_the_scores_of_the_same_numbers(kind):
    y = torch.tensor([0, 1, 1, 0], dtype=kind)
    students = Mixture(dist.StudentT(5.0, torch.randn(3, 4), torch.ones(3, 4)), torch.full((3,), 1 / 3).log())
    for m in (mixture(), students):
        with torch.random.fork_rng():
            found = m.crps(y)
        torch.testing.assert_close(found, m.crps(y.double()))
    for components in (Binary(logits=torch.randn(1, 4)), dist.Poisson(torch.rand(1, 4) + 0.1)):
        prediction = Prediction(partial(lambda whole, part: whole, Mixture(components, torch.zeros(1))), 4)
        torch.testing.assert_close(pit(prediction, y), pit(prediction, y.double()))
        assert bool((pit(prediction, y) >= 0).all())


def test_components_of_plain_torch_have_the_closed_form_too():
    m, y = mixture(), torch.tensor([0.4, -1.0, 3.0, 0.0])
    plain = torch.distributions.Normal(m.components.mean, m.components.variance.sqrt())
    torch.testing.assert_close(Mixture(plain, m.log_weights).crps(y), m.crps(y))


def test_quantile_inverts_the_cdf():
    whole, p = prediction(5)
    for level in (0.01, 0.3, 0.5, 0.99):
        torch.testing.assert_close(p.cdf(p.quantile(level)), torch.full((5,), level), atol=1e-9, rtol=0)
    assert p.quantile([0.1, 0.9]).shape == (2, 5)
    assert (p.quantile([0.1, 0.9]).diff(dim=0) > 0).all()
    for bad in (0.0, 1.0):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            p.quantile(bad)
    assert whole.mean.shape == (5,)


@pytest.mark.parametrize("outputs", [None, 2])
def test_batches_give_what_the_whole_gives(outputs):
    whole, p = prediction(7, outputs, batch_size=3)
    y = torch.randn(p.batch_shape + p.event_shape)
    torch.testing.assert_close(p.mean, whole.mean)
    torch.testing.assert_close(p.variance, whole.variance)
    torch.testing.assert_close(p.covariance, whole.covariance)
    torch.testing.assert_close(p.log_prob(y), whole.log_prob(y))
    torch.testing.assert_close(p.cdf(y), whole.cdf(y))
    torch.testing.assert_close(p.crps(y), whole.crps(y))
    assert p.log_prob(y).shape == (7,)
    assert p.sample((2, 3)).shape == (2, 3, 7) + tuple(p.event_shape)
    with pytest.raises(ValueError, match=r"targets have shape \(6,\)"):
        p.log_prob(torch.randn(6))


def test_nothing_is_kept_beyond_the_limit_and_randomness_repeats():
    calls = []

    def evaluate(part):
        calls.append(part)
        rows = part.stop - part.start
        return Mixture(dist.Normal(torch.randn(4, rows), 1.0), torch.full((4,), 0.25).log())

    p = Prediction(evaluate, 10, batch_size=4, keep=0)
    state = torch.get_rng_state()
    assert torch.equal(p.mean, p.mean)
    assert len(calls) == 6 and p._kept == {}
    assert torch.equal(state, torch.get_rng_state())  # the caller's generator is left alone


def test_samples_follow_the_mixture_and_outputs_share_the_component():
    m = Mixture(dist.Normal(torch.tensor([[[-5.0, -5.0]], [[5.0, 5.0]]]), 0.1), torch.tensor([0.25, 0.75]).log())
    draws = m.sample(8000)
    assert float((draws[:, 0, 0] > 0).double().mean()) == pytest.approx(0.75, abs=0.03)
    assert torch.equal(draws[:, 0, 0] > 0, draws[:, 0, 1] > 0)


def test_where_the_mean_is_infinite_the_variance_is():
    m = Mixture(dist.HalfCauchy(torch.tensor([[1.0], [2.0]])), torch.tensor([0.5, 0.5]).log())
    assert m.mean.tolist() == m.variance.tolist() == [float("inf")]


def test_binary_mixtures():
    probs = torch.tensor([[0.2, 0.9], [0.6, 0.7]])
    m = Mixture(Binary(probs=probs), torch.tensor([0.5, 0.5]).log())
    torch.testing.assert_close(m.mean, torch.tensor([0.4, 0.8]))
    torch.testing.assert_close(m.variance, torch.tensor([0.24, 0.16]))
    torch.testing.assert_close(m.cdf(torch.tensor([0.0, 0.0])), torch.tensor([0.6, 0.2]))
    torch.testing.assert_close(m.quantile(torch.tensor([0.5])), torch.tensor([[0.0, 1.0]]), atol=1e-6, rtol=0)
    y = torch.tensor([1.0, 1.0])
    torch.testing.assert_close(m.crps(y), (m.mean - y).square())  # the Brier score


def test_stacking_mixtures_weighs_them_equally():
    a, b = mixture(), mixture()
    both = stack_mixtures([a, b])
    torch.testing.assert_close(both.mean, 0.5 * (a.mean + b.mean))
    torch.testing.assert_close(both.log_weights.exp().sum(), torch.tensor(1.0))
    y = torch.randn(4)
    expected = (0.5 * (a.log_prob(y).exp() + b.log_prob(y).exp())).log()
    torch.testing.assert_close(both.log_prob(y), expected)
    binary = stack_mixtures([Mixture(Binary(probs=torch.full((1, 2), p)), torch.zeros(1)) for p in (0.2, 0.6)])
    torch.testing.assert_close(binary.mean, torch.full((2,), 0.4))


def test_scores_in_both_units_and_coverage():
    m, p = prediction(2000, batch_size=500)
    y = p.sample()
    s = scores(p, y, target_scale=3.0)
    assert s["nll_original"] == pytest.approx(s["nll"] + math.log(3))
    assert s["rmse_original"] == pytest.approx(3 * s["rmse"]) and s["crps_original"] == pytest.approx(3 * s["crps"])
    assert s["rmse"] == pytest.approx(float((m.mean - y).square().mean().sqrt()))
    levels = torch.tensor([0.2, 0.5, 0.9])
    torch.testing.assert_close(coverage(p, y, levels), levels, atol=0.04, rtol=0)


def test_scores_of_several_outputs():
    _, p = prediction(6, outputs=3)
    y, scale = torch.randn(6, 3), torch.tensor([1.0, 2.0, 3.0])
    s = scores(p, y, scale)
    rmse = (p.mean - y).square().mean(0).sqrt()
    assert s["nll"] == pytest.approx(-float(p.log_prob(y).mean()))
    assert s["nll_per_output"] == pytest.approx(s["nll"] / 3)
    assert s["rmse"] == pytest.approx(float(rmse.mean()))
    assert s["rmse_original"] == pytest.approx(float((rmse * scale).mean()))
    assert s["nll_original"] == pytest.approx(s["nll"] + math.log(6.0))
    assert s["crps_original"] == pytest.approx(float((p.crps(y).mean(0) * scale).mean()))


def test_probability_integral_transform_is_uniform_for_draws_of_the_prediction():
    _, p = prediction(3000)
    values = pit(p, p.sample())
    assert float(values.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(values.var()) == pytest.approx(1 / 12, abs=0.01)
    torch.testing.assert_close(
        coverage(p, p.sample(), torch.tensor([0.5, 0.9])), torch.tensor([0.5, 0.9]), rtol=0, atol=0.03
    )


def correlated(rows=5):
    loc, factor, diagonal = torch.randn(3, rows, 2), torch.randn(3, rows, 2, 2), torch.rand(3, rows, 2) + 0.5
    components = torch.distributions.LowRankMultivariateNormal(loc, factor, diagonal)
    return Mixture(components, torch.tensor([0.2, 0.5, 0.3]).log())


def test_a_mixture_of_correlated_outputs():
    m = correlated()
    c, y = m.components, torch.randn(5, 2)
    by_hand = sum(
        w.exp() * dist.MultivariateNormal(c.loc[s], c.covariance_matrix[s]).log_prob(y).exp()
        for s, w in enumerate(m.log_weights)
    )
    torch.testing.assert_close(m.log_prob(y), by_hand.log())
    torch.testing.assert_close(m.component_log_prob(y), c.log_prob(y))
    draws = m.sample(40_000)
    torch.testing.assert_close(draws.mean(0), m.mean, rtol=0, atol=0.1)
    torch.testing.assert_close(draws.var(0), m.variance, rtol=0.1, atol=0)
    mean = m.mean
    second = sum(
        w.exp() * (c.covariance_matrix[s] + (c.loc[s] - mean).unsqueeze(-1) * (c.loc[s] - mean).unsqueeze(-2))
        for s, w in enumerate(m.log_weights)
    )
    sampled = torch.einsum("snd,sne->nde", draws - mean, draws - mean) / len(draws)
    torch.testing.assert_close(sampled, second, rtol=0, atol=0.35)
    assert float((sampled - torch.diag_embed(m.variance)).abs().max()) > 0.35  # the outputs of a row are drawn together
    torch.testing.assert_close(m.cdf(m.quantile(torch.tensor([0.3]))[0]), torch.full((5, 2), 0.3), rtol=0, atol=1e-6)
    torch.testing.assert_close(m.covariance, second)
    torch.testing.assert_close(m.covariance.diagonal(dim1=1, dim2=2), m.variance)
    full = Mixture(dist.MultivariateNormal(c.loc, scale_tril=torch.linalg.cholesky(c.covariance_matrix)), m.log_weights)
    torch.testing.assert_close(full.covariance, second)
    both = stack_mixtures([m, correlated()])
    assert both.components.batch_shape == (6, 5) and both.log_prob(y).shape == (5,)
    torch.testing.assert_close(both.log_weights.exp().sum(), torch.tensor(1.0))


def test_outputs_that_are_independent_given_the_component_are_correlated_by_it():
    m = mixture(rows=4, outputs=2)
    draws = m.sample(100_000)
    by_row = torch.stack([torch.cov(draws[:, n].T) for n in range(4)])
    torch.testing.assert_close(m.covariance, by_row, rtol=0, atol=0.05)
    assert float(by_row[:, 0, 1].abs().max()) > 0.2
    one = mixture(rows=4)
    assert one.covariance.shape == (4, 1, 1)
    torch.testing.assert_close(one.covariance.flatten(), one.variance)


def test_mixtures_stack_after_their_lazy_parameters_were_read():
    parts = [
        Mixture(Binary(logits=torch.randn(2, 4), validate_args=False), torch.full((2,), 0.5).log()) for _ in range(2)
    ]
    means = torch.stack([part.mean for part in parts])  # keeps probs beside logits
    torch.testing.assert_close(stack_mixtures(parts).mean, means.mean(0))


@pytest.mark.parametrize(
    "kind", ["LogNormal", "HalfNormal", "Weibull", "Gumbel", "Pareto", "StudentT", "Gamma", "Beta"]
)
def test_mixtures_of_any_plain_distribution_are_joined(kind):
    def one():
        count = {"HalfNormal": 1, "StudentT": 3}.get(kind, 2)
        return Mixture(getattr(dist, kind)(*(torch.rand(count, 2, 4) + 0.5)), torch.tensor([0.5, 0.5]).log())

    a, b = one(), one()
    y = torch.full((4,), 0.7 if kind != "Pareto" else 3.0)
    torch.testing.assert_close(
        stack_mixtures([a, b]).log_prob(y).exp(), 0.5 * (a.log_prob(y).exp() + b.log_prob(y).exp())
    )
    torch.testing.assert_close(join_rows([a, b]).mean, torch.cat([a.mean, b.mean]), equal_nan=True)


def test_what_a_component_cannot_do_is_said():
    robust = Mixture(dist.StudentT(torch.full((2, 3), 4.0)), torch.tensor([0.5, 0.5]).log())
    with pytest.raises(NotImplementedError, match="StudentT has no cdf, which quantiles"):
        robust.quantile(torch.tensor([0.5]))
    transformed = dist.TransformedDistribution(dist.Normal(torch.zeros(2, 3), 1.0), [dist.transforms.ExpTransform()])
    with pytest.raises(NotImplementedError, match="TransformedDistribution has no mean in closed form: take log_prob"):
        _ = Mixture(transformed, torch.tensor([0.5, 0.5]).log()).mean


def test_a_prediction_says_what_it_is():
    one = Prediction(lambda rows: None, 5)
    assert repr(one) == "Prediction(rows=5)"
    assert repr(Prediction(lambda rows: None, 5, torch.Size((2,)))) == "Prediction(rows=5, event_shape=(2,))"


def _two(distribution):
    return Mixture(distribution, torch.tensor([0.3, 0.7]).log())


_SHIFT = torch.tensor([[0.0], [0.5]], dtype=torch.float64)


@pytest.mark.parametrize("level", [1e-6, 0.01, 0.5, 0.99, 1 - 1e-6])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("LogNormal", (_SHIFT, torch.full_like(_SHIFT, 2.0))),
        ("Cauchy", (_SHIFT, torch.ones_like(_SHIFT))),
        ("Gamma", (0.5 + _SHIFT, torch.ones_like(_SHIFT))),
        ("Uniform", (_SHIFT, 1.0 + _SHIFT)),
        ("Exponential", (1 + _SHIFT,)),
    ],
)
def test_quantiles_of_half_lines_and_heavy_tails_equal_those_of_scipy(name, parameters, level):
    stats = {
        "LogNormal": lambda shift, scale: scipy.stats.lognorm(scale, scale=np.exp(shift)),
        "Cauchy": scipy.stats.cauchy,
        "Gamma": lambda shape, rate: scipy.stats.gamma(shape, scale=1 / rate),
        "Uniform": lambda low, high: scipy.stats.uniform(low, high - low),
        "Exponential": lambda rate: scipy.stats.expon(scale=1 / rate),
    }[name]
    kind = getattr(dist, name)
    one = [stats(*(float(parameter[k, 0]) for parameter in parameters)) for k in range(2)]
    mixture = _two(kind(*parameters, validate_args=True))

    def cdf(value):
        return 0.3 * one[0].cdf(value) + 0.7 * one[1].cdf(value)

    ends = [each.ppf(level) for each in one]
    expected = scipy.optimize.brentq(lambda value: cdf(value) - level, min(ends) - 1e-9, max(ends) + 1e-9, xtol=1e-14)
    quantile = mixture.quantile(torch.tensor([level]))
    assert float(quantile) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    for value in (-1.0, 0.0, 0.2, 3.0):
        assert float(mixture.cdf(torch.tensor([value]))) == pytest.approx(cdf(value), abs=1e-9)


@pytest.mark.parametrize("probability", [0.2, 0.9])
def test_the_pit_of_classes_and_counts_is_uniform_where_predictions_are_right(probability):
    rows = 20_000
    chance = torch.full((1, rows), probability)
    prediction = Prediction(lambda part: Mixture(Binary(logits=chance[:, part].logit()), torch.zeros(1)), rows)
    y = torch.bernoulli(chance[0])
    shares = coverage(prediction, y, [0.3, 0.5, 0.9])
    error = 4 * (torch.tensor([0.3, 0.5, 0.9]) * torch.tensor([0.7, 0.5, 0.1]) / rows).sqrt()
    assert ((shares - torch.tensor([0.3, 0.5, 0.9])).abs() < error).all()
    assert torch.equal(pit(prediction, y), pit(prediction, y))
    assert scipy.stats.kstest(pit(prediction, y).numpy(), "uniform").pvalue > 1e-3


@pytest.mark.usefixtures("unannotated")
def test_targets_that_are_no_tensors_are_refused_with_what_to_do():
    p = Prediction(lambda rows: _two(dist.Normal(torch.zeros(2, 3), 1.0)), 3)
    for judge in (p.log_prob, p.cdf, lambda y: pit(p, y), lambda y: coverage(p, y, [0.5])):
        for y in ([0.0, 1.0, 2.0], np.zeros(3)):
            with pytest.raises(TypeError, match=r"targets are a tensor, not (list|ndarray): use torch.as_tensor\(y\)"):
                judge(y)


def test_coverage_of_one_level_is_one_number():
    p = Prediction(lambda rows: _two(dist.Normal(torch.zeros(2, 3), 1.0)), 3)
    y = torch.tensor([0.1, 1.0, 3.0])
    assert coverage(p, y, 0.9).shape == () and coverage(p, y, 0.9) == coverage(p, y, [0.5, 0.9])[1] == 2 / 3


@pytest.mark.parametrize("batch_size", [10, 4])
def test_a_mixture_of_all_rows_refuses_targets_as_the_prediction_does(batch_size):
    x = torch.linspace(0, 1, 10)[:, None]
    guide = Variational(DeepGP(x, layers=1, likelihood=Bernoulli()), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, (x[:, 0] > 0.5).double())
    p = predict(guide, x, batch_size=batch_size)
    y = torch.full((10,), 0.5)
    for each in (p, p.mixture()):
        with pytest.raises(ValueError, match="holds values other than"):
            each.log_prob(y)
    torch.testing.assert_close(p.mixture().log_prob(y.round()), p.log_prob(y.round()))
    if batch_size == 10:
        torch.testing.assert_close(p.mixture().functions().mean, p.functions().mean)
    else:
        with pytest.raises(ValueError, match="for joined batches take prediction.functions"):
            p.mixture().functions()
