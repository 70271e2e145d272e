"""The same parameters in GPyTorch and here give the same KL, loss and predictive density."""

import math

import gpytorch
import pytest
import torch
from gpytorch.mlls import DeepApproximateMLL, DeepPredictiveLogLikelihood, GammaRobustVariationalELBO, VariationalELBO
from gpytorch.mlls import PredictiveLogLikelihood as TheirPredictive
from pyro.distributions import Delta

from benchmarks.common.gpytorch_models import PeerDeepGP, PeerDSPP
from pyro_dgp import (
    ELBO,
    GammaDivergence,
    InducingPoints,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    predict,
)
from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.models.deep_gp import DeepGP

ROWS, INPUTS, WIDTH, M, S = 30, 3, 2, 8, 5


@pytest.fixture(params=[(1, False), (2, False), (2, True)], ids=["one layer", "two layers", "a kernel per output"])
def pair(request):
    layers, per_output = request.param
    x = torch.randn(ROWS, INPUTS)
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(ROWS)
    ours = DeepGP(x, layers, WIDTH, per_output=per_output)
    guide = Variational(ours, InducingPoints(M), MonteCarlo(S))
    guide.initialize(x, y)
    theirs = PeerDeepGP(x, layers=layers, width=WIDTH, inducing=M, per_output=per_output)
    gps = [*ours.hidden, ours.top]
    processes = [*(guide.processes._modules[f"h{i + 1}"] for i in range(layers - 1)), guide.processes._modules["y/f"]]
    with torch.no_grad():
        for gp, process, layer in zip(gps, processes, theirs.parts, strict=True):
            gp.jitter = 1e-9
            kernel = gp.kernel
            kernel.lengthscale = (0.5 + torch.rand(kernel.lengthscale.shape)).detach()
            kernel.variance = (0.5 + torch.rand(kernel.variance.shape)).detach()
            process.q.mean = torch.randn(process.q.mean.shape)
            process.q.scale = 0.4 * torch.randn(process.q.scale.shape).tril()
            strategy = layer.variational_strategy
            q = strategy._variational_distribution
            strategy.inducing_points.copy_(process.basis.inducing_points)
            q.variational_mean.copy_(process.q.mean.reshape(q.variational_mean.shape))
            q.chol_variational_covar.copy_(process.q.scale.reshape(q.chol_variational_covar.shape))
            base = layer.covar_module.base_kernel
            base.lengthscale = kernel.lengthscale.reshape(base.lengthscale.shape)
            layer.covar_module.outputscale = kernel.variance.reshape(layer.covar_module.outputscale.shape)
        ours.likelihood.variance = torch.tensor(0.2)
        theirs.likelihood.noise = 0.2
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-9):
        yield ours, guide, theirs, x, y


def regularizers(guide, x, y):
    trace = guide.components(x, y).trace
    sites = [s for s in trace.nodes.values() if s["type"] == "sample"]
    return sum(r.regularizer for r in map(SiteRecord.of, sites) if r is not None and r.regularizer is not None)


def test_kl(pair):
    _, guide, theirs, x, y = pair
    expected = sum(layer.variational_strategy.kl_divergence().sum() for layer in theirs.parts)
    torch.testing.assert_close(regularizers(guide, x, y), expected)


def with_their_noise(theirs, guide, x, y, loss, objective):
    """Both losses on one draw of the hidden layers: theirs is computed, and its hidden values are put into ours."""
    ours = guide.model
    layers = list(theirs.parts)
    theirs.train()
    with gpytorch.settings.num_likelihood_samples(S):
        hidden = [layers[0](x)] if len(layers) > 1 else []
        if hidden:
            values = torch.distributions.Normal(hidden[0].mean, hidden[0].variance.sqrt()).rsample()
            out = layers[1](values, are_samples=True)
        else:
            out = layers[0](x)
        mll = DeepApproximateMLL(loss(theirs.likelihood, theirs, ROWS))
        expected = -mll(out, y) * ROWS
    torch.manual_seed(0)
    if hidden:
        marginal = guide.processes._modules["h1"](ours.hidden[0](x))
        torch.testing.assert_close(marginal.mean, hidden[0].mean[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(marginal.variance, hidden[0].variance[0], rtol=1e-5, atol=1e-6)

        class Replay(MonteCarlo):
            def propagate(self, site, marginal, carried):
                return Delta(values, event_dim=2)

        guide.propagation = Replay(S)
    return objective.differentiable_loss(ours, guide, x, y), expected


def test_elbo(pair):
    _, guide, theirs, x, y = pair
    value, expected = with_their_noise(theirs, guide, x, y, VariationalELBO, ELBO())
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-5)


def test_predictive_log_likelihood_of_one_layer(pair):
    _, guide, theirs, x, y = pair
    if len(theirs.parts) > 1:
        # Theirs is a mean of logarithms for deep models (no mixture): the parts must agree all the same.
        value, _ = with_their_noise(theirs, guide, x, y, VariationalELBO, PredictiveLogLikelihood(beta=0.0))
        terms = guide.components(x, y).trace.nodes["y"]["fn"].predictive_log_prob(y)
        torch.testing.assert_close(-value, torch.logsumexp(terms, 0).sum() - ROWS * torch.tensor(float(S)).log())
        return
    value, expected = with_their_noise(theirs, guide, x, y, TheirPredictive, PredictiveLogLikelihood(beta=1.0))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-5)


def test_predictive_density(pair):
    _, guide, theirs, x, y = pair
    theirs.eval()
    with torch.no_grad(), gpytorch.settings.num_likelihood_samples(3000):
        out = theirs.likelihood(theirs(x))
        mean, variance = out.mean.reshape(-1, ROWS), out.variance.reshape(-1, ROWS)
    log_prob = torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)
    expected = torch.logsumexp(log_prob, 0) - torch.tensor(float(len(mean))).log()
    ours = predict(guide, x, num_samples=3000).log_prob(y)
    if len(theirs.parts) == 1:
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(ours, expected, rtol=0, atol=0.25)


def test_gamma_divergence_but_for_a_constant_and_a_sign(pair):
    """Theirs leaves out the constant that makes gamma to 1 the ELBO, and multiplies by int p^gamma where it divides."""
    _, guide, theirs, x, y = pair
    gamma, noise = 1.1, 0.2
    power = gamma - 1

    def loss(likelihood, model, rows):
        return GammaRobustVariationalELBO(likelihood, model, gamma=gamma, num_data=rows)

    value, expected = with_their_noise(theirs, guide, x, y, loss, GammaDivergence(gamma=gamma))
    kl = regularizers(guide, x, y)
    log_integral = -0.5 * power * math.log(2 * math.pi * noise) - 0.5 * math.log(gamma)
    scores = (kl - expected) * math.exp(-2 * power / gamma * log_integral)
    torch.testing.assert_close(value, kl - scores + ROWS * gamma / power, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("layers", [2, 3])
def test_deep_sigma_point_process(layers, per_output):
    x = torch.randn(ROWS, INPUTS)
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(ROWS)
    ours = DeepGP(x, layers, WIDTH, per_output=per_output)
    guide = Variational(ours, InducingPoints(M, covariance="diagonal"), SigmaPoints("qr3", S))
    guide.initialize(x, y)
    theirs = PeerDSPP(x, layers=layers, width=WIDTH, inducing=M, sigma_points=S, per_output=per_output)
    keys = [*(f"h{i + 1}" for i in range(layers - 1)), "y/f"]
    gps = [*ours.hidden, ours.top]
    with torch.no_grad():
        for gp, key, layer in zip(gps, keys, theirs.parts, strict=True):
            process, gp.jitter = guide.processes._modules[key], 1e-9
            gp.kernel.lengthscale = (0.5 + torch.rand(gp.kernel.lengthscale.shape)).detach()
            gp.kernel.variance = (0.5 + torch.rand(gp.kernel.variance.shape)).detach()
            process.q.mean = torch.randn(process.q.mean.shape)
            process.q.scale = 0.1 + torch.rand(process.q.scale.shape)
            strategy = layer.variational_strategy
            q = strategy._variational_distribution
            strategy.inducing_points.copy_(process.basis.inducing_points)
            q.variational_mean.copy_(process.q.mean.reshape(q.variational_mean.shape))
            q._variational_stddev.copy_(process.q.scale.reshape(q._variational_stddev.shape))
            base = layer.covar_module.base_kernel
            base.lengthscale = gp.kernel.lengthscale.reshape(base.lengthscale.shape)
            layer.covar_module.outputscale = gp.kernel.variance.reshape(layer.covar_module.outputscale.shape)
        guide.propagation.weight_logits = torch.randn(S)
        theirs.raw_quad_weights.copy_(guide.propagation.weight_logits)
        for key, layer in zip(keys[:-1], theirs.parts[1:], strict=True):
            setattr(guide.propagation.points, key, torch.randn(S, WIDTH))
            layer.quad_sites.copy_(getattr(guide.propagation.points, key))
        ours.likelihood.variance = torch.tensor(0.2)
        theirs.likelihood.noise = 0.2
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-9):
        theirs.train()
        mll = DeepPredictiveLogLikelihood(theirs.likelihood, theirs, num_data=ROWS, beta=0.3)
        expected_loss = -mll(theirs(x), y) * ROWS
        theirs.eval()
        with torch.no_grad():
            out = theirs.likelihood(theirs(x))
            log_prob = torch.distributions.Normal(out.mean, out.variance.sqrt()).log_prob(y)
            expected = torch.logsumexp(theirs.quad_weights[:, None] + log_prob, 0)
    value = PredictiveLogLikelihood(beta=0.3).differentiable_loss(ours, guide, x, y)
    torch.testing.assert_close(value, expected_loss, rtol=1e-7, atol=1e-5)
    torch.testing.assert_close(predict(guide, x).log_prob(y), expected, rtol=0, atol=1e-5)
