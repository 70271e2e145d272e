"""Priors with draws that their parameter does not take are refused: at assignment, or where they are drawn for the first time."""

import copy
import math
import pickle

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch.distributions import transforms

from pyro_dgp import (
    RBF,
    ConstantMean,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    Kernel,
    Linear,
    NegativeBinomial,
    Ordinal,
    Periodic,
    RationalQuadratic,
    Scaled,
    StudentT,
)
from pyro_dgp.internal.recording import reports

pytestmark = pytest.mark.usefixtures("local")

NOUGHT, ONE = torch.tensor([0.0, 1.0], dtype=torch.float64)


class Truncated(dist.Rejector):
    """A normal without its negative half; its support is that of the normal."""

    def __init__(self):
        normal = dist.Normal(0.5 * ONE, ONE)
        accepted = lambda x: torch.where(x > 0, 0.0, -math.inf)
        super().__init__(normal, accepted, torch.log(1 - normal.cdf(NOUGHT)))


class Opaque(dist.TorchDistribution):
    """A distribution that says nothing of its support, whose draws are one number."""

    arg_constraints = {}

    def __init__(self, number):
        self.number = torch.as_tensor(number)
        super().__init__()

    def sample(self, sample_shape=()):
        return self.number.expand(sample_shape)

    def log_prob(self, value):
        return torch.zeros_like(value)


def changed(base, *changes):
    return dist.TransformedDistribution(base, list(changes))


POSITIVE = {
    "LogNormal": lambda: dist.LogNormal(0.0, 1.0),
    "Gamma": lambda: dist.Gamma(2.0, 1.0),
    "InverseGamma": lambda: dist.InverseGamma(2.0, 1.0),
    "HalfNormal": lambda: dist.HalfNormal(1.0),
    "HalfCauchy": lambda: dist.HalfCauchy(1.0),
    "Uniform": lambda: dist.Uniform(0.1, 2),
    "Beta": lambda: dist.Beta(2.0, 2.0),
    "Delta": lambda: dist.Delta(torch.tensor(0.5)),
    "several": lambda: dist.Gamma(2.0, 1.0).expand([2]).to_event(1),
    "masked": lambda: dist.HalfNormal(1.0).mask(True).expand([2]).to_event(1),
    "masked Delta": lambda: dist.Delta(torch.tensor(0.5)).mask(False),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.LogNormal(torch.zeros(2), torch.ones(2))
    ),
    "softplus": lambda: changed(dist.Normal(0.0, 1.0), transforms.SoftplusTransform()),
    "shifted": lambda: changed(dist.LogNormal(0.0, 1.0), transforms.AffineTransform(0.1, 1.0)),
    "quantiles": lambda: changed(
        dist.Uniform(0.5 * ONE, ONE), transforms.CumulativeDistributionTransform(dist.Normal(NOUGHT, ONE)).inv
    ),
    "truncated": Truncated,
    "opaque": lambda: Opaque(0.5),
}
OTHERS = {
    "Normal": (lambda: dist.Normal(0.0, 1.0), "Normal has draws of all reals"),
    "narrow": (lambda: dist.Normal(1.0, 0.1).expand([2]).to_event(1), "Normal has draws of all reals"),
    "of torch": (lambda: torch.distributions.Normal(0.0, 1.0), "Normal has draws of all reals"),
    "masked": (lambda: dist.Normal(0.0, 1.0).mask(True), "Normal has draws of all reals"),
    "StudentT": (lambda: dist.StudentT(3.0), "StudentT has draws of all reals"),
    "single precision": (
        lambda: dist.MultivariateNormal(torch.zeros(2).float(), torch.eye(2).float()),
        "MultivariateNormal has draws of all reals",
    ),
    "Uniform": (lambda: dist.Uniform(-1.0, 2.0), "Uniform has draws from -1 to 2"),
    "one Uniform": (
        lambda: dist.Uniform(torch.tensor([0.1, -1.0]), torch.tensor([2.0, 3.0])).to_event(1),
        "Uniform has draws from -1 to 3",
    ),
    "Delta": (lambda: dist.Delta(torch.tensor([0.3, -0.05]), event_dim=1), "Delta has draws such as -0.05"),
    "mirrored": (
        lambda: changed(dist.HalfNormal(1.0), transforms.AffineTransform(0.0, -1.0)),
        "TransformedDistribution has draws of all reals",
    ),
}
# Parameters that are positive, each with the class that has it.
PLACES = {
    "RBF.lengthscale": RBF,
    "RBF.variance": RBF,
    "Periodic.period": Periodic,
    "RationalQuadratic.alpha": RationalQuadratic,
    "Linear.variance": Linear,
    "Scaled.variance": lambda: Scaled(RBF()),
    "Gaussian.variance": Gaussian,
    "StudentT.df": StudentT,
    "StudentT.scale": StudentT,
    "NegativeBinomial.dispersion": NegativeBinomial,
    "HeteroscedasticGaussian.variance": HeteroscedasticGaussian,
}


@pytest.mark.parametrize("prior", POSITIVE.values(), ids=POSITIVE)
def test_a_prior_of_positive_draws_is_taken(prior):
    kernel = RBF()
    kernel.lengthscale = PyroSample(prior())
    for _ in range(2):
        assert (pyro.poutine.trace(kernel).get_trace().nodes["lengthscale"]["value"] > 0).all()


def test_a_distribution_of_torch_is_taken_too():
    kernel = RBF()
    kernel.lengthscale = PyroSample(torch.distributions.LogNormal(0.0, 1.0))
    assert list(kernel._pyro_samples) == ["lengthscale"]


@pytest.mark.parametrize(("prior", "fault"), OTHERS.values(), ids=OTHERS)
def test_a_prior_of_other_draws_is_refused_at_assignment(prior, fault):
    kernel = RBF()
    with pytest.raises(ValueError) as error:
        kernel.lengthscale = PyroSample(prior())
    assert str(error.value) == f"RBF.lengthscale is positive, and {fault}: take LogNormal or Gamma"
    torch.testing.assert_close(kernel.lengthscale.detach(), ONE)  # still what it was


@pytest.mark.parametrize("place", PLACES)
def test_every_positive_parameter_refuses_such_a_prior(place):
    module, name = PLACES[place](), place.partition(".")[2]
    with pytest.raises(ValueError, match=f"{place} is positive, and Normal has draws of all reals: take LogNormal"):
        setattr(module, name, PyroSample(dist.Normal(0.0, 1.0)))
    setattr(module, name, PyroSample(dist.LogNormal(0.0, 1.0)))  # below the floor of training too
    with pytest.raises(ValueError, match=f"{place} is positive"):  # in the place of a prior as well
        setattr(module, name, PyroSample(dist.Normal(0.0, 1.0)))


def test_parameters_without_bounds_take_every_prior():
    mean, likelihood = ConstantMean(), Ordinal(3)
    mean.constant = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))
    likelihood.cutpoints = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    assert mean.constant.shape == (1,) and likelihood.cutpoints.shape == (2,)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (constraints.interval(0.2, 0.8), "from 0.2 to 0.8"),
        (constraints.greater_than(-1.0), "above -1"),
        (constraints.less_than(3.0), "below 3"),
    ],
    ids=str,
)
def test_the_constraint_of_a_user_s_parameter_counts(constraint, words):
    class Own(Kernel):
        def __init__(self):
            super().__init__()
            self.share = PyroParam(torch.tensor(0.5), constraint=constraint)

    kernel = Own()
    with pytest.raises(
        ValueError, match=f"Own.share is {words}, and Normal has draws of all reals: take a distribution of such"
    ):
        kernel.share = PyroSample(dist.Normal(0.0, 1.0))
    kernel.share = PyroSample(dist.Uniform(0.2 * ONE.float(), 0.8 * ONE.float()))


def test_a_parameter_that_is_none_of_the_class_takes_every_prior():
    kernel = RBF()
    kernel.offset = PyroSample(dist.Normal(0.0, 1.0))
    assert kernel.offset.shape == ()


class Model(PyroModule):
    """A Gaussian process whose variance depends on its lengthscale; ``made`` counts the calls of the function."""

    def __init__(self, make):
        super().__init__()
        self.gp, self.made = GaussianProcess(RBF()), 0
        self.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.1))
        self.gp.kernel.variance = PyroSample(lambda kernel: self.count(make(kernel)))

    def count(self, prior):
        self.made += 1
        return prior

    def forward(self, x):
        return self.gp(x)


FUNCTIONS = {
    "distribution": (lambda kernel: dist.Normal(kernel.lengthscale, 0.1), "Normal has draws of all reals"),
    "Delta": (lambda kernel: dist.Delta(torch.tensor(-0.5)), "Delta has draws such as -0.5"),
    "value": (lambda kernel: torch.tensor([0.3, -0.5]), "its prior gave -0.5"),
    "opaque": (lambda kernel: Opaque(-0.5), "its prior gave -0.5"),
}


@pytest.mark.parametrize(("make", "fault"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_a_function_gives_is_checked_at_the_first_draw(make, fault):
    model, x = Model(make), torch.zeros(3, 1)
    for _ in range(2):  # a model that failed once fails again
        with pytest.raises(ValueError, match=f"RBF.variance is positive, and {fault}: take LogNormal or Gamma"):
            model(x)


def test_a_draw_is_checked_where_the_support_says_nothing():
    likelihood = Gaussian()
    likelihood.variance = PyroSample(Opaque(-0.5))
    with pytest.raises(ValueError, match="Gaussian.variance is positive, and its prior gave -0.5"):
        likelihood.conditional()


def test_a_function_runs_once_for_a_draw_and_draws_what_it_drew():
    model, x = Model(lambda kernel: dist.LogNormal(kernel.lengthscale, 0.1)), torch.zeros(3, 1)
    pyro.set_rng_seed(3)
    first = pyro.poutine.trace(model).get_trace(x)
    assert model.made == 1
    pyro.set_rng_seed(3)
    second = pyro.poutine.trace(model).get_trace(x)
    assert model.made == 2 and first.stochastic_nodes == second.stochastic_nodes
    for name in first.stochastic_nodes:
        assert torch.equal(first.nodes[name]["value"], second.nodes[name]["value"])


def test_a_recorded_function_looks_at_nothing_and_a_later_draw_is_checked():
    likelihood = Gaussian()
    likelihood.variance = PyroSample(lambda _: dist.Normal(-3.0, 0.1))
    with reports():
        likelihood.conditional()
    with pytest.raises(ValueError, match="Gaussian.variance is positive"):
        likelihood.conditional()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_know_the_bounds(again):
    kernel = RBF()
    kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match="RBF.lengthscale is positive"):
        again(kernel).lengthscale = PyroSample(dist.Normal(0.0, 1.0))


def test_a_parameter_in_the_place_of_a_prior_is_no_prior():
    kernel = RBF()
    kernel.lengthscale = PyroSample(lambda _: torch.tensor(-1.0))
    kernel.lengthscale = PyroParam(2 * ONE, constraint=constraints.positive)
    assert kernel.lengthscale == 2
    kernel.lengthscale = PyroSample(lambda _: torch.tensor(1.0))
    assert kernel.lengthscale == 1


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.TransformedDistribution(
            dist.Normal(0.0, 1.0), [transforms.SigmoidTransform(), transforms.AffineTransform(0.1, 2.0)]
        ),
        lambda: dist.TransformedDistribution(
            dist.Normal(0.0, 1.0),
            [torch.distributions.transform_to(torch.distributions.constraints.interval(5.0, 25.0))],
        ),
        lambda: dist.TransformedDistribution(dist.Gamma(1.0, 1.0), [transforms.AffineTransform(0.1, 1.0)]),
        lambda: dist.TransformedDistribution(dist.InverseGamma(2.0, 1.0), [transforms.AffineTransform(0.1, 1.0)]),
    ],
)
def test_transforms_that_stay_above_zero_are_accepted(make, validates):
    with pyro.validation_enabled(validates):
        kernel = RBF()
        kernel.lengthscale = PyroSample(make())
        assert bool((kernel.lengthscale > 0).all())


def test_an_affine_transform_of_a_normal_is_refused():
    prior = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [transforms.AffineTransform(0.1, 2.0)])
    with pytest.raises(ValueError, match="RBF.lengthscale is positive"):
        RBF().lengthscale = PyroSample(prior)
