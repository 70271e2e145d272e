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
    twice = likelihood_at(guide, loss(2 * ROWS), x, y, kept=kept)
    torch.testing.assert_close(twice, 2 * whole)


@pytest.mark.usefixtures("local")
def test_rows_that_are_taken_and_rows_that_are_masked_weigh_the_same():
    x, y, kept = data()
    found = [
        likelihood_at(guide_of(Kept(how), x, y, kept=kept), ELBO(30), x, y, kept=kept) for how in ("values", "mask")
    ]
    torch.testing.assert_close(*found)


def test_a_batch_without_a_row_of_the_site_adds_nothing():
    x, y, kept = data()
    guide = guide_of(Kept("values"), x, y, kept=kept)
    none = ~kept
    assert float(likelihood_at(guide, ELBO(ROWS), x[none], y[none], kept=kept[none])) == 0.0


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
    if share == 1 / 2:
        torch.testing.assert_close(likelihood_at(guide, ELBO(3 * ROWS), x, y, site=site), 3 * whole)


def test_several_values_of_each_row_weigh_as_the_row():
    x, y, _ = data()

    def model(x, y=None):
        f = pyro.sample("f", gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(torch.cat([f, f], -1), 0.5).to_event(1), obs=y)

    gp = GaussianProcess(RBF())
    both = torch.cat([y, y])
    guide = guide_of(model, x, both)
    torch.testing.assert_close(likelihood_at(guide, ELBO(ROWS), x, both), likelihood_at(guide, ELBO(), x, both))


def test_expectation_propagation_refuses_a_site_with_some_of_the_rows():
    x, y, kept = data()
    guide = guide_of(Kept("inputs"), x, y, kept=kept)
    with pytest.raises(ValueError, match=r"one factor for each row, and the site 'y' observes 4 of 12: pass the rows"):
        likelihood_at(guide, ApproximateEP(ROWS), x, y, kept=kept)
