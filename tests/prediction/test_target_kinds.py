"""Classes have probabilities and no moments; counts have distribution functions by sums."""

import math

import numpy as np
import pyro
import pytest
import scipy.integrate
import scipy.stats
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule
from torch.distributions.transforms import AffineTransform, ExpTransform

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    GaussianProcess,
    InducingPoints,
    Mixture,
    MonteCarlo,
    PosteriorDraws,
    Prediction,
    Variational,
    coverage,
    fit,
    pit,
    predict,
    scores,
)
from pyro_dgp.internal.distributions import cdf_of, is_real
from pyro_dgp.prediction.mixture import join_rows, stack_mixtures
from pyro_dgp.prediction.target_kinds import means_of
from tests.examples import OneLayer, regression

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def mixed(components):
    return Mixture(components, WEIGHTS.log())


def prediction(mixture, rows):
    return Prediction(lambda part: mixture, rows, mixture.components.event_shape)


class Classes(PyroModule):
    """Three classes, by a softmax of three functions or by cut points of one."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.gp = GaussianProcess(RBF(lengthscale=0.7), num_outputs=1 if kind == "OrderedLogistic" else 3)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        if self.kind == "OrderedLogistic":
            fn = dist.OrderedLogistic(f[..., 0], torch.tensor([-0.5, 0.5]))
        else:
            fn = getattr(dist, self.kind)(logits=f)
        return pyro.sample("y", fn.to_event(1), obs=y)


@pytest.mark.parametrize("kind", ["Categorical", "OrderedLogistic", "OneHotCategorical"])
def test_the_probabilities_of_classes_are_those_of_the_mixture(local, kind):
    x, _ = regression(12)
    y = torch.randint(3, (12,))
    target = torch.eye(3)[y] if kind == "OneHotCategorical" else y
    guide = Variational(Classes(kind), InducingPoints(5), MonteCarlo(4))
    guide.initialize(x, target)
    draws = PosteriorDraws(guide.model, {"f": torch.randn(6, 12, guide.model.gp.num_outputs)}, (x, target))
    for fitted in (guide, draws):
        p = predict(fitted, x, 8, batch_size=5)
        probs = p.probs
        assert probs.shape == (12, 3)
        torch.testing.assert_close(probs.sum(-1), torch.ones(12))
        torch.testing.assert_close(p.log_prob(target), probs.gather(1, y[:, None])[:, 0].log())
        draw = p.sample((4000,))
        shares = (
            draw.mean(0)
            if kind == "OneHotCategorical"
            else torch.stack([(draw == c).double().mean(0) for c in range(3)], -1)
        )
        torch.testing.assert_close(shares, probs, atol=0.04, rtol=0)


def test_a_guide_learns_classes_that_are_vectors_as_it_learns_their_numbers(local):
    x, _ = regression(12)
    y = torch.randint(3, (12,))
    losses = []
    for kind, target in (("Categorical", y), ("OneHotCategorical", torch.eye(3)[y])):
        torch.manual_seed(0)
        guide = Variational(Classes(kind), InducingPoints(5), MonteCarlo(4))
        guide.initialize(x, target)
        losses.append(fit(ELBO(12)(guide.model, guide), x, target, steps=3, batch_size=5).losses)
    assert losses[0] == pytest.approx(losses[1])


def test_figures_that_classes_do_not_have_are_refused_in_one_sentence():
    p = prediction(mixed(dist.Categorical(torch.rand(2, 4, 3))), 4)
    y = torch.zeros(4)
    figures = {
        "mean": lambda: p.mean,
        "variance": lambda: p.variance,
        "covariance": lambda: p.covariance,
        "quantile": lambda: p.quantile(0.5),
        "cdf": lambda: p.cdf(y),
        "CRPS": lambda: p.crps(y),
    }
    for name, figure in figures.items():
        with pytest.raises(ValueError, match=f"the targets are 3 classes, whose numbers have no {name}: take probs"):
            figure()
    for judge in (lambda: pit(p, y), lambda: coverage(p, y, [0.5])):
        with pytest.raises(ValueError, match="3 classes, whose numbers have no cdf"):
            judge()
    one_hot = prediction(mixed(dist.OneHotCategorical(torch.rand(2, 4, 3))), 4)
    with pytest.raises(NotImplementedError, match="OneHotCategorical has no cdf of each output by itself"):
        one_hot.cdf(torch.zeros(4, 3))
    with pytest.raises(NotImplementedError, match="no covariance matrix"):
        _ = one_hot.covariance
    with pytest.raises(ValueError, match="Normal is no distribution of classes"):
        _ = prediction(mixed(dist.Normal(torch.zeros(2, 4), 1.0)), 4).probs


def test_scores_of_classes(local):
    probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [[0.5, 0.4, 0.1], [0.6, 0.2, 0.2]]])
    p = prediction(mixed(dist.Categorical(probs)), 2)
    mixture, y = 0.3 * probs[0] + 0.7 * probs[1], torch.tensor([0, 1])
    figures = scores(p, y)
    assert figures["nll"] == pytest.approx(-float(mixture[[0, 1], y].log().mean()))
    assert figures["accuracy"] == 0.5
    brier = float((mixture - torch.eye(3)[y]).square().sum(-1).mean())
    assert figures["brier"] == pytest.approx(brier)
    assert set(figures) == {"nll", "accuracy", "brier", "ece"}
    x, y = regression(8)
    guide = Variational(OneLayer(likelihood=Bernoulli()), InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, (y > 0).to(x))
    p = predict(guide, x)
    torch.testing.assert_close(p.probs[:, 1], p.mean)


COUNTS = {
    "Poisson": (dist.Poisson, scipy.stats.poisson, ([1.5, 7.0],)),
    "NegativeBinomial": (
        lambda n, p: dist.NegativeBinomial(n, probs=p),
        lambda n, p: scipy.stats.nbinom(n, 1 - p),
        ([3.0, 8.0], [0.4, 0.6]),
    ),
    "Binomial": (dist.Binomial, scipy.stats.binom, ([5.0, 9.0], [0.3, 0.6])),
    "Geometric": (dist.Geometric, lambda p: scipy.stats.geom(p, loc=-1), ([0.2, 0.5],)),
    "Bernoulli": (dist.Bernoulli, scipy.stats.bernoulli, ([0.2, 0.7],)),
    "ZeroInflatedPoisson": (
        lambda gate, rate: dist.ZeroInflatedPoisson(rate, gate=gate),
        None,
        ([0.2, 0.5], [3.0, 6.0]),
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_distribution_functions_of_counts_equal_those_of_scipy(name):
    make, stats, parameters = COUNTS[name]
    m = mixed(make(*(torch.tensor(each)[:, None] for each in parameters)))
    if stats is None:
        gate, rate = parameters
        cdfs = [
            lambda k, g=g, r=r: g * (k >= 0) + (1 - g) * scipy.stats.poisson(r).cdf(k)
            for g, r in zip(gate, rate, strict=True)
        ]
    else:
        cdfs = [stats(*(each[s] for each in parameters)).cdf for s in range(2)]
    ks = np.arange(0, 400)
    exact = 0.3 * cdfs[0](ks) + 0.7 * cdfs[1](ks)
    for value in (-1.0, 0.0, 0.4, 1.0, 3.7, 6.0, 20.0, math.inf):
        expected = 0.0 if value < 0 else exact[int(min(value, 399.0))]
        assert float(m.cdf(torch.tensor([value]))) == pytest.approx(expected, abs=1e-10)
    for level in (0.01, 0.5, 0.9, 0.999):
        assert float(m.quantile(torch.tensor([level]))) == float(ks[np.searchsorted(exact, level)])
    y = torch.tensor([2.0 if name != "Bernoulli" else 1.0])
    crps = ((exact - (ks >= float(y))) ** 2).sum()
    assert float(m.crps(y)) == pytest.approx(crps, abs=1e-8)


def test_counts_keep_their_moments_and_rows_differ():
    rate = torch.tensor([[1.0, 50.0, 4.0], [2.0, 60.0, 0.1]])
    m = mixed(dist.Poisson(rate))
    torch.testing.assert_close(m.mean, (WEIGHTS[:, None] * rate).sum(0))
    y = torch.tensor([0.0, 70.0, 3.0])
    expected = sum(w * scipy.stats.poisson(rate[s]).cdf(y) for s, w in enumerate(WEIGHTS.tolist()))
    np.testing.assert_allclose(m.cdf(y), expected, atol=1e-12)
    assert m.quantile(torch.tensor([0.5, 0.9], dtype=torch.float32)).shape == (2, 3)
    single = Mixture(dist.Poisson(rate.float()), WEIGHTS.float().log())
    levels = torch.tensor([0.1, 0.5, 0.999])
    assert (single.quantile(levels.float()).double() - m.quantile(levels)).abs().max() <= 1


@pytest.mark.parametrize("kind", ["Categorical", "OrderedLogistic"])
def test_mixtures_of_classes_are_joined(kind):
    def one():
        if kind == "Categorical":
            return mixed(dist.Categorical(logits=torch.randn(2, 4, 3)))
        return mixed(dist.OrderedLogistic(torch.randn(2, 4), torch.tensor([-1.0, 0.5])))

    a, b = one(), one()
    _ = a.components.logits, b.probs  # lazy parameters
    torch.testing.assert_close(stack_mixtures([a, b]).probs, 0.5 * (a.probs + b.probs))
    torch.testing.assert_close(join_rows([a, b]).probs, torch.cat([a.probs, b.probs]))


class Made(PyroModule):
    """Targets of a distribution that is made from the function values."""

    def __init__(self, make):
        super().__init__()
        self.gp, self.make = GaussianProcess(RBF()).requires_grad_(False), make

    def forward(self, x, y=None):
        return pyro.sample("y", self.make(pyro.sample("f", self.gp(x))[..., 0]).to_event(1), obs=y)


def made(make):
    x = torch.linspace(-1, 1, 6)[:, None]
    torch.manual_seed(0)
    guide = Variational(Made(make), InducingPoints(4), MonteCarlo(5))
    guide.initialize(x, torch.rand(6) + 0.5)
    torch.manual_seed(1)
    return predict(guide, x)


def test_transformed_targets_have_quantiles_without_moments():
    exponential = made(lambda f: dist.TransformedDistribution(dist.Normal(f, 0.3), [ExpTransform()]))
    known = made(lambda f: dist.LogNormal(f, 0.3))
    levels = [0.01, 0.5, 0.99]
    torch.testing.assert_close(exponential.quantile(levels), known.quantile(levels), rtol=1e-9, atol=1e-12)
    far = made(lambda f: dist.TransformedDistribution(dist.Normal(f, 0.3), [AffineTransform(1e6, 5.0)]))
    near = made(lambda f: dist.Normal(f, 0.3))
    torch.testing.assert_close((far.quantile(0.9) - 1e6) / 5, near.quantile(0.9), rtol=1e-6, atol=1e-6)
    with pytest.raises(NotImplementedError, match="TransformedDistribution has no mean in closed form"):
        _ = exponential.mean


@pytest.mark.parametrize(
    "components",
    [
        lambda f: dist.VonMises(f, 2.0),
        lambda f: dist.ProjectedNormal(torch.stack([f + 0.5, f], -1)),
        lambda f: dist.SineBivariateVonMises(f, f, 2.0, 2.0, correlation=torch.zeros_like(f)),
        lambda f: dist.MixtureSameFamily(
            dist.Categorical(torch.ones(*f.shape, 2)), dist.VonMises(torch.stack([f, f + 2], -1), 2.0)
        ),
    ],
    ids=["VonMises", "ProjectedNormal", "SineBivariateVonMises", "a mixture"],
)
def test_angles_have_no_figures_on_a_line(components):
    angles = made(components)
    for figure in ("mean", "variance", "covariance"):
        with pytest.raises(
            NotImplementedError, match="angles and directions have no (mean|variance) on a line, and that of "
        ):
            getattr(angles, figure)
    with pytest.raises(NotImplementedError, match="angles and directions have no CRPS on a line"):
        angles.crps(torch.zeros(6, *angles.event_shape))


def test_angles_have_densities_and_draws():
    angles = made(lambda f: dist.VonMises(f, 2.0))
    assert angles.log_prob(torch.zeros(6)).isfinite().all() and angles.sample((3,)).shape == (3, 6)


def test_a_distribution_function_far_out_is_that_of_the_closed_form():
    """The base of a Gumbel distribution is a uniform one, whose least number values far below fall beyond."""
    gumbel = Prediction(lambda rows: Mixture(dist.Gumbel(torch.zeros(1, 1), 0.5), torch.zeros(1)), 1)
    for y in (-40.0, -4.0, -1.0, 0.3, 60.0):
        assert float(gumbel.cdf(torch.tensor([y]))) == pytest.approx(scipy.stats.gumbel_r.cdf(y, 0, 0.5), abs=1e-12)
    assert float(gumbel.quantile(0.02)) == pytest.approx(scipy.stats.gumbel_r.ppf(0.02, 0, 0.5), rel=1e-6)
    below = scipy.integrate.quad(lambda t: scipy.stats.gumbel_r.cdf(t, 0, 0.5) ** 2, -5, 0)[0]
    above = scipy.integrate.quad(lambda t: scipy.stats.gumbel_r.sf(t, 0, 0.5) ** 2, 0, 20)[0]
    assert float(gumbel.crps(torch.zeros(1))) == pytest.approx(below + above, rel=1e-3)


def test_a_distribution_function_is_not_asked_outside_its_support():
    """An unchecked Pareto distribution has negative numbers below its least value."""
    with pytest.raises(ValueError, match="support"):
        cdf_of(dist.Pareto(torch.ones(2), 2.0), torch.tensor([0.5, 3.0]))


def test_a_mixture_is_real_where_its_parts_are():
    parts = dist.Categorical(torch.ones(2))
    assert is_real(dist.MixtureSameFamily(parts, dist.Normal(torch.zeros(2), 1.0)))
    assert not is_real(dist.MixtureSameFamily(parts, dist.Gamma(torch.ones(2), 1.0)))
    assert not is_real(dist.MixtureSameFamily(parts, dist.Poisson(torch.ones(2))))


PARTS = {
    "Poisson": lambda: dist.Poisson(torch.tensor([[[1.5, 6.0], [0.5, 20.0]]]).double()),
    "NegativeBinomial": lambda: dist.NegativeBinomial(2.0, logits=torch.tensor([[[0.1, 1.2], [0.5, -1.0]]]).double()),
    "Geometric": lambda: dist.Geometric(torch.tensor([[[0.6, 0.1], [0.5, 0.3]]]).double()),
    "Binomial": lambda: dist.Binomial(
        torch.tensor([[[3.0, 5.0], [3.0, 5.0]]]).double(), torch.tensor([[[0.6, 0.1], [0.5, 0.3]]]).double()
    ),
    "Bernoulli": lambda: dist.Bernoulli(torch.tensor([[[0.6, 0.1], [0.5, 0.3]]]).double()),
    "Categorical": lambda: dist.Categorical(torch.tensor([[[[0.6, 0.1, 0.3], [0.2, 0.3, 0.5]]] * 2]).double()),
    "Uniform": lambda: dist.Uniform(torch.tensor([[[-4.0, 0.0], [0.0, 1.0]]]).double(), 2.0),
}


def outside_and_inside(name):
    """One mixture of two parts for each of two rows, as one component that is a mixture in itself, and as two components."""
    parts, weights = PARTS[name](), WEIGHTS.expand(1, 2, 2)
    inside = Mixture(dist.MixtureSameFamily(dist.Categorical(weights), parts), torch.zeros(1).double())
    axes = {key: value for key, value in parts.__dict__.items() if key in ("rate", "low", "high", "probs", "logits")}
    moved = {key: value.expand(1, 2, 2, *value.shape[3:])[0].movedim(1, 0) for key, value in axes.items()}
    moved |= {"total_count": 2.0} if name == "NegativeBinomial" else {}
    moved |= {"total_count": torch.tensor([[3.0], [5.0]]).double()} if name == "Binomial" else {}
    return mixed(type(parts)(**moved)), inside


@pytest.mark.parametrize("name", PARTS)
def test_a_component_that_is_a_mixture_has_the_figures_of_its_parts(name):
    """Counts had no least value there, classes a mean that is NaN, and a value that some parts do not have no density."""
    outside, inside = outside_and_inside(name)
    y = torch.tensor({"Uniform": [-1.0, 0.5], "Binomial": [3.0, 1.0]}.get(name, [1.0, 0.0])).double()
    torch.testing.assert_close(inside.log_prob(y), outside.log_prob(y))
    assert bool(inside.log_prob(y).isfinite().all())
    if name in ("Bernoulli", "Categorical"):
        torch.testing.assert_close(inside.probs, outside.probs)
        rows = scores(prediction(inside, 2), y)
        assert rows == pytest.approx(scores(prediction(outside, 2), y))
    if name == "Binomial":
        with pytest.raises(ValueError, match="the rows of Binomial have different numbers of values"):
            _ = inside.probs
    if name == "Categorical":
        with pytest.raises(ValueError, match="the targets are 3 classes, whose numbers have no mean"):
            _ = inside.mean
        return
    torch.testing.assert_close(inside.cdf(y), outside.cdf(y))
    torch.testing.assert_close(inside.crps(y), outside.crps(y), rtol=1e-3, atol=1e-6)
    levels = torch.tensor([0.05, 0.4, 0.9]).double()
    torch.testing.assert_close(inside.quantile(levels), outside.quantile(levels))


def test_means_of_components_that_are_mixtures_of_classes_are_their_probabilities():
    outside, inside = outside_and_inside("Categorical")
    torch.testing.assert_close(means_of(inside.components)[0], outside.probs)
    several = dist.Categorical(torch.tensor([[[0.6, 0.4], [0.1, 0.9]]]).double()).to_event(1)
    torch.testing.assert_close(means_of(several), several.base_dist.probs)
    with pytest.raises(ValueError, match="whose numbers have no mean: take log_prob or sample"):
        _ = Mixture(several, torch.zeros(1).double()).mean


def test_covariances_that_are_not_known_are_refused_in_a_sentence():
    exponential = made(lambda f: dist.TransformedDistribution(dist.Normal(f, 0.3), [ExpTransform()]))
    with pytest.raises(NotImplementedError, match="TransformedDistribution has no mean in closed form"):
        _ = exponential.covariance
