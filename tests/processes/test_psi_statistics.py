"""Psi statistics, moments at normal inputs and cavities, against quadrature and dense algebra."""

import itertools
import math

import pytest
import torch

from pyro_dgp import RBF, FourierFeatures, GaussianProcess, InducingPoints, LinearMean, Matern52, Scaled, White
from pyro_dgp.internal.quadrature import gauss_hermite
from pyro_dgp.processes.normal_inputs import moments_at_normal_inputs
from pyro_dgp.processes.process_in_pass import ProcessInPass
from pyro_dgp.processes.psi_statistics import NormalInputs, PsiStatistics
from pyro_dgp.processes.rbf_terms import RBFTerm, rbf_term
from pyro_dgp.processes.reading import POSTERIOR, Cavity
from pyro_dgp.processes.whitened_gaussian import IndependentGaussians, WhitenedGaussian


def normal_inputs(rows=4, dims=3, width=2, spread=0.6):
    return NormalInputs(torch.randn(rows, dims), spread * torch.randn(width, rows, dims))


def nodes(inputs, count=60):
    """Inputs ``(K, N, D)`` and weights ``(K,)`` of a product rule over xi, and xi ``(K, W)``."""
    at, log_weights = gauss_hermite(count)
    width = len(inputs.directions)
    xi = torch.tensor(list(itertools.product(at.tolist(), repeat=width)))
    weights = torch.tensor(list(itertools.product(log_weights.tolist(), repeat=width))).sum(-1).exp()
    return inputs.centre + torch.einsum("kw,wnd->knd", xi, inputs.directions), weights, xi


def perturbed(process):
    for name, parameter in process.named_parameters():
        if "mean" in name or "scale" in name:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return process


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("ard", [None, 3])
def test_psi_statistics_equal_quadrature(width, ard):
    inputs, points = normal_inputs(width=width), torch.randn(2, 5, 3)
    kernel = RBF(ard=ard, outputs=2, variance=1.7)
    kernel.lengthscale = torch.rand_like(kernel.lengthscale) + 0.6
    covariance = kernel()
    psi = PsiStatistics.of(rbf_term(covariance, "f"), inputs, points)
    x, weights, xi = nodes(inputs)
    k = covariance.matrix(x.unsqueeze(-3), points)  # (K, E, N, M)
    torch.testing.assert_close(psi.first, torch.einsum("k,kenm->enm", weights, k), atol=1e-8, rtol=0)
    products = torch.einsum("k,keni,kenj->enij", weights, k, k)
    torch.testing.assert_close(psi.second, products, atol=1e-8, rtol=0)
    tilted = torch.einsum("k,kw,kenm->enwm", weights, xi, k)
    torch.testing.assert_close(psi.first.unsqueeze(-2) * psi.tilted, tilted, atol=1e-8, rtol=0)


def test_psi_statistics_of_known_inputs_are_kernels():
    points, centre = torch.randn(1, 5, 3), torch.randn(4, 3)
    covariance = RBF()()
    psi = PsiStatistics.of(rbf_term(covariance, "f"), NormalInputs(centre, torch.zeros(2, 4, 3)), points)
    k = covariance.matrix(centre.unsqueeze(0), points)
    torch.testing.assert_close(psi.first, k)
    torch.testing.assert_close(psi.second, k.unsqueeze(-1) * k.unsqueeze(-2))


def test_psi_statistics_have_right_gradients():
    def of_term(reciprocal, variance, centre, directions, points):
        psi = PsiStatistics.of(RBFTerm(reciprocal, variance), NormalInputs(centre, directions), points)
        return psi.first, psi.second, psi.tilted

    numbers = (
        torch.rand(1, 1, 2) + 0.5,
        torch.rand(1) + 0.5,
        torch.randn(3, 2),
        0.5 * torch.randn(2, 3, 2),
        torch.randn(1, 3, 2),
    )
    inputs = [number.requires_grad_() for number in numbers]
    assert torch.autograd.gradcheck(of_term, inputs)
    assert torch.autograd.gradgradcheck(of_term, inputs)


def test_psi_statistics_far_from_the_centre_are_as_right_as_near_it():
    covariance, points, inputs = RBF(lengthscale=0.3)(), torch.randn(1, 5, 3), normal_inputs()
    near = PsiStatistics.of(rbf_term(covariance, "f"), inputs, points)
    far = PsiStatistics.of(
        rbf_term(covariance, "f"), NormalInputs(inputs.centre + 1e3, inputs.directions), points + 1e3
    )
    torch.testing.assert_close(far.first, near.first, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(far.second, near.second, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("reading", [POSTERIOR, Cavity(0.3)])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "prior"])
@pytest.mark.parametrize("per_output", [False, True])
def test_moments_at_normal_inputs_equal_quadrature(covariance, per_output, reading):
    inputs = normal_inputs()
    kernel = Scaled(RBF(ard=3, outputs=2 if per_output else None, lengthscale=1.3), variance=0.8) + White(variance=0.05)
    gp = GaussianProcess(kernel, mean=LinearMean(3, 2), num_outputs=2)
    prior = gp(inputs.centre)
    process = perturbed(InducingPoints(5, covariance, per_output).create(gp(torch.randn(9, 3)), hidden=False))
    in_pass = ProcessInPass(process, reading, None, {})
    slopes = inputs.directions @ gp.mean.weight
    loc, variance, regularizer = moments_at_normal_inputs(in_pass, prior, inputs, mean=prior.mean, slopes=slopes)
    x, weights, _ = nodes(inputs)
    marginal = in_pass(gp(x))
    expected = torch.einsum("k,knd->nd", weights, marginal.mean)
    between = torch.einsum("k,knd->nd", weights, marginal.mean.square()) - expected.square()
    torch.testing.assert_close(loc, expected, atol=1e-8, rtol=0)
    total = torch.einsum("k,knd->nd", weights, marginal.variance) + between
    torch.testing.assert_close(variance, total, atol=1e-8, rtol=0)
    torch.testing.assert_close(regularizer, marginal.regularizer)


def test_moments_in_single_precision_are_near_those_in_double():
    inputs = normal_inputs()
    gp = GaussianProcess(RBF(ard=3), num_outputs=2)
    process = perturbed(InducingPoints(30).create(gp(torch.randn(40, 3)), hidden=False))
    zero = torch.zeros(4, 2)
    settings = {"mean": zero, "slopes": torch.zeros(2, 4, 2)}
    exact = moments_at_normal_inputs(ProcessInPass(process, POSTERIOR, None, {}), gp(inputs.centre), inputs, **settings)
    gp, process = gp.float(), process.float()
    single = NormalInputs(inputs.centre.float(), inputs.directions.float())
    settings = {name: value.float() for name, value in settings.items()}
    rounded = moments_at_normal_inputs(
        ProcessInPass(process, POSTERIOR, None, {}), gp(single.centre), single, **settings
    )
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("gp", "family", "message"),
    [
        (lambda: GaussianProcess(Matern52()), InducingPoints(4), "radial basis function"),
        (lambda: GaussianProcess(RBF() + RBF()), InducingPoints(4), "sum of 2"),
        (lambda: GaussianProcess(Matern52()), FourierFeatures(4, interval=(-3.0, 3.0)), "take InducingPoints"),
    ],
)
def test_other_kernels_and_processes_are_refused(gp, family, message):
    gp = gp()
    process = family.create(gp(torch.randn(9, 1)), hidden=False)
    inputs = normal_inputs(dims=1, width=1)
    with pytest.raises(ValueError, match=message):
        moments_at_normal_inputs(
            ProcessInPass(process, POSTERIOR, None, {}),
            gp(inputs.centre),
            inputs,
            mean=torch.zeros(4, 1),
            slopes=torch.zeros(1, 4, 1),
        )


def gaussian(kind, outputs=2, size=4):
    mean = torch.randn(outputs, size)
    scale = {
        "full": 0.5 * torch.randn(outputs, size, size).tril() + torch.eye(size),
        "diagonal": torch.rand(outputs, size) + 0.2,
        "prior": None,
    }[kind]
    return WhitenedGaussian(mean, scale, kind)


def covariances(q):
    size = q.mean.shape[-1]
    return q.spread(torch.eye(size).unsqueeze(0))


@pytest.mark.parametrize("kind", ["full", "diagonal", "prior"])
@pytest.mark.parametrize("share", [1e-3, 0.2, 1.0])
def test_a_cavity_is_q_without_a_share_of_its_factors(kind, share):
    q = gaussian(kind)
    cavity, energy = q.cavity(share)
    s, identity = covariances(q), torch.eye(4)
    precision = (1 - share) * s.inverse() + share * identity  # natural parameters of q^(1 - b) p^b
    torch.testing.assert_close(covariances(cavity), precision.inverse().expand(2, 4, 4))
    shift = (1 - share) * s.inverse() @ q.mean.unsqueeze(-1)
    torch.testing.assert_close(cavity.mean, torch.linalg.solve(precision, shift).squeeze(-1))
    if cavity.is_full:
        assert torch.equal(cavity.scale, cavity.scale.tril())

    def log_normalizer(mean, covariance):
        solved = torch.linalg.solve(covariance, mean.unsqueeze(-1)).squeeze(-1)
        return 0.5 * (torch.logdet(covariance) + (mean * solved).sum(-1))

    own = log_normalizer(q.mean, s)
    between = log_normalizer(cavity.mean, covariances(cavity)) - own
    torch.testing.assert_close(-(own + between / share).sum(), energy, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", ["full", "diagonal", "prior"])
def test_the_regulariser_of_a_small_share_is_the_kl(kind):
    q = gaussian(kind)
    torch.testing.assert_close(q.cavity(1e-7)[1], q.regularizer(), atol=1e-5, rtol=0)


def test_cavities_of_parts_are_those_of_each():
    parts = gaussian("full"), gaussian("diagonal")
    cavity, energy = IndependentGaussians(parts).cavity(0.2)
    for part, left in zip(parts, cavity.parts, strict=True):
        torch.testing.assert_close(left.mean, part.cavity(0.2)[0].mean)
    torch.testing.assert_close(energy, parts[0].cavity(0.2)[1] + parts[1].cavity(0.2)[1])


def test_the_energy_has_right_gradients():
    def energy(mean, scale):
        cavity, value = WhitenedGaussian(mean, scale.tril(), "full").cavity(0.3)
        return value, cavity.mean, cavity.scale

    q = gaussian("full")
    assert torch.autograd.gradcheck(energy, (q.mean.requires_grad_(), q.scale.requires_grad_()))


def test_a_point_estimate_has_no_cavity():
    with pytest.raises(ValueError, match="point estimate"):
        WhitenedGaussian(torch.zeros(1, 3), None, "delta").cavity(0.1)


@pytest.mark.parametrize("share", [0.0, 1.5, math.nan])
def test_a_share_is_above_zero_and_at_most_one(share):
    with pytest.raises(ValueError, match="share"):
        Cavity(share)
