import inspect

import pytest
import torch
from pyro import distributions as dist
from torch.distributions import kl_divergence

from pyro_dgp import RBF, GaussianProcess, LinearMean, Matern52, module_local_parameters, processes
from pyro_dgp.internal import blocks, linalg
from pyro_dgp.internal.blocks import column_blocks
from pyro_dgp.internal.recording import reports
from pyro_dgp.processes import (
    ActivationFeatures,
    AmortizedInducingPoints,
    BasisFamily,
    ConditionedProcess,
    FourierFeatures,
    FunctionMarginal,
    InducingPoints,
    Orthogonal,
    ProcessFamily,
    PublishedActivationFeatures,
    SphericalHarmonics,
)
from pyro_dgp.processes.column_moments import column_moments
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.initial_points import initial_points
from pyro_dgp.processes.moment_products import FewColumns, ManyColumns, SomeColumns, products_for
from pyro_dgp.processes.plain_moments import plain_moments
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian

FORMS = [
    InducingPoints(5, covariance=form, per_output=per_output)
    for form in ("full", "diagonal", "delta", "prior")
    for per_output in (False, True)
]


def setting(outputs=2, kernel_per_output=False, rows=9, batch=()):
    kernel = Matern52(2, outputs if kernel_per_output else None, lengthscale=0.9)
    gp = GaussianProcess(kernel, LinearMean(2, outputs), num_outputs=outputs, jitter=1e-12)
    with module_local_parameters(gp):
        return gp(torch.randn(*batch, rows, 2))


def randomised(family, prior):
    process = family.create(prior, hidden=False)
    for parameter in (process.q.mean, getattr(process.q, "scale", process.q.mean)):
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return process


def dense(process, prior):
    """Mean and full covariance of q(f) for each output by textbook formulas, unwhitened."""
    means, covariances = [], []
    for d in range(prior.num_outputs):
        z = (
            process.basis.inducing_points
            if process.basis.inducing_points.dim() == 2
            else process.basis.inducing_points[d]
        )
        e = d if prior.covariance_matrix.shape[-3] > 1 else 0
        kzz = prior.covariance.matrix(z[None])[e]
        kzx = prior.covariance.matrix(z[None], prior.x[None])[e]
        factor = torch.linalg.cholesky(kzz)
        m = prior.mean_function(z)[:, d] + factor @ process.q.mean[d]
        if process.q.kind == "full":
            root = factor @ process.q.scale[d].tril()
        elif process.q.kind == "diagonal":
            root = factor @ torch.diag(process.q.scale[d])
        else:
            root = factor if process.q.kind == "prior" else torch.zeros_like(factor)
        weights = torch.linalg.solve(kzz, kzx)
        means.append(prior.mean[:, d] + weights.T @ (m - prior.mean_function(z)[:, d]))
        kxx = prior.covariance_matrix[e]
        covariances.append(kxx - kzx.T @ weights + weights.T @ root @ root.T @ weights)
    return torch.stack(means, -1), torch.stack(covariances)


def test_every_family_of_the_package_is_tested_here():
    classes = {c for c in vars(processes).values() if inspect.isclass(c) and issubclass(c, ProcessFamily)}
    assert classes - {ProcessFamily, BasisFamily} == {type(family) for family in FORMS} | {
        AmortizedInducingPoints,  # test_amortized.py
        ActivationFeatures,  # test_activations.py
        PublishedActivationFeatures,
        FourierFeatures,  # test_fourier_features.py
        Orthogonal,  # test_orthogonal.py
        SphericalHarmonics,  # test_spherical_harmonics.py
    }


@pytest.mark.parametrize("family", FORMS, ids=str)
@pytest.mark.parametrize("kernel_per_output", [False, True])
def test_marginals_and_joint_covariance_against_textbook_formulas(family, kernel_per_output):
    prior = setting(kernel_per_output=kernel_per_output)
    process = randomised(family, prior)
    q = process(prior)
    mean, covariance = dense(process, prior)
    torch.testing.assert_close(q.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q.covariance_matrix, covariance, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q.variance, covariance.diagonal(dim1=-2, dim2=-1).T, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FORMS, ids=str)
def test_particles_are_a_loop(family):
    prior = setting(batch=(3, 2))
    one = type(prior)(prior.x[0, 0], prior.covariance, prior.mean_function, num_outputs=2, jitter=prior.jitter)
    process = randomised(family, one)
    q = process(prior)
    for i in range(3):
        for j in range(2):
            part = type(prior)(prior.x[i, j], prior.covariance, prior.mean_function, num_outputs=2, jitter=prior.jitter)
            torch.testing.assert_close(q.mean[i, j], process(part).mean)
            torch.testing.assert_close(q.variance[i, j], process(part).variance)
            torch.testing.assert_close(q.covariance_matrix[i, j], process(part).covariance_matrix)


@pytest.mark.parametrize("family", FORMS, ids=str)
def test_regulariser(family):
    prior = setting()
    process = randomised(family, prior)
    regularizer = process(prior).regularizer
    standard = dist.MultivariateNormal(torch.zeros(5), torch.eye(5))
    if family.covariance == "delta":
        expected = -standard.log_prob(process.q.mean).sum()
    else:
        scale = torch.eye(5).expand(2, 5, 5)
        if family.covariance != "prior":
            scale = process.q.scale.tril() if family.covariance == "full" else torch.diag_embed(process.q.scale)
        q = dist.MultivariateNormal(process.q.mean, scale @ scale.mT)
        expected = kl_divergence(q, standard).sum()
    torch.testing.assert_close(regularizer, expected)


@pytest.mark.parametrize("family", FORMS, ids=str)
def test_gradcheck(family):
    prior = setting(outputs=2, rows=5)
    process = randomised(family, prior)
    names, start = zip(*process.named_parameters(), strict=True)

    def call(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        at = type(prior)(x, prior.covariance, prior.mean_function, num_outputs=2, jitter=prior.jitter)
        q = torch.func.functional_call(process, values, (at,))
        return q.mean, q.variance, q.regularizer

    with module_local_parameters(process):
        inputs = [prior.x.clone().requires_grad_(), *[p.detach().clone().requires_grad_() for p in start]]
        assert torch.autograd.gradcheck(call, inputs)


def test_conditioned_process_is_gp_regression():
    prior = setting(outputs=2, rows=8)
    values, noise = torch.randn(8, 2), torch.tensor([0.1, 0.3])
    process = ConditionedProcess(prior, values, noise)
    new = type(prior)(torch.randn(5, 2), prior.covariance, prior.mean_function, num_outputs=2, jitter=prior.jitter)
    q = process(new)
    kxx, kxn = prior.covariance_matrix[0], prior.covariance.matrix(prior.x[None], new.x[None])[0]
    for d in range(2):
        noisy = kxx + noise[d] * torch.eye(8)
        mean = new.mean[:, d] + kxn.T @ torch.linalg.solve(noisy, values[:, d] - prior.mean[:, d])
        covariance = new.covariance_matrix[0] - kxn.T @ torch.linalg.solve(noisy, kxn)
        torch.testing.assert_close(q.mean[:, d], mean)
        torch.testing.assert_close(q.variance[:, d], covariance.diagonal())
        torch.testing.assert_close(q.covariance_matrix[d], covariance)


def test_conditioned_on_values_without_noise_it_interpolates():
    prior = setting(outputs=1, rows=6)
    values = torch.randn(6, 1)
    q = ConditionedProcess(prior, values, None)(prior)
    torch.testing.assert_close(q.mean, values, atol=1e-6, rtol=1e-6)
    assert q.variance.max() < 1e-6


def test_marginal_draws_and_density():
    prior = setting()
    q = randomised(InducingPoints(4), prior)(prior)
    draws = q.rsample((20_000,))
    torch.testing.assert_close(draws.mean(0), q.mean.expand(9, 2), atol=0.05, rtol=0)
    torch.testing.assert_close(draws.var(0), q.variance.detach(), atol=0.06, rtol=0.05)
    expected = dist.Normal(q.mean, q.variance.sqrt()).log_prob(draws[0]).sum()
    torch.testing.assert_close(q.log_prob(draws[0]), expected)
    assert isinstance(q.expand((3,)), FunctionMarginal)


def test_initial_points_are_cluster_centres():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = (centres[:, None] + 0.1 * torch.randn(3, 40, 2)).reshape(-1, 2)
    found = initial_points(x, 3, "gp")
    assert torch.cdist(centres, found).min(1).values.max() < 0.1


def test_more_inducing_points_than_inputs_are_reduced_aloud():
    prior = setting(rows=6)
    with pytest.warns(UserWarning, match="20 inducing points .* 6 distinct training inputs: reduced to 6"):
        process = InducingPoints(20).create(prior, hidden=False)
    assert process.basis.inducing_points.shape == (6, 2)


def test_hidden_layers_start_with_little_variance_of_u():
    prior = setting()
    family = InducingPoints(5)
    hidden, top = family.create(prior, hidden=True), family.create(prior, hidden=False)
    assert hidden.q.scale.max() < top.q.scale.max() <= 1


@pytest.mark.usefixtures("unannotated")
def test_bad_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="'full', 'diagonal', 'delta' or 'prior', not 'low-rank'"):
        InducingPoints(5, covariance="low-rank")
    for wrong, shown in ((0, "0"), ([3], r"\[3\]"), (2.5, "2.5"), ("8", "'8'")):
        with pytest.raises(ValueError, match=f"num_inducing must be a whole number, at least 1, got {shown}"):
            InducingPoints(wrong)


def test_variances_are_never_negative_in_float32():
    torch.set_default_dtype(torch.float32)
    gp = GaussianProcess(RBF(lengthscale=3.0))
    x = torch.linspace(-1, 1, 200)[:, None]
    with module_local_parameters(gp):
        prior = gp(x)
    process = InducingPoints(50, covariance="delta").create(prior, hidden=True)
    q = process(prior)
    assert q.variance.dtype == torch.float32
    assert (q.variance > 0).all()


def _moments_case(kernels: int, outputs: int, kind: str, columns: int):
    root = torch.randn(kernels, 5, 7)
    tensors = [root @ root.mT, torch.randn(kernels, 5, columns), torch.randn(outputs, 5)]
    if kind != "delta":
        tensors.append(torch.randn(outputs, 5, 5).tril() if kind == "full" else torch.rand(outputs, 5) + 0.1)
    for tensor in tensors:
        tensor.requires_grad_()

    def call(function):
        def run(k_zz, k_zx, mean, scale=None):
            return function((k_zz + k_zz.mT) / 2, k_zx, mean, scale, 0.0, "g")

        return run

    def in_blocks(k_zz, k_zx, *rest):
        return conditional_moments(k_zz, k_zx.split(6, -1), WhitenedGaussian(rest[0], rest[1], kind), *rest[2:])

    return tensors, call(in_blocks), call(plain_moments)


@pytest.mark.parametrize(("kernels", "outputs"), [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("kind", ["full", "diagonal", "delta"])
@pytest.mark.parametrize("columns", [4, 7, 13, 17])
def test_fused_moments_and_their_derivatives_are_those_of_the_plain_formula(kernels, outputs, kind, columns):
    """Few columns and many go different ways, and more than six are in several blocks."""
    tensors, fused, plain = _moments_case(kernels, outputs, kind, columns)
    for a, b in zip(fused(*tensors), plain(*tensors), strict=True):
        torch.testing.assert_close(a, b.expand_as(a), rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(fused, tensors)
    assert torch.autograd.gradgradcheck(fused, tensors)


@pytest.mark.parametrize(("kernels", "outputs"), [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("kind", ["full", "diagonal", "delta", "prior"])
@pytest.mark.parametrize("columns", [4, 13])
def test_moments_of_whitened_columns_are_those_of_the_plain_formula(kernels, outputs, kind, columns):
    tensors = [torch.randn(kernels, 5, columns), torch.randn(outputs, 5)]
    if kind in ("full", "diagonal"):
        tensors.append(torch.randn(outputs, 5, 5).tril() if kind == "full" else torch.rand(outputs, 5) + 0.1)
    for tensor in tensors:
        tensor.requires_grad_()

    def fused(a, mean, scale=None):
        return column_moments(a, WhitenedGaussian(mean, scale, kind))

    covariance = {"full": lambda t: t @ t.mT, "diagonal": lambda t: t.square().diag_embed()}
    s = covariance[kind](tensors[2]) if len(tensors) > 2 else torch.eye(5) * (kind == "prior")
    loc, change = fused(*tensors)
    torch.testing.assert_close(loc, (tensors[1].unsqueeze(-2) @ tensors[0]).squeeze(-2))
    a, d = tensors[0].expand(outputs, 5, columns), (s - torch.eye(5)).expand(outputs, 5, 5)
    expected = torch.einsum("emn,emk,ekn->en", a, d, a)
    torch.testing.assert_close(change.expand_as(expected), expected)
    assert torch.autograd.gradcheck(fused, tensors)
    assert torch.autograd.gradgradcheck(fused, tensors)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "delta"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_rows_in_blocks_have_the_moments_and_derivatives_of_all_rows_at_once(covariance, outputs, monkeypatch):
    """Thirteen rows for each of two particles, in blocks of seven."""
    gp = GaussianProcess(Matern52(2, outputs=outputs), num_outputs=outputs)
    x = torch.randn(2, 13, 2, requires_grad=True)
    process = randomised(InducingPoints(5, covariance=covariance), gp(x))
    inputs = [x, *process.parameters(), *gp.parameters()]

    def computed():
        q = process(gp(x))
        return q.mean, q.variance, *torch.autograd.grad(q.mean.sum() + q.variance.square().sum(), inputs)

    whole = computed()
    monkeypatch.setattr(blocks, "_BLOCK", 7 * 5 * outputs)
    monkeypatch.setattr(blocks, "_LEAST", 1)
    rows = torch.zeros(1, 26, 2)
    assert [part.shape[-2] for part in column_blocks(rows, outputs, 5)] == [7, 7, 7, 5]
    for a, b in zip(computed(), whole, strict=True):
        torch.testing.assert_close(a, b)
    with reports():
        assert len(column_blocks(rows, outputs, 5)) == 1


def test_blocks_are_no_narrower_than_what_is_summed_over_them_is_worth():
    """Of 100 outputs and 256 inducing points 20 columns would fit the cache."""
    assert [part.shape[-2] for part in column_blocks(torch.zeros(1, 2000, 2), 100, 256)] == [1024, 976]


@pytest.mark.parametrize("covariance", ["full", "diagonal", "delta"])
def test_no_rows_have_no_moments_and_pull_at_nothing(covariance):
    gp = GaussianProcess(Matern52(2), num_outputs=2)
    process = InducingPoints(5, covariance=covariance).create(gp(torch.randn(9, 2)), hidden=False)
    q = process(gp(torch.zeros(0, 2)))
    assert q.mean.shape == q.variance.shape == (0, 2)
    (q.mean.sum() + q.variance.sum()).backward()
    for tensor in (process.basis.inducing_points_unconstrained, process.q.mean_unconstrained):
        assert (tensor.grad == 0).all()


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_process_over_its_own_values_has_one_gradient_with_and_without_a_graph_of_it(covariance):
    """Of two uses of the same parameters the first stands above the second: each is to be counted once."""
    gp = GaussianProcess(Matern52(2), num_outputs=2)
    process = randomised(InducingPoints(5, covariance=covariance), gp(torch.randn(9, 2)))
    x = torch.randn(4, 2)
    q = process(gp(process(gp(x)).mean))
    total, inputs = q.mean.sum() + q.variance.sum(), list(process.parameters())
    plain = torch.autograd.grad(total, inputs, retain_graph=True)
    for a, b in zip(torch.autograd.grad(total, inputs, create_graph=True), plain, strict=True):
        torch.testing.assert_close(a, b)


def test_forms_are_chosen_by_their_products():
    """One kernel and output: up to 4/3 M columns without products of M x M x M. Ten outputs that share a kernel save one product of 21."""
    scale = torch.zeros(1, 30, 30)
    assert [products_for(scale, 1, columns) for columns in (39, 41)] == [FewColumns, ManyColumns]
    shared = torch.zeros(10, 30, 30)
    assert [products_for(shared, 1, columns) for columns in (80, 90, 290, 310)] == [
        FewColumns,
        SomeColumns,
        SomeColumns,
        ManyColumns,
    ]


@pytest.mark.parametrize("size", [3, 65, 128, 257])
def test_inverse_factor_by_blocks_is_that_of_the_whole_matrix(size):
    x = torch.rand(2, size, 2)
    matrix = torch.exp(-0.5 * torch.cdist(x, x).square() / 0.2)
    inverse, _ = linalg.inverse_cholesky(matrix, 1e-4, "g")
    torch.testing.assert_close(
        inverse @ linalg.cholesky(matrix, 1e-4, "g"), torch.eye(size).expand(2, size, size), rtol=0, atol=1e-9
    )
    with pytest.raises(linalg.NotPositiveDefiniteError, match="'g'"):
        linalg.inverse_cholesky(-matrix, None, "g")


@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_a_jitter_that_is_given_is_tried_once(jitter):
    with pytest.raises(linalg.NotPositiveDefiniteError, match="'g'"):
        linalg.cholesky(torch.eye(3) - 2, jitter, "g")


@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize(("kernel", "lengthscale"), [(RBF, 1.0), (RBF, 8**0.5), (Matern52, 8**0.5), (Matern52, 6.0)])
def test_variances_in_single_precision_are_those_in_double_and_positive(kernel, lengthscale, spread):
    torch.manual_seed(0)
    gp = GaussianProcess(kernel(8, lengthscale=lengthscale), num_outputs=3)
    process = InducingPoints(128).create(gp(torch.randn(2000, 8)), hidden=False)
    process.q.scale.data.copy_(0.1 * torch.eye(128) + spread * torch.randn(3, 128, 128).tril())
    x = torch.randn(10_000, 8)
    exact = process(gp(x)).variance.detach()
    found = process.float()(gp.float()(x.float())).variance.detach()
    assert found.dtype == torch.float32 and found.min() > 0
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    assert exact.max() - exact.min() > 0.05  # neither the prior's everywhere nor nothing
