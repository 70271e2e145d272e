"""Concatenation of distributions of every kind, beside the distribution of the concatenated parameters."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule

from pyro_dgp import RBF, GaussianProcess, PosteriorDraws, predict
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.supports import bounds
from pyro_dgp.prediction.joining import concatenate, counted_components, flattened
from pyro_dgp.prediction.target_kinds import are_classes
from tests.examples import regression

pytestmark = pytest.mark.usefixtures("local")


class Shifted(dist.TorchDistribution):
    """A user's distribution, with an argument that ``arg_constraints`` does not name."""

    arg_constraints = {"rate": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, rate, shift=0.0, validate_args=None):
        self.rate, self.shift, self.inner = rate, shift, dist.Exponential(rate, validate_args=False)
        super().__init__(rate.shape, validate_args=False)

    def rsample(self, sample_shape=()):
        return self.inner.rsample(sample_shape) + self.shift

    def log_prob(self, value):
        return self.inner.log_prob(value - self.shift)

    def cdf(self, value):
        return self.inner.cdf(value - self.shift)

    def expand(self, batch_shape, _instance=None):
        return Shifted(self.rate.expand(batch_shape), self.shift)

    @property
    def mean(self):
        return self.inner.mean + self.shift

    @property
    def variance(self):
        return self.inner.variance


class Doubled(dist.Normal):
    """A user's distribution that keeps another value than it was given, under the same name."""

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(2 * loc, scale, validate_args=False)

    def expand(self, batch_shape, _instance=None):
        return dist.Normal(self.loc, self.scale).expand(batch_shape)


def two(f):
    """Two values of a function beside each other, ``(..., 2)``."""
    return torch.stack([f, f + 1], -1)


def three(f):
    return torch.stack([f, -f, f.square()], -1)


COUNTS = torch.tensor([4.0, 3.0, 3.0])
#: From function values ``(S, N)`` to a distribution, and a value of a row.
KINDS = {
    "normal": (lambda f: dist.Normal(f, 0.3), 0.2),
    "shifted": (lambda f: Shifted(f.exp(), 5.0), 5.4),
    "doubled": (lambda f: Doubled(f, 0.3), 0.2),
    "log-normal": (lambda f: dist.LogNormal(f, 0.3), 0.8),
    "gamma": (lambda f: dist.Gamma(f.exp(), 2.0), 0.8),
    "beta": (lambda f: dist.Beta(f.exp(), torch.ones(())), 0.3),
    "Student": (lambda f: dist.StudentT(4.0, f, 0.5), 0.3),
    "Weibull": (lambda f: dist.Weibull(f.exp(), torch.tensor(2.0)), 0.8),
    "uniform": (lambda f: dist.Uniform(f - 3, f + 3), 0.1),
    "Bernoulli": (lambda f: dist.Bernoulli(logits=f), 1.0),
    "categorical": (lambda f: dist.Categorical(logits=three(f)), 2),
    "ordered": (lambda f: dist.OrderedLogistic(f, torch.tensor([-1.0, 0.0, 1.0])), 2),
    "Poisson": (lambda f: dist.Poisson(f.exp()), 2.0),
    "binomial": (lambda f: dist.Binomial(7, logits=f), 3.0),
    "negative binomial": (lambda f: dist.NegativeBinomial(2.0, logits=f), 3.0),
    "zero-inflated": (lambda f: dist.ZeroInflatedPoisson(f.exp(), gate=torch.tensor(0.3)), 2.0),
    "beta-binomial": (lambda f: dist.BetaBinomial(f.exp(), torch.tensor(2.0), 10), 3.0),
    "multinomial": (lambda f: dist.Multinomial(10, logits=three(f)), COUNTS),
    "Dirichlet-multinomial": (lambda f: dist.DirichletMultinomial(three(f).exp(), 10), COUNTS),
    "Dirichlet": (lambda f: dist.Dirichlet(three(f).exp()), COUNTS / 10),
    "multivariate normal": (lambda f: dist.MultivariateNormal(two(f), torch.eye(2) + 0.3), torch.tensor([0.1, 0.4])),
    "low rank": (lambda f: dist.LowRankMultivariateNormal(two(f), torch.ones(2, 1), torch.ones(2)), torch.ones(2)),
    "mixture": (
        lambda f: dist.MixtureSameFamily(
            dist.Categorical(logits=torch.zeros(2).expand(*f.shape, 2)), dist.Normal(two(f), 0.1)
        ),
        0.3,
    ),
    "transformed": (
        lambda f: dist.TransformedDistribution(dist.Normal(f, 0.3), [dist.transforms.SigmoidTransform()]),
        0.6,
    ),
    "folded": (lambda f: dist.FoldedDistribution(dist.Normal(f, 0.3)), 0.6),
    "asymmetric Laplace": (lambda f: dist.AsymmetricLaplace(f, torch.tensor(0.3), torch.tensor(1.0)), 0.6),
}


def agree(found, expected, value):
    """Hold every figure of one distribution to that of another."""
    assert (found.batch_shape, found.event_shape) == (expected.batch_shape, expected.event_shape)
    rows = torch.as_tensor(value).expand(found.batch_shape[1:] + found.event_shape)
    torch.testing.assert_close(found.log_prob(rows), expected.log_prob(rows).expand(found.batch_shape))
    assert are_classes(found) == are_classes(expected)
    torch.testing.assert_close([b.expand(found.batch_shape) for b in bounds(found)], list(map_bounds(expected)))
    for figure in ("mean", "variance", "cdf", "covariance_matrix", "enumerate_support"):
        try:
            wanted = getattr(expected, figure)
            wanted = wanted(rows) if figure == "cdf" else wanted(expand=False) if callable(wanted) else wanted
        except (NotImplementedError, AttributeError):
            continue
        own = getattr(found, figure)
        own = own(rows) if figure == "cdf" else own(expand=False) if callable(own) else own
        torch.testing.assert_close(own, wanted, equal_nan=True)
    torch.manual_seed(0)
    draws = found.sample((4000,)).double()
    assert draws.shape == (4000, *found.shape())
    torch.manual_seed(1)
    same = expected.sample((4000,)).to(draws)
    error = ((draws.var(0) + same.var(0)) / 4000).sqrt() + 1e-9
    assert ((draws.mean(0) - same.mean(0)).abs() < 5 * error).all()


def map_bounds(distribution):
    return (bound.expand(distribution.batch_shape) for bound in bounds(distribution))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_distribution_of_all_parameters(kind, axis):
    make, value = KINDS[kind]
    parts = [torch.randn(3, 4), torch.randn(2, 4) if axis == 0 else torch.randn(3, 2)]
    agree(concatenate([make(part) for part in parts], axis), make(torch.cat(parts, axis)), value)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_one_axis(kind):
    make, value = KINDS[kind]
    f = torch.randn(3, 2, 4)
    agree(flattened(make(f), 1, 3), make(f.flatten(1)), value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_components_are_the_mixture(kind):
    make, value = KINDS[kind]
    f, log_weights = torch.randn(5, 4), torch.tensor([0.2, 0.8]).log()
    found, weights = counted_components(make(f), log_weights)
    first = make(f[:2])
    rows = torch.as_tensor(value).expand(first.batch_shape[1:] + first.event_shape)
    expected = (log_weights[:, None] + first.log_prob(rows)).logsumexp(0)
    torch.testing.assert_close((weights[:, None] + found.log_prob(rows)).logsumexp(0), expected)


class Plain(PyroModule):
    def __init__(self, make):
        super().__init__()
        self.gp, self.make = GaussianProcess(RBF()).requires_grad_(False), make

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.make(f[..., 0]).to_event(1), obs=y)


@pytest.mark.parametrize("kind", ["shifted", "doubled", "multinomial", "mixture", "beta-binomial"])
def test_predictions_from_draws_are_mixtures_over_them(kind):
    x, _ = regression(6)
    make, value = KINDS[kind]
    model = Plain(make)
    y = torch.as_tensor(value).expand(6, *make(torch.zeros(())).event_shape).to(torch.get_default_dtype())
    draws = {"f": torch.randn(3, 6, 1)}
    prediction = predict(PosteriorDraws(model, draws, (x, y)), x)
    expected = torch.stack([make(f[:, 0]).log_prob(y) for f in draws["f"]]).logsumexp(0) - torch.tensor(3.0).log()
    torch.testing.assert_close(prediction.log_prob(y), expected, atol=0.02, rtol=1e-3)
    mean = torch.stack([make(f[:, 0]).mean for f in draws["f"]]).mean(0)
    torch.testing.assert_close(prediction.mean, mean, atol=0.02, rtol=1e-3)
    assert prediction.sample((7,)).shape == (7, *y.shape)


@pytest.mark.parametrize("kind", ["known", "of a user"])
def test_a_mean_over_nodes_is_a_mixture(kind):
    log_weights = torch.tensor([0.2, 0.3, 0.5]).log()
    rate = torch.rand(3, 4) + 0.5
    inner = dist.Exponential(rate) if kind == "known" else Shifted(rate)
    mixture = Integrated(inner, log_weights).expand((2, 4))
    assert mixture.batch_shape == (2, 4) and mixture.mean.shape == (2, 4)
    value = torch.rand(2, 4)
    by_hand = torch.logsumexp(log_weights[:, None, None] + dist.Exponential(rate[:, None]).log_prob(value), 0)
    torch.testing.assert_close(mixture.log_prob(value), by_hand)
    draws = mixture.sample((20_000,))
    assert draws.shape == (20_000, 2, 4)
    expected = (log_weights.exp()[:, None] / rate).sum(0)
    if kind == "known":
        torch.testing.assert_close(mixture.mean, expected.expand(2, 4))
        second = (log_weights.exp()[:, None] * 2 / rate.square()).sum(0)
        torch.testing.assert_close(mixture.variance, (second - expected.square()).expand(2, 4))
        share = (draws < value).double().mean(0)
        torch.testing.assert_close(mixture.cdf(value), share, rtol=0, atol=0.02)
    torch.testing.assert_close(draws.mean(0), expected.expand(2, 4), rtol=0.06, atol=0)
    with pytest.raises(NotImplementedError, match="over nodes has no reparameterised draws: use sample"):
        mixture.rsample()


def test_events_of_a_mean_over_nodes_share_the_node():
    loc = torch.tensor([[[0.0, 0.0]], [[10.0, 10.0]]])  # two nodes, one row, two outputs
    inner = dist.MultivariateNormal(loc, torch.eye(2))
    mixture = Integrated(inner, torch.full((2,), 0.5).log())
    draws = mixture.sample((500,))[:, 0]
    assert ((draws[:, 0] > 5) == (draws[:, 1] > 5)).all() and 0.3 < float((draws[:, 0] > 5).double().mean()) < 0.7
    torch.testing.assert_close(mixture.covariance_matrix[0], torch.tensor([[26.0, 25.0], [25.0, 26.0]]))
