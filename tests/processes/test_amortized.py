import math
from dataclasses import replace

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch.distributions import Normal, constraints, kl_divergence

from pyro_dgp import (
    ELBO,
    RBF,
    AffineMaps,
    AmortizedInducingPoints,
    Bernoulli,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    Matern52,
    MonteCarlo,
    OneNetwork,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WithMean,
    concatenate_inputs,
    fit,
    predict,
)
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.processes import AmortizedProcess, FunctionMarginal
from pyro_dgp.processes.inference_functions import SMALLEST_SCALE
from pyro_dgp.processes.plain_moments import plain_row_moments
from pyro_dgp.processes.row_moments import row_moments
from pyro_dgp.zoo.by_guide import ByValidatedGuide
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings
from tests.examples import Encoder, LatentInputs, OneLayer, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")
RECIPES = [AffineMaps(), OneNetwork()]


def a_prior(x, outputs=3, per_output=False, mean=None):
    kernel = Matern52(ard=x.shape[-1], outputs=outputs if per_output else None, lengthscale=0.7, variance=1.3)
    return GaussianProcess(kernel, mean, outputs)(x)


def constant(process, ordinary):
    """Make the inference functions return what an ordinary process holds."""
    functions = process.functions
    z, mean, scale = ordinary.basis.inducing_points, ordinary.q.mean, ordinary.q.scale
    full = scale.dim() == 3
    spread = torch.cat([scale.diagonal(dim1=-2, dim2=-1), _below(scale)], -1) if full else scale
    size = scale.shape[1]
    raw = torch.cat([(spread[:, :size] - SMALLEST_SCALE).expm1().log(), spread[:, size:]], -1)
    if isinstance(functions, PyroModule) and hasattr(functions, "bias"):
        functions.weight.data.zero_()
        functions.bias.data.copy_(z)
        parts = [(functions.means, mean), (functions.scales, raw)]
    else:
        parts = [(functions.network, torch.cat([z.flatten(), mean.flatten(), raw.flatten()]))]
    for network, values in parts:
        weight, bias = network.last
        weight.zero_()
        bias.copy_(values.flatten())


def _below(scale):
    rows, columns = torch.tril_indices(scale.shape[-1], scale.shape[-1], -1)
    return scale[:, rows, columns]


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_constant_functions_are_ordinary_inducing_points(recipe, covariance, per_output):
    torch.manual_seed(1)
    x = torch.randn(9, 2)
    prior = a_prior(x, per_output=per_output, mean=LinearMean(2, 3))
    ordinary = InducingPoints(5, covariance).create(prior, hidden=False)
    ordinary.q.mean.data.normal_()
    if covariance == "full":
        lower = torch.randn(3, 5, 5).tril(-1) + torch.diag_embed(torch.rand(3, 5) + 0.1)
        ordinary.q.scale.data.copy_(lower)
    else:
        ordinary.q.scale = torch.rand(3, 5) + 0.1
    process = AmortizedInducingPoints(5, recipe, covariance).create(prior, hidden=False)
    constant(process, ordinary)
    ours, theirs = process(prior), ordinary(prior)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.regularizer, theirs.regularizer)
    carried = FunctionPrior(
        torch.randn(4, 9, 2),
        prior.covariance,
        prior.mean_function,
        num_outputs=prior.num_outputs,
        jitter=prior.jitter,
        name=prior.name,
    )
    theirs = ordinary(carried)
    for at, shape in ((None, (4,)), (carried.x[-1:], (1,))):
        ours = process(carried, at)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-8, atol=1e-9)
        assert ours.regularizer.shape == shape
        torch.testing.assert_close(ours.regularizer, theirs.regularizer.expand(shape))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_each_row_by_the_textbook_formula(recipe, covariance):
    torch.manual_seed(2)
    x = torch.randn(6, 2)
    prior = a_prior(x, outputs=2)
    process = AmortizedInducingPoints(3, recipe, covariance).create(prior, hidden=False)
    with torch.no_grad():
        for parameter in process.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    q = process(prior)
    z, mean, scale = process.functions(x)
    divergences = []
    for n in range(6):
        k = prior.covariance.matrix(z[n][None])[0]
        kx = prior.covariance.matrix(z[n][None], x[n].reshape(1, 1, 2))[0, :, 0]
        factor = torch.linalg.cholesky(k + 1e-8 * k.diagonal().mean() * torch.eye(3))
        for d in range(2):
            spread = scale[n, d] if covariance == "full" else torch.diag(scale[n, d])
            u_mean, u_cov = factor @ mean[n, d], factor @ spread @ spread.mT @ factor.mT
            w = torch.linalg.solve(factor @ factor.mT, kx)
            expected = prior.covariance.diagonal(x[n].reshape(1, 1, 2))[0, 0] - w @ kx + w @ u_cov @ w
            torch.testing.assert_close(q.mean[n, d], w @ u_mean, rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(q.variance[n, d], expected, rtol=1e-6, atol=1e-8)
            p = torch.distributions.MultivariateNormal(torch.zeros(3), factor @ factor.mT)
            divergences.append(kl_divergence(torch.distributions.MultivariateNormal(u_mean, u_cov), p))
    torch.testing.assert_close(q.regularizer, torch.stack(divergences).sum() / 6, rtol=1e-7, atol=1e-8)
    with pytest.raises(ValueError, match="no joint covariance"):
        _ = q.covariance_matrix


@pytest.mark.parametrize("recipe", RECIPES)
def test_means_and_scales_start_equal_over_the_points(recipe):
    x = torch.randn(7, 3)
    for covariance in ("diagonal", "full"):
        process = AmortizedInducingPoints(4, recipe, covariance, scale=0.7).create(a_prior(x), hidden=False)
        _, mean, scale = process.functions(x)
        assert mean.std(-1).max() < 1e-12 < mean.std(0).min()  # over points; over rows
        diagonal = scale if covariance == "diagonal" else scale.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, torch.full_like(diagonal, 0.7))
        assert covariance == "diagonal" or scale.tril(-1).abs().max() == 0 == scale.triu(1).abs().max()


def test_affine_points_start_as_noisy_copies_of_the_row_and_networks_as_training_rows():
    x = torch.randn(50, 3)
    z, *_ = AmortizedInducingPoints(4, AffineMaps(spread=0.1)).create(a_prior(x), hidden=False).functions(x)
    offsets = z - x.unsqueeze(-2)
    torch.testing.assert_close(offsets, offsets[:1].expand_as(offsets))
    assert 0 < offsets.std() < 0.2
    process = AmortizedInducingPoints(4, OneNetwork()).create(a_prior(x), hidden=False)
    process.functions.network.last[0].zero_()
    z, *_ = process.functions(x)
    assert all((x == point).all(-1).any() for point in z[0])


def test_the_objective_can_exceed_the_evidence():
    """Points at the row itself and a narrow q fit each row at the price of one row."""
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 30)[:, None]
    y = torch.randn(30)
    model = OneLayer()
    guide = Variational(model, AmortizedInducingPoints(1, AffineMaps(width=30, spread=0.0), scale=0.01), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(30)(model, guide), x, y, steps=800, batch_size=30, learning_rate=0.03)
    with torch.no_grad():
        evidence = float(model.likelihood(model.gp(x)).log_prob(y))
        objective = -float(ELBO(30)(model, guide)(x, y))
    assert objective > evidence + 5


def test_the_regulariser_is_averaged_over_the_batch_and_mini_batches_are_unbiased():
    x, y = regression(12)
    model = OneLayer()
    guide = Variational(model, AmortizedInducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    loss = ELBO(12)(model, guide)
    with torch.no_grad():
        whole = loss(x, y)
        parts = torch.stack([loss(x[rows], y[rows]) for rows in torch.randperm(12).split(4)])
    torch.testing.assert_close(parts.mean(), whole)
    assert parts.std() > 1e-3


class Joined(PyroModule):
    """Three layers whose inputs are joined, scaled and selected on the way."""

    def __init__(self):
        super().__init__()
        self.first = GaussianProcess(RBF(2), num_outputs=3)
        self.second = GaussianProcess(RBF(5), num_outputs=2)
        self.top = GaussianProcess(RBF(1))
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("a", self.first(x))
        h = pyro.sample("b", self.second(concatenate_inputs(2 * h, x)))
        return pyro.sample("y", self.likelihood(self.top(torch.tanh(h[..., 1:]))), obs=y)


def random_start(guide):
    with torch.no_grad():
        for name, parameter in guide.named_parameters():
            if "functions" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))


def test_the_mean_that_is_looked_at_is_the_weighted_mean_of_means_through_any_model():
    """A plain rewriting of the rule AR2P, layer by layer."""
    torch.manual_seed(4)
    x, y = regression(10, inputs=2)
    model = Joined()
    guide = Variational(model, AmortizedInducingPoints(3), WithMean(SigmaPoints("qr3", 4)))
    guide.initialize(x, y)
    random_start(guide)
    guide.propagation.propagation.weight_logits.data.normal_()
    with torch.no_grad():
        components = guide.components(x, y)
        weights = guide.propagation.log_weights(x).exp()
        trace = components.trace
        processes = guide.processes._modules
        points = {site: guide.propagation.propagation.positions(site)[:, None] for site in "ab"}
        a = processes["a"](model.first(x))
        values_a = a.mean + points["a"] * a.variance.sqrt()
        inputs_b = torch.cat([2 * values_a, x.expand(4, -1, -1)], -1)
        at_b = torch.cat([2 * a.mean, x], -1)
        b = processes["b"](model.second(inputs_b), at_b[None])
        mean_b = torch.einsum("s,snk->nk", weights, b.mean)
        values_b = b.mean + points["b"] * b.variance.sqrt()
        top = processes["y/f"](model.top(torch.tanh(values_b[..., 1:])), torch.tanh(mean_b[None, :, 1:]))
    assert weights.shape == (4,) and float(weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(trace.nodes["a"]["value"], torch.cat([values_a, a.mean[None]]))
    torch.testing.assert_close(trace.nodes["b"]["value"], torch.cat([values_b, mean_b[None]]))
    torch.testing.assert_close(trace.nodes["y"]["fn"].moments.mean[:4], top.mean)
    torch.testing.assert_close(trace.nodes["y"]["fn"].moments.variance[:4], top.variance)
    noise = model.likelihood.variance
    density = Normal(top.mean[..., 0], (top.variance[..., 0] + noise).sqrt()).log_prob(y)
    fitted = torch.logsumexp(weights.log()[:, None] + density, 0)
    kl = a.regularizer + b.regularizer.sum() + top.regularizer.sum()
    expected = -(fitted.sum() - 0.3 * kl)
    torch.testing.assert_close(PredictiveLogLikelihood(10, 0.3)(model, guide)(x, y), expected)
    prediction = predict(guide, x)
    torch.testing.assert_close(prediction.log_prob(y), fitted)


def looked_at(propagation, x, y, model):
    torch.manual_seed(6)
    guide = Variational(model, AmortizedInducingPoints(3), propagation)
    guide.initialize(x, y)
    torch.manual_seed(7)
    random_start(guide)
    if isinstance(propagation, WithMean) and isinstance(propagation.propagation, SigmaPoints):
        for parameter in guide.propagation.parameters():
            parameter.data.normal_()
    seen = {}
    for key, process in guide.processes._modules.items():

        def keep(module, inputs, output, key=key):
            seen[key] = inputs[0].detach()

        process.functions.register_forward_hook(keep)
    torch.manual_seed(8)
    trace = guide.components(x, y).trace
    return seen, trace


def test_rules_agree_where_the_paper_says_so():
    x, y = regression(10, inputs=2)
    model = DeepGP(x, 3, 2)
    (ar1, first), (ar2, second), (ar2p, third) = (
        looked_at(p, x, y, model) for p in (MonteCarlo(4), WithMean(MonteCarlo(4)), WithMean(SigmaPoints("qr3", 4)))
    )
    for trace in (second, third):  # one marginal of the first layer
        torch.testing.assert_close(trace.nodes["h1"]["fn"].mean[0], first.nodes["h1"]["fn"].mean[0])
    for key in ("h1", "h2"):
        torch.testing.assert_close(ar2[key], ar2p[key])
    assert ar1["h2"].shape == (4, 10, 2) and ar2["h2"].shape == (1, 10, 2)
    torch.testing.assert_close(ar1["h2"], first.nodes["h1"]["value"])
    assert not torch.allclose(ar2["y/f"], ar2p["y/f"])


def test_rule_ar1_evaluates_each_component_by_itself():
    x, y = regression(8, inputs=2)
    model = TwoLayers(x)
    guide = Variational(model, AmortizedInducingPoints(3), MonteCarlo(3))
    guide.initialize(x, y)
    random_start(guide)
    with torch.no_grad():
        trace = guide.components(x, y).trace
        h, top = trace.nodes["h"]["value"], guide.processes._modules["y/f"]
        for s in range(3):
            alone = top(model.top(h[s]))
            torch.testing.assert_close(trace.nodes["y"]["fn"].moments.mean[s], alone.mean)
            torch.testing.assert_close(trace.nodes["y"]["fn"].marginals["f"].regularizer[s], alone.regularizer)
        torch.manual_seed(3)
        loss = ELBO(8)(model, guide)(x, y)
        torch.manual_seed(3)
        trace = guide.components(x, y).trace
        fitted = trace.nodes["y"]["fn"].expected_log_prob(y).mean(0).sum()
        h, top = SiteRecord.of(trace.nodes["h"]), trace.nodes["y"]["fn"].marginals["f"]
        kl = h.regularizer + top.regularizer.mean()
    assert h.regularizer.shape == () and top.regularizer.shape == (3,)
    torch.testing.assert_close(loss, kl - fitted)


class TwoSites(PyroModule):
    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(RBF(), num_outputs=2), GaussianProcess(RBF())
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        f = pyro.sample("f", self.top(h))
        return pyro.sample("y", self.likelihood.given(f), obs=y)


@pytest.mark.parametrize("inner", [MonteCarlo(3), SigmaPoints("qr3", 4)])
def test_an_ancestral_draw_looks_at_the_mixture_s_mean_too(inner):
    x, y = regression(10)
    model = TwoSites()
    guide = Variational(model, AmortizedInducingPoints(3, hidden_scale=0.3), WithMean(inner))
    guide.initialize(x, y)
    random_start(guide)
    seen = []
    guide.processes._modules["f"].functions.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    draw = guide(x, y)
    expected = guide.processes._modules["h"](model.hidden(x)).mean
    assert len(seen) == 2 and not torch.allclose(draw["h"], expected)
    for at in seen:
        torch.testing.assert_close(at.reshape(10, 2), expected)


@pytest.mark.parametrize("propagation", [MonteCarlo(1), WithMean(MonteCarlo(50)), WithMean(SigmaPoints("qr3", 5))])
def test_stock_losses_train_an_ordinary_guide(propagation):
    torch.manual_seed(1)
    x, y = regression(10)
    model = TwoSites()
    guide = Variational(model, AmortizedInducingPoints(3, hidden_scale=0.3), propagation)
    guide.initialize(x, y)
    random_start(guide)
    draw = guide(x, y)
    assert draw["h"].shape == (10, 2) and draw["f"].shape == (10, 1)
    with torch.no_grad():
        ours = torch.tensor([ELBO()(model, guide)(x, y) for _ in range(120)])
        stock = torch.tensor([TraceMeanField_ELBO().loss(model, guide, x, y) for _ in range(120)])
        particles = TraceMeanField_ELBO(num_particles=120, vectorize_particles=True, max_plate_nesting=0)
        together = particles.loss(model, guide, x, y)
    assert abs(together - float(stock.mean())) < 4 * math.sqrt(2 * float(stock.var()) / 120) + 1e-6
    error = math.sqrt(float(ours.var() + stock.var()) / 120)
    assert abs(float(ours.mean() - stock.mean())) < 4 * error + 1e-6


@pytest.mark.parametrize("propagation", [MonteCarlo(2), WithMean(MonteCarlo(2)), WithMean(SigmaPoints("qr3", 3))])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_parameter_moves_and_a_saved_guide_predicts_the_same(recipe, propagation, tmp_path):
    x, y = regression(20, inputs=2)
    model = DeepGP(x, 3, 2)
    family = AmortizedInducingPoints(3, recipe)
    guide = Variational(model, family, propagation)
    guide.initialize(x, y)
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    fit(PredictiveLogLikelihood(20)(model, guide), x, y, steps=4, batch_size=20, learning_rate=0.01)
    still = [name for name, value in guide.named_parameters() if torch.equal(value, before[name])]
    assert not still
    torch.save({"model": model.state_dict(), "guide": guide.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    other = DeepGP(x, 3, 2)
    again = Variational(other, family, propagation)
    other.load_state_dict(state["model"])
    again.load_state_dict(state["guide"])
    torch.manual_seed(0)
    expected = predict(guide, x).mean
    torch.manual_seed(0)
    torch.testing.assert_close(predict(again, x).mean, expected, rtol=0, atol=0)


def test_every_parameter_moves_under_stock_svi_with_the_global_store():
    x, y = regression(20, inputs=2)
    pyro.settings.set(module_local_params=False)
    pyro.clear_param_store()
    model = DeepGP(x, 2, 2)
    guide = Variational(model, AmortizedInducingPoints(3), WithMean(SigmaPoints("qr3", 3)))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO(20))
    svi.step(x, y)
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    for _ in range(3):
        svi.step(x, y)
    assert not [name for name, value in guide.named_parameters() if torch.equal(value, before[name])]


@pytest.mark.parametrize(("kernels", "outputs"), [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("full", [False, True])
def test_fused_moments_of_rows_and_their_derivatives_are_those_of_the_plain_formula(kernels, outputs, full):
    torch.manual_seed(0)
    root = torch.randn(2, kernels, 3, 5)
    scale = torch.randn(2, outputs, 3, 3).tril() if full else torch.rand(2, outputs, 3) + 0.2
    tensors = [root @ root.mT, torch.randn(2, kernels, 3, 4), torch.randn(2, outputs, 3), scale]
    for tensor in tensors:
        tensor.requires_grad_()

    def call(formula):
        return lambda k_zz, *rest: formula((k_zz + k_zz.mT) / 2, *rest, 0.0, "g")

    fused, plain = call(row_moments), call(plain_row_moments)
    for a, b in zip(fused(*tensors), plain(*tensors), strict=True):
        torch.testing.assert_close(a, b.expand_as(a), rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(fused, tensors)
    assert torch.autograd.gradgradcheck(fused, tensors)


def test_the_mean_has_no_variance_and_no_draws_of_its_own():
    mean, variance = torch.randn(5, 6, 2), torch.rand(5, 6, 2)
    below = FunctionMarginal(mean, variance, torch.zeros(()), lambda: variance)
    marginal = WithMean(MonteCarlo(4)).propagate("h", below, carried=True)
    torch.testing.assert_close(marginal.mean, torch.cat([mean[:4], mean[:4].mean(0, keepdim=True)]))
    torch.testing.assert_close(marginal.variance, torch.cat([variance[:4], torch.zeros(1, 6, 2)]))
    assert torch.equal(marginal.rsample()[-1], marginal.mean[-1]) and marginal.batch_shape == (5,)


def test_single_precision():
    x, y = (t.float() for t in regression(30, inputs=2))
    model = DeepGP(x, 3, 2).float()
    guide = Variational(model, AmortizedInducingPoints(4), WithMean(SigmaPoints("qr3", 4)))
    guide.initialize(x, y)
    losses = fit(ELBO(30)(model, guide), x, y, steps=60, batch_size=30, learning_rate=0.01).losses
    assert losses[-1] < losses[0] and predict(guide, x).mean.dtype == torch.float32


def test_bad_arguments_are_one_sentence():
    x, y = regression(10, inputs=2)
    with pytest.raises(ValueError, match="'full' or 'diagonal', not 'delta'"):
        AmortizedInducingPoints(3, covariance="delta")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        AmortizedInducingPoints(0)
    process = AmortizedInducingPoints(3).create(a_prior(x), hidden=False)
    with pytest.raises(ValueError, match="take 2 dimensions and its inputs have 3"):
        process(a_prior(torch.randn(5, 3)))
    with pytest.raises(
        ValueError, match=r"look at inputs of shape \(2, 10, 2\) and the GP has inputs of shape \(5, 10, 2\)"
    ):
        process(a_prior(x.expand(5, -1, -1)), x.expand(2, -1, -1))
    assert isinstance(process, AmortizedProcess)


def test_a_network_is_the_guide_of_a_latent_site_and_finds_what_it_stands_for():
    torch.manual_seed(0)
    x, w = torch.rand(60, 1), torch.randn(60)
    y = w + 0.3 * x[:, 0]
    model, encoder = LatentInputs(0.01), Encoder()
    guide = Variational(model, InducingPoints(20), MonteCarlo(5), networks={"w": encoder})
    guide.initialize(x, y)
    before = [p.detach().clone() for p in encoder.parameters()]
    fit(ELBO(60)(model, guide), x, y, steps=400, batch_size=60, learning_rate=0.02)
    assert not any(torch.equal(p, old) for p, old in zip(encoder.parameters(), before, strict=True))
    found = encoder(x, y).loc.detach()
    assert abs(float(torch.corrcoef(torch.stack([found, w]))[0, 1])) > 0.95
    rows = guide.components(x[:7], y[:7], new_rows=True).trace.nodes["w"]  # any rows, not those of training alone
    assert rows["fn"].batch_shape == (7,) and (rows["value"] - found[:7]).abs().max() < 0.6
    spread = guide.components(x.expand(60, 1), new_rows=True).trace.nodes["w"]["value"].std()
    assert 0.7 < spread < 1.3  # no y to look at: the prior
    assert predict(guide, x).variance.mean() > 0.5 * y.var()


def test_a_network_that_says_what_the_mean_field_guide_says_gives_the_same_loss():
    x, y = regression(12)
    model = LatentInputs(0.01)
    plain = Variational(model, InducingPoints(5), MonteCarlo(3))
    plain.initialize(x, y)
    locs, scales = plain.latents.locs.w, plain.latents.scales.w

    class Same(torch.nn.Module):
        def forward(self, x, y=None):
            return dist.Normal(locs, scales)

    ours = Variational(model, plain._families, MonteCarlo(3), networks={"w": Same()})
    ours.initialize(x, y)
    ours.processes.load_state_dict(plain.processes.state_dict())
    values = []
    for guide in (plain, ours):
        torch.manual_seed(5)
        values.append(ELBO(12)(model, guide)(x, y).detach())
    torch.testing.assert_close(*values)


def test_a_network_of_the_wrong_event_shape_is_refused():
    class Wrong(torch.nn.Module):
        def forward(self, x, y=None):
            return dist.Normal(torch.zeros(len(x)), 1.0).to_event(1)

    x, y = regression(6)
    model = LatentInputs(0.01)
    guide = Variational(model, InducingPoints(3), MonteCarlo(1), networks={"w": Wrong()})
    with pytest.raises(
        ValueError, match=r"network of 'w' gave a posterior of event shape \(6,\) and the prior has \(\)"
    ):
        guide.initialize(x, y)


AMORTIZED = [name for name in METHODS if name.startswith(("avdgp", "idsgp", "sgp-avi"))]


@pytest.mark.parametrize("name", AMORTIZED)
def test_the_methods_classify(name):
    torch.manual_seed(0)
    x = torch.rand(120, 2) * 4 - 2
    y = (x.square().sum(-1) < 2).double()
    method = METHODS[name]
    assert isinstance(method.inference, ByValidatedGuide)
    once = replace(method.inference, validation=replace(method.inference.validation, runs=(1.0,), folds=1))
    settings = Settings(row_inducing=6, width=2, samples=4, batch_size=60, epochs=150, learning_rate=0.02, beta=1.0)
    model = DeepGP(x, method.layers(settings), 2, likelihood=Bernoulli())
    fitted = once.run(model, x, y, settings=settings, progress=lambda *_: None)
    error = ((fitted.predict(x).mean > 0.5) != (y > 0.5)).double().mean()
    assert error < 0.12 < y.mean()
    assert fitted.diagnostics["inducing"] == 6 and fitted.rows == 107


def test_layers_above_the_first_have_half_the_points():
    x, y = regression(20, inputs=2)
    settings = Settings(layers=3, row_inducing=6, width=2)
    guide = METHODS["avdgp-ar2p"].inference.guide(DeepGP(x, 3, 2), x, settings)
    guide.initialize(x, y)
    found = {key: process.functions.sizes.num_inducing for key, process in guide.processes._modules.items()}
    assert found == {"h1": 6, "h2": 3, "y/f": 3}
    assert METHODS["avdgp-ar1"].inference.guide(DeepGP(x, 3, 2), x, settings).propagation.num_components == 1


def test_the_default_guide_of_latent_inputs_trains_each_row_by_itself():
    torch.manual_seed(0)
    x, y = regression(30)
    model = LatentInputs(0.01)
    guide = Variational(model, InducingPoints(5), MonteCarlo(2))
    guide.initialize(x, y)
    assert all(p.is_contiguous() for p in guide.latents.parameters())
    fit(ELBO(30)(model, guide), x, y, steps=30, batch_size=30, learning_rate=0.02)
    assert len(guide.latents.locs.w.detach().unique()) == 30


def test_networks_that_name_no_site_of_the_rows_are_refused():
    x, y = regression(6)
    for name in ("v", "y"):
        guide = Variational(LatentInputs(), InducingPoints(3), MonteCarlo(1), networks={name: Encoder()})
        with pytest.raises(ValueError, match=f"networks= names '{name}', which is no latent site .*\\['w'\\]"):
            guide.initialize(x, y)


class RowsAsEvents(LatentInputs):
    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
        return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)


class EventEncoder(Encoder):
    def forward(self, x, y=None):
        return None if y is None else super().forward(x, y).to_event(1)


def test_the_kl_of_a_network_counts_all_rows_in_a_mini_batch_however_the_rows_are_written():
    x, y = regression(40)
    values = []
    for model, encoder in ((LatentInputs(), Encoder()), (RowsAsEvents(), EventEncoder())):
        encoder.layers[2].weight.data.zero_()
        encoder.layers[2].bias.data.fill_(2.0)  # far from the prior: the KL is large
        guide = Variational(model, InducingPoints(5, "delta"), MonteCarlo(1), networks={"w": encoder})
        torch.manual_seed(0)
        guide.initialize(x, y)
        with torch.no_grad():
            torch.manual_seed(1)
            values.append(ELBO(40)(model, guide)(x[:4], y[:4]))
    torch.testing.assert_close(*values)


def test_batched_kernel_parameters_are_refused():
    x = torch.randn(4, 2)
    process = AmortizedInducingPoints(3).create(a_prior(x, outputs=1), hidden=False)
    gp = GaussianProcess(RBF())
    gp.kernel.variance = PyroParam(torch.tensor([0.5, 1.0, 2.0, 4.0]), constraints.positive, event_dim=0)
    with pytest.raises(ValueError, match="kernel of '.*' has batched parameters"):
        process(gp(x.expand(4, 4, 2)))


def test_a_network_of_the_wrong_batch_shape_is_refused():
    class Wrong(torch.nn.Module):
        def forward(self, x, y=None):
            return dist.Normal(torch.zeros(len(x), 1), 1.0)

    x, y = regression(12)
    guide = Variational(LatentInputs(), InducingPoints(3), MonteCarlo(1), networks={"w": Wrong()})
    with pytest.raises(ValueError, match=r"'w' gave a posterior of batch shape \(12, 1\) and the prior has \(12,\)"):
        guide.initialize(x, y)


def test_amortised_methods_say_their_two_runs():
    words = (
        "holds out 11% of the training rows for validation, several times in turn where they are few: {}best checkpoint of runs over "
        "25% and 100% of the steps"
    )
    assert METHODS["avdgp-ar2p"].inference.remarks(Settings())[-1] == words.format("")
    assert METHODS["avdgp-ar2pp"].inference.remarks(Settings())[-1] == words.format(
        "beta from 0.05, 1, none (the fallback), "
    )
    assert METHODS["avdgp-ar2pp"].inference.remarks(Settings(beta=1.0))[-1] == words.format("beta 1 as given, ")
    assert METHODS["dspp"].inference.remarks(Settings(beta=1.0))[-1].endswith("best checkpoint")


def test_networks_are_wide_enough_to_bend_where_inputs_have_one_dimension():
    def widths(recipe):
        functions = AmortizedInducingPoints(4, recipe).create(a_prior(torch.randn(9, 1)), hidden=False).functions
        network = functions.network if hasattr(functions, "network") else functions.means
        return [rows for rows, _ in network.shapes[:-1]]

    assert widths(AffineMaps()) == widths(OneNetwork()) == [16, 16]
    assert widths(AffineMaps(narrowest=1)) == [1, 1]  # [AVDGP] C.1
    assert widths(AffineMaps(depth=3, width=5)) == [5, 5, 5]
    x, y = regression(120)
    torch.manual_seed(0)
    guide = Variational(OneLayer(), AmortizedInducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(120)(guide.model, guide), x, y, steps=400, batch_size=120, learning_rate=0.01)
    ordinary = Variational(OneLayer(), InducingPoints(20), MonteCarlo(1))
    ordinary.initialize(x, y)
    fit(ELBO(120)(ordinary.model, ordinary), x, y, steps=400, batch_size=120, learning_rate=0.02)
    errors = [float((predict(g, x).mean - y).square().mean().sqrt()) for g in (guide, ordinary)]
    assert errors[0] < 1.3 * errors[1]


def test_a_guide_of_another_width_and_bad_recipes_are_refused():
    x, y = regression(10, inputs=2)
    for family in (AmortizedInducingPoints(3), InducingPoints(3)):
        process = family.create(a_prior(x, outputs=3), hidden=False)
        with pytest.raises(ValueError, match="3 outputs and the GP has 1: initialise the guide on this model"):
            process(a_prior(x, outputs=1))
    for arguments in ({"depth": -1}, {"width": 0}, {"narrowest": 0}):
        with pytest.raises(ValueError, match="a depth of 0 or more and a width of 1 or more"):
            OneNetwork(**arguments)
    with pytest.raises(ValueError, match="spread is a standard deviation"):
        AffineMaps(spread=-1.0)
    with pytest.raises(ValueError, match="initial scales are above 0, got scale=0"):
        AmortizedInducingPoints(3, scale=0.0)


@pytest.mark.parametrize("nesting", [0, 1, 3])
def test_batched_lengthscales_are_refused_even_if_there_are_as_many_as_rows(nesting):
    x = torch.randn(6, 2)
    prior = a_prior(x)
    process = AmortizedInducingPoints(3).create(prior, hidden=False)
    warp = replace(prior.covariance.warp, reciprocal=torch.rand(6, *[1] * nesting, 1, 1, 2) + 0.5)
    batched = FunctionPrior(x, replace(prior.covariance, warp=warp), prior.mean_function, num_outputs=3)
    with pytest.raises(ValueError, match="batched parameters"):
        process(batched)


def test_a_network_serves_one_guide_and_returns_a_posterior():
    x, y = regression(20)

    def guided(network):
        guide = Variational(LatentInputs(), InducingPoints(5), MonteCarlo(1), networks={"w": network})
        guide.initialize(x, y)
        return ELBO(20)(guide.model, guide)

    class Point(torch.nn.Linear):
        def forward(self, x, y=None):
            return None if y is None else super().forward(x).squeeze(-1)

    class Wrong(torch.nn.Module):
        def forward(self, x, y=None):
            return torch.distributions.Normal(x[:, 0], 1.0)

    network = Point(1, 1)
    guided(network)(x, y).backward()
    assert all(bool(parameter.grad.any()) for parameter in network.parameters())
    with pytest.raises(ValueError, match="'w' has run in another guide already: build a new network"):
        guided(network)
    with pytest.raises(TypeError, match=r"'w' returned Normal: return a distribution of pyro.distributions"):
        guided(Wrong())(x, y)


def test_a_state_of_another_family_is_refused():
    x, y = regression(10)
    families = (AmortizedInducingPoints(3), InducingPoints(3))
    for family, other in (families, families[::-1]):
        guide = Variational(OneLayer(), family, MonteCarlo(1))
        guide.initialize(x, y)
        with pytest.raises(ValueError, match=r"the saved process has no .* but \["):
            Variational(OneLayer(), other, MonteCarlo(1)).load_state_dict(guide.state_dict())


@pytest.mark.parametrize("family", [AmortizedInducingPoints(3), InducingPoints(3, "diagonal"), InducingPoints(3)])
@pytest.mark.parametrize("trained", ["mean", "scale", ""])
def test_second_derivatives_do_not_ask_for_those_of_frozen_parts(family, trained):
    x, y = regression(10)
    model = TwoLayers(x, width=1)
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(x, y)
    loss = ELBO(10)(model, guide)
    for name, parameter in loss.named_parameters():
        parameter.requires_grad_(trained in name)
    live = [p for p in loss.parameters() if p.requires_grad]
    first = torch.autograd.grad(loss(x, y), live, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), live, allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0 for g in second)


class SlopedTop(PyroModule):
    """Two GPs, the mean of the second with a slope that has a prior."""

    def __init__(self):
        super().__init__()
        self.first = GaussianProcess(RBF())
        self.second = GaussianProcess(RBF(), LinearMean(1, 1))
        self.top = GaussianProcess(RBF())
        self.likelihood = Gaussian(variance=0.1)
        self.second.mean.weight = PyroSample(dist.Normal(1.0, 1.0).expand([1, 1]).to_event(2))

    def forward(self, x, y=None):
        a = pyro.sample("a", self.first(x))
        b = pyro.sample("b", self.second(a))
        return pyro.sample("y", self.likelihood(self.top(b)), obs=y)


def test_an_ancestral_draw_looks_at_the_mean_under_its_own_hyperparameters():
    """One sigma point at 0: the layer below is at its mean, so what the functions look at is where they are evaluated."""
    x, y = regression(10)
    guide = Variational(SlopedTop(), AmortizedInducingPoints(3, scale=0.1), WithMean(SigmaPoints("qr3", 1)))
    guide.initialize(x, y)
    for parameter in guide.latents.scales.parameters():
        parameter.data.fill_(0.0)  # unconstrained: a standard deviation of about 1
    seen = []
    top = guide.processes._modules["y/f"]
    top.register_forward_hook(lambda module, arguments, _: seen.append((arguments[0].x, arguments[1])))
    for _ in range(3):
        guide(x, y)
        prior_x, looked_at = seen[-1]
        torch.testing.assert_close(looked_at.reshape(10, 1), prior_x.reshape(10, 1))
    assert not torch.allclose(seen[-1][1], seen[-3][1])


@pytest.mark.parametrize("family", [InducingPoints(3), AmortizedInducingPoints(3)])
@pytest.mark.parametrize("tasks", [4, 3])
def test_the_loss_of_several_tasks_is_the_sum_of_theirs_with_hyperparameters_charged_once(family, tasks):
    """Initialised on one, called on all: also where there are as many tasks as components."""
    x, y = torch.randn(tasks, 6, 1), torch.randn(tasks, 6)
    guide = Variational(SlopedTop(), family, WithMean(SigmaPoints("qr3", 4)))
    guide.initialize(x[0], y[0])

    def loss(*data):
        torch.manual_seed(0)
        return ELBO()(guide.model, guide)(*data)

    with torch.no_grad():
        whole, parts = loss(x, y), sum(loss(x[k], y[k]) for k in range(tasks))
        torch.manual_seed(0)
        site = guide.components(x, y).trace.nodes["second.mean.weight"]
    charged = site["fn"].log_prob(site["value"]) - site["infer"]["prior"].log_prob(site["value"])
    assert charged.abs() > 0.1
    torch.testing.assert_close(parts - whole, (tasks - 1) * charged)
