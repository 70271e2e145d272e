"""Weights of observed sites that have some of the rows of a step, or several values for each of them."""

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
    Variational,
)

ROWS = 12
LOSSES = [ELBO, PredictiveLogLikelihood, GammaDivergence]


class Kept(PyroModule):
    """Observes the rows that an argument marks: of function values, of the distribution by a mask, in a plate, or of inputs."""

    def __init__(self, how):
        super().__init__()
        self.gp, self.likelihood, self.how = GaussianProcess(RBF()), Gaussian(variance=0.3), how

    def forward(self, x, y=None, kept=None):
        if self.how == "inputs":
            return pyro.sample("y", self.likelihood(self.gp(x[kept])), obs=None if y is None else y[kept])
        f = pyro.sample("f", self.gp(x))[..., 0]
        if self.how == "mask":
            return pyro.sample("y", dist.Normal(f, 0.5).mask(kept).to_event(1), obs=y)
        y = None if y is None else y[kept]
        if self.how == "values":
            return pyro.sample("y", dist.Normal(f[..., kept], 0.5).to_event(1), obs=y)
        with pyro.plate("kept", int(kept.sum())):
            return pyro.sample("y", dist.Normal(f[..., kept], 0.5), obs=y)


def data():
    x = torch.linspace(-1, 1, ROWS)[:, None]
    return x, torch.sin(3 * x[:, 0]), torch.arange(ROWS) % 3 == 0


def guide_of(model, *args, **kwargs):
    guide = Variational(model, InducingPoints(4), MonteCarlo(3))
    guide.initialize(*args, **kwargs)
    return guide


def likelihood_at(guide, loss, *args, site="y", **kwargs):
    torch.manual_seed(0)
    return loss.terms(guide.model, guide, *args, **kwargs)[f"the likelihood at {site!r}"].detach()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("how", ["values", "plate", "inputs"])
def test_a_site_with_some_of_the_rows_weighs_as_those_rows_do(how, loss):
    """The weight was num_data over the rows of the site: three times too large here."""
    x, y, kept = data()
    guide = guide_of(Kept(how), x, y, kept=kept)
    whole = likelihood_at(guide, loss(ROWS), x, y, kept=kept)
    torch.testing.assert_close(whole, likelihood_at(guide, loss(), x, y, kept=kept))
    with pytest.raises(
        ValueError, match=r"site 'y', which has 4 values for the 12 rows of a step: observe all rows, and hide"
    ):
        likelihood_at(guide, loss(2 * ROWS), x, y, kept=kept)


@pytest.mark.usefixtures("local")
def test_rows_that_are_taken_and_rows_that_are_masked_weigh_the_same():
    x, y, kept = data()
    found = [
        likelihood_at(guide_of(Kept(how), x, y, kept=kept), ELBO(ROWS), x, y, kept=kept) for how in ("values", "mask")
    ]
    torch.testing.assert_close(*found)


class Halves(PyroModule):
    """Two instruments, each of which saw a share of the rows in their order."""

    def __init__(self, share):
        super().__init__()
        self.gp, self.share = GaussianProcess(RBF()), share

    def forward(self, x, y=None):
        f, k = pyro.sample("f", self.gp(x))[..., 0], int(self.share * len(x))
        first, second = (None, None) if y is None else (y[:k], y[k:])
        pyro.sample("first", dist.Normal(f[..., :k], 0.5).to_event(1), obs=first)
        pyro.sample("second", dist.Normal(f[..., k:], 0.5).to_event(1), obs=second)


@pytest.mark.parametrize("share", [1 / 2, 2 / 3])
@pytest.mark.parametrize("site", ["first", "second"])
def test_sites_with_shares_of_the_rows_weigh_alike(site, share):
    x, y, _ = data()
    guide = guide_of(Halves(share), x, y)
    whole = likelihood_at(guide, ELBO(), x, y, site=site)
    torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), x, y, site=site), whole)
    with pytest.raises(ValueError, match=r"values for the 12 rows of a step: observe all rows"):
        likelihood_at(guide, ELBO(3 * ROWS), x, y, site=site)


def test_several_values_of_each_row_weigh_as_the_row():
    x, y, _ = data()

    def model(x, y=None):
        f = pyro.sample("f", gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(torch.cat([f, f], -1), 0.5).to_event(1), obs=y)

    gp = GaussianProcess(RBF())
    both = torch.cat([y, y])
    guide = guide_of(model, x, both)
    torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), x, both), likelihood_at(guide, ELBO(), x, both))


class Pictures(PyroModule):
    """Rows that are matrices, which a model makes flat."""

    def __init__(self, flat):
        super().__init__()
        self.gp, self.likelihood, self.flat = GaussianProcess(RBF()), Gaussian(), flat

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(self.flat(x))), obs=y)


def test_rows_that_are_matrices_weigh_as_flat_ones_or_are_refused():
    """The rows of the batch were taken for those of each matrix; a model that takes no others shows that they are not."""
    _, y, _ = data()
    x = torch.randn(ROWS, 4, 5)
    guide = guide_of(Pictures(lambda x: x.reshape(len(x), 20)), x, y)
    whole = likelihood_at(guide, ELBO(), x, y)
    torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), x, y), whole)
    torch.testing.assert_close(likelihood_at(guide, ELBO(5 * ROWS), x, y), 5 * whole)
    pyro.clear_param_store()
    guide = guide_of(Pictures(lambda x: x.flatten(1)), x, y)
    with pytest.raises(
        ValueError, match=r"weights the 4 rows of a step, .*'y' does not follow them: pass inputs \(N, D\)"
    ):
        likelihood_at(guide, ELBO(5 * ROWS), x, y)


def test_a_matrix_before_the_inputs_is_not_taken_for_them():
    x, y, _ = data()
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(matrix, x, y=None):
        return pyro.sample("y", likelihood(gp(matrix.sum() * x)), obs=y)

    guide = guide_of(model, torch.ones(3, 3) / 9, x, y)
    whole = likelihood_at(guide, ELBO(), torch.ones(3, 3) / 9, x, y)
    torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), torch.ones(3, 3) / 9, x, y), whole)


class Fidelities(PyroModule):
    """Two data sets of one function; a step has some rows of the first and all of the second."""

    def __init__(self):
        super().__init__()
        self.gp, self.of_low, self.of_high = GaussianProcess(RBF()), Gaussian(variance=0.3), Gaussian(variance=0.1)

    def forward(self, low, y_low=None, high=None, y_high=None):
        pyro.sample("high", self.of_high(self.gp(high)), obs=y_high)
        return pyro.sample("low", self.of_low(self.gp(low)), obs=y_low)


@pytest.mark.filterwarnings("ignore:the sites 'high/f' and 'low/f' sample one GaussianProcess")
def test_the_order_of_named_arguments_does_not_matter():
    x, y, _ = data()
    calls = {"low": x, "y_low": y, "high": x[:4], "y_high": y[:4]}
    guide = guide_of(Fidelities(), **calls)
    half = calls | {"low": x[:6], "y_low": y[:6]}
    turned = {name: half[name] for name in ("high", "y_high", "low", "y_low")}
    expected = [2 * likelihood_at(guide, ELBO(), site="low", **half), likelihood_at(guide, ELBO(), site="high", **half)]
    for call in (half, turned):
        for site, value in zip(("low", "high"), expected, strict=True):
            torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), site=site, **call), value)


@pytest.mark.parametrize("rows", [8, 12])
def test_a_fixed_number_of_rows_counts_once_in_each_step(rows):
    """As anchors do, which every step passes first."""
    x, y, _ = data()
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        f = pyro.sample("f", gp(x))[..., 0]
        pyro.sample("anchors", dist.Normal(f[..., :5], 0.1).to_event(1), obs=None if y is None else y[:5])
        return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)

    guide = guide_of(model, x[:rows], y[:rows])
    for site, factor in (("anchors", 1), ("y", 4)):
        plain, weighted = (
            likelihood_at(guide, loss, x[:rows], y[:rows], site=site) for loss in (ELBO(), ELBO(4 * rows))
        )
        torch.testing.assert_close(weighted, factor * plain)


def test_expectation_propagation_refuses_several_values_of_a_row():
    x, y, _ = data()
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(torch.cat([x, x]))), obs=y)

    guide = guide_of(model, x, torch.cat([y, y]))
    with pytest.raises(ValueError, match=r"the site 'y' observes 24 values of 12 rows: pass one row"):
        likelihood_at(guide, ApproximateEP(ROWS), x, torch.cat([y, y]))


def test_expectation_propagation_refuses_a_site_with_some_of_the_rows():
    x, y, kept = data()
    guide = guide_of(Kept("inputs"), x, y, kept=kept)
    with pytest.raises(
        ValueError, match=r"one factor for each row, and the site 'y' observes 4 values of 12 rows: pass one row"
    ):
        likelihood_at(guide, ApproximateEP(ROWS), x, y, kept=kept)
