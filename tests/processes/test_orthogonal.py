"""Orthogonal decoupling against one basis of all points, dense projections, and exact regression."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from pyro_dgp import (
    ELBO,
    ActiveDims,
    DeepGP,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern32,
    Matern52,
    MonteCarlo,
    Orthogonal,
    Variational,
    draw_functions,
    fit,
    module_local_parameters,
    predict,
)
from pyro_dgp.processes.inducing_points import InducingPointBasis
from pyro_dgp.processes.initial_points import points_beside
from tests.examples import OneLayer, regression

FAMILIES = [
    Orthogonal(InducingPoints(5), InducingPoints(3)),
    Orthogonal(InducingPoints(5, per_output=True), InducingPoints(3, "diagonal")),
    Orthogonal(InducingPoints(4), InducingPoints(6, "prior")),
    Orthogonal(FourierFeatures(2), InducingPoints(4)),
    Orthogonal(InducingPoints(4, per_output=True), FourierFeatures(2, "diagonal")),
]


def setting(kernel_per_output=False, batch=()):
    outputs = 2 if kernel_per_output else None
    kernel = ActiveDims(Matern32(outputs=outputs), [0]) + ActiveDims(Matern52(outputs=outputs), [1])
    gp = GaussianProcess(kernel, num_outputs=2, jitter=1e-11)
    with module_local_parameters(gp):
        return gp(torch.randn(*batch, 9, 2))


def randomised(family, prior):
    process = family.create(prior, hidden=False)
    for parameter in process.q.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return process


def dense(basis, prior, d):
    """Covariances of the functionals of a basis at output d, ``K_uu`` and ``k_u(x)``."""
    root, a = basis.root(prior), basis.columns(prior)
    root, a = root[min(d, len(root) - 1)], a[min(d, len(a) - 1)]
    return root @ root.T, root @ a


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("kernel_per_output", [False, True])
def test_the_columns_span_what_both_bases_span(family, kernel_per_output):
    prior = setting(kernel_per_output)
    basis = randomised(family, prior).basis
    a, at = basis.columns(prior), basis.points(prior)
    rest = prior.covariance_matrix - a.mT @ a
    assert rest.diagonal(dim1=-2, dim2=-1).min() > -1e-8
    for d in range(2):
        one, two = basis.first, basis.second
        (k1, u1), (k2, u2) = dense(one, prior, d), dense(two, prior, d)
        root = basis.root(prior)
        cross = root[min(d, len(root) - 1)] @ root[min(d, len(root) - 1)].T
        torch.testing.assert_close(cross[: one.size, : one.size], k1, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(cross[one.size :, one.size :], k2, rtol=1e-6, atol=1e-8)
        cross = cross[: one.size, one.size :]
        together = torch.cat([torch.cat([k1, cross], 1), torch.cat([cross.T, k2], 1)])
        u = torch.cat([u1, u2])
        e = min(d, len(a) - 1)
        torch.testing.assert_close(a[e].T @ a[e], u.T @ torch.linalg.solve(together, u), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(a[e][: one.size].T @ a[e][: one.size], u1.T @ torch.linalg.solve(k1, u1))
    if at is not None:
        root = basis.root(prior)
        torch.testing.assert_close(root @ root.mT, prior.covariance.matrix(at).expand_as(root), rtol=1e-6, atol=1e-8)


def test_points_and_points_are_one_basis_of_all_points_with_a_covariance_in_blocks():
    prior = setting(batch=(3,))
    process = randomised(FAMILIES[0], type(prior)(prior.x[0], prior.covariance, prior.mean_function, num_outputs=2))
    z, o = (basis.inducing_points for basis in (process.basis.first, process.basis.second))
    whole = InducingPointBasis(torch.cat([z, o]))
    torch.testing.assert_close(process.basis.columns(prior), whole.columns(prior), rtol=1e-6, atol=1e-7)
    parts = process.q.parts
    scale = torch.stack([torch.block_diag(*[part.scale[d].tril() for part in parts]) for d in range(2)])
    mean = torch.cat([part.mean for part in parts], -1)
    q, a = process(prior), whole.columns(prior)
    loc = (mean.unsqueeze(-2) @ a).squeeze(-2).mT
    joint = prior.covariance_matrix - a.mT @ a + a.mT @ (scale @ scale.mT) @ a
    torch.testing.assert_close(q.mean, loc, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(q.covariance_matrix, joint, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(q.variance, joint.diagonal(dim1=-2, dim2=-1).mT, rtol=1e-6, atol=1e-7)
    standard = MultivariateNormal(torch.zeros(8), torch.eye(8))
    kl = torch.distributions.kl_divergence(MultivariateNormal(mean, scale @ scale.mT), standard).sum()
    torch.testing.assert_close(q.regularizer, kl)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_gradients(family):
    prior = setting()
    process = randomised(family, prior)
    names, start = zip(*process.named_parameters(), strict=True)

    def call(x, *parameters):
        at = type(prior)(x, prior.covariance, prior.mean_function, num_outputs=2, jitter=prior.jitter)
        q = torch.func.functional_call(process, dict(zip(names, parameters, strict=True)), (at,))
        return q.mean, q.variance, q.regularizer

    with module_local_parameters(process):
        inputs = [prior.x[:4].clone().requires_grad_(), *[p.detach().clone().requires_grad_() for p in start]]
        assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("where", ["first", "second"])
def test_with_points_at_the_data_the_bound_is_the_evidence_and_the_posterior_exact(where):
    """SOLVE-GP with Z = X: the bound reaches the evidence. With Z and O together the data, its mean is exact and its bound below."""
    x, y = regression(8)
    model = OneLayer(jitter=1e-10, likelihood=Gaussian(variance=0.05))
    guide = Variational(model, Orthogonal(InducingPoints(8), InducingPoints(2)), MonteCarlo(1))
    guide.initialize(x, y)
    process = getattr(guide.processes, "y/f")
    first, second = (x, x[:2] + 0.05) if where == "first" else (x[::2], x[1::2])
    process.basis.first, process.basis.second = (InducingPointBasis(each.clone()) for each in (first, second))
    process.basis.size = len(first) + len(second)
    prior = model.gp(x)
    a = process.basis.columns(prior)[0].detach()
    size = len(first)
    for number, rows in enumerate((a[:size], a[size:])):
        s = torch.linalg.inv(torch.eye(len(rows)) + rows @ rows.T / 0.05)
        process.q.parts[number] = type(process.q.parts[number])(x, torch.Size((1, len(rows))), "full", 1.0)
        process.q.parts[number].scale.data[0] = torch.linalg.cholesky(s)
    full = torch.linalg.solve(torch.eye(len(a)) + a @ a.T / 0.05, a @ y / 0.05)
    process.q.parts[0].mean.data[0], process.q.parts[1].mean.data[0] = full[:size], full[size:]
    bound = -float(ELBO(8)(model, guide)(x, y).detach())
    evidence = float(model.likelihood(prior).log_prob(y).detach())
    exact = prior.covariance_matrix[0] @ torch.linalg.solve(prior.covariance_matrix[0] + 0.05 * torch.eye(8), y)
    torch.testing.assert_close(predict(guide, x).mean, exact.detach(), rtol=1e-5, atol=1e-6)
    if where == "first":
        assert bound == pytest.approx(evidence, rel=1e-5)
    else:
        assert evidence - 1 < bound < evidence - 1e-3


def test_points_start_where_the_first_basis_leaves_most_variance():
    prior = GaussianProcess(Matern52(lengthscale=0.3))(torch.linspace(0, 1, 30)[:, None])
    first = InducingPointBasis(torch.linspace(0, 0.5, 8)[:, None])
    found = points_beside(first, prior, 4)
    assert found.shape == (4, 1) and found.min() > 0.55
    again = Orthogonal(InducingPoints(30), InducingPoints(5)).create(prior, hidden=True)
    assert torch.isfinite(again(prior).variance).all() and again.basis.second.inducing_points.shape == (5, 1)


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[2]], ids=["solve", "decoupled"])
def test_a_deep_model_learns_is_restored_and_has_functions(family):
    torch.manual_seed(0)
    x = torch.rand(60, 2) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.05 * torch.randn(60)
    model = DeepGP(x, 2, 2)
    guide = Variational(model, family, MonteCarlo(3))
    guide.initialize(x, y)
    fit(ELBO(60)(model, guide), x, y, steps=200, batch_size=60, learning_rate=0.05)
    assert (predict(guide, x).mean - y).square().mean().sqrt() < 0.6 * y.std()
    again = Variational(model, family, MonteCarlo(3))
    again.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    expected = predict(guide, x).mean
    torch.manual_seed(1)
    torch.testing.assert_close(predict(again, x).mean, expected)
    drawn = draw_functions(guide, 300, seed=0)(x[:5])[..., 0]
    torch.testing.assert_close(drawn.mean(0), predict(guide, x[:5], num_samples=2000).mean, atol=0.15, rtol=0)


def test_wrong_parts_are_one_sentence():
    wrong = object.__new__(Orthogonal)
    wrong.__dict__.update(first=InducingPoints(3), second=5)
    with pytest.raises(TypeError, match="second is a family with a basis"):
        wrong.__post_init__()
    prior = setting()
    process = Orthogonal(FourierFeatures(2), FourierFeatures(3)).create(prior, hidden=False)
    with pytest.raises(NotImplementedError, match="no known overlap: make one of them inducing points"):
        process(prior)
