"""L-BFGS on all rows: where it ends, what it undoes, what it refuses, and that it goes on from a checkpoint."""

import functools
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import (
    ELBO,
    METHODS,
    RBF,
    Checkpoints,
    DeepGP,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    Ordinal,
    Settings,
    Variational,
    fit,
    fit_collapsed,
    fit_lbfgs,
    module_local_parameters,
    vecchia,
)
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import limits_of_parameters
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
    assert result.losses[-1] < adam.losses[-1] + 1e-3
    with module_local_parameters(ours):
        loss = ours(x, y)
        assert float(loss.detach()) / 60 == pytest.approx(result.losses[-1], rel=1e-9)  # nats a row
        for gradient in torch.autograd.grad(loss / 60, list(ours.parameters())):
            assert gradient.abs().max() < 1e-2


def test_points_are_evaluated_once():
    at, calls = torch.tensor([3.0, -2.0], requires_grad=True), []

    def loss():
        calls.append(at.detach().clone())
        return 0.5 * at.square().sum()

    Descent(loss, [at]).go(50)
    assert at.abs().max() < 1e-3
    assert all(not torch.equal(one, two) for number, one in enumerate(calls) for two in calls[:number])


@pytest.mark.parametrize("failure", [NotPositiveDefiniteError("k", None), math.nan, ValueError("no such noise")])
def test_where_no_step_can_be_made_the_parameters_stay_and_the_error_is_raised(failure):
    at = torch.tensor([1.0], requires_grad=True)

    def loss():
        if at.item() < 1.0:
            if isinstance(failure, float):
                return at.sum() * failure
            raise failure
        return at.sum()

    descent = Descent(loss, [at])
    if isinstance(failure, float):
        assert descent.go(10) == [1.0]
    else:
        with pytest.raises(type(failure)):
            descent.go(10)
    assert at.item() == 1.0


def test_a_gradient_that_is_not_finite_at_the_start_is_said():
    at = torch.tensor([0.0], requires_grad=True)
    with pytest.raises(ValueError, match="the gradient of the loss holds NaN or infinity at the start"):
        Descent(lambda: at.sqrt().sum(), [at]).go(10)


@pytest.mark.parametrize("wall", [0.5, 0.1, -0.3])
def test_steps_into_parameters_without_a_loss_become_shorter(wall):
    """The lowest loss that there is lies close to the wall, or behind it."""
    at, walls = torch.tensor([2.0, 2.0], requires_grad=True), []

    def loss():
        if at[0].item() < wall:
            walls.append(1)
            raise NotPositiveDefiniteError("k", None)
        return (at[0] - 0.12).square() + 10 * (at[1] - 0.3).square() + 100 * torch.exp(-20 * (at[0] + 0.2))

    losses = Descent(loss, [at]).go(100)
    assert at[0].item() >= wall and at[0].item() < max(wall, 0.2) + 0.15 and at[1].item() == pytest.approx(0.3, abs=0.1)
    assert losses == sorted(losses, reverse=True)


def test_numbers_with_limits_stay_near_their_start_and_others_do_not():
    """A kernel that the targets do not need, whose variance has no lower limit; a mean that is a million."""

    class Far(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF() + Matern52()), Gaussian()
            self.level = torch.nn.Parameter(torch.zeros(()))
            self.free = PyroParam(torch.zeros(()))

        def forward(self, x, y=None):
            f = self.gp(x)
            return pyro.sample("y", self.likelihood(f), obs=None if y is None else y - self.level - self.free)

    x = torch.linspace(0, 1, 60)[:, None]
    model = Far()
    before = numbers_of(model)
    fit_lbfgs(MarginalLikelihood(model), x, 60.0 + 1e-6 * torch.sin(3 * x[:, 0]), steps=300)
    after = numbers_of(model)
    assert after.pop("level") + after.pop("free") > 50
    shares = {name: float(after[name] / before[name]) for name in after if name != "likelihood.variance"}
    assert min(shares.values()) < 1e-7 and all(0.99e-8 <= share <= 1.01e6 for share in shares.values()), shares
    least = model.likelihood.variance_unconstrained
    assert -32 < least.item() < -20 and after["likelihood.variance"] > 0


def numbers_of(model):
    """Values of the parameters by name, without those of variances that a kernel has in common with others."""
    names = [name.removesuffix("_unconstrained") for name, _ in model.named_parameters()]
    return {name: torch.as_tensor(functools.reduce(getattr, name.split("."), model)).detach().clone() for name in names}


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_targets_of_any_size_have_the_likelihood_of_many_steps_of_adam(scale, kernel):
    """The first gradient is long where targets are large, and a first step of its length would lead to the limits."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 80)[:, None]
    y = scale * (torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(80))
    ours, theirs = (MarginalLikelihood(DeepGP(x, layers=1, kernel=kernel)) for _ in range(2))
    for variance in (ours.model.top.kernel.variance, theirs.model.top.kernel.variance):
        assert variance == 1.0
    found = fit_lbfgs(ours, x, y, steps=300).losses[-1]
    by_adam = fit(theirs, x, y, steps=800, learning_rate=0.05 * scale).losses[-1]
    assert found < by_adam + 0.02


@pytest.mark.filterwarnings("ignore:the target of the site")
def test_targets_of_any_size_are_fitted_by_the_collapsed_bound():
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 200)[:, None]
    y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(200)
    losses = []
    for scale in (1.0, 10.0, 100.0):
        guide = Variational(DeepGP(x, layers=1, kernel="matern52-additive"), FourierFeatures(15), MonteCarlo(1))
        guide.initialize(x, scale * y)
        losses.append(fit_collapsed(guide, (x, scale * y)).losses[-1] - math.log(scale))
    assert losses[0] < -0.6 and losses == pytest.approx([losses[0]] * 3, abs=0.02)


class Kinds(PyroModule):
    """A parameter of each kind of constraint."""

    def __init__(self):
        super().__init__()
        of = torch.distributions.constraints
        half = torch.full((), 0.5)
        self.positive = PyroParam(half.clone(), of.positive)
        self.softplus = PyroParam(torch.full((2,), 0.5), dist.constraints.softplus_positive, event_dim=1)
        self.above_floor = PyroParam(half.clone(), of.greater_than(1e-4))
        self.above_minus_one = PyroParam(half.clone(), of.greater_than(-1.0))
        self.between = PyroParam(torch.zeros(()), of.interval(-1.0, 1.0))
        self.real = PyroParam(half.clone(), of.real)
        self.vector = PyroParam(torch.zeros(2), of.independent(of.real, 1), event_dim=1)
        self.factor = PyroParam(torch.eye(2), of.lower_cholesky, event_dim=2)
        self.ordered = PyroParam(torch.tensor([0.0, 1.0]), dist.constraints.ordered_vector, event_dim=1)
        self.simplex = PyroParam(torch.full((3,), 1 / 3), of.simplex, event_dim=1)


def test_limits_are_shares_of_positive_numbers_and_leave_others_room():
    kinds = Kinds()
    found = {id(own): (low, high) for own, low, high in limits_of_parameters(kinds, lowest=1e-8, highest=1e6)}
    limited = {name.removesuffix("_unconstrained") for name, own in kinds.named_parameters() if id(own) in found}
    assert limited == {"positive", "softplus", "above_floor", "above_minus_one", "between"}
    for name, transform in (("positive", torch.exp), ("softplus", torch.nn.functional.softplus)):
        low, high = found[id(getattr(kinds, f"{name}_unconstrained"))]
        torch.testing.assert_close(transform(low), torch.full_like(low, 0.5e-8), rtol=1e-6, atol=0)
        torch.testing.assert_close(transform(high), torch.full_like(high, 0.5e6), rtol=1e-6, atol=0)
    for name in ("above_floor", "above_minus_one", "between"):
        own = getattr(kinds, f"{name}_unconstrained").detach()
        assert [(end - own).item() for end in found[id(getattr(kinds, f"{name}_unconstrained"))]] == [-30, 30]


def test_cutpoints_move_under_a_bound_without_samples():
    """Cutpoints are an ordered vector, whose first number is nought at the start and may become negative."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60)[:, None]
    y = (x[:, 0] + 0.3 * torch.randn(60) > -0.4).double()
    model = OrdinalModel(Ordinal(2))
    guide = Variational(model, InducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)
    before = model.likelihood.cutpoints.item()
    fit_lbfgs(ELBO(60)(model, guide), x, y, steps=60)
    assert abs(model.likelihood.cutpoints.item() - before) > 0.1


class OrdinalModel(PyroModule):
    def __init__(self, likelihood):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), likelihood

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


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


def counted(function, calls):
    def call(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("moment", [1, 4, 9])
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(moment, tmp_path, monkeypatch):
    """What was evaluated before the last save is not evaluated again."""
    x, y = waves()

    def kill(step, _):
        if step + 1 == moment:
            raise KeyboardInterrupt

    whole = of_one_layer(x)
    expected = fit_lbfgs(whole, x, y, steps=12)
    with Checkpoints(tmp_path, seconds=0.0), pytest.raises(KeyboardInterrupt):
        fit_lbfgs(of_one_layer(x), x, y, steps=12, callback=kill)
    again, made = of_one_layer(x), []
    evaluations = []
    monkeypatch.setattr(Descent, "_new_evaluation", counted(Descent._new_evaluation, evaluations))
    with Checkpoints(tmp_path, seconds=0.0):
        found = fit_lbfgs(again, x, y, steps=12, callback=lambda step, _: made.append(step))
    assert found.losses == expected.losses and made == list(range(moment - 1, 12))
    assert len(evaluations) < 20 - moment
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    with Checkpoints(tmp_path, seconds=0.0), pytest.raises(ValueError, match="has steps 12, and this one 13"):
        fit_lbfgs(of_one_layer(x), x, y, steps=13)


def test_a_resumed_run_has_the_buffers_of_the_whole_one(tmp_path):
    """Running means of a network in front of the kernel, which change in each evaluation; a run that is read again has them too."""
    x, y = waves()

    class Normalised(PyroModule):
        def __init__(self):
            super().__init__()
            self.norm = PyroModule[torch.nn.BatchNorm1d](2)
            self.gp, self.likelihood = GaussianProcess(Matern52()), Gaussian()

        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.gp(self.norm(x))), obs=y)

    def kill(step, _):
        if step == 3:
            raise KeyboardInterrupt

    def trained(folder, callback=None):
        objective = MarginalLikelihood(Normalised())
        with Checkpoints(folder, seconds=0.0):
            losses = fit_lbfgs(objective, x, y, steps=8, callback=callback).losses
        return losses, objective.model.norm.running_mean

    losses, means = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", kill)
    for folder in ("cut", "whole"):
        again, found = trained(tmp_path / folder)
        assert again == losses and torch.equal(found, means)


def test_a_run_that_goes_through_other_points_is_refused(tmp_path, monkeypatch):
    x, y = waves()
    with Checkpoints(tmp_path, seconds=0.0):
        fit_lbfgs(of_one_layer(x), x, y, steps=12)
    monkeypatch.setattr(lbfgs, "MEMORY", 1)
    with (
        Checkpoints(tmp_path, seconds=0.0),
        pytest.raises(ValueError, match="goes through other parameters than this one"),
    ):
        fit_lbfgs(of_one_layer(x), x, y, steps=12)


def test_single_precision(single):
    x, y = waves()
    result = fit_lbfgs(of_one_layer(x.float()), x.float(), y.float())
    assert math.isfinite(result.losses[-1]) and result.losses[-1] < 0.2


def test_the_named_method_ends_higher_than_many_steps_of_adam(monkeypatch):
    """On data with an input that does not matter, in fewer evaluations than the 300 that it took before."""
    x, y = waves(80, 3)
    method, calls = METHODS["exact-gp"], []
    forward = MarginalLikelihood.forward

    monkeypatch.setattr(MarginalLikelihood, "forward", counted(forward, calls))
    model, other = (method.architecture.build(x, Settings()) for _ in range(2))
    fitted = method.inference.run(model, x, y, settings=Settings(), progress=lambda *_, **__: None)
    assert len(calls) < 150 and fitted.steps <= 100
    by_adam = fit(MarginalLikelihood(other), x, y, steps=300, learning_rate=0.03)
    with module_local_parameters(model):
        assert forward(MarginalLikelihood(model), x, y).item() / 80 < by_adam.losses[-1]


def test_a_descent_ends_where_it_stands_still(monkeypatch):
    monkeypatch.setattr(lbfgs, "SMALL", 10.0)
    at = torch.tensor([30.0, 2.0, 1.0], requires_grad=True)
    losses = Descent(lambda: (1 + (at * torch.tensor([1.0, 10.0, 100.0])).square().sum()).sqrt(), [at]).go(100)
    assert len(losses) < 12
