"""The prior of hyperparameters around their start: its value by hand, what it holds, what it leaves alone, fits, and refusals."""

import copy
import math

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    CollapsedELBO,
    DeepGP,
    FourierFeatures,
    Gaussian,
    HyperparameterPrior,
    InducingPoints,
    LinearMean,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    Periodic,
    Variational,
    WithPrior,
    fit,
    fit_collapsed,
    fit_lbfgs,
    module_local_parameters,
    with_priors,
)
from tests.examples import OneLayer

pytestmark = pytest.mark.usefixtures("local")


def data(rows=40, inputs=3):
    torch.manual_seed(0)
    x = torch.rand(rows, inputs)
    return x, torch.sin(6 * x[:, 0]) + 0.2 * torch.randn(rows)


def test_loss_is_that_of_the_objective_and_log_normal_and_normal_densities():
    x, y = data()
    model = DeepGP(x, 2, 2, kernel="rbf+matern52", mean=LinearMean.fit, per_output=True)
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    objective = ELBO(40)(model, guide)
    with_prior = WithPrior(objective, HyperparameterPrior(model, 0.7))
    kernels = [
        (part, name)
        for part in model.modules()
        for name in ("lengthscale", "variance")
        if isinstance(part, RBF | Matern52)
    ]
    start = {(id(part), name): getattr(part, name).detach().clone() for part, name in kernels}
    weight = model.hidden[0].mean.weight.detach().clone()
    torch.testing.assert_close(with_prior.prior(), torch.tensor(0.0))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    wanted = 0.0
    for part, name in kernels:
        density = dist.Normal(start[id(part), name].log(), 0.7)
        at = getattr(part, name).log()
        wanted = wanted + (density.log_prob(density.mean) - density.log_prob(at)).sum()
    density = dist.Normal(weight, 0.7 * weight.square().mean().sqrt())
    wanted = wanted + (density.log_prob(weight) - density.log_prob(model.hidden[0].mean.weight)).sum()
    with module_local_parameters(with_prior):
        torch.manual_seed(2)
        found = with_prior(x, y)
        torch.manual_seed(2)
        torch.testing.assert_close(found - objective(x, y), wanted)
    own = dict(model.named_parameters())
    gradients = dict(zip(own, torch.autograd.grad(with_prior.prior(), [*own.values()], allow_unused=True), strict=True))
    moved = {name.split(".")[-1] for name, gradient in gradients.items() if gradient is not None}
    assert moved == {"lengthscale_unconstrained", "variance_unconstrained", "weight_unconstrained"}
    assert not [name for name, gradient in gradients.items() if gradient is not None and "likelihood" in name]


def test_a_short_spread_holds_hyperparameters_and_a_wide_one_leaves_them():
    x, y = data()
    ends = {}
    for spread in (None, 1e-3, 1.0, 1e3):
        guide = Variational(DeepGP(x, 1), InducingPoints(10), MonteCarlo(1))
        guide.initialize(x, y)
        prior = None if spread is None else HyperparameterPrior(guide.model, spread)
        result = fit_collapsed(guide, (x, y), prior=prior)
        ends[spread] = guide.model.top.kernel.lengthscale.detach()
        assert result.remarks == []
    start = DeepGP(x, 1).top.kernel.lengthscale.detach()
    torch.testing.assert_close(ends[1e-3], start, rtol=1e-3, atol=0)
    torch.testing.assert_close(ends[1e3][0], ends[None][0], rtol=0.05, atol=0)  # the input that matters
    assert float(ends[1e3].max()) > 20 > float(ends[1.0].max())
    assert float((ends[1.0] / start).log().abs().max()) < float((ends[None] / start).log().abs().max())
    assert float((ends[1.0] / start).log().abs().max()) > 0.1


@pytest.mark.parametrize("trains", ["marginal", "svi", "deep"])
def test_every_kind_of_training_takes_it(trains):
    x, y = data()
    if trains == "marginal":
        model = DeepGP(x, 1)
        objective = WithPrior(MarginalLikelihood(model), HyperparameterPrior(model, 1e-3))
        assert fit_lbfgs(objective, x, y, steps=20).losses
    else:
        model = DeepGP(x, 2, 2, mean=LinearMean.fit)
        guide = Variational(model, InducingPoints(5), MonteCarlo(1))
        guide.initialize(x, y)
        bound = CollapsedELBO(guide) if trains == "deep" else ELBO(40)(model, guide)
        before = guide.processes.get_submodule("y/f").q.mean.detach().clone()
        fit(WithPrior(bound, HyperparameterPrior(model, 1e-3)), x, y, steps=20)
        assert not torch.equal(before, guide.processes.get_submodule("y/f").q.mean)  # set, or trained
        weight = LinearMean.fit(x, 2).weight.detach()
        assert float((model.hidden[0].mean.weight.detach() - weight).abs().max()) < 0.02
    start = DeepGP(x, 1).top.kernel.lengthscale.detach() if trains == "marginal" else None
    if start is not None:
        torch.testing.assert_close(model.top.kernel.lengthscale.detach(), start, rtol=0.01, atol=0)


def test_parameters_that_do_not_train_or_have_a_prior_of_the_model_or_are_shared():
    x, y = data()
    model = OneLayer(RBF(3), Gaussian())
    model.gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    with_prior = WithPrior(ELBO(40)(model, guide), HyperparameterPrior(model))
    with torch.no_grad():
        model.gp.kernel.lengthscale = math.e * model.gp.kernel.lengthscale
    torch.testing.assert_close(with_prior.prior(), torch.tensor(1.5))
    one = RBF()
    shared = OneLayer(one + Periodic() * one, Gaussian())
    objective = WithPrior(MarginalLikelihood(shared), HyperparameterPrior(shared))
    with torch.no_grad():
        one.lengthscale = math.e**2 * one.lengthscale
        shared.gp.kernel.parts[1].parts[0].period = math.e * shared.gp.kernel.parts[1].parts[0].period
    torch.testing.assert_close(objective.prior(), torch.tensor(2.0 + 0.5))
    first, second = RBF(), Matern52()
    second.lengthscale_unconstrained = first.lengthscale_unconstrained  # one parameter of two kernels
    tied = HyperparameterPrior(OneLayer(first + second, Gaussian()))
    with torch.no_grad():
        first.lengthscale = math.e * first.lengthscale
    torch.testing.assert_close(tied(), torch.tensor(0.5))
    for parameter in shared.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no positive parameter of a kernel"):
        HyperparameterPrior(shared)


def test_copies_precisions_and_refusals():
    x, y = data()
    model = DeepGP(x, 1)
    objective = WithPrior(MarginalLikelihood(model), HyperparameterPrior(model))
    other = copy.deepcopy(objective)
    fit_lbfgs(objective, x, y, steps=3)
    assert float(objective.prior().detach()) > 1e-4 and float(other.prior().detach()) == 0
    fit_lbfgs(other, x, y, steps=3)
    torch.testing.assert_close(other.prior(), objective.prior())
    other.float()
    assert other.prior().dtype == torch.float32
    with torch.no_grad():
        assert float(other(x.float(), y.float())) == pytest.approx(float(objective(x, y)), rel=1e-3)
    for spread in (0.0, -1.0, math.inf, math.nan, "1"):
        with pytest.raises((ValueError, TypeError), match="finite number above 0|float"):
            HyperparameterPrior(DeepGP(x, 1), spread)
    with pytest.raises(TypeError, match="objective is one of a model"):
        WithPrior(torch.nn.Linear(2, 2), HyperparameterPrior(model))
    with pytest.raises(TypeError, match="HyperparameterPrior"):
        WithPrior(MarginalLikelihood(model), 1.0)
    with pytest.raises(ValueError, match="a prior of hyperparameters comes beside"):
        guide = Variational(DeepGP(x, 1, kernel="matern52-additive"), FourierFeatures(3))
        guide.initialize(x, y)
        fit_collapsed(guide, (x, y), prior=HyperparameterPrior(guide.model))


def test_copies_of_a_model_and_kernels_of_ones_own_have_it(tmp_path):
    x, _ = data()
    model = DeepGP(x, 2, 2, mean=LinearMean.fit)
    count = len(HyperparameterPrior(model).terms)
    assert count == 5
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert len(HyperparameterPrior(other).terms) == count
        with_priors(other)
        assert set(other.hidden[0].kernel._pyro_samples) == {"lengthscale", "variance"}

    class Mine(RBF):
        def __init__(self):
            super().__init__()
            self.lengthscale = PyroParam(torch.tensor(1.5), constraint=constraints.positive)

    kernel = Mine()
    prior = HyperparameterPrior(OneLayer(kernel, Gaussian()))
    with torch.no_grad():
        kernel.lengthscale = math.e * kernel.lengthscale
    torch.testing.assert_close(prior(), torch.tensor(0.5))
