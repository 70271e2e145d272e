"""A row has one term under every loss, however the model writes its values: as an event or in plates."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    ApproximateEP,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    predict,
)

ROWS = 12
LOSSES = [
    ELBO,
    lambda rows: PredictiveLogLikelihood(rows, 0.0),
    lambda rows: GammaDivergence(rows, 1.1),
    lambda rows: ApproximateEP(rows, 0.5),
]


KINDS = [
    "rows and values",
    "values and rows",
    "values around rows",
    "a plate of a fixed number",
    "a plate that takes all rows",
    "values as an event of a plate",
    "nothing",
    "values as an event",
    "rows in the last axis of an event",
    "rows in a plate beside values",
    "rows in a plate behind values",
]


class TwoValues(PyroModule):
    """Two measurements of one function at each row, written in several ways."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.gp = kind, GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        f = torch.cat([f, f], -1)
        rows = x.shape[-2]
        if self.kind == "an event":
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(2), obs=y)
        if self.kind == "a plate of a fixed number":
            with pyro.plate("rows", ROWS, dim=-2), pyro.plate("values", 2, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        if self.kind == "a plate that takes all rows":
            with pyro.plate("rows", ROWS, subsample=torch.arange(rows), dim=-2), pyro.plate("values", 2, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        if self.kind == "nothing":
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        if self.kind == "values as an event":
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)
        if self.kind == "an event within a mask":
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(2).mask(True), obs=y)
        if self.kind == "rows in a plate beside values":
            with pyro.plate("rows", rows, dim=-2):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        if self.kind == "values as an event of a plate":
            with pyro.plate("rows", ROWS, subsample=torch.arange(rows)):
                return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)
        if self.kind == "rows and values":
            with pyro.plate("rows", rows, dim=-2), pyro.plate("values", 2, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        f, y = f.mT, None if y is None else y.mT
        if self.kind == "values and rows":
            with pyro.plate("values", 2, dim=-2), pyro.plate("rows", rows, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        if self.kind == "rows in the last axis of an event":
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(2), obs=y)
        if self.kind == "rows in a plate behind values":
            with pyro.plate("rows", rows):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        with pyro.plate("values", 2, dim=-1):
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


def data():
    x = torch.linspace(-1, 1, ROWS)[:, None]
    return x, torch.stack([torch.sin(3 * x[:, 0]), torch.cos(2 * x[:, 0])], -1)


def guided(model, x, y):
    torch.manual_seed(0)
    guide = Variational(model, InducingPoints(8), SigmaPoints("gauss-hermite", 10))
    guide.initialize(x, y)
    return guide


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_values_in_plates_are_those_of_an_event(kind, loss):
    x, y = data()
    one, other = guided(TwoValues(kind), x, y), guided(TwoValues("an event"), x, y)
    expected = loss(ROWS).loss(other.model, other, x, y)
    assert loss(ROWS).loss(one.model, one, x, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("local")
def test_the_predictive_term_is_the_density_of_a_prediction():
    x, y = data()
    guide = guided(TwoValues("an event"), x, y)
    density = float(predict(guide, x).log_prob(y).sum())
    for kind in KINDS:
        one = guided(TwoValues(kind), x, y)
        assert PredictiveLogLikelihood(ROWS, 0.0).loss(one.model, one, x, y) == pytest.approx(-density, rel=1e-9)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_mask_around_an_event_of_rows_leaves_them_apart(loss):
    x, y = data()
    losses = []
    for kind in ("an event", "an event within a mask"):
        guide = Variational(TwoValues(kind), InducingPoints(8), MonteCarlo(20_000))
        guide.initialize(x, y)
        losses.append(loss(ROWS).loss(guide.model, guide, x, y))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


class Differences(TwoValues):
    """Differences between one row and the next, of which there are half as many as rows."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        difference = f[..., ::2] - f[..., 1::2]
        if self.kind == "nothing":
            return pyro.sample("y", dist.Normal(difference, 0.3), obs=y)
        with pyro.plate("pairs", x.shape[-2] // 2):
            if self.kind == "a plate":
                return pyro.sample("y", dist.Normal(difference, 0.3), obs=y)
            if self.kind == "values as an event":
                difference = difference[..., None].expand(*difference.shape, 2)
                return pyro.sample("y", dist.Normal(difference, 0.3).to_event(1), obs=y)
            with pyro.plate("values", 2):
                difference = difference[..., None, :].expand(*difference.shape[:-1], 2, difference.shape[-1])
                return pyro.sample("y", dist.Normal(difference, 0.3), obs=y)


def of_differences(kind, y, samples=5):
    guide = Variational(Differences(kind), InducingPoints(8), MonteCarlo(samples))
    guide.initialize(data()[0], y)
    return guide


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("kind", ["nothing", "a plate", "values as an event"])
def test_expectation_propagation_refuses_fewer_factors_than_rows(kind):
    y = torch.ones(ROWS // 2, 2) if kind == "values as an event" else torch.ones(ROWS // 2)
    guide = of_differences(kind, y)
    with pytest.raises(ValueError, match="'y' observes 6 values of 12 rows: pass one row for each value"):
        ApproximateEP(ROWS, 0.5).loss(guide.model, guide, data()[0], y)


@pytest.mark.usefixtures("local")
def test_plates_of_other_lengths_than_the_rows_are_refused_where_each_row_needs_a_term():
    y = torch.ones(2, ROWS // 2)
    guide = of_differences("plates", y)
    message = r"'y' has values of shape \(2, 6\), and no axis of as many rows as a Gaussian process has \(12\): .* let the axis of the rows stand first in an event"
    for loss in (PredictiveLogLikelihood(), GammaDivergence(), ApproximateEP(ROWS)):
        with pytest.raises(ValueError, match=message):
            loss.loss(guide.model, guide, data()[0], y)
    losses = []
    for kind, values in (("plates", y), ("values as an event", y.mT)):
        guide = of_differences(kind, values, samples=4000)
        losses.append(ELBO().loss(guide.model, guide, data()[0], values))
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


class Groups(PyroModule):
    """A function for each of three groups, whose rows are an event."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood, self.taken = GaussianProcess(RBF()), Gaussian(variance=0.09), None

    def forward(self, x, y=None):
        with pyro.plate("groups", 3, subsample=self.taken, dim=-1) as taken:
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", self.observation(f), obs=None if y is None else y[taken])

    def observation(self, f):
        return dist.Normal(f[..., 0], 0.3).to_event(1)


class GivenGroups(Groups):
    """The same by the library's likelihood at given function values."""

    def observation(self, f):
        return self.likelihood.given(f)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("model", [Groups, GivenGroups])
def test_rows_of_groups_have_a_term_each(model):
    x, y = data()
    y = torch.stack([y[:, 0], y[:, 1], -y[:, 0]])
    guide = guided(model(), x, y)
    density = float(predict(guide, x).log_prob(y).sum())
    assert PredictiveLogLikelihood(ROWS, 0.0).loss(guide.model, guide, x, y) == pytest.approx(-density, rel=1e-9)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("model", [Groups, GivenGroups])
@pytest.mark.parametrize("loss", LOSSES)
def test_groups_in_parts_have_the_terms_of_all(model, loss):
    x, y = data()
    y = torch.stack([y[:, 0], y[:, 1], -y[:, 0]])
    guide = guided(model(), x, y)
    expected = loss(ROWS).loss(guide.model, guide, x, y)
    parts = []
    for group in range(3):
        guide.model.taken = torch.tensor([group])
        parts.append(loss(ROWS).loss(guide.model, guide, x, y))
    assert sum(parts) / 3 == pytest.approx(expected, rel=1e-9)


class DataSets(TwoValues):
    """Data sets as an axis in front of the inputs, with or without a plate for it."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        f = f.expand(*f.shape[:-1], 2)
        if self.kind == "an event":
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(2), obs=y)
        if self.kind == "a plate around an event":
            with pyro.plate("sets", 3, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3).to_event(2), obs=y)
        with pyro.plate("sets", 3, dim=-3), pyro.plate("rows", x.shape[-2], dim=-2), pyro.plate("values", 2, dim=-1):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("kind", ["a plate around an event", "plates"])
@pytest.mark.parametrize("loss", LOSSES)
def test_data_sets_in_a_plate_have_a_term_for_each_row(kind, loss):
    x, y = data()
    x, y = torch.stack([x, x + 1, 2 * x]), torch.stack([y, -y, y + 1])
    one, other = guided(DataSets(kind), x, y), guided(DataSets("an event"), x, y)
    expected = loss(ROWS).loss(other.model, other, x, y)
    assert loss(ROWS).loss(one.model, one, x, y) == pytest.approx(expected, rel=1e-9)


class Joined(TwoValues):
    """A distribution that joins all rows."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.MultivariateNormal(f, 0.1 * torch.eye(x.shape[-2])), obs=y)


@pytest.mark.usefixtures("local")
def test_expectation_propagation_refuses_a_distribution_that_joins_the_rows():
    x, y = data()
    guide = Variational(Joined(""), InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, y[:, 0])
    with pytest.raises(ValueError, match="the distribution of the site 'y' joins the rows: use ELBO"):
        ApproximateEP(ROWS, 0.5).loss(guide.model, guide, x, y[:, 0])


class Hidden(TwoValues):
    """Values in a plate around the rows, of which a mask hides the second."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        f = torch.cat([f, f], -1).mT
        with pyro.plate("values", 2, dim=-1), pyro.poutine.mask(mask=torch.tensor([True, False])):
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=None if y is None else y.mT)


class First(TwoValues):
    """The first of these values alone."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=None if y is None else y[:, 0])


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_mask_hides_values_of_the_plate(loss):
    x, y = data()
    hidden, first = guided(Hidden(""), x, y), guided(First(""), x, y)
    expected = loss(ROWS).loss(first.model, first, x, y)
    assert loss(ROWS).loss(hidden.model, hidden, x, y) == pytest.approx(expected, rel=1e-9)


class SumOfTwo(TwoValues):
    """A function of the rows plus one at three other inputs, which is sampled first."""

    def __init__(self, kind):
        super().__init__(kind)
        self.other = GaussianProcess(RBF())

    def forward(self, x, y=None):
        g = pyro.sample("g", self.other(torch.linspace(0, 1, 3)[:, None]))
        noise = dist.Normal(pyro.sample("f", self.gp(x)) + g.mT, 0.3)
        if self.kind == "plates":
            with pyro.plate("rows", len(x), dim=-2), pyro.plate("times", 3, dim=-1):
                return pyro.sample("y", noise, obs=y)
        return pyro.sample("y", noise.to_event(int(self.kind)), obs=y)


def drawn(model, x, y):
    torch.manual_seed(0)
    guide = Variational(model, InducingPoints(2), MonteCarlo(4))
    guide.initialize(x, y)
    return guide


def loss_of(loss, guide, x, y):
    torch.manual_seed(1)
    return loss.loss(guide.model, guide, x, y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES)
def test_the_rows_are_those_of_the_data_whichever_function_comes_first(loss):
    x, y = data()[0], torch.randn(ROWS, 3)
    plates, *others = (loss_of(loss(ROWS), drawn(SumOfTwo(kind), x, y), x, y) for kind in ("plates", "0", "1", "2"))
    assert others == pytest.approx([plates] * 3, rel=1e-9)


class OfGroups(DataSets):
    """Data sets whose rows, values or data sets stand in a plate, or in events of one to three axes."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        noise = dist.Normal(f.expand(*f.shape[:-1], 2), 0.3)
        if self.kind.isdecimal():
            return pyro.sample("y", noise.to_event(int(self.kind)), obs=y)
        size, dim = {"rows": (x.shape[-2], -2), "values": (2, -1)}[self.kind.split()[0]]
        with pyro.plate("plate", size, dim=dim + noise.event_dim + ("event" in self.kind)):
            return pyro.sample("y", noise.to_event(1) if "event" in self.kind else noise, obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize("loss", LOSSES)
def test_data_sets_have_rows_of_their_own_wherever_axes_are_declared(loss, rows):
    x = torch.linspace(-1, 1, rows)[:, None]
    x, y = torch.stack([x, x + 1, 2 * x]), torch.randn(3, rows, 2)
    kinds = ("2", "0", "1", "3", "rows", "rows around an event", "values")
    first, *others = (loss_of(loss(rows), drawn(OfGroups(kind), x, y), x, y) for kind in kinds)
    assert others == pytest.approx([first] * len(others), rel=1e-9)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("kind", ["rows in the last axis of an event", "values around rows", "values and rows"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_with_as_many_rows_as_values_is_like_any_other(kind, loss):
    x, y = data()
    one, other = drawn(TwoValues(kind), x, y), drawn(TwoValues("an event"), x, y)
    some = slice(3, 5)
    found, expected = (loss_of(loss(2), guide, x[some], y[some]) for guide in (one, other))
    assert found == pytest.approx(expected, rel=1e-9)


class TwoSets(TwoValues):
    """A second data set of five rows with two values each, which every step passes whole."""

    def __init__(self, kind):
        super().__init__(kind)
        self.other = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        inputs = torch.linspace(-1, 1, 5)[:, None]
        g = pyro.sample("g", self.other(inputs))
        noise, values = dist.Normal(g.expand(*g.shape[:-1], 2), 0.3), torch.cat([inputs, -inputs], -1)
        if self.kind == "a plate":
            with pyro.plate("second", 5):
                pyro.sample("second y", noise.to_event(1), obs=values)
        elif self.kind == "plates":
            with pyro.plate("second", 5, dim=-2), pyro.plate("values", 2, dim=-1):
                pyro.sample("second y", noise, obs=values)
        else:
            pyro.sample("second y", noise.to_event(int(self.kind)), obs=values)
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", LOSSES[:3])
def test_a_second_data_set_has_rows_of_its_own(loss):
    x, y = data()
    kinds = ("2", "0", "1", "a plate", "plates")
    first, *others = (loss_of(loss(ROWS), drawn(TwoSets(kind), x, y[:, 0]), x, y[:, 0]) for kind in kinds)
    assert others == pytest.approx([first] * 4, rel=1e-9)


class TakingRows(TwoValues):
    """A plate of all rows that takes those of a step."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)


@pytest.mark.usefixtures("local")
def test_expectation_propagation_takes_batches_in_a_plate_of_all_rows():
    x, y = data()[0], data()[1][:, 0]
    one, other = drawn(TakingRows(""), x, y), drawn(First(""), x, data()[1])
    found = loss_of(ApproximateEP(ROWS), one, x[:6], y[:6])
    assert found == pytest.approx(loss_of(ApproximateEP(ROWS), other, x[:6], data()[1][:6]), rel=1e-9)
