"""Activations as features: against sums over the spectrum, a feed-forward pass, and the bound of the variance."""

import pytest
import torch

from pyro_dgp import (
    ELBO,
    ActivationFeatures,
    ArcCosine,
    DeepGP,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    Orthogonal,
    PublishedActivationFeatures,
    Spherical,
    Variational,
    fit,
    predict,
    remarks,
)
from pyro_dgp.internal.gegenbauer import coefficients, fundamental_set, gegenbauer, multiplicity, nodes
from pyro_dgp.processes.spherical_harmonics import spectrum

NAMES = ["relu", "softplus", "erf"]


def setting(kernel, inputs=2, rows=30):
    return GaussianProcess(kernel, jitter=1e-12)(torch.randn(rows, inputs))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kernel", [lambda: ArcCosine(1), lambda: Spherical(Matern52(lengthscale=0.7))], ids=["arc", "matern"]
)
def test_covariances_are_sums_over_orthonormal_harmonics(name, kernel):
    """``<phi, psi> = sum_lj phi_lj psi_lj / lambda_l`` with coefficients by the reproducing property of each level."""
    prior = setting(kernel())
    basis = ActivationFeatures(4, name, num_levels=5).create(prior, hidden=False).basis
    w = basis.directions.detach()
    w = w / w.norm(dim=-1, keepdim=True)
    s = coefficients(basis.activation(nodes(3, w)), 5, 3)
    lifted = prior.covariance.lift(prior.x.unsqueeze(-3)).detach()[0]
    norms = lifted.norm(dim=-1)
    k_uu, cross = torch.zeros(4, 4), torch.zeros(4, 30)
    for level in basis.levels.tolist():
        points, gain = fundamental_set(3, level)
        at_w = gain @ gegenbauer(points @ w.mT, level + 1, 3)[level] if level else torch.ones(1, 4)
        at_x = (
            gain @ gegenbauer(points @ (lifted / norms[:, None]).mT, level + 1, 3)[level]
            if level
            else torch.ones(1, 30)
        )
        eigenvalue = spectrum(prior.covariance, 5, 3).detach()[0, level]
        k_uu += s[level] ** 2 / eigenvalue * at_w.mT @ at_w
        cross += s[level] * at_w.mT @ at_x * norms
    root = basis.root(prior)[0].detach()
    torch.testing.assert_close(root @ root.T, k_uu, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(basis.cross(prior)[0].detach(), cross, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inputs", [1, 3])
def test_what_is_left_of_the_variance_is_never_negative_and_falls_with_units(name, inputs):
    """Cut to the kernel's levels; with units enough for each harmonic of a level, they are the harmonics."""
    prior = setting(ArcCosine(1), inputs, 90)
    shares = []
    for units in (3, 12, 80):
        a = ActivationFeatures(units, name, num_levels=5).create(prior, hidden=False).basis.columns(prior).detach()
        left = prior.variance.detach().mT - a.square().sum(-2)
        assert left.min() > -1e-8
        shares.append(float(left.sum()))
    assert shares[0] > shares[1] >= shares[2] - 1e-6
    levels = [level for level in (0, 1, 2, 4) if name != "erf" or level == 1]
    limit = sum(
        multiplicity(inputs + 1, level) * spectrum(prior.covariance, 5, inputs + 1)[0, level] for level in levels
    )
    held = (prior.variance.detach().sum() - shares[2]) / prior.covariance.lift(prior.x[None]).square().sum()
    assert float(held.detach()) == pytest.approx(float(limit.detach()), rel=1e-4)


def test_the_published_features_say_where_they_have_too_much_variance():
    prior = setting(ArcCosine(1), 1)
    with pytest.warns(UserWarning, match="more variance than its kernel, by .* take ActivationFeatures"):
        basis = PublishedActivationFeatures(5, "relu", num_levels=6).create(prior, hidden=False).basis
    assert (prior.variance.detach().mT - basis.columns(prior).detach().square().sum(-2)).min() < 0


@pytest.mark.filterwarnings("ignore:the units of")
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_a_deep_stack_is_a_forward_pass_of_a_network(name):
    """The published variant without variance: weights of the output of a layer are ``K_uu^-1 R m``."""
    torch.manual_seed(1)
    x = torch.randn(40, 2)
    model = DeepGP(x, 2, 2, kernel="arc-cosine", mean=lambda *_: None)
    guide = Variational(model, PublishedActivationFeatures(6, name, "delta", num_levels=5), MonteCarlo(1))
    guide.initialize(x, x[:, 0])
    h = x
    for key, gp in (("h1", model.hidden[0]), ("y/f", model.top)):
        process = guide.processes._modules[key]
        process.q.mean.data.normal_()
        prior = gp(h)
        # a plain layer: inputs with a bias, normalised rows of weights, an activation, a linear output
        basis = process.basis
        scale, bias = gp.kernel.weight_variance.detach().sqrt(), gp.kernel.bias_variance.detach().sqrt()
        lifted = torch.cat([h * scale, bias.expand(len(h), 1)], 1) if scale.dim() < 2 else None
        assert lifted is not None
        w = basis.directions.detach() / basis.directions.detach().norm(dim=-1, keepdim=True)
        norms = lifted.norm(dim=-1, keepdim=True)
        hidden = norms * basis.activation(lifted / norms @ w.mT)
        out = torch.linalg.solve_triangular(basis.root(prior)[0].detach().mT, process.q.mean.detach().mT, upper=True)
        expected = hidden @ out
        torch.testing.assert_close(process(prior).mean.detach(), expected)
        h = expected


@pytest.mark.parametrize(
    "family", [ActivationFeatures(12, "softplus"), Orthogonal(ActivationFeatures(8), InducingPoints(6))], ids=str
)
def test_a_deep_model_learns_and_is_restored(family):
    torch.manual_seed(0)
    x = torch.rand(80, 2) * 4 - 2
    y = x[:, 0].abs() - 1 + 0.05 * torch.randn(80)
    model = DeepGP(x, 2, 2, kernel="arc-cosine")
    guide = Variational(model, family, MonteCarlo(3))
    guide.initialize(x, y)
    fit(ELBO(80)(model, guide), x, y, steps=200, batch_size=80, learning_rate=0.05)
    assert (predict(guide, x).mean - y).square().mean().sqrt() < 0.6 * y.std()
    again = Variational(model, family, MonteCarlo(3))
    again.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    expected = predict(guide, x).mean
    torch.manual_seed(1)
    torch.testing.assert_close(predict(again, x).mean, expected)


def test_gradients():
    gp = GaussianProcess(Spherical(Matern52(), outputs=2), num_outputs=2)
    basis = ActivationFeatures(3, "softplus", num_levels=4).create(gp(torch.randn(6, 2)), hidden=False).basis
    names, start = zip(*gp.named_parameters(), strict=True)

    def columns(x, *values):
        return basis.columns(torch.func.functional_call(gp, dict(zip(names, values, strict=True)), (x,)))

    inputs = [torch.randn(3, 2).requires_grad_(), *[p.detach().clone().requires_grad_() for p in start]]
    assert torch.autograd.gradcheck(columns, inputs)


def test_bad_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="one of relu, softplus, erf"):
        ActivationFeatures(5, "tanh")
    with pytest.raises(ValueError, match="at least 1"):
        ActivationFeatures(0)
    gp = GaussianProcess(ArcCosine(1))
    process = ActivationFeatures(5).create(gp(torch.randn(9, 2)), hidden=False)
    with pytest.raises(ValueError, match="have 2 inputs and it has 3"):
        process(gp(torch.randn(9, 3)))


def test_an_activation_without_a_level_of_the_kernel_is_refused():
    prior = GaussianProcess(ArcCosine(1))(torch.randn(20, 2))
    with pytest.raises(
        ValueError, match="have none of the first 1 levels of spherical harmonics in common: take more levels"
    ):
        ActivationFeatures(8, "erf", num_levels=1).create(prior, hidden=False)


def test_a_trained_fit_says_that_published_units_have_more_variance_than_the_kernel():
    torch.manual_seed(0)
    x = 2 * torch.rand(100, 3) - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(100)
    found = {}
    for family in (PublishedActivationFeatures(40), ActivationFeatures(40)):
        model = DeepGP(x, layers=1, kernel="matern52-spherical")
        guide = Variational(model, family)
        guide.initialize(x, y)
        fit(ELBO(100)(model, guide), x, y, steps=200, batch_size=100, learning_rate=0.05)
        found[type(family)] = [each for each in remarks(guide, x, y) if "more variance than its kernel" in each]
    assert len(found[PublishedActivationFeatures]) == 1 and "no bound" in found[PublishedActivationFeatures][0]
    assert not found[ActivationFeatures]
