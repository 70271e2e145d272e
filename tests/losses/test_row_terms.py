"""A row has one term under every loss, however the model writes its values: as an event or in plates."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    predict,
)

ROWS = 12
LOSSES = [ELBO, lambda rows: PredictiveLogLikelihood(rows, 0.0), lambda rows: GammaDivergence(rows, 1.1)]


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
        if self.kind == "rows and values":
            with pyro.plate("rows", rows, dim=-2), pyro.plate("values", 2, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
        f, y = f.mT, None if y is None else y.mT
        if self.kind == "values and rows":
            with pyro.plate("values", 2, dim=-2), pyro.plate("rows", rows, dim=-1):
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
@pytest.mark.parametrize("kind", ["rows and values", "values and rows", "values around rows"])
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
    for kind in ("rows and values", "values and rows", "values around rows"):
        one = guided(TwoValues(kind), x, y)
        assert PredictiveLogLikelihood(ROWS, 0.0).loss(one.model, one, x, y) == pytest.approx(-density, rel=1e-9)


class Groups(PyroModule):
    """A function for each of three groups, whose rows are an event."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian(variance=0.09)

    def forward(self, x, y=None):
        with pyro.plate("groups", 3, dim=-1):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", self.observation(f), obs=y)

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
