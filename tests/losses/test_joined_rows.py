"""Weights and batches of models that join rows of function values, and of those that cannot be run on fewer rows."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    CompiledObjective,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    Variational,
    fit,
    fit_stream,
    fit_validated,
    predict,
)
from tests.examples import OneLayer, TwoLayers

pytestmark = pytest.mark.usefixtures("local")
NOISE = 0.3
PAIRS = torch.tensor([[0, 11], [3, 5], [7, 2], [10, 1]])


class Joined(PyroModule):
    """Observes a function of all function values, which ``join`` gives, and of the arguments beside x and y."""

    def __init__(self, join, noise=NOISE, plate=False):
        super().__init__()
        self.gp, self.join, self.noise, self.plate = GaussianProcess(RBF()).requires_grad_(False), join, noise, plate

    def forward(self, x, y=None, **arguments):
        f = pyro.sample("f", self.gp(x))[..., 0]
        observed = dist.Normal(self.join(f, **arguments), self.noise)
        if not self.plate:
            return pyro.sample("y", observed.to_event(1), obs=y)
        with pyro.plate("pairs", observed.batch_shape[-1]):
            return pyro.sample("y", observed, obs=y)


def guide_of(model, x, y, *, samples=10, inducing=12, **arguments):
    guide = Variational(model, InducingPoints(inducing), MonteCarlo(samples))
    guide.initialize(x, y, **arguments)
    return guide


def inputs(rows=12):
    return torch.linspace(-1, 1, rows)[:, None]


JOINS = {
    "sums": lambda f: f.cumsum(-1) / f.shape[-1],
    "differences to the mean": lambda f: f - f.mean(-1, keepdim=True),
    "neighbours": lambda f: torch.nn.functional.pad(f.diff(dim=-1), (1, 0)),
    "turned round": lambda f: f + f.flip(-1),
}


def test_a_fit_without_a_batch_size_ends_at_the_exact_posterior_of_all_rows():
    """Steps of 256 of these rows, in random order, trained another model: the mean was 0.5 to 0.7 off."""
    rows = 260
    x = inputs(rows)
    sums = torch.tril(torch.ones(rows, rows)) / 40
    y = sums @ torch.cos(3 * x[:, 0]) + torch.randn(rows)
    model = Joined(lambda f: f.cumsum(-1) / 40, noise=1.0)
    guide = guide_of(model, x, y, inducing=6, samples=16)
    fit(ELBO(num_data=rows)(model, guide), x, y, steps=300, learning_rate=0.1)
    with torch.no_grad():
        k = model.gp(x).covariance_matrix[0]
        exact = k @ sums.T @ torch.linalg.solve(sums @ k @ sums.T + torch.eye(rows), y)
        found = predict(guide, x, site="f").mean.reshape(-1)
    assert float((found - exact).square().mean().sqrt()) < 0.1


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("wrap", [lambda objective: objective, CompiledObjective])
def test_a_batch_of_some_joined_rows_is_refused(join, wrap):
    x = inputs(40)
    y = torch.zeros(40)
    model = Joined(JOINS[join])
    guide = guide_of(model, x, y)
    objective = wrap(ELBO(num_data=40)(model, guide))
    with pytest.raises(
        ValueError, match=r"joins rows of function values, which a batch of 8 of 40 rows changes: leave"
    ):
        fit(objective, x, y, steps=1, batch_size=8)


def test_rows_that_stand_apart_are_taken_in_batches():
    x = inputs(40)
    model = Joined(lambda f: 2 * f)
    guide = guide_of(model, x, x[:, 0])
    seen = []
    fit(ELBO(num_data=40)(model, guide), x, x[:, 0], steps=2, batch_size=8, callback=lambda *step: seen.append(step))
    assert len(seen) == 2


@pytest.mark.parametrize("join", JOINS)
def test_held_out_rows_of_joined_ones_are_refused(join):
    x, y = inputs(40), torch.zeros(40)
    guide = Variational(Joined(JOINS[join]), InducingPoints(12), MonteCarlo(10))
    with pytest.raises(
        ValueError, match="joins rows of function values, and without the held-out rows it joins others"
    ):
        fit_validated(guide, lambda beta, rows: PredictiveLogLikelihood(rows, beta), x, y, steps=1)
    sound = Variational(Joined(lambda f: 2 * f), InducingPoints(12), MonteCarlo(10))
    result = fit_validated(sound, lambda beta, rows: PredictiveLogLikelihood(rows, beta), x, y, steps=1)
    assert result.rows == 40


class Ends(PyroModule):
    """Differences of one function between the two ends of a pair, which are a row of the data; and, where it is given, of its values at a grid."""

    def __init__(self, grid=None):
        super().__init__()
        self.gp, self.grid = GaussianProcess(RBF()).requires_grad_(False), grid

    def forward(self, x, y=None, z=None):
        rows, points = x.shape[-2], [x[..., :1], x[..., 1:]]
        if self.grid is not None:
            points = [*points, self.grid.expand(*x.shape[:-2], *self.grid.shape)]
        f = pyro.sample("f", self.gp(torch.cat(points, -2)))[..., 0]
        if self.grid is not None:
            pyro.sample("z", dist.Normal(f[..., 2 * rows :].diff(dim=-1), NOISE).to_event(1), obs=z)
        return pyro.sample("y", dist.Normal(f[..., :rows] - f[..., rows : 2 * rows], NOISE).to_event(1), obs=y)


@pytest.mark.parametrize("with_grid", [False, True])
def test_pairs_that_are_rows_of_the_data_are_taken_in_batches(with_grid):
    """Both ends are joined, and a batch of pairs changes neither: its likelihood is, on average, that of all."""
    x = torch.rand(60, 2) * 2 - 1
    y, z = x[:, 0] - x[:, 1], torch.zeros(4)
    model = Ends(inputs(5) if with_grid else None)
    given = {"z": z} if with_grid else {}
    guide = guide_of(model, x, y, samples=20_000, **given)
    assert guide.structure.joins_rows and not guide.structure.joins_data_rows
    with torch.no_grad():
        whole = ELBO(60).terms(model, guide, x, y, **given)["the likelihood at 'y'"]
        parts = [
            ELBO(60).terms(model, guide, x[part], y[part], **given)["the likelihood at 'y'"]
            for part in torch.arange(60).split(20)
        ]
    assert float(sum(parts) / 3) == pytest.approx(float(whole), rel=0.02)
    fit(ELBO(num_data=60)(model, guide), x, y, **given, steps=1, batch_size=8)


def test_a_value_of_all_rows_is_refused_in_a_batch():
    x = inputs(40)
    model = Joined(lambda f: f.mean(-1, keepdim=True))
    guide = guide_of(model, x, torch.zeros(1))
    assert guide.structure.joins_data_rows
    with pytest.raises(ValueError, match="joins rows of function values"):
        ELBO(40).loss(model, guide, x[:8], torch.zeros(1))


def test_a_restored_guide_knows_what_it_joins():
    x = torch.rand(20, 2)
    guide, other = guide_of(Ends(), x, x[:, 0]), Variational(Ends(), InducingPoints(12), MonteCarlo(10))
    other.load_state_dict(guide.state_dict())
    assert other.structure == guide.structure and not other.structure.joins_data_rows


def test_a_stream_of_joined_rows_is_refused(tmp_path):
    x, y = inputs(40), torch.zeros(40)
    for name, part in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", part.numpy())
    model = Joined(JOINS["sums"])
    objective = ELBO(num_data=40)(model, guide_of(model, x, y))
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    for batch_size in (None, 40):
        with pytest.raises(ValueError, match="a stream gives rows in random order: read the rows into memory and use"):
            fit_stream(objective, stream, steps=1, batch_size=batch_size)


@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
@pytest.mark.parametrize("join", JOINS)
def test_a_loss_refuses_some_joined_rows_that_it_would_weight(loss, join):
    x = inputs()
    y = torch.zeros(12)
    model = Joined(JOINS[join])
    guide = guide_of(model, x, y)
    with pytest.raises(ValueError, match=r"num_data=12 cannot weight the 6 rows of a step, since a part of the model"):
        loss(12).loss(model, guide, x[:6], y[:6])
    torch.manual_seed(0)
    whole = loss(12).loss(model, guide, x, y)
    torch.manual_seed(0)
    assert whole == pytest.approx(loss().loss(model, guide, x, y))


def _areal():
    matrix = torch.zeros(4, 12)
    for sensor in range(4):
        matrix[sensor, 3 * sensor : 3 * sensor + 3] = 1 / 3
    return matrix


def _differences(f, pairs=PAIRS):
    return f[..., pairs[:, 0]] - f[..., pairs[:, 1]]


FIXED = {
    "areas": (lambda: Joined(lambda f: f @ _areal().T), {}),
    "pairs": (lambda: Joined(_differences), {}),
    "pairs of an argument": (lambda: Joined(_differences), {"pairs": PAIRS}),
    "pairs in a plate": (lambda: Joined(_differences, plate=True), {"pairs": PAIRS}),
    "some rows": (lambda: Joined(lambda f: f[..., PAIRS[:, 1]]), {}),
}


@pytest.mark.parametrize("kind", FIXED)
def test_observed_combinations_of_fixed_rows_count_once(kind):
    """The weight was 12 rows over 4 values; a plate was refused. At the prior the expectation is in closed form."""
    make, arguments = FIXED[kind]
    x, y = inputs(), torch.tensor([0.5, -0.2, 0.9, 0.1])
    model = make()
    guide = guide_of(model, x, y, samples=20_000, **arguments)
    assert guide.structure.inputs is None
    with torch.no_grad():
        k = model.gp(x).covariance_matrix[0]
        variance = model.join(model.join(k, **arguments).T, **arguments).diagonal()
        found = ELBO(12).terms(model, guide, x, y, **arguments)["the likelihood at 'y'"]
        expected = (dist.Normal(0.0, NOISE).log_prob(y) - 0.5 * variance / NOISE**2).sum()
    assert float(found) == pytest.approx(float(expected), rel=0.05)


@pytest.mark.parametrize("rows", [4, 24])
@pytest.mark.parametrize("kind", FIXED)
def test_num_data_that_is_not_the_number_of_fixed_rows_is_refused(kind, rows):
    make, arguments = FIXED[kind]
    x, y = inputs(), torch.zeros(4)
    model = make()
    guide = guide_of(model, x, y, **arguments)
    match = f"num_data={rows} cannot weight the 12 rows of a step, since a part of the model joins rows"
    if kind == "some rows":
        match = (
            f"num_data={rows} cannot weight 'y', which has 4 values for 12 rows, in a model that cannot be run on fewer"
        )
    with pytest.raises(ValueError, match=match):
        ELBO(rows).loss(model, guide, x, y, **arguments)


def test_a_guide_that_was_initialised_at_one_row_weights_batches():
    x = inputs()
    model = OneLayer()
    guide = guide_of(model, x[:1], x[:1, 0], inducing=1)
    assert guide.structure.inputs is None
    half, all_rows = (ELBO(n).terms(model, guide, x[:6], x[:6, 0])["the likelihood at 'y'"] for n in (6, 12))
    torch.testing.assert_close(all_rows, 2 * half)


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_that_takes_rows_by_an_index_weights_its_batch(whole):
    x = inputs()
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(rows):
        if whole:
            f = pyro.sample("f", gp(x))[..., rows, :]
            return pyro.sample("y", likelihood.given(f), obs=x[rows, 0])
        return pyro.sample("y", likelihood(gp(x[rows])), obs=x[rows, 0])

    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(torch.arange(12))
    values = []
    for loss in (ELBO(), ELBO(12)):
        torch.manual_seed(0)
        values.append(loss.terms(model, guide, torch.tensor([0, 4, 8]))["the likelihood at 'y'"])
    torch.testing.assert_close(values[1], 4 * values[0])


class Scaled(OneLayer):
    """Function values that are integrated out, in a scale or in a plate of groups, some of which a step takes."""

    def __init__(self, scale=1.0, groups=None):
        super().__init__()
        self.scale, self.groups = scale, groups

    def forward(self, x, y=None):
        if self.groups is None:
            with poutine.scale(scale=self.scale):
                return super().forward(x, y)
        with pyro.plate("groups", 4, subsample_size=self.groups, dim=-1) as some, poutine.scale(scale=self.scale):
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=None if y is None else y[some])


@pytest.mark.parametrize("scale", [2.0, 0.5, torch.tensor(2.0)])
@pytest.mark.parametrize("num_data", [None, 12])
def test_a_scale_around_function_values_that_are_integrated_out_is_refused(scale, num_data):
    """It multiplied likelihood and KL alike, so that the posterior was that without it."""
    x = inputs()
    model = Scaled(scale)
    guide = guide_of(model, x, x[:, 0])
    with pytest.raises(
        ValueError, match=r"at 'y' stand in a poutine.scale, which would scale their prior too.*likelihood.given\(f\)"
    ):
        ELBO(num_data).loss(model, guide, x, x[:, 0])


def test_a_scale_around_a_whole_model_of_several_sites_scales_the_loss():
    x = inputs()
    values = []
    for scale in (1.0, 1 / 12):
        torch.manual_seed(0)
        model = TwoLayers(x)
        guide = Variational(poutine.scale(model, scale=scale), InducingPoints(6), MonteCarlo(2))
        guide.initialize(x, x[:, 0])
        torch.manual_seed(1)
        values.append(ELBO(12).loss(guide.model, guide, x, x[:, 0]))
    assert values[1] == pytest.approx(values[0] / 12, rel=1e-5)


def test_plates_that_take_some_groups_keep_their_scale():
    x = inputs()
    y = x[:, 0].expand(4, 12)
    whole = Scaled(groups=4)
    guide = guide_of(whole, x, y)
    model = Scaled(groups=2)
    model.load_state_dict(whole.state_dict())
    some = guide_of(model, x, y)
    expected = ELBO(12).loss(whole, guide, x, y)
    assert math.isfinite(expected)
    assert ELBO(12).loss(model, some, x, y) == pytest.approx(expected, rel=1e-4)
    model.scale = 2.0
    with pytest.raises(ValueError, match="stand in a poutine.scale"):
        ELBO(12).loss(model, some, x, y)


class Centred(PyroModule):
    """A hidden function less its mean over the rows, under a stationary kernel."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(Matern52(2), num_outputs=2), GaussianProcess(Matern52(2))
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h - h.mean(-2, keepdim=True))), obs=y)


@pytest.mark.parametrize("seed", range(5))
def test_a_mean_over_few_rows_is_found_at_any_of_them(seed):
    torch.manual_seed(seed)
    x = torch.rand(20, 2)
    guide = Variational(Centred(), InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, torch.sin(6 * x[:, 0]))
    assert guide.structure.joins_data_rows
