import contextlib
import copy
import pickle

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO

from pyro_dgp import (
    ELBO,
    DeepKernel,
    FeatureExtractor,
    InducingPoints,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    fit,
    module_local_parameters,
    predict,
)
from pyro_dgp.training.optimising import adam_for_networks
from pyro_dgp.training.weight_prior import AdamWithWeightPrior
from tests.examples import OneLayer, TwoLayers, regression


def deep_kernel(x, features=3):
    extractor = FeatureExtractor(x, features, hidden=(16, 8))
    with torch.no_grad():
        values = extractor(x)
    return DeepKernel(extractor, TwoLayers(values))


def test_features_start_standardised_and_each_row_stands_alone():
    x = 5 + 3 * torch.randn(50, 4)
    extractor = FeatureExtractor(x, 3)
    features = extractor(x)
    torch.testing.assert_close(
        features.mean(0), torch.zeros(3), rtol=0, atol=0.15
    )  # squashed after they are standardised
    torch.testing.assert_close(features.std(0), torch.ones(3), rtol=0, atol=0.15)
    torch.testing.assert_close(extractor(x[7:9]), features[7:9])
    assert sum(isinstance(m, torch.nn.Linear) for m in extractor.modules()) == 3


def test_features_are_bounded_straight_where_the_data_are_and_blind_to_units():
    x = torch.randn(50, 4)
    torch.manual_seed(1)
    extractor = FeatureExtractor(x, 3)
    assert 2.5 < float(extractor(1e3 * x).detach().abs().max()) <= 3
    raw = extractor.network((x - x.mean(0)) / x.std(0, correction=0))
    standardised = (raw - raw.mean(0)) / raw.std(0, correction=0)
    near = standardised.abs() < 0.3
    torch.testing.assert_close(extractor(x)[near], standardised[near], rtol=0, atol=1e-3)
    torch.manual_seed(1)
    torch.testing.assert_close(FeatureExtractor(1e-9 * x - 7e-9, 3)(1e-9 * x - 7e-9), extractor(x))


def test_a_constant_input_and_a_single_row_have_finite_features():
    x = torch.cat([torch.randn(20, 1), torch.full((20, 1), 0.1)], -1)
    assert torch.isfinite(FeatureExtractor(x)(x + 1)).all() and torch.isfinite(FeatureExtractor(x[:1])(x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_plain_adam_at_the_learning_rate_of_kernels_does_not_end_at_a_constant_mean(seed, local):
    torch.manual_seed(100 + seed)
    x, y = regression(30)
    extractor = FeatureExtractor(x, 3)
    model = DeepKernel(extractor, OneLayer())
    guide = Variational(model, InducingPoints(20), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(30)(model, guide), x, y, steps=300, learning_rate=0.02)
    residual = (predict(guide, x).mean - y).square().mean()
    assert residual < 0.2 * y.var(correction=0)  # R^2 above 0.8; a constant mean has none


@pytest.mark.slow
@pytest.mark.parametrize("propagation", [MonteCarlo(3), SigmaPoints("qr3", 3)])
def test_network_and_model_are_trained_as_one_in_a_torch_loop(propagation, local):
    x, y = regression(40, inputs=4)
    model = deep_kernel(x)
    guide = Variational(model, InducingPoints(8), propagation)
    guide.initialize(x, y)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    losses = fit(
        PredictiveLogLikelihood(40)(model, guide),
        x,
        y,
        steps=60,
        batch_size=20,
        learning_rate=0.05,
        optimizer=adam_for_networks,
    ).losses
    assert losses[-1] < losses[0]
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name
    prediction = predict(guide, x[:5])
    torch.testing.assert_close(prediction.mean.shape, torch.Size([5]))


def test_every_weight_moves_under_stock_svi():
    x, y = regression(30, inputs=4)
    model = deep_kernel(x)
    guide = Variational(model, InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO(30))
    svi.step(x, y)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(3):
        svi.step(x, y)
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name


class PlainSites(OneLayer):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.likelihood.given(f), obs=y)


@pytest.mark.parametrize("loss", [ELBO(30), TraceMeanField_ELBO()])
@pytest.mark.parametrize("made_inside", [False, True])
def test_stock_svi_takes_the_same_steps_where_modules_keep_their_parameters(loss, made_inside):
    x, y = regression(30, inputs=4)

    def trained(scope, made=contextlib.nullcontext):
        torch.manual_seed(0)
        with made():
            extractor = FeatureExtractor(x, 3, hidden=(16, 8))
            model = DeepKernel(extractor, PlainSites())
            guide = Variational(model, InducingPoints(8), MonteCarlo(1))
            guide.initialize(x, y)
        with scope(model, guide):
            svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss)
            losses = [svi.step(x, y) for _ in range(3)]
        copy.deepcopy(pickle.loads(pickle.dumps(model)))
        return losses, model

    local, model = trained(module_local_parameters, module_local_parameters if made_inside else contextlib.nullcontext)
    assert len(pyro.get_param_store()) == 0
    expected, other = trained(lambda *modules: contextlib.nullcontext())
    assert local == expected
    for (name, value), own in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(value, own), name


def test_a_second_network_does_not_take_over_the_weights_of_the_first():
    x, y = regression(30, inputs=4)
    for model, error in ((deep_kernel(x), None), (deep_kernel(x), "another object's 'extractor")):
        guide = Variational(model, InducingPoints(8), MonteCarlo(2))
        guide.initialize(x, y)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO(30))
        if error is None:
            svi.step(x, y)
        else:
            with pytest.raises(ValueError, match=error):
                svi.step(x, y)


def test_the_networks_learn_at_a_tenth_of_the_rate():
    x = torch.randn(20, 4)
    model = deep_kernel(x)
    with module_local_parameters(model):
        rates = {
            id(parameter): group["lr"]
            for group in adam_for_networks(model, 0.02).param_groups
            for parameter in group["params"]
        }
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == pytest.approx(0.002 if "extractor" in name else 0.02), name


@pytest.mark.usefixtures("local")
def test_a_prior_of_weights_adds_its_gradient_to_that_of_the_loss():
    x, y = torch.randn(30, 4), torch.randn(30)
    model = deep_kernel(x)
    guide = Variational(model, InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, y)
    objective, precision, rows = ELBO(30)(model, guide), 7.0, 30
    optimizer = AdamWithWeightPrior(precision)(objective, 0.02)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert decays.keys() == {id(p) for p in objective.parameters()}
    log_prior = torch.zeros(())
    for layer in (module for module in model.modules() if isinstance(module, torch.nn.Linear)):
        weights = dist.Normal(0.0, (2 / (precision * layer.in_features)) ** 0.5)
        log_prior = log_prior + weights.log_prob(layer.weight).sum()
        log_prior = log_prior + dist.Normal(0.0, precision**-0.5).log_prob(layer.bias).sum()
    log_prior.backward()
    for name, parameter in objective.named_parameters():
        if "network" in name:
            torch.testing.assert_close(decays[id(parameter)] * parameter, -parameter.grad / rows)
            assert rates[id(parameter)] == pytest.approx(0.002)
        else:
            assert decays[id(parameter)] == 0.0 and rates[id(parameter)] == 0.02


@pytest.mark.usefixtures("local")
def test_a_prior_of_weights_keeps_a_network_from_learning_noise():
    x, y = torch.randn(40, 4), torch.randn(40)
    norms = []
    for optimizer in (adam_for_networks, AdamWithWeightPrior(100.0)):
        torch.manual_seed(1)
        model = deep_kernel(x)
        guide = Variational(model, InducingPoints(8), MonteCarlo(2))
        guide.initialize(x, y)
        fit(ELBO(40)(model, guide), x, y, steps=150, optimizer=optimizer)
        norms.append(float(sum(p.detach().square().sum() for p in model.extractor.parameters())))
    assert norms[1] < 0.7 * norms[0]


def test_a_prior_of_weights_wants_the_number_of_rows_and_a_precision():
    x, y = torch.randn(10, 4), torch.randn(10)
    model = deep_kernel(x)
    guide = Variational(model, InducingPoints(5))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=r"does not say how many there are: give it num_data=len\(x\)"):
        AdamWithWeightPrior()(ELBO()(model, guide), 0.02)
    with pytest.raises(ValueError, match=r"a finite number above 0, got 0\.0: adam_for_networks has no prior"):
        AdamWithWeightPrior(0.0)
