"""Vecchia approximations beside dense covariances, brute force and exact samplers."""

import math
import pickle

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    METHODS,
    RBF,
    Bernoulli,
    ConditionedProcess,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearCoregionalization,
    MarginalLikelihood,
    Matern12,
    Matern52,
    MonteCarlo,
    NeighborConditionedProcess,
    NeighborSearch,
    PosteriorDraws,
    Settings,
    Standardizer,
    Stationary,
    Variational,
    VecchiaPrior,
    WhitenedNUTS,
    fit,
    inducing_inputs,
    module_local_parameters,
    nearest_neighbors,
    predict,
    run_chains,
    to_arviz,
    vecchia,
    whitened,
    with_priors,
)
from pyro_dgp.approximations import local_factors as local_factors_module
from pyro_dgp.approximations import neighbors as neighbors_module
from pyro_dgp.approximations.correlation_length import correlation_lengths
from pyro_dgp.approximations.neighbors import nearest_by_pairs, nearest_by_trees
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.kernels import White
from pyro_dgp.mcmc.chain_identity import identity
from pyro_dgp.mcmc.density import WhitenedDensity


def prior_at(x, kernel=None, outputs=2, mean=None):
    return GaussianProcess(kernel or Matern52(), mean, num_outputs=outputs).to(x)(x)


def both(x, num_neighbors, **options):
    exact = prior_at(x, **options)
    return exact, VecchiaPrior(exact, NeighborSearch(num_neighbors))


KERNELS = {
    "shared": lambda: Matern52(lengthscale=0.5),
    "per output": lambda: RBF(outputs=2, ard=3, lengthscale=0.8) + White(2, variance=0.01),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_all_earlier_rows_it_is_exact(kernel):
    x = torch.randn(25, 3)
    exact, approximate = both(x, 24, kernel=KERNELS[kernel](), mean=lambda x: x.sum(-1, keepdim=True))
    f = exact.rsample((3,))
    noise = torch.tensor([0.1, 0.3])
    torch.testing.assert_close(approximate.log_prob(f), exact.log_prob(f), rtol=0, atol=1e-5)
    torch.testing.assert_close(approximate.noisy_log_prob(f, noise), exact.noisy_log_prob(f, noise), rtol=0, atol=1e-9)
    columns = (
        approximate.unwhiten(torch.eye(25).unsqueeze(-1).expand(25, 25, 2)) - exact.mean
    )  # one for each whitened value
    covariance = torch.einsum("knd,kmd->dnm", columns, columns)
    torch.testing.assert_close(covariance, exact.covariance_matrix.expand(2, -1, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_row_is_regressed_on_its_neighbours(kernel):
    x = torch.randn(30, 3)
    exact, approximate = both(x, 4, kernel=KERNELS[kernel]())
    f, noise, neighbors = exact.rsample(), torch.tensor([0.1, 0.3]), approximate.neighbors
    covariance = exact.covariance_matrix.expand(2, -1, -1)
    for variance, found in ((0.0 * noise, approximate.log_prob(f)), (noise, approximate.noisy_log_prob(f, noise))):
        total = 0.0
        for place, row in enumerate(neighbors.order.tolist()):
            near = neighbors.order[neighbors.places[place][neighbors.is_there[place]]]
            for d in range(2):
                k = covariance[d] + variance[d] * torch.eye(30)
                weights = torch.linalg.solve(k[near][:, near], k[near, row])
                residual = f[row, d] - weights @ f[near, d]
                total += dist.Normal(0.0, (k[row, row] - weights @ k[near, row]).sqrt()).log_prob(residual)
        torch.testing.assert_close(found, total, rtol=0, atol=1e-4)


@pytest.mark.parametrize("outputs", [1, 2])
def test_whitening_has_an_inverse_and_gradients(outputs):
    x = torch.randn(12, 2)

    kernel = Matern52(outputs=outputs, lengthscale=1.0) if outputs > 1 else Matern52()
    gp = GaussianProcess(kernel, num_outputs=2)

    def of(raw, x, white):
        with module_local_parameters(gp):
            exact = torch.func.functional_call(gp, {"kernel.lengthscale_unconstrained": raw}, (x,))
        prior = VecchiaPrior(exact, NeighborSearch(3))
        values = prior.unwhiten(white)
        return (
            values,
            prior.whiten(values),
            prior.log_prob(values.detach()),
            prior.noisy_log_prob(values, torch.ones(2)),
        )

    raw, white = torch.full_like(kernel.lengthscale_unconstrained, 0.01), torch.randn(3, 12, 2)
    torch.testing.assert_close(of(raw, x, white)[1], white, rtol=0, atol=1e-9)
    given = [each.clone().requires_grad_() for each in (raw, x, white)]
    assert float(torch.autograd.grad(of(*given)[3].sum(), given[0])[0].abs().min()) > 0.01
    assert torch.autograd.gradcheck(lambda *args: of(*args)[0], given)
    assert torch.autograd.gradcheck(lambda *args: of(*args)[3], given)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_many_rows_are_regressed_part_by_part(kept, monkeypatch):
    x = torch.randn(40, 2, requires_grad=True)
    whole = both(x, 5)[1].noisy_log_prob(torch.ones(40, 2), torch.ones(2))
    slope, sizes = torch.autograd.grad(whole, x)[0], []
    monkeypatch.setattr(local_factors_module, "_AT_ONCE", 7 * 36)
    monkeypatch.setattr(local_factors_module, "_MOST_KEPT", kept)
    regress = local_factors_module._regress

    def counted(covariance, x, *rest, **options):
        sizes.append(len(x))
        return regress(covariance, x, *rest, **options)

    monkeypatch.setattr(local_factors_module, "_regress", counted)
    parts = both(x, 5)[1].noisy_log_prob(torch.ones(40, 2), torch.ones(2))
    assert sizes == [7] * 5 + [5]
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(parts, x)[0], slope, rtol=0, atol=1e-12)
    assert len(sizes) == (6 if kept else 12)  # computed again for gradients


@pytest.mark.parametrize("inputs", [2, 7])
@pytest.mark.parametrize(("rows", "count"), [(1, 3), (5, 3), (5, 30), (400, 7)])
def test_neighbours_are_the_nearest_earlier_rows(rows, count, inputs):
    x = torch.randn(rows, inputs) * torch.logspace(0, 2, inputs)
    x[rows // 2 :: 7] = x[0].clone()  # rows that are the same
    neighbors = nearest_neighbors(x, num_neighbors=count)
    assert sorted(neighbors.order.tolist()) == list(range(rows))
    points = (x / x.std(0, correction=0))[neighbors.order] if rows > 1 else x
    places, is_there = neighbors.places, neighbors.is_there
    for place in range(rows):
        own = places[place][is_there[place]]
        assert len(own) == min(count, place) == len(set(own.tolist()))
        assert bool((own < place).all())
        distances = (points[:place] - points[place]).norm(dim=-1).sort().values[: len(own)]
        torch.testing.assert_close((points[own] - points[place]).norm(dim=-1).sort().values, distances)
    done = torch.zeros(rows, dtype=torch.bool)
    for level in neighbors.levels:
        assert bool(done[places[level][is_there[level]]].all())
        assert not bool(done[level].any())
        done[level] = True
    assert bool(done.all())


@pytest.mark.parametrize("inputs", [1, 3, 6])
def test_pairs_find_what_trees_find(inputs):
    """Also where some rows are a million times closer than others: products of matrices would round their differences away."""
    points = np.random.RandomState(0).randn(700, inputs) + 1e4
    if inputs < 6:
        points[300:600] = np.random.RandomState(1).randn(300, inputs) * 1e-7 + 1e4 + 3.0
    found, expected = nearest_by_pairs(points, 9), nearest_by_trees(points, 9)
    np.testing.assert_array_equal(np.sort(found, -1), np.sort(expected, -1))


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((700, 6), "nearest_by_trees"),
        ((500, 5), "nearest_by_trees"),
        ((501, 5), "nearest_by_pairs"),
        ((20_001, 6), "nearest_by_pairs"),
    ],
)
def test_pairs_serve_few_rows_or_many_inputs(shape, other, monkeypatch):
    monkeypatch.setattr(neighbors_module, other, None)
    assert len(nearest_neighbors(torch.randn(shape), num_neighbors=1)) == len(torch.randn(shape))


LENGTHS = {  # distances at which the correlation is one half
    "rbf": (lambda: RBF(ard=3), math.sqrt(2 * math.log(2))),
    "sum": (lambda: RBF(ard=3) + White(variance=5.0), math.sqrt(2 * math.log(2))),
    "matern12": (lambda: Matern12(ard=3), math.log(2)),
    "per output": (lambda: RBF(outputs=2, ard=3), math.sqrt(2 * math.log(2))),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_those_of_half_the_correlation(name):
    made, half = LENGTHS[name]
    kernel, x = made(), torch.randn(50, 3) * torch.tensor([1.0, 30.0, 0.0])
    part = next(each for each in kernel.modules() if isinstance(each, Stationary))
    part.lengthscale = torch.tensor([0.3, 700.0, 1.0]).expand(part.lengthscale.shape)
    found = correlation_lengths(kernel(), x)
    expected = half * torch.tensor([0.3, 700.0])
    assert bool((found[:2] >= 0.999 * expected).all())
    assert bool((found[:2] < 1.4143 * expected).all())
    assert found[2] == math.inf


def test_lengths_of_inputs_that_do_not_matter_are_the_longest():
    x = torch.randn(50, 2)
    kernel = RBF(ard=2)
    kernel.lengthscale = torch.tensor([1.0, 1e9])
    width = x.std(0, correction=0)
    torch.testing.assert_close(correlation_lengths(kernel(), x)[1], 4096 * width[1])
    assert correlation_lengths(kernel(), x[:1]).tolist() == [math.inf, math.inf]


def test_inputs_that_do_not_matter_choose_no_neighbours():
    """Of ten inputs one matters: the approximation is as close as that of one input."""
    x = 2 * torch.rand(300, 10) - 1
    kernel = Matern52(ard=10)
    kernel.lengthscale = torch.tensor([0.5] + 9 * [1e7])
    exact = GaussianProcess(kernel)(x)
    f = exact.rsample().detach()
    assert abs(excess(exact, f, NeighborSearch(30))) < 0.01
    prior = VecchiaPrior(exact, NeighborSearch(30))
    prior.lengths = x.std(0, correction=0)
    assert abs((prior.log_prob(f) - exact.log_prob(f)).item()) / 300 > 0.1


@pytest.mark.parametrize("inputs", [1, 2])
def test_thirty_neighbours_are_within_a_hundredth_of_a_nat_a_row(inputs):
    x, errors = 2 * torch.rand(300, inputs) - 1, []
    for seed in range(5):
        exact = prior_at(x, Matern52(lengthscale=0.5), outputs=1)
        f = exact.rsample().detach()
        errors += [excess(exact, f, NeighborSearch(30, seed))]
    assert max(map(abs, errors)) < 0.01
    assert excess(exact, f, NeighborSearch(2)) < -0.1


def excess(exact, f, search):
    """Log density of function values under the approximation, less that under the exact prior, nats a row."""
    return (VecchiaPrior(exact, search).log_prob(f) - exact.log_prob(f)).item() / len(f)


@pytest.mark.parametrize("noise", [None, torch.tensor([0.1, 0.2])])
@pytest.mark.parametrize("kernel", KERNELS)
def test_new_rows_are_predicted_from_their_nearest_rows(kernel, noise):
    x, new = torch.randn(30, 3), torch.randn(9, 3)
    exact, approximate = both(x, 30, kernel=KERNELS[kernel](), mean=lambda x: x[:, :2])
    values = exact.rsample()
    expected = ConditionedProcess(exact, values, noise)(exact.at(new))
    found = NeighborConditionedProcess(approximate, values, noise)(exact.at(new))
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.variance, expected.variance, rtol=0, atol=1e-6)
    few, count = VecchiaPrior(exact, NeighborSearch(3)), 3 if noise is None else 12
    found = NeighborConditionedProcess(few, values, noise)(exact.at(new))
    near = [((x - row) / few.lengths).norm(dim=-1).argsort()[:count] for row in new]
    for row, own in enumerate(near):
        expected = ConditionedProcess(exact.at(x[own]), values[own], noise)(exact.at(new[row : row + 1]))
        torch.testing.assert_close(found.mean[row], expected.mean[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(found.variance[row], expected.variance[0], rtol=0, atol=1e-6)


def test_rows_that_are_not_finite_have_predictions_that_are_not():
    x = torch.randn(10, 1)
    exact, approximate = both(x, 3)
    found = NeighborConditionedProcess(approximate, exact.rsample(), None)(
        exact.at(torch.tensor([[0.0], [math.nan], [math.inf]]))
    )
    assert found.mean.isfinite().all(-1).tolist() == [True, False, False]


def data(rows=30):
    x = torch.rand(rows, 2)
    return x, torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(rows)


def test_the_density_of_one_layer_is_that_of_the_model():
    x, y = data()
    model = with_priors(DeepGP(x, layers=1))
    exact, approximate = (WhitenedDensity(whitened(m), (x, y), {}) for m in (model, vecchia(model, num_neighbors=29)))
    point = exact.unconstrained_start()
    torch.testing.assert_close(approximate.potential(point), exact.potential(point), rtol=0, atol=1e-6)


def test_neighbours_follow_the_hidden_values():
    x, y = data()
    model = DeepGP(x, layers=2, width=2)
    approximate = WhitenedDensity(whitened(vecchia(model, num_neighbors=3)), (x, y), {})
    (name,) = approximate.whitened
    for scale in (0.5, 3.0):
        white = scale * torch.randn(30, 2)
        hidden = VecchiaPrior(model.hidden[0](x), NeighborSearch(3)).unwhiten(white)
        top = VecchiaPrior(model.top(hidden), NeighborSearch(3))
        expected = top.noisy_log_prob(y[:, None], model.likelihood.variance[None]) - 0.5 * white.square().sum()
        torch.testing.assert_close(-approximate.potential({name: white}), expected, rtol=0, atol=1e-8)


def test_the_density_of_two_layers_is_exact_with_all_earlier_rows():
    x, y = data()
    model = DeepGP(x, layers=2, width=2)
    exact, approximate = (WhitenedDensity(whitened(m), (x, y), {}) for m in (model, vecchia(model, num_neighbors=29)))
    (name,) = exact.whitened
    prior = model.hidden[0](x)
    of_rows = VecchiaPrior(prior, NeighborSearch(29))
    for _ in range(3):
        hidden = prior.rsample().detach()
        found = approximate.potential({name: of_rows.whiten(hidden)}) + of_rows.half_log_determinant()
        expected = exact.potential({name: prior.whiten(hidden)}) + prior.half_log_determinant()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


class Several(PyroModule):
    """Functions that are sampled and functions below a likelihood without closed form."""

    def __init__(self, likelihood, outputs):
        super().__init__()
        self.inner, self.outer = (
            GaussianProcess(Matern52(), num_outputs=1),
            GaussianProcess(Matern52(), num_outputs=outputs),
        )
        self.likelihood = likelihood

    def forward(self, x, y=None):
        h = pyro.sample("h", self.inner(x))
        return pyro.sample("y", self.likelihood(self.outer(torch.tanh(h))), obs=y)


@pytest.mark.parametrize("sampler", [lambda m: WhitenedNUTS(m, max_tree_depth=3), EllipticalSlice])
@pytest.mark.parametrize("kind", ["bernoulli", "coregionalization", "gaussian"])
def test_samplers_take_any_model(sampler, kind):
    x, y = data()
    if kind == "bernoulli":
        model, y = Several(Bernoulli(), 1), (y > 0).double()
    elif kind == "coregionalization":
        model, y = Several(LinearCoregionalization(3, 2), 2), y[:, None] + torch.randn(30, 3)
    else:
        model = Several(Gaussian(), 1)
        model.outer.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    chains = run_chains(
        sampler(whitened(vecchia(model, num_neighbors=5))), (x, y), num_samples=4, warmup_steps=4, num_chains=1
    )
    prediction = predict(chains, torch.rand(6, 2))
    assert prediction.mean.shape[0] == 6
    assert bool(torch.isfinite(prediction.mean).all())


def test_stock_nuts_takes_it_with_and_without_whitening():
    x, y = data(12)
    for model in (vecchia(DeepGP(x, 2, 1), num_neighbors=4), whitened(vecchia(DeepGP(x, 2, 1), num_neighbors=4))):
        chain = MCMC(NUTS(model, max_tree_depth=3), num_samples=3, warmup_steps=3, disable_progbar=True)
        chain.run(x, y)
        draws = chain.get_samples()
        assert predict(PosteriorDraws(model, draws, (x, y)), x).mean.shape == (12,)


def test_the_marginal_likelihood_trains_one_layer_on_many_rows():
    x = 4 * torch.rand(1500, 1)
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(1500)
    model = DeepGP(x, layers=1)
    approximate = vecchia(model, num_neighbors=10)
    fit(MarginalLikelihood(approximate), x, y, steps=60, batch_size=1500, learning_rate=0.1)
    assert math.sqrt(model.likelihood.variance.item()) == pytest.approx(0.1, rel=0.1)
    new = 4 * torch.rand(50, 1)
    prediction = predict(PosteriorDraws(approximate, {}, (x, y)), new)
    assert float((prediction.mean - torch.sin(3 * new[:, 0])).square().mean().sqrt()) < 0.03


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_estimate_from_some_terms_has_the_density_as_its_mean(kernel):
    x = torch.randn(12, 3)
    exact, whole = both(x, 4, kernel=KERNELS[kernel]())
    f, noise, search = exact.rsample(), torch.tensor([0.1, 0.3]), NeighborSearch(4)
    parts = [VecchiaPrior(exact, search, terms=torch.tensor(places)) for places in ([3, 8], *([k] for k in range(12)))]
    for density, atol in (
        (lambda prior: prior.noisy_log_prob(f, noise), 1e-10),
        (lambda prior: prior.log_prob(f), 1e-6),
    ):
        pair, *single = [density(part) for part in parts]
        torch.testing.assert_close(torch.stack(single).mean(0), density(whole), rtol=0, atol=atol)
        torch.testing.assert_close(pair, (single[3] + single[8]) / 2, rtol=0, atol=atol)
        assert float(torch.stack(single).std(0).detach()) > 1.0


def test_terms_are_drawn_anew_without_repetition():
    x = torch.randn(30, 2)
    whole = both(x, 3)[1]
    drawn = [whole.some_terms(10).terms for _ in range(60)]
    assert all(len(each.unique()) == 10 for each in drawn)
    assert torch.cat(drawn).unique().tolist() == list(range(30))
    assert whole.some_terms(30) is whole


class Reader(PyroModule):
    """Noisy values and exact ones of two Gaussian processes."""

    def __init__(self):
        super().__init__()
        self.noisy, self.exact, self.likelihood = GaussianProcess(Matern12()), GaussianProcess(Matern12()), Gaussian()

    def forward(self, x, y=None, f=None):
        pyro.sample("f", self.exact(x), obs=f)
        return pyro.sample("y", self.likelihood(self.noisy(x)), obs=y)


@pytest.mark.parametrize("site", ["f", "y"])
def test_the_marginal_likelihood_is_estimated_from_terms(site):
    x, y = data(40)
    f = torch.randn(40, 1)
    approximate = vecchia(Reader(), num_neighbors=5)
    loss = MarginalLikelihood(approximate)
    whole = loss(x, y, f)
    assert torch.equal(MarginalLikelihood(approximate, terms=40)(x, y, f), whole)
    found = torch.stack([MarginalLikelihood(approximate, terms=8)(x, y, f).detach() for _ in range(400)])
    error = float(found.std()) / 20
    assert float(found.mean()) == pytest.approx(float(whole.detach()), abs=4 * error) and error < 0.05 * abs(
        float(whole.detach())
    )
    other = (y + 100.0, f) if site == "y" else (y, f + 100.0)  # a term that is missing from the sum would not move it
    assert float(MarginalLikelihood(approximate, terms=8)(x, *other).detach()) > float(found.max()) + 10


def test_terms_train_one_layer_as_all_rows_do():
    x = 4 * torch.rand(1500, 1)
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(1500)
    found = []
    for terms in (None, 100):
        torch.manual_seed(0)
        model = DeepGP(x, layers=1)
        fit(MarginalLikelihood(vecchia(model, num_neighbors=10), terms=terms), x, y, steps=150, learning_rate=0.1)
        found.append([model.likelihood.variance.item() ** 0.5, model.top.kernel.lengthscale.item()])
    assert found[0] == pytest.approx(found[1], rel=0.15) and found[0][0] == pytest.approx(0.1, rel=0.05)


def test_terms_of_what_is_no_product_are_refused():
    x, y = data(12)
    model = DeepGP(x, layers=1)
    with pytest.raises(
        ValueError,
        match=r"of all rows of 'top' is no product of terms.*give MarginalLikelihood a Vecchia approximation",
    ):
        MarginalLikelihood(model, terms=5)(x, y)
    with pytest.raises(ValueError, match="the site 'y' is not observed: pass its values to the loss"):
        MarginalLikelihood(vecchia(model), terms=5)(x)
    some = both(x, 3)[1].some_terms(5)
    for use in (some.rsample, some.half_log_determinant, lambda: some.whiten(torch.zeros(12, 2))):
        with pytest.raises(ValueError, match="has 5 terms of its density here, and nothing else"):
            use()
    for terms in (0, -1, True):
        with pytest.raises(ValueError, match="terms is a whole number, 1 or more, got"):
            MarginalLikelihood(vecchia(model), terms=terms)


def test_the_named_method_has_some_terms_in_a_step(monkeypatch):
    x, y = data(60)
    model, sizes = DeepGP(x, layers=1), []
    regress = local_factors_module._regress

    def counted(covariance, x, *rest, **options):
        sizes.append(len(x))
        return regress(covariance, x, *rest, **options)

    monkeypatch.setattr(local_factors_module, "_regress", counted)
    inference = METHODS["vecchia-gp"].inference
    fitted = inference.run(model, x, y, settings=Settings(batch_size=25, epochs=2), progress=lambda *_: None)
    # three steps an epoch, and all terms for what is said of the fit
    assert fitted.steps == 6 and sizes == [25] * 6 + [60]
    sizes.clear()
    inference.run(model, x, y, settings=Settings(epochs=2), progress=lambda *_: None)
    assert sizes == [60] * 3  # the default is 1000 at most
    assert inference.settled(Settings()).rows_of_step == inference.default_terms


def test_factors_that_are_known_are_the_factors():
    x, y = data()
    model = with_priors(DeepGP(x, layers=3, width=2))
    density = WhitenedDensity(whitened(vecchia(model, num_neighbors=4)), (x, y), {})
    values = density.start
    before = density.evaluate(values)
    for name in density.whitened:
        moved = {**values, name: values[name] + 0.1}
        known = density.evaluate(moved, before, name)
        assert known.log_likelihood == density.evaluate(moved).log_likelihood != before.log_likelihood
    assert all(factor.shape == (30, 5, 1) for factor in before.factors.values())
    assert len(before.factors) == 2


def test_the_order_of_the_rows_depends_on_the_seed():
    x, y = data()
    model = DeepGP(x, layers=1)
    found = {MarginalLikelihood(vecchia(model, num_neighbors=3, seed=seed))(x, y).item() for seed in (0, 1, 1)}
    assert len(found) == 2


@pytest.mark.parametrize("shape", [(12,), (3,)])
@pytest.mark.parametrize("name", ["likelihood.variance", "top.kernel.variance"])
def test_hyperparameters_with_more_values_than_parameters_are_refused(name, shape):
    x, y = data(12)
    model = DeepGP(x, layers=1)
    owner = model.likelihood if name.startswith("likelihood") else model.top.kernel
    owner.variance = PyroSample(dist.LogNormal(0.0, 0.5).expand(shape).to_event(1))
    with pytest.raises(ValueError, match="a hyperparameter has more values than its kernel, mean or likelihood has"):
        density = WhitenedDensity(whitened(vecchia(model, num_neighbors=3)), (x, y), {})
        density.potential(density.unconstrained_start())


def test_inputs_that_are_not_finite_are_rejected_and_named():
    x, y = data()
    x[3, 1] = math.nan
    with pytest.raises(NotPositiveDefiniteError, match="its inputs hold NaN or infinity: drop or fill such rows"):
        MarginalLikelihood(vecchia(DeepGP(torch.rand(30, 2), layers=1)))(x, y)


def test_proposals_that_overflow_are_rejected():
    x, y = data()

    class Steep(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner, self.outer, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian()

        def forward(self, x, y=None):
            h = pyro.sample("h", self.inner(x))
            return pyro.sample("y", self.likelihood(self.outer(torch.exp(3 * h))), obs=y)

    kernel = WhitenedNUTS(whitened(vecchia(Steep(), num_neighbors=3)), step_size=1000.0, max_tree_depth=2)
    kernel.initial_params = {"h_whitened": 0.1 * torch.randn(30, 1)}
    chains = run_chains(kernel, (x, y), num_samples=3, warmup_steps=0, num_chains=1)
    assert bool(chains.stats["diverging"].all())


def test_with_noise_more_neighbours_are_closer():
    x = 4 * torch.rand(400, 1)
    exact = prior_at(x, Matern52(lengthscale=0.5), outputs=1)
    y, noise = (exact.rsample() + torch.randn(400, 1)).detach(), torch.ones(1)
    errors = [
        abs((VecchiaPrior(exact, NeighborSearch(m)).noisy_log_prob(y, noise) - exact.noisy_log_prob(y, noise)).item())
        / 400
        for m in (3, 30, 120)
    ]
    assert errors[2] < errors[1] < errors[0]
    assert errors[1] < 0.02


def test_models_with_units_and_chains_for_arviz():
    x, y = data()
    model = with_priors(DeepGP(100 * x, layers=2, width=1, standardizer=Standardizer.fit(100 * x, 50 + 10 * y)))
    chains = run_chains(
        EllipticalSlice(whitened(vecchia(model, num_neighbors=29))),
        (100 * x, 50 + 10 * y),
        num_samples=4,
        warmup_steps=2,
        num_chains=2,
        processes=1,
    )
    prediction = predict(chains, 100 * x)
    groups = to_arviz(prediction, 100 * x, 50 + 10 * y, draws=chains.draws)
    assert groups.posterior.sizes["draw"] == 4
    assert float((prediction.mean - 50).abs().max()) < 100


def test_chains_with_other_neighbours_are_other_chains():
    x, y = data()
    model = with_priors(DeepGP(x, layers=1))
    names = {identity(WhitenedNUTS(whitened(vecchia(model, num_neighbors=m))), (x, y), 5) for m in (3, 4, 4)}
    assert len(names) == 2


def test_models_pickle_without_what_they_remember():
    x, y = data()
    model = vecchia(DeepGP(x, layers=1), num_neighbors=3)
    before = len(pickle.dumps(model))
    model(x, y)
    WhitenedDensity(whitened(with_priors(DeepGP(x, layers=1))), (x, y), {})
    assert len(pickle.dumps(model)) < before + 1000
    assert pickle.loads(pickle.dumps(model)).num_neighbors == 3


def test_single_precision():
    x = torch.rand(50, 2, dtype=torch.float32)
    exact, approximate = both(x, 49, kernel=Matern52(lengthscale=0.3), outputs=1)
    f, noise = exact.rsample(), torch.tensor([0.1], dtype=torch.float32)
    torch.testing.assert_close(
        approximate.noisy_log_prob(f, noise), exact.noisy_log_prob(f, noise), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("options", [{"num_neighbors": n} for n in (0, -1, 2.5, "3", True)] + [{"seed": -1}])
def test_numbers_that_are_refused(options, unannotated):
    with pytest.raises(ValueError, match=r"(num_neighbors is a whole number, 1|seed is a whole number, 0) or more"):
        vecchia(DeepGP(torch.zeros(3, 1), layers=1), **options)
    with pytest.raises(TypeError, match="vecchia takes a model"):
        vecchia(3)
    assert vecchia(DeepGP(torch.zeros(3, 1), layers=1), num_neighbors=np.int64(4)).num_neighbors == 4


def test_what_is_refused():
    x = torch.rand(2, 10, 1)
    with pytest.raises(ValueError, match=r"has a batch \(2,\) of them"):
        vecchia(lambda: pyro.sample("f", GaussianProcess(Matern52())(x)))()
    _, approximate = both(x[0], 3)
    with pytest.raises(ValueError, match="has no dense covariance"):
        approximate.covariance_matrix  # noqa: B018
    process = NeighborConditionedProcess(approximate, torch.zeros(10, 2), None)
    with pytest.raises(ValueError, match="have no joint covariance"):
        process(approximate).covariance_matrix  # noqa: B018
    with pytest.raises(ValueError, match="functions of 'gp' cannot be drawn"):
        process.known_values(approximate, 2)
    x, y = data()
    model = DeepGP(x, layers=2, width=1)
    with pytest.raises(ValueError, match=r"write whitened\(vecchia\(model\)\)"):
        vecchia(whitened(model))
    points = inducing_inputs(model, x, y, num_inducing=4)
    with pytest.raises(ValueError, match="has inducing inputs and a Vecchia approximation"):
        whitened(vecchia(model), points)(x, y)
    for layers in (1, 2):
        guide = Variational(vecchia(DeepGP(x, layers=layers, width=1)), InducingPoints(4), MonteCarlo(2))
        with pytest.raises(ValueError, match=r"give Variational the model itself, not vecchia\(model\)"):
            guide.initialize(x, y)
    pyro.clear_param_store()
    with pytest.raises(ValueError, match="the site 'f' is wrapped in another distribution"):
        vecchia(lambda x: pyro.sample("f", GaussianProcess(Matern52())(x).mask(False)))(x)
    with pytest.raises(ValueError, match="the inputs have no rows"):
        nearest_neighbors(x[:0], num_neighbors=3)


def test_point_estimates_are_named(caplog):
    x, _ = data()
    with caplog.at_level("WARNING", logger="pyro_dgp"):
        whitened(vecchia(DeepGP(x, layers=1)))
    assert "MCMC keeps these point estimates" in caplog.text


def test_a_model_is_shown_with_its_numbers():
    assert repr(vecchia(DeepGP(torch.zeros(3, 1), layers=1), num_neighbors=4)).endswith("num_neighbors=4, seed=0)")
