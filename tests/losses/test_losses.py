import inspect
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide.effect import AutoNormalMessenger
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    PosteriorDraws,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    losses,
    module_local_parameters,
    predict,
)
from pyro_dgp.guides.guide_pass import SiteRecord
from tests.examples import LatentInputs, OneLayer, TwoLayers, TwoSites, regression

LOSSES = [ELBO, PredictiveLogLikelihood, GammaDivergence]


def guided(model, x, y, family=None, samples=4, **options):
    guide = Variational(model, family or InducingPoints(6), MonteCarlo(samples), **options)
    guide.initialize(x, y)
    for name, parameter in guide.named_parameters():
        if "q.mean" in name:  # away from q(u) = p(u), where the KL is zero and the inputs do not matter
            parameter.data.add_(torch.randn_like(parameter))
    return guide


class Plated(PyroModule):
    """The two plain sites, y in a data plate that may subsample."""

    def __init__(self, subsample=None):
        super().__init__()
        self.gp = GaussianProcess(RBF(lengthscale=0.7))
        self.subsample = subsample

    def forward(self, x, y=None):
        data = pyro.plate("data", len(x), subsample_size=self.subsample)
        index = data.indices
        f = pyro.sample("f", self.gp(x[index]))
        with data:
            return pyro.sample("y", dist.Normal(f.squeeze(-1), 0.2), obs=None if y is None else y[index])


#: Losses with tests of their own, in test_approximate_ep.py.
ELSEWHERE = {losses.ApproximateEP}


def test_every_loss_of_the_package_is_tested():
    classes = {c for c in vars(losses).values() if inspect.isclass(c) and issubclass(c, losses.Loss)}
    assert classes - {losses.Loss} == {*LOSSES, *ELSEWHERE}


def optimum(model, x, y):
    """The process of M = N at the optimal q(u) for noise variance 0.01, in whitened coordinates."""
    guide = Variational(model, InducingPoints(len(x)), MonteCarlo(1))
    guide.initialize(x, y)
    process = guide.processes._modules["y/f"]
    with torch.no_grad():
        process.basis.inducing_points = x.clone()
        prior = pyro.poutine.trace(model).get_trace(x, y).nodes["y"]["fn"].priors["f"]
        outputs = prior.num_outputs
        targets = y[:, None] if outputs == 1 else y
        for d in range(outputs):
            k = prior.covariance_matrix[0]
            factor = torch.linalg.cholesky(k + 1e-10 * torch.eye(len(x)))
            s = torch.linalg.inv(torch.eye(len(x)) + factor.T @ factor / 0.01)
            process.q.scale.data[d] = torch.linalg.cholesky(s)
            process.q.mean.data[d] = s @ factor.T @ targets[:, d] / 0.01
    return guide


@pytest.mark.parametrize("outputs", [1, 2])
def test_with_inducing_points_at_the_data_the_bound_is_the_exact_evidence(outputs):
    x = torch.linspace(-2, 2, 50)[:, None]
    y = torch.sin(2 * x) + 0.1 * torch.randn(50, outputs)
    y = y[:, 0] if outputs == 1 else y
    model = OneLayer(Matern52(lengthscale=0.5), Gaussian(outputs, variance=0.01), outputs, jitter=1e-10)
    guide = optimum(model, x, y)
    k = 1.0 * Matern52(lengthscale=0.5)().matrix(x[None])[0].detach() + 0.01 * torch.eye(50)
    normal = dist.MultivariateNormal(torch.zeros(50), k)
    exact = normal.log_prob(y.T).sum() if outputs > 1 else normal.log_prob(y)
    assert -ELBO().loss(model, guide, x, y) == pytest.approx(float(exact), abs=1e-6)
    assert -MarginalLikelihood(model)(x, y).item() == pytest.approx(float(exact), abs=1e-6)
    new = torch.linspace(-3, 3, 17)[:, None]
    ours, exactly = predict(guide, new), predict(PosteriorDraws(model, {}, (x, y)), new)
    kxn = Matern52(lengthscale=0.5)().matrix(x[None], new[None])[0].detach()
    torch.testing.assert_close(exactly.mean, (kxn.T @ torch.linalg.solve(k, y)), atol=1e-8, rtol=1e-8)
    for p in (ours, exactly):
        variance = 1.01 - (kxn * torch.linalg.solve(k, kxn)).sum(0)
        variance = variance if outputs == 1 else variance[:, None].expand(17, outputs)
        torch.testing.assert_close(p.mean, exactly.mean, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(p.variance, variance, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_one_layer_bound_stays_below_the_evidence(covariance):
    x, y = regression(20)
    model = OneLayer()
    exact = -MarginalLikelihood(model)(x, y).item()
    for seed in range(10):
        torch.manual_seed(seed)
        guide = guided(model, x, y, InducingPoints(15, covariance))
        for parameter in guide.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
        assert -ELBO().loss(model, guide, x, y) <= exact


@pytest.mark.slow
@pytest.mark.usefixtures("local")
def test_agrees_with_stock_mean_field_elbo_on_a_two_site_model():
    x, y = regression(15)
    model = TwoSites()
    guide = guided(model, x, y, samples=1)
    for parameter in guide.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    stock, ours = TraceMeanField_ELBO(), ELBO()
    a = torch.tensor([stock.loss(model, guide, x, y) for _ in range(500)])
    b = torch.tensor([ours.loss(model, guide, x, y) for _ in range(500)])
    error = math.sqrt(a.var() / len(a) + b.var() / len(b))
    assert abs(a.mean() - b.mean()) < 3 * error
    collapsed = OneLayer()
    other = guided(collapsed, x, y)
    state = {k.replace("processes.f", "processes.y/f"): v for k, v in guide.state_dict().items()}
    other.load_state_dict(state | {"_extra_state": other.get_extra_state()})
    assert abs(ELBO().loss(collapsed, other, x, y) - b.mean()) < 3 * error


@pytest.mark.slow
def test_stock_elbo_with_vectorised_particles_agrees_with_looped_ones():
    x, y = regression(8)
    model = TwoSites()
    guide = guided(model, x, y)
    loop = TraceMeanField_ELBO(num_particles=600)
    batched = TraceMeanField_ELBO(num_particles=600, vectorize_particles=True, max_plate_nesting=0)
    a, b = loop.loss(model, guide, x, y), batched.loss(model, guide, x, y)
    assert a == pytest.approx(b, rel=0.08)


@pytest.mark.slow
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("make", [OneLayer, TwoSites, Plated])
def test_mini_batches_are_unbiased_for_all_data(make, loss):
    x, y = regression(12)
    model = make()
    guide = guided(model, x, y, samples=1)
    full = loss(num_data=12)

    def value(index, objective):
        torch.manual_seed(0)
        return objective.loss(model, guide, x[index], y[index])

    if make is OneLayer:  # no noise: the mean over a partition is exact
        parts = torch.randperm(12).split(3)
        mean = sum(value(part, full) for part in parts) / len(parts)
        assert mean == pytest.approx(value(torch.arange(12), full), rel=1e-9)
        assert value(torch.arange(12), loss()) == pytest.approx(value(torch.arange(12), full))
    else:
        for part in guide.processes._modules["f"].parameters():
            part.requires_grad_(False)
        guide.processes._modules["f"].q.mean.data.normal_()
        whole = torch.tensor([full.loss(model, guide, x, y) for _ in range(250)])
        parts = torch.stack(
            [
                torch.tensor([full.loss(model, guide, x[p], y[p]) for p in torch.randperm(12).split(3)]).mean()
                for _ in range(120)
            ]
        )
        error = math.sqrt(whole.var() / 250 + parts.var() / 120)
        assert abs(whole.mean() - parts.mean()) < 3.5 * error


@pytest.mark.slow
@pytest.mark.usefixtures("local")
def test_a_plate_that_subsamples_is_not_scaled_twice():
    x, y = regression(12)
    whole, sub = Plated(), Plated(subsample=4)
    sub.load_state_dict(whole.state_dict())
    guide = guided(whole, x, y, InducingPoints(4), samples=1)
    other = guided(sub, x, y, InducingPoints(4), samples=1)
    other.load_state_dict(guide.state_dict())
    a = torch.tensor([ELBO(num_data=12).loss(whole, guide, x, y) for _ in range(400)])
    b = torch.tensor([ELBO(num_data=12).loss(sub, other, x, y) for _ in range(400)])
    assert abs(a.mean() - b.mean()) < 3.5 * math.sqrt(a.var() / 400 + b.var() / 400)


def test_predictive_loss_is_the_log_of_the_mixture_and_beta_weighs_the_kl():
    x, y = regression(10)
    model = TwoLayers(x)
    guide = guided(model, x, y, samples=7)

    def value(beta):
        torch.manual_seed(5)
        return -PredictiveLogLikelihood(beta=beta).loss(model, guide, x, y)

    torch.manual_seed(5)
    with torch.no_grad():
        trace = guide.components(x, y).trace
    fn = trace.nodes["y"]["fn"]
    density = fn.components().log_prob(y).exp().mean(0).log().sum()
    records = [SiteRecord.of(trace.nodes[site]) for site in ("h", "y")]
    kl = math.fsum(float(record.regularizer) for record in records if record is not None)
    assert value(0.0) == pytest.approx(float(density))
    assert value(0.3) == pytest.approx(float(density - 0.3 * kl))
    with pytest.raises(ValueError, match="beta must not be negative"):
        PredictiveLogLikelihood(beta=-1.0)


@pytest.mark.slow
def test_two_layer_bound_is_at_most_the_evidence_by_annealed_importance_sampling():
    from tests.annealing import log_evidence_both_ways

    x = torch.linspace(-1, 1, 6)[:, None]
    y = torch.tensor([-1.0, -0.9, -1.1, 1.0, 1.1, 0.9])
    model = TwoLayers(x, width=1, likelihood=Gaussian(variance=0.05)).requires_grad_(False)
    low, high = log_evidence_both_ways(model, x, y)
    assert low <= high + 0.1 and high - low < 0.6
    guide = guided(model, x, y, InducingPoints(6), samples=20)
    loss = ELBO()(model, guide)
    with module_local_parameters(loss):
        optimizer = torch.optim.Adam(guide.parameters(), lr=0.02)
        for _ in range(600):
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
    bounds = torch.tensor([-ELBO().loss(model, guide, x, y) for _ in range(400)])
    assert bounds.mean() - 3 * bounds.std() / 20 <= high
    assert bounds.mean() > low - 6.0  # a bound, and no vacuous one


class Everything(TwoLayers):
    def __init__(self, x):
        super().__init__(x)
        self.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("family", [InducingPoints(5, c) for c in ("full", "diagonal", "delta")], ids=str)
def test_every_parameter_moves_under_stock_svi_and_in_a_torch_loop(loss, family):
    x, y = regression(12)

    def parameters(model, guide):
        return {f"{i}.{n}": p for i, m in enumerate((model, guide)) for n, p in m.named_parameters()}

    def moved(before, after):
        return {name for name in before if not torch.equal(before[name], after[name])}

    model = Everything(x)
    guide = guided(model, x, y, family)
    before = {n: p.detach().clone() for n, p in parameters(model, guide).items()}
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss(num_data=12)).step(x, y)
    assert moved(before, parameters(model, guide)) == set(before)

    pyro.clear_param_store()
    with module_local_parameters():
        model = Everything(x)
        guide = guided(model, x, y, family)
        module = loss(num_data=12)(model, guide)
        before = {n: p.detach().clone() for n, p in parameters(model, guide).items()}
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        module(x, y).backward()
        optimizer.step()
        assert moved(before, parameters(model, guide)) == set(before)
        assert len(pyro.get_param_store()) == 0


def test_a_second_model_in_the_global_store_is_refused_with_the_remedy():
    x, y = regression(10)

    def step(model):
        guide = guided(model, x, y)
        return SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO()).step(x, y)

    step(OneLayer())
    with pytest.raises(ValueError, match=r"another object's .* call pyro.clear_param_store\(\)"):
        step(OneLayer())
    pyro.clear_param_store()
    assert math.isfinite(step(OneLayer()))


def test_misuse_is_one_sentence():
    x, y = regression(10)
    model = OneLayer()
    guide = guided(model, x, y)
    with pytest.raises(ValueError, match="the model of the loss is not the guide's"):
        ELBO().loss(poutine.condition(model, {}), guide, x, y)
    with pytest.raises(ValueError, match="nothing is observed: pass y"):
        ELBO().loss(model, guide, x)
    with pytest.raises(TypeError, match=r"take a pyro_dgp.Variational guide, not function"):
        ELBO().loss(model, lambda x, y: None, x, y)
    with pytest.raises(ValueError, match="num_data must be a positive number"):
        ELBO(num_data=0)
    with pytest.raises(
        TypeError, match=r"num_data is a number of rows, not Variational: write loss|parameter '?num_data"
    ):
        ELBO(guide)
    with pytest.raises(ValueError, match=r"y has shape \(10, 1\); for one output it is \(N,\)"):
        ELBO().loss(model, guide, x, y[:, None])
    with pytest.raises(ValueError, match=r"y has shape \(9,\), but the inputs and the likelihood make it \(..., 10\)$"):
        ELBO().loss(model, guide, x, y[:9])
    pyro.clear_param_store()
    with pytest.raises(ValueError, match="latent sites"):
        MarginalLikelihood(TwoLayers(x))(x, y)


def test_mixed_precision_of_targets_is_refused():
    x, y = regression(10)
    model = OneLayer()
    guide = guided(model, x, y)
    with pytest.raises(TypeError, match="y is float32 on cpu and the inputs are float64 on cpu"):
        ELBO().loss(model, guide, x, y.float())


@pytest.mark.usefixtures("local")
def test_bernoulli_bound_by_quadrature_equals_sampling():
    x, y = regression(10)
    target = (y > 0).double()
    model = TwoSites(Bernoulli())
    guide = guided(model, x, target, samples=4000)
    collapsed = OneLayer(likelihood=Bernoulli())
    other = guided(collapsed, x, target)
    state = {k.replace("processes.f", "processes.y/f"): v for k, v in guide.state_dict().items()}
    other.load_state_dict(state | {"_extra_state": other.get_extra_state()})
    assert ELBO().loss(model, guide, x, target) == pytest.approx(ELBO().loss(collapsed, other, x, target), abs=0.3)


def test_float32_works():
    torch.set_default_dtype(torch.float32)
    x, y = regression(30)
    model = TwoLayers(x)
    guide = guided(model, x, y)
    loss = ELBO()(model, guide)
    value = loss(x, y)
    value.backward()
    assert value.dtype == torch.float32 and torch.isfinite(value)


@pytest.mark.usefixtures("local")
def test_only_data_plates_are_weighted_by_num_data():
    class Hierarchical(OneLayer):
        def forward(self, x, y=None):
            with pyro.plate("dims", 5):
                pyro.sample("a", dist.Normal(0.0, 1.0))
            return super().forward(x, y)

    x, y = regression(12)
    model = Hierarchical()
    guide = guided(model, x, y)
    assert guide.structure.data_plates == set()
    plain = OneLayer()
    plain.load_state_dict(model.state_dict())
    other = guided(plain, x, y)
    other.load_state_dict({k: v for k, v in guide.state_dict().items() if "latents" not in k})
    q = guide.components(x, y).trace.nodes["a"]["fn"]
    kl = torch.distributions.kl_divergence(q.base_dist, dist.Normal(0.0, 1.0)).sum()
    draws = torch.tensor([ELBO(num_data=1200).loss(model, guide, x, y) for _ in range(300)])
    expected = ELBO(num_data=1200).loss(plain, other, x, y) + float(kl.detach())
    assert abs(draws.mean() - expected) < 4 * draws.std() / math.sqrt(300) + 1e-6


class SecondData(OneLayer):
    """A one-layer model that observes six values besides y; ``write`` says how they are written."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, x, y=None):
        c = pyro.sample("c", dist.Normal(0.0, 1.0))
        self.write(self, c, torch.linspace(0.2, 0.7, 6, dtype=x.dtype))
        return super().forward(x, y)


def _as_event(model, c, values):
    pyro.sample("z", dist.Normal(c, 1.0).expand([6]).to_event(1), obs=values)


def _as_plate(model, c, values):
    with pyro.plate("six", 6):
        pyro.sample("z", dist.Normal(c, 1.0), obs=values)


def _as_scalars(model, c, values):
    for number, value in enumerate(values):
        pyro.sample(f"z{number}", dist.Normal(c, 1.0), obs=value)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("write", [_as_event, _as_plate, _as_scalars])
def test_observations_that_are_no_rows_of_the_data_count_once(write):
    x, y = regression(12)
    model = SecondData(write)
    guide = guided(model, x, y, latents=AutoNormalMessenger(model))
    plain = OneLayer()
    plain.load_state_dict(model.state_dict())
    other = guided(plain, x, y)
    other.load_state_dict({k: v for k, v in guide.state_dict().items() if "latents" not in k})
    q = guide.components(x, y).trace.nodes["c"]["fn"].base_dist
    values = torch.linspace(0.2, 0.7, 6)
    second = -0.5 * ((values - q.mean) ** 2 + q.variance + math.log(2 * math.pi)).sum()
    kl = torch.distributions.kl_divergence(q, dist.Normal(0.0, 1.0))
    draws = torch.tensor([ELBO(num_data=1200).loss(model, guide, x, y) for _ in range(400)])
    expected = ELBO(num_data=1200).loss(plain, other, x, y) + float((kl - second).detach())
    assert abs(draws.mean() - expected) < 4 * draws.std() / math.sqrt(400) + 1e-6


@pytest.mark.usefixtures("local")
def test_a_second_likelihood_on_other_rows_counts_once():
    class TwoSets(OneLayer):
        def forward(self, x, y=None):
            z = torch.linspace(-1, 1, 6, dtype=x.dtype)[:, None]
            pyro.sample("z", Gaussian(variance=0.3).requires_grad_(False)(self.gp(z)), obs=z[:, 0])
            return super().forward(x, y)

    x, y = regression(12)
    model = TwoSets()
    with pytest.warns(UserWarning, match="'z/f' and 'y/f' sample one GaussianProcess at different inputs"):
        guide = guided(model, x, y)
    weighted = guide.components(x, y)
    terms = {name: float(ELBO().observed(weighted.trace.nodes[name], weighted).detach()) for name in ("y", "z")}
    kl = sum(weighted.record(weighted.trace.nodes[name]).regularizer for name in ("y", "z"))
    assert ELBO(1200).loss(model, guide, x, y) == pytest.approx(float(kl.detach()) - 100 * terms["y"] - terms["z"])


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["event", "two sites", "plate", "plate that subsamples", "latent inputs"])
def test_num_data_below_the_rows_of_a_step_is_refused(loss, kind):
    """A plate that subsamples has as many rows as its full size, though a step sees fewer than num_data."""
    x, y = regression(12)
    model = {
        "event": OneLayer,
        "two sites": TwoSites,
        "plate": Plated,
        "plate that subsamples": lambda: Plated(subsample=4),
        "latent inputs": LatentInputs,
    }[kind]()
    guide = guided(model, x, y, InducingPoints(4))
    site = "w" if kind == "latent inputs" else "y"
    with pytest.raises(
        ValueError, match=f"num_data=11 is less than the 12 rows of the site '[{site}y]': it is the size"
    ):
        loss(num_data=11).loss(model, guide, x, y)
    assert math.isfinite(loss(num_data=12).loss(model, guide, x, y))
    if "subsamples" not in kind and kind != "latent inputs":
        assert math.isfinite(loss(num_data=11).loss(model, guide, x[:11], y[:11]))


@pytest.mark.usefixtures("local")
def test_num_data_below_the_rows_of_data_that_every_step_passes_whole_is_fine():
    x, y = regression(12)
    model = SecondData(_as_event)
    guide = guided(model, x, y)
    assert math.isfinite(ELBO(5).loss(model, guide, x[:5], y[:5]))  # six values beside y count once


@pytest.mark.usefixtures("local")
def test_num_data_refuses_sites_of_different_numbers_of_rows():
    class Differences(OneLayer):
        def forward(self, x, y=None):
            c = pyro.sample("c", dist.Normal(0.0, 1.0))
            pyro.sample("d", dist.Normal(c, 1.0).expand([len(x) - 1]).to_event(1), obs=x[1:, 0] - x[:-1, 0])
            return super().forward(x, y)

    x, y = regression(12)
    model = Differences()
    guide = guided(model, x, y)
    assert math.isfinite(ELBO().loss(model, guide, x, y))
    with pytest.raises(ValueError, match="site 'd', which has 11 values for the 12 rows of a step"):
        ELBO(1200).loss(model, guide, x, y)


@pytest.mark.usefixtures("local")
def test_batch_axes_are_independent_functions_and_the_bound_holds():
    x, y = regression(10)
    model = OneLayer()
    guide = guided(model, x, y, InducingPoints(10))
    three, targets = x.expand(3, 10, 1), y.expand(3, 10)
    exact = poutine.trace(model).get_trace(three, targets)
    exact.compute_log_prob()
    bound = -ELBO().loss(model, guide, three, targets)
    assert bound == pytest.approx(-3 * ELBO().loss(model, guide, x, y))
    assert bound <= float(exact.nodes["y"]["log_prob"].sum().detach())


class EventObservation(TwoSites):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(f.squeeze(-1), 0.2).to_event(1), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_plain_event_observation_is_scored_by_rows(loss):
    x, y = regression(12)
    ours, plain = TwoSites(), EventObservation()
    guide = guided(ours, x, y)
    other = guided(plain, x, y)
    other.load_state_dict(guide.state_dict())
    values = []
    for model, g in ((ours, guide), (plain, other)):
        torch.manual_seed(0)
        values.append(loss(num_data=1200).loss(model, g, x, y))
    assert values[0] == pytest.approx(values[1])


@pytest.mark.slow
@pytest.mark.usefixtures("local")
def test_a_latent_above_a_hidden_layer_is_averaged_over_the_particles():
    class Above(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.top = GaussianProcess(RBF()), GaussianProcess(RBF())
            self.likelihood = Gaussian()

        def forward(self, x, y=None):
            h = pyro.sample("h", self.gp(x))
            z = pyro.sample("z", dist.Normal(h, 0.1).to_event(2))
            return pyro.sample("y", self.likelihood(self.top(z)), obs=y)

    from pyro.infer.autoguide.effect import AutoMessenger

    class Amortised(AutoMessenger):
        def get_posterior(self, name, prior):
            return dist.Normal(prior.mean + 0.1, 0.1).to_event(2)

    x, y = regression(10)
    model = Above()
    values = []
    for samples in (1, 100):
        guide = Variational(model, InducingPoints(5), MonteCarlo(samples), latents=Amortised(model))
        torch.manual_seed(0)
        guide.initialize(x, y)
        values.append(sum(ELBO().loss(model, guide, x, y) for _ in range(400 // samples)) / (400 // samples))
    assert values[1] == pytest.approx(values[0], rel=0.1)


@pytest.mark.parametrize("model", [TwoSites, OneLayer])
@pytest.mark.parametrize("bernoulli", [False, True])
def test_gamma_to_one_is_the_elbo(model, bernoulli, local):
    x, y = regression(12)
    model = model(likelihood=Bernoulli() if bernoulli else None)
    y = (y > 0).to(y) if bernoulli else y
    guide = guided(model, x, y, samples=3)
    torch.manual_seed(1)
    elbo = ELBO(num_data=30)(model, guide)(x, y).detach()
    for gamma, tolerance in ((1 + 1e-4, 2e-2), (1 + 1e-6, 2e-4)):
        torch.manual_seed(1)
        torch.testing.assert_close(
            GammaDivergence(num_data=30, gamma=gamma)(model, guide)(x, y),
            elbo,
            rtol=0,
            atol=tolerance * float(elbo.abs()),
        )


def test_the_gamma_divergence_bounds_the_cost_of_an_outlier(local):
    x, y = regression(12)
    model = OneLayer()
    guide = guided(model, x, y)

    def cost(loss, value):
        target = y.clone()
        target[0] = value
        return float(loss(model, guide)(x, target).detach())

    robust, ordinary = GammaDivergence(gamma=1.5), ELBO()
    assert cost(robust, 1e4) - cost(robust, 1e3) < 1e-6
    assert cost(ordinary, 1e4) - cost(ordinary, 1e3) > 1e6


def test_gamma_below_one_and_distributions_without_the_integral_are_refused(local):
    with pytest.raises(ValueError, match="above 1"):
        GammaDivergence(gamma=1.0)
    x, y = regression(12)

    class StudentT(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF())

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.StudentT(4.0, f.squeeze(-1), 0.1).to_event(1), obs=y)

    model = StudentT()
    with pytest.raises(ValueError, match="StudentT"):
        GammaDivergence()(model, guided(model, x, y))(x, y)


def test_the_gamma_divergence_takes_several_outputs_in_a_plate(local):
    class Plated2(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(), num_outputs=2)

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)

    x, y = regression(10)
    y = torch.stack([y, -y], -1)
    model = Plated2()
    guide = guided(model, x, y, samples=1)
    torch.manual_seed(2)
    elbo = ELBO()(model, guide)(x, y).detach()
    torch.manual_seed(2)
    gamma = GammaDivergence(gamma=1 + 1e-6)(model, guide)(x, y)
    torch.testing.assert_close(gamma, elbo, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("propagation", [MonteCarlo(10), SigmaPoints("qr3", 10)])
def test_a_prior_of_as_many_batches_as_components_is_charged_whole(propagation):
    """Ten lengthscales without ``to_event`` cost what ten with it cost, whether or not there are ten components."""
    x, y = torch.randn(30, 10), torch.randn(30)
    charged = []
    for prior in (dist.LogNormal(0.0, 1.0).expand([10]), dist.LogNormal(0.0, 1.0).expand([10]).to_event(1)):
        model = TwoLayers(x, width=10)
        model.top.kernel.lengthscale = PyroSample(prior)
        torch.manual_seed(0)
        guide = Variational(model, InducingPoints(5), propagation, latents=AutoNormalMessenger(model))
        guide.initialize(x, y)
        torch.manual_seed(1)
        with torch.no_grad(), module_local_parameters(guide, model):
            charged.append(ELBO(30).differentiable_loss(model, guide, x, y))
    torch.testing.assert_close(*charged)


def test_an_observed_site_of_as_many_batches_as_components_is_no_mixture():
    class Measured(TwoLayers):
        def forward(self, x, y=None):
            result = super().forward(x, y)
            pyro.sample("gauge", dist.Normal(self.likelihood.variance, 1.0).expand([4]), obs=torch.arange(4.0))
            return result

    x, y = torch.randn(20, 2), torch.randn(20)
    values = []
    for extra in (False, True):
        torch.manual_seed(0)
        model = Measured(x) if extra else TwoLayers(x)
        guide = Variational(model, InducingPoints(5), SigmaPoints("qr3", 4))
        guide.initialize(x, y)
        with torch.no_grad(), module_local_parameters(guide, model):
            values.append(ELBO().differentiable_loss(model, guide, x, y))
    expected = dist.Normal(model.likelihood.variance, 1.0).log_prob(torch.arange(4.0)).sum()
    torch.testing.assert_close(values[0] - values[1], expected.detach())


@pytest.mark.parametrize("make", [OneLayer, TwoSites])
@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("validate", [False, True])
def test_a_step_on_nan_is_refused_and_moves_nothing(make, name, validate):
    pyro.enable_validation(validate)
    x, y = regression(12)
    model = make()
    guide = Variational(model, InducingPoints(5), MonteCarlo(2))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO())
    svi.step(x, y)
    before = [parameter.detach().clone() for parameter in guide.parameters()]
    broken = {"x": x.clone(), "y": y.clone()}
    broken[name][7] = math.nan
    for step, what in ((svi.step, "a training step"), (svi.evaluate_loss, "the loss")):
        with pytest.raises(
            ValueError, match=rf"argument '{name}' of {what} holds NaN or infinity, of shape .* first at \(7,"
        ):
            step(**broken)
    assert all(torch.equal(parameter, own) for parameter, own in zip(guide.parameters(), before, strict=True))
    svi.step(x, y)
    assert all(torch.isfinite(parameter).all() for parameter in guide.parameters())


def test_a_loss_that_is_infinite_stops_stock_svi():
    x, y = regression(12)
    model = OneLayer(likelihood=Gaussian(variance=0.04))
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO())
    with pytest.raises(
        ValueError,
        match="since the likelihood at .y. is NaN or infinite, while all parameters are finite: build .* anew and train at a lower",
    ):
        svi.step(x, 1e200 * y)
