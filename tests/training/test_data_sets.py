"""Many data sets at once, x (B, N, D) and y (B, N), or groups of a plate, y (groups, N): as each of them alone."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import (
    ELBO,
    RBF,
    CompiledObjective,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    NumpyStream,
    PosteriorDraws,
    SigmaPoints,
    StochasticGradientHMC,
    Validation,
    Variational,
    fit,
    fit_stream,
    fit_validated,
    predict,
    run_chains,
    scores,
    to_arviz,
)
from pyro_dgp.internal.rows import RowArguments
from tests.examples import OneLayer, TwoLayers, TwoSites

pytestmark = pytest.mark.usefixtures("local")
SETS, ROWS = 3, 8


class Own(PyroModule):
    """Data sets with hyperparameters of their own."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=2)), Gaussian()
        start = torch.tensor([[0.5, 1.0], [0.7, 0.7], [1.1, 2.0]])
        self.gp.kernel.lengthscale = PyroParam(start, constraints.positive, event_dim=1)
        self.gp.kernel.variance = PyroParam(torch.tensor([1.0, 0.5, 2.0]), constraints.positive, event_dim=0)
        self.likelihood.variance = PyroParam(torch.tensor([0.1, 0.2, 0.3]), constraints.positive, event_dim=0)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)

    def alone(self, number):
        one = OneLayer(RBF(ard=2))
        own = (self.gp.kernel.lengthscale, self.gp.kernel.variance, self.likelihood.variance)
        lengthscale, scale, variance = (value[number].detach().clone() for value in own)
        one.gp.kernel.lengthscale = PyroParam(lengthscale, constraints.positive, event_dim=1)
        one.gp.kernel.variance = PyroParam(scale, constraints.positive, event_dim=0)
        one.likelihood.variance = PyroParam(variance, constraints.positive, event_dim=0)
        return one


class Plated(PyroModule):
    def __init__(self, inner, groups=SETS):
        super().__init__()
        self.inner, self.groups = inner, groups

    def forward(self, x, y=None, **arguments):
        with pyro.plate("groups", self.groups):
            return self.inner(x, y, **arguments)


class Scaled(PyroModule):
    """Row arguments beside x and y: ``a`` for each group and row, ``b`` for each row, and one number for each group."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None, a=0.0, b=0.0, level=0.0):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + a + b + level, 0.3).to_event(1), obs=y)


def data_sets(inputs=2, rows=ROWS):
    x = 4 * torch.rand(SETS, rows, inputs) - 2
    return x, torch.sin(2 * x[..., 0] + torch.arange(SETS)[:, None]) + 0.2 * torch.randn(SETS, rows)


def pair(model, make, x, y, propagation=None, **settings):
    """A guide of all data sets, and guides of each alone with the same parameters."""
    guide = Variational(model, InducingPoints(5, **settings), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    parts = []
    for number in range(SETS):
        part = Variational(make(number), InducingPoints(5, **settings), propagation or MonteCarlo(2))
        part.initialize(x if x.dim() == 2 else x[number], y[number])
        for name, parameter in part.processes.named_parameters():
            if "q.mean" in name:
                parameter.data.copy_(torch.randn_like(parameter))
            dict(guide.processes.named_parameters())[name].data[number] = parameter.data
        parts.append(part)
    return guide, parts


@pytest.mark.parametrize("batch_size", [3, 100])
def test_data_sets_trained_at_once_are_those_trained_alone(batch_size):
    x, y = data_sets()
    model = Own()
    guide, parts = pair(model, model.alone, x, y)
    settings = {"steps": 10, "batch_size": batch_size, "learning_rate": 0.05}
    together = fit(ELBO(ROWS)(model, guide), x, y, **settings)
    alone = [fit(ELBO(ROWS)(part.model, part), x[i], y[i], **settings) for i, part in enumerate(parts)]
    torch.testing.assert_close(torch.tensor(together.losses), torch.tensor([result.losses for result in alone]).mean(0))
    for name, values in [*guide.processes.named_parameters(), *model.named_parameters()]:
        for number, part in enumerate(parts):
            own = dict([*part.processes.named_parameters(), *part.model.named_parameters()])[name]
            torch.testing.assert_close(values[number], own)


@pytest.mark.parametrize("plated", [False, True])
def test_the_losses_of_batches_average_to_the_loss_of_all_rows(plated):
    x, y = data_sets(1)
    x = x[0] if plated else x
    model = Plated(TwoLayers(torch.zeros(3, 1))) if plated else TwoLayers(torch.zeros(3, 1))
    guide = Variational(model, InducingPoints(5), SigmaPoints("gauss-hermite", 3))
    guide.initialize(x, y)
    rows, loss = RowArguments((x, y), {}, groups=guide.groups), ELBO(ROWS)
    parts = [loss.loss(model, guide, *rows[index][0]) for index in torch.randperm(ROWS).split(2)]
    assert sum(parts) / len(parts) == pytest.approx(loss.loss(model, guide, x, y))
    assert loss.loss(model, guide, x, y) == pytest.approx(ELBO().loss(model, guide, x, y))


def test_predictions_of_data_sets_are_those_of_each():
    x, y = data_sets()
    model = Own()
    guide, parts = pair(model, model.alone, x, y)
    new, targets = torch.randn(SETS, 7, 2), torch.randn(SETS, 7)
    together = predict(guide, new, batch_size=3)
    alone = [predict(part, new[i]) for i, part in enumerate(parts)]
    for figure in ("mean", "variance"):
        torch.testing.assert_close(getattr(together, figure), torch.stack([getattr(p, figure) for p in alone]))
    levels = torch.tensor([0.1, 0.9])
    torch.testing.assert_close(together.quantile(levels), torch.stack([p.quantile(levels) for p in alone], 1))
    torch.testing.assert_close(
        together.log_prob(targets), torch.stack([p.log_prob(t) for p, t in zip(alone, targets, strict=True)])
    )
    assert together.sample((5,)).shape == (5, SETS, 7)
    each = [scores(p, t, target_scale=3.0) for p, t in zip(alone, targets, strict=True)]
    figures = scores(together, targets, target_scale=3.0)
    for name in ("nll", "crps", "nll_original"):
        assert figures[name] == pytest.approx(sum(part[name] for part in each) / SETS)
    assert figures["rmse"] ** 2 == pytest.approx(sum(part["rmse"] ** 2 for part in each) / SETS)
    with pytest.raises(ValueError, match="are those of one data set, and the prediction has groups"):
        to_arviz(together, new, targets)


def test_hidden_layers_and_functions_of_data_sets_are_predicted():
    x, y = data_sets(1)
    model = TwoLayers(torch.zeros(3, 1))

    def make(number):
        alone = TwoLayers(torch.zeros(3, 1))
        alone.load_state_dict(model.state_dict())
        return alone

    guide, parts = pair(model, make, x, y, SigmaPoints("gauss-hermite", 3))
    for site in ("h", "y/f", "y"):
        together = predict(guide, x + 0.1, site=site, batch_size=3)
        alone = [predict(part, x[i] + 0.1, site=site) for i, part in enumerate(parts)]
        torch.testing.assert_close(together.mean, torch.stack([p.mean for p in alone]))
        torch.testing.assert_close(together.variance, torch.stack([p.variance for p in alone]))


@pytest.mark.parametrize("groups", [SETS, ROWS])
def test_row_arguments_of_groups_are_split_with_their_rows(groups):
    """As many groups as rows, too: the groups come first."""
    x, offset = torch.linspace(-1, 1, ROWS)[:, None], torch.randn(groups, ROWS)
    shared, level = torch.randn(ROWS), torch.randn(1 if groups == ROWS else groups, 1)
    y = offset + shared + level + 0.1 * torch.randn(groups, ROWS)
    model = Plated(Scaled(), groups)
    guide = Variational(model, InducingPoints(5), SigmaPoints("gauss-hermite", 3))
    arguments = {"a": offset, "b": shared, "level": level}
    some, named = RowArguments((x, y), arguments, groups=torch.Size([groups]))[slice(0, ROWS - 1)]
    guide.initialize(*some, **named)  # as many rows as groups would pass for a plate over the rows
    fit(ELBO(ROWS)(model, guide), x, y, steps=5, batch_size=3, **arguments)
    whole, parts = (predict(guide, x, batch_size=size, **arguments) for size in (100, 3))
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(whole.mean - predict(guide, x, site="f", **arguments).mean, offset + shared + level)


def test_the_row_axis_of_each_argument():
    x, y = torch.zeros(SETS, ROWS, 2), torch.zeros(SETS, ROWS)
    rows = RowArguments((x, y), {})
    axes = {(SETS, ROWS, 5): 1, (ROWS,): 0, (ROWS, 4): 0, (SETS,): None, (1, ROWS): None, (SETS, 2): None, (): None}
    assert {shape: rows.axis_of(torch.zeros(shape)) for shape in axes} == axes
    assert rows.axis_of(x) == 1 and rows.axis_of(y) == 1 and len(rows) == ROWS
    square = RowArguments((torch.zeros(ROWS, ROWS), torch.zeros(ROWS, ROWS)), {}, groups=torch.Size([ROWS]))
    assert [square.axis_of(value) for value in square.args] == [0, 1]
    two = RowArguments((torch.zeros(4, ROWS, 2),), {}, groups=torch.Size([3, 4]))
    shapes = [(3, 4, ROWS), (4, ROWS), (ROWS,), (3, ROWS)]
    assert [two.axis_of(torch.zeros(shape)) for shape in shapes] == [2, 1, 0, None]


@pytest.mark.parametrize("plated", [False, True])
def test_exact_regression_of_data_sets_is_that_of_each(plated):
    x, y = data_sets()
    x = x[:1].expand(SETS, -1, -1) if plated else x
    inputs = x[0] if plated else x
    model = Plated(OneLayer(RBF(ard=2))) if plated else Own()
    losses = fit(MarginalLikelihood(model), inputs, y, steps=3).losses
    assert len(losses) == 3 and losses[-1] < losses[0]
    together = predict(PosteriorDraws(model, {}, (inputs, y)), inputs + 0.1, batch_size=3)
    alone = [
        predict(PosteriorDraws(model.inner if plated else model.alone(i), {}, (x[i], y[i])), x[i] + 0.1)
        for i in range(SETS)
    ]
    torch.testing.assert_close(together.mean, torch.stack([p.mean for p in alone]))
    torch.testing.assert_close(together.log_prob(y), torch.stack([p.log_prob(y[i]) for i, p in enumerate(alone)]))


@pytest.mark.parametrize("plated", [False, True])
def test_draws_at_data_sets_predict_as_those_of_each(plated):
    x, y = data_sets(1)
    inputs = x[0] if plated else x
    draws = torch.randn(6, SETS, ROWS, 1)
    model = Plated(TwoSites()) if plated else TwoSites()
    name = "f_whitened"
    for site in ("y", "f"):
        together = predict(PosteriorDraws(model, {name: draws}, (inputs, y)), inputs + 0.1, site=site)
        inner = model.inner if plated else model
        alone = [
            predict(
                PosteriorDraws(inner, {name: draws[:, i]}, (x[0 if plated else i], y[i])),
                x[0 if plated else i] + 0.1,
                site=site,
            )
            for i in range(SETS)
        ]
        for part, each in enumerate(alone):
            if site == "f":
                torch.testing.assert_close(together.mean[part], each.mean)
            assert together.batch_shape == (SETS, ROWS)


def test_samplers_take_data_sets():
    x, y = data_sets(1)
    chains = run_chains(EllipticalSlice(TwoSites()), (x, y), num_samples=3, warmup_steps=2, num_chains=1, processes=1)
    assert predict(chains, x).mean.shape == (SETS, ROWS)
    model = OneLayer()
    guide, _ = pair(model, lambda number: OneLayer(), x, y, covariance="delta")
    sampler = StochasticGradientHMC(burn_in=3, thin=1)
    sampled = sampler.run(guide, x, y, num_samples=2, batch_size=3)
    (draws,) = sampled.draws.values()
    assert draws.shape == (2, SETS, 1, 5)
    states = predict(sampled, x)
    for number, values in enumerate(draws):
        getattr(guide.processes, "y/f").q.mean.data.copy_(values)
        torch.testing.assert_close(predict(guide, x).mean, states.mixture().components.mean[number].reshape(SETS, ROWS))


def test_validation_holds_out_the_same_rows_of_every_data_set():
    x, y = data_sets()
    model = Own()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    validation = Validation(betas=(1.0,), share=0.25, checks=2, folds=1)
    fitted = fit_validated(guide, lambda beta, rows: ELBO(rows), x, y, steps=6, batch_size=4, validation=validation)
    held = validation.held_out(ROWS, 0)
    assert (fitted.rows, fitted.validation_rows) == (6, 2)
    nll = -predict(guide, x[:, held]).log_prob(y[:, held])
    assert fitted.validation_nll == pytest.approx(float(nll.mean()))
    assert fitted.validation_error == pytest.approx(float(nll.std(correction=0)) / 6**0.5)
    plated = Variational(Plated(OneLayer(RBF(ard=2))), InducingPoints(4), MonteCarlo(1))
    fitted = fit_validated(plated, lambda beta, rows: ELBO(rows), x[0], y, steps=2, validation=validation)
    assert (fitted.rows, fitted.validation_rows) == (6, 2)


def test_what_does_not_fit_is_one_sentence(tmp_path):
    import numpy as np

    x, y = data_sets()
    model = Own()
    guide, parts = pair(model, model.alone, x, y)
    with pytest.raises(ValueError, match=r"num_data=24 and there are 8 rows, .*ELBO\(num_data=8\)"):
        fit(ELBO(SETS * ROWS)(model, guide), x, y, steps=1)
    wrong = r"x has shape \(3, 8, 2\) and y has shape \(2, 8\), and the model's functions have groups of shape \(3,\): pass y \(3, 8\)"
    with pytest.raises(ValueError, match=wrong):
        fit(ELBO(ROWS)(model, guide), x, y[:2], steps=1)
    with pytest.raises(
        ValueError, match=r"test inputs have shape \(2, 8, 2\) and the fit holds functions for groups of shape \(3,\)"
    ):
        predict(guide, x[:2])
    with pytest.raises(ValueError, match="pass inputs for the groups of guide.initialize"):
        predict(guide, x[0])
    with pytest.raises(
        ValueError,
        match=r"test inputs have shape \(3, 8, 2\) and the fit holds one function in all: pass them as \(N, D\)",
    ):
        predict(parts[0], x)
    with pytest.raises(ValueError, match=r"test inputs have shape \(3, 8, 2\) and the fit holds one function in all"):
        predict(PosteriorDraws(OneLayer(RBF(ard=2)), {}, (x[0], y[0])), x)
    for name, values in (("x", x[0]), ("y", y[0])):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match=r"a stream has rows .* groups of shape \(3,\): read the rows into memory"):
        fit_stream(ELBO(ROWS)(model, guide), stream, steps=1)


def test_a_compiled_objective_knows_its_groups():
    x, y = data_sets(1)
    model = Plated(OneLayer())
    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(x[0], y)
    compiled = CompiledObjective(ELBO(ROWS)(model, guide))
    assert len(fit(compiled, x[0], y, steps=1, batch_size=3).losses) == 1


def test_a_library_model_trains_on_data_sets_with_shared_hyperparameters():
    x, y = data_sets(1, rows=30)
    model = DeepGP(x[0], layers=1)
    guide = Variational(model, InducingPoints(10), MonteCarlo(1))
    guide.initialize(x, y)
    before = -predict(guide, x).log_prob(y).mean()
    fit(ELBO(30)(model, guide), x, y, steps=150, batch_size=10, learning_rate=0.05)
    assert -predict(guide, x).log_prob(y).mean() < before - 0.5
