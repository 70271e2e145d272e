import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    PredictiveLogLikelihood,
    Variational,
    whitened,
)
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("local")
LOSSES = {"ELBO": ELBO(), "predictive": PredictiveLogLikelihood(None, 1.0), "gamma": GammaDivergence(None, 1.1)}


class Rows(PyroModule):
    """Observed row by row, so that rows can be masked."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF(lengthscale=0.7))
        self.mask: bool | torch.Tensor = True

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f[..., 0], 0.3), obs=y)


def value(loss, model, guide, x, y, mask):
    model.mask = mask
    torch.manual_seed(3)
    return float(loss(model, guide)(x, y).detach())


@pytest.mark.parametrize("family", [InducingPoints(5), AmortizedInducingPoints(3)])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_masked_rows_do_not_count(loss, family):
    x, y = regression(12)
    model = Rows()
    guide = Variational(model, family, MonteCarlo(4))
    guide.initialize(x, y)
    mask = torch.arange(12) % 3 == 0
    whole, kept, rest = (value(loss, model, guide, x, y, m) for m in (torch.ones_like(mask), mask, ~mask))
    kl = value(loss, model, guide, x, y, torch.zeros_like(mask))
    assert kept + rest == pytest.approx(whole + kl)
    assert min(abs(kept - whole), abs(rest - whole), abs(whole - kl)) > 0.1
    assert value(loss, model, guide, x, y, False) == pytest.approx(kl)
    assert value(loss, model, guide, x, y, True) == pytest.approx(whole)
    far = torch.where(mask, y, y + 100.0)
    assert value(loss, model, guide, x, far, mask) == pytest.approx(kept)


@pytest.mark.slow
def test_a_mask_is_that_of_stock_pyro():
    x, y = regression(12)
    model = Rows()
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    model.mask = torch.arange(12) < 4
    ours, stock = ELBO(), TraceMeanField_ELBO(num_particles=200, vectorize_particles=False)
    mean = sum(ours.loss(model, guide, x, y) for _ in range(200)) / 200
    assert mean == pytest.approx(stock.loss(model, guide, x, y), rel=0.05)


class Whole(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood, self.mask = GaussianProcess(RBF()), Gaussian(), True

    def forward(self, x, y=None):
        with poutine.mask(mask=self.mask):
            with pyro.plate("rows", len(x)):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)


def test_a_site_that_is_hidden_has_no_term_and_rows_of_one_event_cannot_be_masked():
    x, y = regression(9)
    model = Whole()
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    assert abs(value(ELBO(), model, guide, x, y, True)) > 1
    for hidden in (False, torch.tensor(False)):
        assert value(ELBO(), model, guide, x, y, hidden) == 0.0
    with pytest.raises(ValueError, match=r"site 'y', whose rows are one event, has a mask of shape \(9,\)"):
        value(ELBO(), model, guide, x, y, torch.ones(9, dtype=torch.bool))


def test_a_masked_latent_row_is_charged_nothing():
    class Latent(Whole):
        def forward(self, x, y=None):
            with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)

    x, y = regression(6)
    model = Latent()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    guide.latents.locs.w.data.copy_(torch.arange(6.0))
    mask = torch.tensor([True, False, True, False, True, True])
    terms = [value(ELBO(), model, guide, x, y, m) for m in (True, mask)]
    torch.manual_seed(3)
    trace = guide.components(x, y).trace.nodes["w"]
    kl = (trace["fn"].log_prob(trace["value"]) - dist.Normal(0.0, 1.0).log_prob(trace["value"])).detach()
    assert terms[0] - terms[1] == pytest.approx(float(kl[~mask].sum()))


@pytest.mark.parametrize("path", ["marginal", "whitened"])
def test_rows_of_one_event_cannot_be_masked_for_other_algorithms_either(path):
    class Masked(OneLayer):
        def forward(self, x, y=None):
            with poutine.mask(mask=torch.arange(len(x)) < 4):
                return super().forward(x, y)

    x, y = regression(9)
    with pytest.raises(ValueError, match=r"site 'y', whose rows are one event, has a mask of shape \(9,\)"):
        MarginalLikelihood(Masked())(x, y) if path == "marginal" else whitened(Masked())(x, y)


def test_a_mask_wider_than_the_terms_is_refused_and_outputs_of_a_row_are_masked_together():
    x, y = regression(9)

    class Wide(Rows):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            with poutine.mask(mask=self.mask):
                deviation = pyro.sample("deviation", dist.LogNormal(0.0, 1.0))
            with pyro.plate("rows", len(x)):
                return pyro.sample("y", dist.Normal(f[..., 0], deviation), obs=y)

    model = Wide()
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=r"site 'deviation' has a mask of shape \(9,\) and terms of shape \(\)"):
        value(ELBO(), model, guide, x, y, torch.ones(9, dtype=torch.bool))

    class Outputs(Rows):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(), num_outputs=2)

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
                return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)

    model, both = Outputs(), torch.stack([y, -y], -1)
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, both)
    mask = torch.arange(9) < 4
    parts = [value(ELBO(), model, guide, x, both, m) for m in (mask, ~mask, True, False)]
    assert parts[0] + parts[1] == pytest.approx(parts[2] + parts[3])
    assert abs(parts[0] - parts[2]) > 1
