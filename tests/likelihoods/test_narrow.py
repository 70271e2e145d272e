"""Likelihoods of one's own whose p(y | f) is narrow in f beside what is known of f, against adaptive quadrature and closed forms."""

import math
from dataclasses import dataclass

import pytest
import torch
from pyro import distributions as dist
from scipy.integrate import quad
from scipy.stats import norm
from torch.special import erfcx

from pyro_dgp import (
    Conditional,
    DeepGP,
    GammaDivergence,
    Gaussian,
    InducingPoints,
    Likelihood,
    Mixture,
    PredictiveLogLikelihood,
    RowObservation,
    Variational,
    predict,
)
from pyro_dgp.internal.recording import reports
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units

MEAN, SD = 0.3, 0.9
TARGETS = (-2.4, 0.0, 0.35, 0.7, 1.9, 9.3)  # the last one lies ten standard deviations off


@dataclass(frozen=True)
class Own(Conditional):
    """``y_n ~ f_n + scale e_n``, with a distribution of e_n by its name."""

    kind: str
    scale: torch.Tensor

    def given(self, f):
        family = {"laplace": dist.Laplace, "normal": dist.Normal, "uniform": uniform}.get(self.kind, student)
        return RowObservation(family(f[..., 0], self.scale.expand(f.shape[:-1]), validate_args=False), 1)


def student(loc, scale, **kwargs):
    return dist.StudentT(torch.full_like(loc, 4.0), loc, scale, **kwargs)


def uniform(loc, scale, **kwargs):
    return dist.Uniform(loc - scale, loc + scale, **kwargs)


DENSITIES = {
    "laplace": lambda e, b: math.exp(-abs(e) / b) / (2 * b),
    "normal": lambda e, b: math.exp(-0.5 * (e / b) ** 2) / (b * math.sqrt(2 * math.pi)),
    "student": lambda e, b: 3 / (8 * b) * (1 + (e / b) ** 2 / 4) ** -2.5,
    "uniform": lambda e, b: float(abs(e) <= b) / (2 * b),
}


def integral(term, y, scale, low=MEAN - 12 * SD, high=MEAN + 12 * SD):
    """The integral of a term over N(f), piece by piece around y."""
    q = norm(MEAN, SD)
    inner = {y + sign * width * scale for sign in (-1, 1) for width in (0.0, 0.2, 1.0, 3.0, 10.0, 40.0)}
    cuts = sorted({low, high, MEAN, *(cut for cut in inner if low < cut < high)})
    pieces = zip(cuts, cuts[1:], strict=False)
    return sum(quad(lambda f: term(f) * q.pdf(f), *piece, epsabs=0, epsrel=1e-10, limit=200)[0] for piece in pieces)


def moments(rows, dtype=torch.float64):
    return Moments(torch.full((rows, 1), MEAN, dtype=dtype), torch.full((rows, 1), SD**2, dtype=dtype))


@pytest.mark.parametrize("scale", [0.004, 0.05, 1.0])
@pytest.mark.parametrize("kind", ["laplace", "normal", "student"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 2e-5), (torch.float32, 5e-4)])
def test_integrals_over_one_function(kind, scale, dtype, error):
    conditional, y = Own(kind, torch.tensor(scale, dtype=dtype)), torch.tensor(TARGETS, dtype=dtype)
    f = moments(len(y), dtype)
    for power in (1.0, 0.4):
        expected = [
            math.log(integral(lambda f, t=t: DENSITIES[kind](t - f, scale) ** power, t, scale)) for t in TARGETS
        ]
        found = conditional.log_expected_power(y, f, power)
        assert found.dtype == dtype
        assert found.tolist() == pytest.approx(expected, abs=error, rel=error)
    log_probs = conditional.components(f).log_prob(y)
    torch.testing.assert_close(log_probs, conditional.predictive_log_prob(y, f))
    if kind == "normal":
        closed = dist.Normal(MEAN, math.sqrt(SD**2 + scale**2)).log_prob(y)
        torch.testing.assert_close(log_probs, closed, rtol=error, atol=error)


def test_an_expected_log_density_is_that_of_fixed_nodes():
    """Exact for a quadratic; with the kink of Laplace's, within a hundredth of the distance of f in scales of the noise."""
    f, y = moments(3), torch.tensor([-1.0, 0.3, 2.0])
    exact = dist.Normal(MEAN, 0.05).log_prob(y) - 0.5 * SD**2 / 0.05**2
    torch.testing.assert_close(Own("normal", torch.tensor(0.05)).expected_log_prob(y, f), exact)
    found = Own("laplace", torch.tensor(0.05)).expected_log_prob(y, f)
    expected = [-math.log(0.1) - integral(lambda f, t=t: abs(t - f) / 0.05, t, 0.05) for t in y.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=0.02 * SD / 0.05)


@pytest.mark.parametrize("width", [0.05, 1.0])
def test_densities_that_end_are_integrated_and_are_zero_where_nothing_reaches(width):
    y = torch.tensor([-2.9, 0.0, 0.35, 1.9])
    found = Own("uniform", torch.tensor(width)).predictive_log_prob(y, moments(4))
    q = norm(MEAN, SD)
    expected = [math.log((q.cdf(t + width) - q.cdf(t - width)) / (2 * width)) for t in y.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=2e-5)
    far = torch.full((1,), 300.0)
    assert float(Own("uniform", torch.tensor(width)).predictive_log_prob(far, moments(1))) == -math.inf


def closed_form(kind, y, f, scale):
    """``log int p(y | f) N(f) df`` of normal and Laplace noise."""
    mean, sd = f.mean[..., 0], f.variance[..., 0].sqrt()
    if kind == "normal":
        return dist.Normal(mean, (sd.square() + scale**2).sqrt()).log_prob(y)
    ratio, d = sd / scale, (y - mean) / sd
    both = erfcx((ratio + d) / math.sqrt(2)) + erfcx((ratio - d) / math.sqrt(2))
    return both.log() - 0.5 * d.square() - (4 * scale).log()


@pytest.mark.parametrize("kind", ["laplace", "normal"])
@pytest.mark.parametrize("scale", [0.03, 1.0])
def test_gradients_are_those_of_closed_forms(kind, scale):
    y, found = torch.tensor([-1.1, 0.37, 1.2]), []
    for call in (closed_form, lambda kind, y, f, scale: Own(kind, scale).predictive_log_prob(y, f)):
        mean = torch.tensor([[0.3], [0.1], [-0.2]], requires_grad=True)
        variance = torch.tensor([[0.8], [0.2], [0.5]], requires_grad=True)
        scales = torch.full((3,), scale, requires_grad=True)
        total = call(kind, y, Moments(mean, variance), scales).sum()
        by_mean, by_variance, by_scale = torch.autograd.grad(total, (mean, variance, scales))
        found.append(torch.stack([by_mean[:, 0], by_variance[:, 0], by_scale]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def test_second_derivatives_are_those_of_closed_forms():
    y, scale, f = torch.tensor([0.37]), torch.tensor([0.03]), moments(1)
    for kind, error in (("normal", 1e-4), ("laplace", 2e-2)):

        def call(mean, kind=kind):
            return Own(kind, scale).predictive_log_prob(y, Moments(mean, f.variance)).sum()

        def exact(mean, kind=kind):
            return closed_form(kind, y, Moments(mean, f.variance), scale).sum()

        expected = torch.autograd.functional.hessian(exact, f.mean)
        torch.testing.assert_close(torch.autograd.functional.hessian(call, f.mean), expected, rtol=error, atol=error)


@dataclass(frozen=True)
class Two(Conditional):
    """``y_n`` around a function, or around the sum of two, with noise that may be a function of its own."""

    kind: str
    scale: float

    def given(self, f):
        loc, scale = f[..., 0], self.scale * (f[..., 1] / 2).exp()
        if self.kind == "sum":
            loc, scale = f.sum(-1), torch.full_like(loc, self.scale)
        family = dist.Laplace if self.kind == "laplace" else dist.Normal
        return RowObservation(family(loc, scale, validate_args=False), 1)


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["normal", "laplace", "sum"])
def test_integrals_over_two_functions(kind, scale):
    means, deviations, y = (0.3, -0.2), (0.9, 0.5), torch.tensor([-2.4, 0.0, 0.31, 1.9])
    f = Moments(torch.tensor([means] * 4), torch.tensor([deviations] * 4).square())
    z = torch.linspace(-9, 9, 2001)[:, None]
    noise, log_weights = scale * ((means[1] + deviations[1] * z) / 2).exp(), torch.log_softmax(-0.5 * z.square(), 0)
    if kind == "sum":
        exact = dist.Normal(sum(means), math.hypot(scale, *deviations)).log_prob(y)
    elif kind == "normal":
        log_probs = dist.Normal(means[0], (noise.square() + deviations[0] ** 2).sqrt()).log_prob(y)
        exact = torch.logsumexp(log_weights + log_probs, 0)
    else:
        of_first = Moments(f.mean[:, :1], f.variance[:, :1])
        exact = torch.logsumexp(log_weights + closed_form("laplace", y, of_first, noise), 0)
    conditional = Two(kind, scale)
    error = 2e-3 if kind == "laplace" else 2e-4
    torch.testing.assert_close(conditional.predictive_log_prob(y, f), exact, rtol=0, atol=error)
    torch.testing.assert_close(conditional.components(f).log_prob(y), exact, rtol=0, atol=error)


def test_gradients_over_two_functions():
    y, variance = torch.tensor([-0.4, 0.37]), torch.tensor([[0.8, 0.3], [0.1, 0.2]], requires_grad=True)

    def call(mean, variance):
        return Two("normal", 0.05).predictive_log_prob(y, Moments(mean, variance))

    assert torch.autograd.gradcheck(call, (torch.randn(2, 2, requires_grad=True), variance), eps=1e-4, atol=1e-4)


class Of2(Conditional):
    """Two outputs of one function, with narrow noise."""

    def given(self, f):
        return RowObservation(dist.Laplace(f * torch.tensor([1.0, -2.0]), torch.tensor(0.05), validate_args=False), 2)


class Correlated(Conditional):
    """A row of two outputs as one event."""

    def given(self, f):
        loc = f * torch.tensor([1.0, -2.0])
        return RowObservation(
            dist.MultivariateNormal(loc, 1e-3 * torch.tensor([[2.0, 0.5], [0.5, 1.0]]), validate_args=False), 1
        )


def test_several_outputs_of_a_row():
    f, y = moments(5), torch.randn(5, 2)
    components = Of2().components(f)
    assert components.batch_shape == (5, 2) and components.sample((3,)).shape == (3, 5, 2)
    first = Own("laplace", torch.tensor(0.05)).components(f)
    torch.testing.assert_close(components.log_prob(y)[:, 0], first.log_prob(y[:, 0]))
    torch.testing.assert_close(components.cdf(y)[:, 0], first.cdf(y[:, 0]))
    rows = Correlated().components(f)
    direction = torch.tensor([[1.0, -2.0]])
    covariance = 1e-3 * torch.tensor([[2.0, 0.5], [0.5, 1.0]]) + SD**2 * direction.mT @ direction
    near = MEAN * direction + 0.5 * direction + 0.03 * torch.randn(5, 2)
    exact = dist.MultivariateNormal(MEAN * direction[0], covariance).log_prob(near)
    torch.testing.assert_close(rows.log_prob(near), exact, rtol=1e-5, atol=1e-4)
    assert rows.sample((3,)).shape == (3, 5, 2)
    in_units = Units(torch.tensor([3.0, 0.0]), torch.tensor([10.0, 0.1])).image(rows)
    scaled = near * torch.tensor([10.0, 0.1]) + torch.tensor([3.0, 0.0])
    torch.testing.assert_close(in_units.log_prob(scaled), exact - math.log(10 * 0.1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_predictions_are_those_of_the_mixture_over_all_function_values(scale):
    conditional = Own("normal", torch.tensor(scale))
    many = moments(3)
    f = Moments(*(torch.stack([each, 0.5 * each]) for each in many))  # two components
    exact = Mixture(dist.Normal(f.mean[..., 0], (f.variance[..., 0] + scale**2).sqrt()), torch.tensor([0.3, 0.7]).log())
    mixture = Mixture(conditional.components(f), torch.tensor([0.3, 0.7]).log())
    y, levels = torch.tensor([-1.0, 0.2, 1.4]), torch.tensor([0.05, 0.5, 0.9])
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(mixture, name), getattr(exact, name))
    torch.testing.assert_close(mixture.log_prob(y), exact.log_prob(y), rtol=0, atol=2e-5)
    torch.testing.assert_close(mixture.cdf(y), exact.cdf(y), rtol=0, atol=2e-5)
    torch.testing.assert_close(mixture.quantile(levels), exact.quantile(levels), rtol=0, atol=2e-4)
    draws = mixture.sample(20_000)
    torch.testing.assert_close((draws <= y).double().mean(0), exact.cdf(y), rtol=0, atol=0.015)
    units = Units(torch.tensor(5.0), torch.tensor(10.0))
    image = Mixture(units.image(conditional.components(f)), torch.tensor([0.3, 0.7]).log())
    torch.testing.assert_close(image.log_prob(5 + 10 * y), exact.log_prob(y) - math.log(10), rtol=0, atol=2e-5)
    torch.testing.assert_close(image.cdf(5 + 10 * y), exact.cdf(y), rtol=0, atol=2e-5)
    torch.testing.assert_close(image.mean, 5 + 10 * exact.mean)
    torch.testing.assert_close((image.sample(20_000) <= 5 + 10 * y).double().mean(0), exact.cdf(y), rtol=0, atol=0.015)


def test_predictions_have_gradients_in_targets_and_none_in_parameters():
    scale = torch.tensor(0.05, requires_grad=True)
    f = moments(2)
    y = torch.tensor([0.1, 0.7])
    still = Own("normal", scale).components(f)
    assert not still.log_prob(y).requires_grad
    y.requires_grad_()
    still.log_prob(y).sum().backward()
    torch.testing.assert_close(y.grad, -(y.detach() - MEAN) / (SD**2 + 0.05**2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("scale", "failures"), [(1.0, 0), (0.05, 2)])
def test_a_recorded_function_reports_rows_that_its_nodes_do_not_serve(scale, failures):
    conditional, y = Own("normal", torch.tensor(scale)), torch.tensor([0.0, 0.7])
    with reports() as found:
        conditional.predictive_log_prob(y, moments(2))
    assert sum(int(count) for count in found) == failures


def test_rows_without_numbers_keep_none():
    f = Moments(torch.tensor([[0.3], [torch.nan]]), torch.tensor([[0.8], [0.8]]))
    found = Own("laplace", torch.tensor(0.05)).predictive_log_prob(torch.tensor([0.1, 0.1]), f)
    assert bool(found[0].isfinite()) and bool(found[1].isnan())


class Squares(Conditional):
    """A density in f with two modes of like height."""

    def given(self, f):
        return RowObservation(dist.Normal(f[..., 0].square(), 0.02, validate_args=False), 1)


def test_both_modes_are_found():
    y = torch.tensor([0.04, 0.5, 2.0])
    expected = []
    for t in y.tolist():
        root, half = math.sqrt(t), 0.2 / math.sqrt(t)  # ten standard deviations

        def term(f, t=t):
            return math.exp(-0.5 * ((t - f * f) / 0.02) ** 2) / (0.02 * math.sqrt(2 * math.pi)) * norm(MEAN, SD).pdf(f)

        cuts = sorted({-root - half, -root, min(half - root, 0.0), max(root - half, 0.0), root, root + half})
        pieces = zip(cuts, cuts[1:], strict=False)
        expected.append(math.log(sum(quad(term, *piece, epsrel=1e-10)[0] for piece in pieces)))
    found = Squares().predictive_log_prob(y, moments(3))
    assert found.tolist() == pytest.approx(expected, abs=2e-5)


class Comb(Conditional):
    """A density with more teeth than any rule resolves."""

    def given(self, f):
        return RowObservation(dist.Normal(1e6 * f[..., 0].mul(1e5).sin(), 1.0, validate_args=False), 1)


def test_what_is_not_resolved_is_refused():
    with pytest.raises(ValueError, match=r"not resolved in 1 rows, .*: give the Conditional a log_expected_power of"):
        Comb().predictive_log_prob(torch.tensor([0.3]), moments(1))


@dataclass(frozen=True)
class Known(Own):
    """The same, with a width that is known."""

    width = 0.05


def test_a_known_width_sets_the_number_of_nodes():
    conditional, f, y = Known("normal", torch.tensor(0.05)), moments(3), torch.tensor([-1.0, 0.3, 2.0])
    assert 200 < len(conditional.nodes(f)[0]) < 400
    exact = dist.Normal(MEAN, math.sqrt(SD**2 + 0.05**2)).log_prob(y)
    torch.testing.assert_close(conditional.predictive_log_prob(y, f), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(conditional.components(f).log_prob(y), exact, rtol=0, atol=1e-6)


class Narrow(Likelihood):
    def conditional(self):
        return Own("normal", torch.tensor(0.02))


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", [PredictiveLogLikelihood, GammaDivergence])
def test_losses_are_those_of_the_closed_form(loss):
    x = torch.linspace(-1, 1, 12)[:, None]
    y = torch.sin(3 * x[:, 0])
    values = []
    for likelihood in (Narrow(), Gaussian(variance=0.02**2)):
        torch.manual_seed(0)
        model = DeepGP(x, layers=1, likelihood=likelihood)
        guide = Variational(model, InducingPoints(6))
        guide.initialize(x, y)
        values.append(float(loss(12)(model, guide)(x, y).detach()))
        values.append(float(predict(guide, x).log_prob(y).sum().detach()))
    assert values[:2] == pytest.approx(values[2:], rel=1e-4)
