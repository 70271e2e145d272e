"""Natural gradients: a step beside its definition in natural and expectation parameters, and what it leaves to the other optimiser."""

import copy
import re

import pytest
import torch

from pyro_dgp import (
    ELBO,
    METHODS,
    Checkpoints,
    CompiledObjective,
    DeepGP,
    InducingPoints,
    MonteCarlo,
    NaturalGradients,
    PredictiveLogLikelihood,
    Settings,
    SigmaPoints,
    Variational,
    adam,
    adam_for_networks,
    fit,
    with_priors,
)
from pyro_dgp.internal import compiler
from pyro_dgp.internal.checkpoint import read_state, write_state
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.training.checkpoints import optimizer_state, set_optimizer_state
from pyro_dgp.training.natural_gradients import HALVINGS, _diagonal_step, _full_step
from tests.examples import as_recorded

pytestmark = pytest.mark.usefixtures("local")


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def data(rows=40, dtype=torch.float64):
    x = normal(rows, 2).to(dtype)
    return x, torch.sin(2 * x[:, 0]) + 0.1 * x[:, 1]


def start(covariance="full", *, layers=1, propagation=None, loss=ELBO, dtype=torch.float64, num_data=40):
    torch.manual_seed(0)
    x, y = data(dtype=dtype)
    model = DeepGP(x, layers=layers, width=2, per_output=True).to(dtype)
    guide = Variational(model, InducingPoints(6, covariance, per_output=True), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    return loss(num_data)(guide.model, guide), x, y


def by_definition(loss, mean, covariance, size):
    """Natural parameters minus r times the gradient in expectation parameters, as a mean and a covariance."""
    first = mean.clone().requires_grad_()
    second = (covariance + mean[:, None] * mean).requires_grad_()
    of_first, of_second = torch.autograd.grad(loss(first, second - first[:, None] * first), (first, second))
    precision = covariance.inverse()
    new_precision = precision + 2 * size * (of_second + of_second.mT) / 2
    return new_precision.inverse() @ (precision @ mean - size * of_first), new_precision.inverse()


def expected_terms(mean, covariance):
    """A loss of a mean and a covariance: curved in both, and not symmetric."""
    weights = normal(4, 4)
    inner = covariance + mean[:, None] * mean
    return (weights @ inner).diagonal().square().sum() + (0.3 * mean).exp().sum() - 0.5 * covariance.logdet()


@pytest.mark.parametrize("size", [0.01, 0.05])
@pytest.mark.parametrize("signs", [[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]])
def test_a_step_with_a_full_covariance_is_that_of_the_definition(size, signs):
    mean = normal(4)
    factor = (torch.eye(4) + 0.3 * normal(4, 4).tril()) @ torch.diag(torch.tensor(signs))
    wanted_mean, wanted = by_definition(expected_terms, mean, factor @ factor.mT, size)
    leaves = mean.clone().requires_grad_(), (factor + 5 * normal(4, 4).triu(1)).requires_grad_()
    lower = leaves[1].tril()
    of_mean, of_factor = torch.autograd.grad(expected_terms(leaves[0], lower @ lower.mT), leaves)
    found_mean, found = _full_step(leaves[0].detach(), leaves[1].detach(), of_mean, of_factor, size)
    assert (found_mean - wanted_mean).abs().max() < 1e-12
    assert (found @ found.mT - wanted).abs().max() < 1e-12
    assert torch.equal(found, found.tril())


def test_a_step_with_a_diagonal_covariance_is_that_of_the_definition_for_each_number():
    mean, logs = normal(4), 0.3 * normal(2, 4)[1]

    def loss(first, covariance):
        return expected_terms(first, torch.diag(covariance.diagonal()))

    leaves = mean.clone().requires_grad_(), logs.clone().requires_grad_()
    of_mean, of_logs = torch.autograd.grad(loss(leaves[0], torch.diag((2 * leaves[1]).exp())), leaves)
    found_mean, found = _diagonal_step(mean, logs, of_mean, of_logs, 0.1)
    wanted_mean, wanted = by_definition(loss, mean, torch.diag((2 * logs).exp()), 0.1)
    assert (found_mean - wanted_mean).abs().max() < 1e-12
    assert ((2 * found).exp() - wanted.diagonal()).abs().max() < 1e-12


def test_one_step_of_size_one_leads_to_the_best_q_of_one_layer_under_gaussian_noise():
    objective, x, y = start()
    model, guide = objective.model, objective.guide
    fit(objective, x, y, steps=1, batch_size=40, learning_rate=1e-12, optimizer=NaturalGradients(1.0))
    covariance, noise, process = model.top.kernel(), model.likelihood.variance, next(guide.processes.children())
    points = process.basis.inducing_points
    with torch.no_grad():
        prior = covariance.matrix(points).reshape(6, 6)
        root = torch.linalg.cholesky(prior + 1e-8 * prior.diagonal().mean() * torch.eye(6))
        cross = torch.linalg.solve_triangular(root, covariance.matrix(points, x[None]).reshape(6, 40), upper=False)
        precision = torch.eye(6) + cross @ cross.mT / noise  # of v, by hand
        best = torch.linalg.solve(precision, cross @ y / noise)
        scale = process.q.scale.tril()[0]
        assert (process.q.mean[0] - best).abs().max() < 1e-8
        assert (scale @ scale.mT @ precision - torch.eye(6)).abs().max() < 1e-8


def test_every_full_and_diagonal_q_moves_naturally_and_all_else_by_the_other_optimiser():
    for covariance in ("full", "diagonal"):
        objective, x, y = start(covariance, layers=2)
        fit(objective, x, y, steps=3)  # means away from zero
        other = copy.deepcopy(objective)
        with module_local_parameters(objective, other):
            steps = NaturalGradients(0.3)(objective, 0.02), adam(other, 0.02)
            for one, stepper in zip((objective, other), steps, strict=True):
                torch.manual_seed(1)
                stepper.zero_grad()
                (one(x, y) / 40).backward()
                stepper.step()
        named = dict(other.named_parameters())
        differ = {n for n, value in objective.named_parameters() if not torch.equal(value, named[n])}
        of_q = {name for name in named if re.search(r"\.q\.(mean|scale)_unconstrained$", name)}
        assert differ == of_q and len(of_q) == 4


def test_it_is_ahead_of_adam_in_as_many_steps():
    ends = {}
    for name, optimizer in (("adam", adam), ("natural", NaturalGradients())):
        objective, x, y = start(layers=2)
        torch.manual_seed(2)
        ends[name] = torch.tensor(fit(objective, x, y, steps=200, batch_size=20, optimizer=optimizer).losses)[
            -20:
        ].mean()
    assert ends["natural"] < ends["adam"] - 0.05


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_losses_without_concave_terms_keep_covariances_positive_definite(covariance):
    objective, x, y = start(
        covariance, layers=2, propagation=SigmaPoints("qr3", 3), loss=lambda rows: PredictiveLogLikelihood(rows, 0.01)
    )
    result = fit(objective, x, y, steps=100, batch_size=10, optimizer=NaturalGradients(1.0))
    scales = [process.q.scale for process in objective.guide.processes.children()]
    assert all(torch.isfinite(torch.tensor(result.losses))) and all(torch.isfinite(scale).all() for scale in scales)


def test_a_step_that_would_leave_too_little_of_the_precision_is_halved_for_that_output_alone():
    factors, means = torch.eye(3).expand(3, 3, 3), torch.zeros(3, 3)
    slopes = torch.stack([torch.zeros(3, 3), torch.diag(torch.tensor([-3.0, 0.0, 0.0])), torch.eye(3)])
    mean, factor = _full_step(means, factors, torch.ones(3, 3), slopes, 1.0)
    # of the second, 1 - 3 r must not be below (1 - r) / 4: 1 and 1/2 fail, 1/4 passes
    assert torch.allclose(factor[1].diagonal().square(), torch.tensor([4.0, 1.0, 1.0]))
    assert torch.allclose(mean[1], -torch.tensor([4.0, 1.0, 1.0]) / 4)
    assert torch.allclose(factor[2], torch.eye(3) / 2**0.5) and torch.allclose(mean[0], torch.full((3,), -1.0))
    mean, factor = _full_step(means, factors, torch.ones(3, 3), slopes * 2.0 ** (HALVINGS + 5), 1.0)
    assert torch.equal(factor[1], torch.eye(3)) and torch.equal(mean[1], torch.zeros(3))  # left out


def test_a_precision_that_is_nearly_lost_is_no_longer_taken():
    """At r = 0.1 a slope of -9.9999999 would leave 1e-8 of the precision, and the mean would go to -1e7."""
    mean, logs = _diagonal_step(torch.zeros(2), torch.zeros(2), torch.ones(2), torch.tensor([-9.9999999, -7.0]), 0.1)
    assert (2 * logs).exp().tolist() == pytest.approx([2.0, 1 / 0.3]) and mean.tolist() == pytest.approx([-0.1, -1 / 3])


def test_in_single_precision_it_ends_where_it_ends_in_double_precision():
    ends = []
    for dtype in (torch.float32, torch.float64):
        objective, x, y = start(dtype=dtype, propagation=SigmaPoints("qr3", 3))
        ends.append(fit(objective, x, y, steps=50, optimizer=NaturalGradients()).losses[-1])
        assert {value.dtype for value in objective.parameters()} == {dtype}
    assert ends[0] == pytest.approx(ends[1], abs=1e-3)


def test_a_compiled_objective_trains_as_the_plain_one(monkeypatch):
    monkeypatch.setattr(compiler, "compiled", as_recorded)
    plain, x, y = start(layers=2, propagation=SigmaPoints("qr3", 3))
    other, _, _ = start(layers=2, propagation=SigmaPoints("qr3", 3))
    losses = fit(plain, x, y, steps=5, optimizer=NaturalGradients()).losses
    compiled = fit(CompiledObjective(other), x, y, steps=5, optimizer=NaturalGradients()).losses
    assert torch.allclose(torch.tensor(losses), torch.tensor(compiled), rtol=1e-9)


def test_the_rate_of_both_falls_and_the_state_can_be_saved(tmp_path):
    objective, x, y = start()
    recipe = NaturalGradients(0.2, others=adam_for_networks)
    with module_local_parameters(objective):
        stepper = recipe(objective, 0.04)
        schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: 0.5**step)
        for _ in range(3):
            stepper.zero_grad()
            (objective(x, y) / 40).backward()
            stepper.step()
            schedule.step()
        assert [group["lr"] for group in stepper.param_groups] == pytest.approx([0.025, 0.005, 0.0005])
        write_state(tmp_path / "state", {"optimizer": optimizer_state(stepper)})
        again = copy.deepcopy(objective)
        other = recipe(again, 0.04)
        set_optimizer_state(other, read_state(tmp_path / "state")["optimizer"])
        for one, each in ((objective, stepper), (again, other)):
            torch.manual_seed(3)
            each.zero_grad()
            (one(x, y) / 40).backward()
            each.step()
    assert [group["lr"] for group in other.param_groups] == pytest.approx([0.025, 0.005, 0.0005])
    assert all(torch.equal(a, b) for a, b in zip(objective.parameters(), again.parameters(), strict=True))


@pytest.mark.usefixtures("unannotated")
def test_what_it_cannot_do_is_said_in_one_sentence():
    with pytest.raises(ValueError, match="above 0 and at most 1, got 1.5"):
        NaturalGradients(1.5)
    objective, x, y = start("delta")
    with pytest.raises(TypeError, match=r"NaturalGradients\(\)\(objective, learning_rate\) builds the optimiser"):
        NaturalGradients(objective)
    with pytest.raises(ValueError, match="the objective has none: take optimizer=adam"):
        fit(objective, x, y, steps=1, optimizer=NaturalGradients())
    objective, x, y = start(num_data=None)
    with pytest.raises(ValueError, match="give the loss num_data=len"):
        fit(objective, x, y, steps=1, batch_size=40, optimizer=NaturalGradients())


def priors(x):
    return with_priors(DeepGP(x, layers=1))


def test_a_q_that_moves_with_hyperparameters_is_left_alone():
    x, y = data()
    guide = Variational(priors(x), InducingPoints(6, "diagonal"))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="does not depend on hyperparameters, and the objective has none"):
        NaturalGradients()(ELBO(40)(guide.model, guide), 0.1)


@pytest.mark.parametrize("name", ["dkl-ppgpr", "dkl-dspp"])
def test_fallbacks_with_a_network_train_it_slowly(name):
    x, y = data()
    settings = Settings(inducing=5, width=2)
    fallback = METHODS[name].inference.fallback
    model = METHODS[name].architecture.build(x, settings)
    guide = fallback.guide(model, x, settings)
    guide.initialize(x, y)
    optimizer = fallback.as_fallback(model, x, settings).optimizer
    rates = [group["lr"] for group in optimizer(ELBO(40)(model, guide), 0.1).param_groups]
    assert rates[0] == 0.1 and {*rates[1:]} == {0.01}


def test_a_checkpoint_knows_its_optimiser(tmp_path):
    def run(step):
        torch.manual_seed(0)
        objective, x, y = start()
        with Checkpoints(tmp_path):
            return fit(objective, x, y, steps=3, optimizer=NaturalGradients(step)).losses

    assert run(0.1) == run(0.1)
    with pytest.raises(ValueError, match="optimizer"):
        run(0.5)
