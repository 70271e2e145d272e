"""L-BFGS on all rows: where it ends, what it undoes, what it refuses, and that it goes on from a checkpoint."""

import math

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    METHODS,
    Checkpoints,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    Settings,
    Variational,
    fit,
    fit_lbfgs,
    module_local_parameters,
    vecchia,
)
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.training import lbfgs
from pyro_dgp.training.lbfgs import Descent


def waves(rows=60, inputs=2, noise=0.1):
    torch.manual_seed(0)
    x = torch.rand(rows, inputs)
    return x, torch.sin(7 * x[:, 0]) + noise * torch.randn(rows)


def of_one_layer(x):
    return MarginalLikelihood(DeepGP(x, layers=1, kernel="matern52"))


def test_it_ends_where_the_gradient_is_nought_and_many_steps_of_adam_end():
    x, y = waves()
    ours, theirs = of_one_layer(x), of_one_layer(x)
    result = fit_lbfgs(ours, x, y)
    adam = fit(theirs, x, y, steps=1500, learning_rate=0.05)
    assert len(result.losses) < 60 and result.losses == sorted(result.losses, reverse=True)
    assert result.losses[-1] < adam.losses[-1] + 1e-4
    with module_local_parameters(ours):
        loss = ours(x, y)
        assert float(loss.detach()) / 60 == pytest.approx(result.losses[-1], rel=1e-9)  # nats a row
        for gradient in torch.autograd.grad(loss / 60, list(ours.parameters())):
            assert gradient.abs().max() < 1e-2


def test_known_points_are_not_evaluated_again():
    """A step of which the first trial is taken costs one evaluation."""
    at, calls = torch.tensor([3.0, -2.0], requires_grad=True), []

    def loss():
        calls.append(at.detach().clone())
        return 0.5 * at.square().sum()

    descent = Descent(loss, [at])
    while not descent.is_over:
        descent.step()
    assert at.abs().max() < 1e-3
    assert all(not torch.equal(one, two) for number, one in enumerate(calls) for two in calls[:number])


@pytest.mark.parametrize("failure", [NotPositiveDefiniteError("k", None), math.nan, ValueError("no such noise")])
def test_steps_that_fail_are_undone(failure, monkeypatch):
    """The first step leads to where there is no loss: the parameters are those of before, and what the loss raises is raised."""
    at = torch.tensor([1.0], requires_grad=True)

    def loss():
        if at.item() < 1.0:
            if isinstance(failure, float):
                return at.sum() * failure
            raise failure
        return at.sum()

    descent = Descent(loss, [at])
    if isinstance(failure, float):
        assert not descent.step()
    else:
        with pytest.raises(type(failure)):
            descent.step()
    assert descent.is_over and descent.losses == [1.0] and at.item() == 1.0


def test_a_step_that_fails_later_on_is_tried_without_memory():
    at, walls = torch.tensor([2.0, 2.0], requires_grad=True), []

    def loss():
        if at[0].item() < 0.5:
            walls.append(1)
            raise NotPositiveDefiniteError("k", None)
        return (at[0] - 0.45).square() + 10 * (at[1] - 0.3).square()

    descent = Descent(loss, [at])
    while not descent.is_over:
        descent.step()
    assert walls and at[0].item() >= 0.5 and at[1].item() == pytest.approx(0.3, abs=1e-2)
    assert descent.losses == sorted(descent.losses, reverse=True)


def test_losses_are_nats_an_observation_in_groups_and_with_row_arguments():
    """Two data sets in a plate; and a model with an argument that has rows: the losses are those that fit has at the same parameters."""
    x, y = waves()

    class TwoSets(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(Matern52()), Gaussian()

        def forward(self, x, y=None, *, slope=0.0):
            with pyro.plate("sets", 2):
                f = self.gp(x).expand([2])
                return pyro.sample("y", self.likelihood(f), obs=None if y is None else y - slope)

    slope = 5 * x[:, 1]
    objective, same = MarginalLikelihood(TwoSets()), MarginalLikelihood(TwoSets())
    targets = torch.stack([y, -y]) + slope
    found = fit_lbfgs(objective, x, targets, steps=4, slope=slope).losses
    for one, other in zip(same.parameters(), objective.parameters(), strict=True):
        one.data.copy_(other.data)
    start = fit(same, x, targets, steps=1, learning_rate=1e-12, slope=slope).losses[0]
    assert found[-1] == pytest.approx(start, rel=1e-9) and found[-1] < 1.0


def test_what_draws_random_numbers_is_refused():
    x, y = waves(30)
    guide = Variational(model := DeepGP(x, layers=2, width=1), InducingPoints(5), MonteCarlo(2))
    guide.initialize(x, y)
    some = MarginalLikelihood(vecchia(DeepGP(x, layers=1), num_neighbors=3), terms=5)
    for objective in (ELBO(30)(model, guide), some):
        with pytest.raises(ValueError, match="draws random numbers, .*: take fit, or an objective without samples"):
            fit_lbfgs(objective, x, y, steps=2)
    frozen = of_one_layer(x).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing is left to train"):
        fit_lbfgs(frozen, x, y)
    with pytest.raises(ValueError, match="x has 30 rows and y has 29"):
        fit_lbfgs(of_one_layer(x), x, y[:29])
    with pytest.raises(TypeError, match="training minimises a loss of model and guide"):
        fit_lbfgs(guide, x, y)


def test_a_bound_without_samples_is_minimised_and_has_remarks():
    x, y = waves(40)
    guide = Variational(model := DeepGP(x, layers=1), InducingPoints(10), MonteCarlo(1))
    guide.initialize(x, y)
    result = fit_lbfgs(ELBO(40)(model, guide), x, y, steps=60)
    assert result.losses[-1] < result.losses[0] - 0.3
    assert isinstance(result.remarks, list)


def test_the_state_of_random_numbers_stays():
    x, y = waves(20)
    before = torch.get_rng_state()
    fit_lbfgs(of_one_layer(x), x, y, steps=3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("moment", [1, 4, 9])
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(moment, tmp_path):
    x, y = waves()

    def kill(step, _):
        if step + 1 == moment:
            raise KeyboardInterrupt

    whole = of_one_layer(x)
    expected = fit_lbfgs(whole, x, y, steps=12)
    with Checkpoints(tmp_path, seconds=0.0), pytest.raises(KeyboardInterrupt):
        fit_lbfgs(of_one_layer(x), x, y, steps=12, callback=kill)
    again, made = of_one_layer(x), []
    with Checkpoints(tmp_path, seconds=0.0):
        found = fit_lbfgs(again, x, y, steps=12, callback=lambda step, _: made.append(step))
    assert found.losses == expected.losses and made == list(range(moment - 1, 12))
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    with Checkpoints(tmp_path, seconds=0.0), pytest.raises(ValueError, match="has steps 12, and this one 13"):
        fit_lbfgs(of_one_layer(x), x, y, steps=13)


def test_single_precision(single):
    x, y = waves()
    result = fit_lbfgs(of_one_layer(x.float()), x.float(), y.float())
    assert math.isfinite(result.losses[-1]) and result.losses[-1] < 0.2


def test_the_named_method_ends_higher_than_many_steps_of_adam(monkeypatch):
    """On data with an input that does not matter, in fewer evaluations than the 300 that it took before."""
    x, y = waves(80, 3)
    method, calls = METHODS["exact-gp"], []
    forward = MarginalLikelihood.forward
    monkeypatch.setattr(MarginalLikelihood, "forward", lambda self, *a, **k: calls.append(1) or forward(self, *a, **k))
    model, other = (method.architecture.build(x, Settings()) for _ in range(2))
    fitted = method.inference.run(model, x, y, settings=Settings(), progress=lambda *_, **__: None)
    assert len(calls) < 150 and fitted.steps <= 100
    by_adam = fit(MarginalLikelihood(other), x, y, steps=300, learning_rate=0.03)
    with module_local_parameters(model):
        assert forward(MarginalLikelihood(model), x, y).item() / 80 < by_adam.losses[-1]


def test_a_descent_ends_where_it_stands_still(monkeypatch):
    monkeypatch.setattr(lbfgs, "SMALL", 1.0)
    at = torch.tensor([3.0], requires_grad=True)
    descent = Descent(lambda: (1 + at.square()).sqrt().sum(), [at])
    while not descent.is_over:
        descent.step()
    assert len(descent.losses) <= 2 * lbfgs.TURNS + 2
