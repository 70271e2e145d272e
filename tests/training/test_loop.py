import numpy as np
import pytest
import torch

from pyro_dgp import (
    ELBO,
    CollapsedELBO,
    CompiledObjective,
    DeepGP,
    DeepKernel,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    NumpyStream,
    Stream,
    Variational,
    fit_stream,
    predict,
    scores,
    start_from_one_layer,
)
from pyro_dgp.training.loop import batches, fit, steps_for
from pyro_dgp.training.optimising import decay
from tests.examples import OneLayer, TwoLayers, regression


class Sum(torch.nn.Module):
    """The sum of objectives, each of which may have data of its own."""

    def __init__(self, *objectives, own=None):
        super().__init__()
        self.objectives, self.own = torch.nn.ModuleList(objectives), own

    def forward(self, x, y):
        first, *others = self.objectives
        return first(x, y) + sum(each(*(self.own or (x, y))) for each in others)


class AndAnother(torch.nn.Module):
    """An objective by the name that a wrapper has for it, and another one."""

    def __init__(self, objective, other):
        super().__init__()
        self.objective, self.other = objective, other

    def forward(self, x, y):
        return self.objective(x, y) + self.other(x, y)


class OfTwiceTheInputs(torch.nn.Module):
    """An objective at other inputs than it is given."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        return self.inner(2 * x, y)


class ByForward(torch.nn.Module):
    """An objective that calls the method of another one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        return self.inner.forward(x, y)


class OfSlopes(torch.nn.Module):
    """An objective that takes gradients by itself, and looks at some of the rows once more."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        loss = self.inner(x, y)
        slopes = torch.autograd.grad(loss, self.inner.guide.model.likelihood.parameters(), create_graph=True)
        return loss + 0 * slopes[0].square().sum() + 0 * self.inner(x[:9], y[:9])


class WithoutAModule(torch.nn.Module):
    """An objective whose loss is no module in it."""

    def __init__(self, guide, num_data):
        super().__init__()
        self.guide, self.num_data = guide, num_data

    def forward(self, x, y):
        return ELBO(self.num_data).differentiable_loss(self.guide.model, self.guide, x, y)


def elbo(x, y, num_data=None):
    model, guide = guided(x, y)
    return ELBO(num_data)(model, guide)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("join", [Sum, AndAnother])
def test_objectives_that_need_all_rows_have_them_in_a_sum(join):
    x, y = regression(300)
    both = [MarginalLikelihood(OneLayer()) for _ in range(2)]
    wanted = sum(float(each(x, y).detach()) for each in both) / 300
    assert fit(join(*both), x, y, steps=1).losses[0] == pytest.approx(wanted)
    with pytest.raises(ValueError, match="MarginalLikelihood needs all 300 rows in each step, not 50"):
        fit(join(*both), x, y, steps=1, batch_size=50)
    with pytest.raises(ValueError, match="MarginalLikelihood needs all 300 rows in each step, not 50"):
        fit(join(elbo(x, y, 300), both[0]), x, y, steps=1, batch_size=50)


@pytest.mark.parametrize("numbers", [(None, None), (30, None), (30, 20)])
def test_losses_in_a_sum_weight_the_rows_of_a_step(numbers):
    x, y = regression(30)
    with pytest.raises(ValueError, match=rf"num_data={numbers[1]} and there are 30 rows, in batches of 10"):
        fit(Sum(*(elbo(x, y, number) for number in numbers)), x, y, steps=1, batch_size=10)
    own = x[:20], y[:20]
    assert fit(Sum(elbo(x, y, 30), elbo(x, y, numbers[1]), own=own), x, y, steps=1, batch_size=10).losses
    assert fit(Sum(elbo(x, y, 30), MarginalLikelihood(OneLayer()), own=own), x, y, steps=1, batch_size=10).losses


def test_a_loss_that_is_no_module_weights_the_rows_of_a_step():
    x, y = regression(30)
    with pytest.raises(ValueError, match="num_data=None and there are 30 rows, in batches of 10"):
        fit(WithoutAModule(guided(x, y)[1], None), x, y, steps=1, batch_size=10)
    assert fit(WithoutAModule(guided(x, y)[1], None), x, y, steps=1).losses
    assert fit(WithoutAModule(guided(x, y)[1], 30), x, y, steps=1, batch_size=10).losses


@pytest.mark.usefixtures("local")
def test_every_collapsed_bound_in_an_objective_sets_its_posterior():
    x, y = regression(40)
    guides = [guided(x, y)[1] for _ in range(5)]
    fit(Sum(CollapsedELBO(guides[0]), CollapsedELBO(guides[1])), x, y, steps=40)
    fit(OfTwiceTheInputs(CollapsedELBO(guides[2])), x, y, steps=40)
    fit(ByForward(CollapsedELBO(guides[3])), x, y, steps=40)
    objective = OfSlopes(CollapsedELBO(guides[4]))
    fit(objective, x, y, steps=40)
    assert not objective.inner._forward_pre_hooks
    for guide, inputs in zip(guides, (x, x, 2 * x, x, x), strict=True):
        with torch.no_grad():
            bound = float(CollapsedELBO(guide)(inputs, y))
            loss = float(ELBO().differentiable_loss(guide.model, guide, inputs, y))
        assert loss == pytest.approx(bound, abs=1e-4)


def guided(x, y):
    guide = Variational(OneLayer(), InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    return guide.model, guide


def trained(seed, steps=5):
    torch.manual_seed(seed)
    x, y = regression(30)
    model = TwoLayers(x)
    guide = Variational(model, InducingPoints(6), MonteCarlo(3))
    guide.initialize(x, y)
    result = fit(ELBO(num_data=30)(model, guide), x, y, steps=steps, batch_size=8, seed=seed)
    return result, model, guide


def test_the_same_seed_gives_the_same_result():
    a, b, c = (trained(seed)[0].losses for seed in (0, 0, 1))
    assert a == b != c


def test_training_improves_and_touches_no_global_store():
    import pyro

    x, y = regression(60)
    model = OneLayer()
    guide = Variational(model, InducingPoints(15), MonteCarlo(1))
    guide.initialize(x, y)
    before = -predict(guide, x).log_prob(y).mean()
    result = fit(ELBO(num_data=60)(model, guide), x, y, steps=300, batch_size=20, learning_rate=0.05)
    assert -predict(guide, x).log_prob(y).mean() < before - 0.5
    assert len(result.losses) == 300 and result.seconds > 0
    assert len(pyro.get_param_store()) == 0


def test_batches_visit_every_row_once_a_pass():
    rows = batches(10, 4, seed=0)
    one_pass = torch.cat([next(rows) for _ in range(3)])
    assert sorted(one_pass.tolist()) == list(range(10))
    assert torch.equal(next(batches(5, 8, 0)), torch.arange(5))
    assert steps_for(2, 10, 4) == 6 and steps_for(3, 5, 100) == 3


def test_learning_rate_is_constant_then_falls():
    assert decay(0.0) == decay(0.6) == 1.0
    assert decay(0.8) == pytest.approx(0.505)
    assert decay(1.0) == pytest.approx(0.01)


def test_a_loss_that_is_not_finite_stops_it_with_the_remedy():
    x, y = regression(10)
    model = OneLayer()
    guide = Variational(model, InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    y[0] = torch.nan
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        fit(ELBO()(model, guide), x, y, steps=1)


@pytest.mark.usefixtures("unannotated")
def test_numbers_of_steps_and_rows_are_whole():
    x, y = regression(10)
    for options, sentence in (
        ({"steps": 2.5}, "steps is a whole number, 0 or more, got 2.5"),
        ({"steps": 1, "batch_size": 2.5}, "batch_size is a whole number, 1 or more, got 2.5"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fit(ELBO(10)(*guided(x, y)), x, y, **options)


@pytest.mark.parametrize("num_data", [None, 5, 20])
def test_a_loss_for_another_number_of_rows_is_refused(num_data):
    x, y = regression(10)
    guide = Variational(OneLayer(), InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=rf"num_data={num_data} and there are 10 rows, .*ELBO\(num_data=10\)"):
        fit(ELBO(num_data)(guide.model, guide), x, y, steps=1, batch_size=4)


def test_the_marginal_likelihood_is_that_of_all_rows():
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 300)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(300)
    objective = MarginalLikelihood(DeepGP(x, layers=1))
    expected = float(objective(x, y).detach()) / 300
    assert fit(objective, x, y, steps=1).losses == pytest.approx([expected], abs=1e-12)
    with pytest.raises(
        ValueError, match="MarginalLikelihood needs all 300 rows in each step, not 256: leave batch_size out"
    ):
        fit(objective, x, y, steps=1, batch_size=256)
    with pytest.raises(ValueError, match="needs all 300 rows"):
        fit(CompiledObjective(objective), x, y, steps=1, batch_size=100)


class Own(torch.nn.Module):
    """A user's own module around objectives, which adds a term to their sum."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = torch.nn.ModuleList(inner)

    def forward(self, x, y):
        return sum(each(x, y) for each in self.inner) + 0.25


class Holder(Own):
    """One with a number of that name of the user's own."""

    num_data = 5


def test_what_an_objective_needs_is_seen_inside_a_module_of_the_user_s():
    """A marginal likelihood inside one was trained on 256 rows a step, and its num_data was not looked at."""
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 300)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(300)
    marginal = MarginalLikelihood(DeepGP(x, layers=1))
    guide = Variational(OneLayer(), InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    bound = ELBO(299)(guide.model, guide)
    expected = float(marginal(x, y).detach() + 0.25) / 300
    assert fit(Own(marginal), x, y, steps=1).losses == pytest.approx([expected], abs=1e-12)
    holder = Holder(marginal)
    with pytest.raises(ValueError, match="MarginalLikelihood needs all 300 rows in each step, not 256"):
        fit(holder, x, y, steps=1, batch_size=256)
    for objective in (Own(bound), Own(ELBO(300)(guide.model, guide), bound)):
        with pytest.raises(ValueError, match="num_data=299 and there are 300 rows"):
            fit(objective, x, y, steps=1, batch_size=256)


def test_the_marginal_likelihood_is_that_of_all_rows_of_a_stream(tmp_path):
    x, y = regression(30)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", block_rows=4, dtype=x.dtype)
    objective = MarginalLikelihood(DeepGP(x, layers=1))
    expected = float(objective(x, y).detach()) / 30
    for options in ({}, {"batch_size": 30}, {"batch_size": 31}):
        objective = MarginalLikelihood(DeepGP(x, layers=1))
        assert fit_stream(objective, stream, steps=1, **options).losses == pytest.approx([expected], abs=1e-12)
    for given in (objective, CompiledObjective(objective)):
        with pytest.raises(
            ValueError, match="MarginalLikelihood needs all 30 rows in each step, not 20: leave batch_size out"
        ):
            fit_stream(given, stream, steps=1, batch_size=20)


def test_num_data_is_checked_behind_what_joins_processes():
    class Joined(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    guide = Variational(DeepGP(x, layers=1), InducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="num_data=30 and there are 20 rows"):
        fit(Joined(ELBO(30)(guide.model, guide)), x, y, steps=1)


def test_the_last_step_is_looked_at_too():
    seen = []
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    fit(MarginalLikelihood(DeepGP(x, layers=1)), x, y, steps=3, stop=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, y, objective: fit(objective, x.numpy(), y, steps=1), r"training inputs are .*as_tensor\(x\)"),
        (lambda x, y, objective: fit(objective, x, y.numpy(), steps=1), r"targets are .*as_tensor\(y\)"),
        (
            lambda x, y, objective: start_from_one_layer(objective.model, x.numpy(), y),
            r"training inputs are .*as_tensor\(x\)",
        ),
        (lambda x, y, objective: scores(predict(objective.guide, x), y.numpy()), r"targets are .*as_tensor\(y\)"),
    ],
)
def test_arrays_of_numpy_are_refused_with_what_to_do(call, sentence):
    _, model, guide = trained(0)
    x, y = regression(30)
    with pytest.raises(TypeError, match=sentence.replace("are .*", "are a tensor, not ndarray: use torch.")):
        call(x, y, ELBO(num_data=30)(model, guide))


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps", "is_refused"),
    [
        (20, 19, 2, True),
        (20, 19, 1, False),
        (20, 20, 3, False),
        (20, 1, 1, True),
        (21, 10, 3, True),
        (22, 10, 3, False),
    ],
)
def test_a_step_of_one_row_is_refused_where_a_network_standardises_rows(rows, batch_size, steps, is_refused):
    x, y = regression(rows)
    network = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
    guide = Variational(DeepKernel(network, DeepGP(network(x).detach(), layers=1)), InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    objective, seen = ELBO(num_data=rows)(guide.model, guide), []

    class Rows(Stream):
        sizes = (rows,)

        def read(self, block):
            return x.numpy(), y.numpy()

    options = {"steps": steps, "batch_size": batch_size, "callback": lambda step, loss: seen.append(step)}
    sentence = rf"batch_size={batch_size} leaves one row of {rows} for a step, and a module with batch statistics"
    for run in (lambda: fit(objective, x, y, **options), lambda: fit_stream(objective, Rows(), **options)):
        if is_refused:
            with pytest.raises(ValueError, match=sentence):
                run()
        else:
            run()
    assert is_refused or len(seen) == 2 * steps
    network.eval()  # its statistics are then those of earlier rows
    assert len(fit(objective, x, y, **options).losses) == steps
