"""Models that join rows of function values: differences and means of neighbours, noise that is correlated over rows."""

from contextlib import nullcontext

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI
from pyro.nn import PyroModule
from pyro.optim import ClippedAdam
from torch.autograd.function import once_differentiable

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    SigmaPoints,
    Variational,
    predict,
)
from pyro_dgp.guides import joint_rows
from tests.examples import TwoLayers, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


class Differences(PyroModule):
    """Targets are differences of neighbouring rows."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF()).requires_grad_(False)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f[..., 1:] - f[..., :-1], 0.3).to_event(1), obs=y)


class CorrelatedNoise(Differences):
    """Targets of all rows share a part of their noise."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        noise = 0.09 * (0.2 * torch.eye(len(x)) + 0.8)
        return pyro.sample("y", dist.MultivariateNormal(f, noise), obs=y)


KNOWN = {
    Differences: (torch.eye(5)[1:] - torch.eye(5)[:-1], 0.09 * torch.eye(4)),
    CorrelatedNoise: (torch.eye(5), 0.09 * (0.2 * torch.eye(5) + 0.8)),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_bound_reaches_the_evidence_and_the_posterior_is_exact(kind):
    """Drawn row by row the bound would lie elsewhere: the expectation of a difference needs the covariance of both rows."""
    x = torch.linspace(-1.5, 1.5, 5)[:, None]
    matrix, noise = (part.double() for part in KNOWN[kind])
    y = (matrix @ torch.sin(2 * x[:, 0])) + 0.2
    model = kind()
    guide = Variational(model, InducingPoints(5), MonteCarlo(20))
    guide.initialize(x, y)
    svi = SVI(model, guide, ClippedAdam({"lr": 0.05, "lrd": 0.99}), ELBO())
    losses = [svi.step(x, y) for _ in range(500)]
    k = model.gp(x).covariance_matrix[0]
    of_y = matrix @ k @ matrix.mT + noise
    evidence = dist.MultivariateNormal(torch.zeros(len(y)), of_y).log_prob(y)
    assert -sum(losses[-100:]) / 100 == pytest.approx(float(evidence), abs=0.25)
    gain = torch.linalg.solve(of_y, matrix @ k).mT
    f = predict(guide, x, site="f")
    torch.testing.assert_close(f.mean, gain @ y, atol=0.05, rtol=0)
    torch.testing.assert_close(f.variance, (k - gain @ matrix @ k).diagonal(), atol=0.03, rtol=0.1)


def test_a_draw_is_joint_over_rows():
    x, y = torch.linspace(-0.1, 0.1, 4)[:, None], torch.zeros(3)
    guide = Variational(Differences(), InducingPoints(4), MonteCarlo(2000))
    guide.initialize(x, y)
    with torch.no_grad():
        f = guide.components(x, y).trace.nodes["f"]["value"][..., 0]
        covariance = guide.processes._modules["f"](guide.model.gp(x)).covariance_matrix[0]
    torch.testing.assert_close(torch.cov(f.mT), covariance, atol=0.1, rtol=0)


class Observed(Differences):
    """A function of the values of all rows, observed in a way of one's own."""

    def __init__(self, observe):
        super().__init__()
        self.observe = observe

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.observe(f, x), obs=y)


def every_third(f):
    """Differences of neighbours at all rows but each third one."""
    step = torch.cat([f[..., :1], f[..., 1:] - f[..., :-1]], -1)
    return torch.where(torch.arange(f.shape[-1]) % 3 == 0, f, step)


JOINED = {
    "all rows, two axes": (6, lambda f, x: dist.Normal(f.cumsum(-2), 0.3).to_event(2), (6, 1)),
    "a likelihood": (6, lambda f, x: Gaussian().requires_grad_(False).given(f.cumsum(-2)), (6,)),
    "the second output": (6, lambda f, x: dist.Normal(torch.cat([f, f.cumsum(-2)], -1), 0.3).to_event(2), (6, 2)),
    "squares": (6, lambda f, x: dist.Normal((f[..., 0] ** 2).unflatten(-1, (-1, 3)).mean(-1), 0.3).to_event(1), (2,)),
    "the positive part of three rows": (
        3,
        lambda f, x: dist.Normal(f[..., 0].relu().mean(-1, True), 0.3).to_event(1),
        (1,),
    ),
    "two rows of three": (96, lambda f, x: dist.Normal(every_third(f[..., 0]), 0.3).to_event(1), (96,)),
    "one row of many": (
        200,
        lambda f, x: dist.Normal(f[..., 0] + (torch.arange(200) == 77) * f[..., :1, 0], 0.3).to_event(1),
        (200,),
    ),
}
SEPARATE = {
    "a factor of each row": (8, lambda f, x: dist.Normal(f[..., 0] * x[:, 0], 0.3).to_event(1), (8,)),
    "squares of each row": (8, lambda f, x: dist.Normal(f[..., 0] ** 2, f[..., 0].exp()).to_event(1), (8,)),
    "rows in another order": (8, lambda f, x: dist.Normal(f[..., 0].flip(-1), 0.3).to_event(1), (8,)),
    "one row for all": (8, lambda f, x: dist.Normal(f[..., :1, 0].expand(*f.shape[:-2], 8), 0.3).to_event(1), (8,)),
}


@pytest.mark.parametrize("kind", JOINED)
def test_joined_rows_are_found_wherever_they_are(kind):
    rows, observe, shape = JOINED[kind]
    guide = Variational(Observed(observe), InducingPoints(3), MonteCarlo(3))
    guide.initialize(torch.linspace(-1, 1, rows)[:, None], torch.zeros(shape))
    assert guide.structure.joins_rows


@pytest.mark.parametrize("kind", SEPARATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_stand_apart_are_drawn_by_themselves(kind, dtype):
    rows, observe, shape = SEPARATE[kind]
    guide = Variational(Observed(observe).to(dtype), InducingPoints(3), MonteCarlo(3))
    is_shuffled = kind == "rows in another order"
    with pytest.warns(UserWarning, match="depend on the other rows") if is_shuffled else nullcontext():
        guide.initialize(torch.linspace(-1, 1, rows, dtype=dtype)[:, None], torch.zeros(shape, dtype=dtype))
    assert not guide.structure.joins_rows


class Once(torch.autograd.Function):
    """Twice the argument, with a derivative that cannot be differentiated again."""

    @staticmethod
    def forward(ctx, values):
        return 2 * values

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        return 2 * slope


@pytest.mark.parametrize("joined", [False, True])
def test_functions_that_are_differentiable_once_are_looked_at_element_by_element(joined):
    values = lambda f: f.cumsum(-1) if joined else f
    model = Observed(lambda f, x: dist.Normal(Once.apply(values(f[..., 0])), 0.3).to_event(1))
    guide = Variational(model, InducingPoints(3), MonteCarlo(3))
    guide.initialize(torch.linspace(-1, 1, 8)[:, None], torch.zeros(8))
    assert guide.structure.joins_rows == joined


class Centred(Differences):
    """The inputs of the upper layer are two columns of centred values, whose sum is constant."""

    def __init__(self):
        super().__init__()
        self.top = GaussianProcess(RBF(ard=2)).requires_grad_(False)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.gp(x))
        centred = h - h.mean(-2, keepdim=True)
        return pyro.sample("y", Gaussian().requires_grad_(False)(self.top(torch.cat([centred, -centred], -1))), obs=y)


def test_inputs_of_an_upper_layer_that_join_rows_are_found():
    x, y = regression(8)
    guide = Variational(Centred(), InducingPoints(3), MonteCarlo(3))
    guide.initialize(x[:, :1], y)
    assert guide.structure.joins_rows


def test_the_search_leaves_random_numbers_as_they_are(monkeypatch):
    x, y = regression(8)
    states = []
    for passes in (0, 4):
        monkeypatch.setattr(joint_rows, "PASSES", passes)
        torch.manual_seed(0)
        guide = Variational(TwoSites(), InducingPoints(4), MonteCarlo(3))
        guide.initialize(x, y)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_others_are_drawn_row_by_row():
    x, y = regression(8)
    for model in (TwoSites(), TwoLayers(x)):
        guide = Variational(model, InducingPoints(4), MonteCarlo(3))
        guide.initialize(x, y)
        assert not guide.structure.joins_rows


def test_points_are_refused_and_a_state_dict_keeps_what_was_found():
    x, y = torch.linspace(-1, 1, 5)[:, None], torch.zeros(4)
    with pytest.raises(ValueError, match="joins rows of function values"):
        Variational(Differences(), InducingPoints(4), SigmaPoints("qr3", 3)).initialize(x, y)
    guide = Variational(Differences(), InducingPoints(4), MonteCarlo(3))
    guide.initialize(x, y)
    other = Variational(Differences(), InducingPoints(4), MonteCarlo(3))
    other.load_state_dict(guide.state_dict())
    assert guide.structure.joins_rows and other.structure.joins_rows


class Centring(Differences):
    """Values less their mean over the rows, computed and observed."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        centred = pyro.deterministic("centred", f - f.mean(-1, keepdim=True))
        pyro.deterministic("doubled", 2 * f)
        return pyro.sample("y", dist.Normal(centred, 0.3).to_event(1), obs=y)


class CentredBeside(Centring):
    """The same, and targets of each row by itself."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        pyro.deterministic("centred", f - f.mean(-1, keepdim=True))
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


def test_a_prediction_that_joins_rows_is_one_batch_with_the_moments_of_joint_draws():
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.randn(8)
    guide = Variational(Centring(), InducingPoints(8), MonteCarlo(10))
    guide.initialize(x, y)
    with torch.no_grad():
        covariance = guide.processes._modules["f"](guide.model.gp(x)).covariance_matrix[0]
    centring = torch.eye(8) - 1 / 8
    variance = (centring @ covariance @ centring).diagonal()
    for site, noise in (("centred", 0.0), ("y", 0.09)):
        found = predict(guide, x, 20_000, site=site).variance
        torch.testing.assert_close(found, variance + noise, rtol=0.1, atol=1e-3)
        with pytest.raises(ValueError, match="predict all 8 rows in one batch, batch_size=8"):
            predict(guide, x, batch_size=3, site=site)
    assert predict(guide, x, batch_size=3, site="doubled").mean.shape == (8,)


def test_rows_that_are_drawn_one_by_one_are_not_joined():
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.randn(8)
    model = CentredBeside()
    guide = Variational(model, InducingPoints(8), MonteCarlo(10))
    guide.initialize(x, y)
    draws = PosteriorDraws(model, {"f": torch.randn(3, 8, 1)}, (x, y))
    for fitted in (guide, draws):
        assert predict(fitted, x, site="y").mean.shape == (8,)
        with pytest.raises(
            ValueError, match=r"the site 'centred' joins rows of function values.*draw_functions\(fit, 100\)"
        ):
            predict(fitted, x, site="centred")
    with pytest.raises(ValueError, match="the site 'y' joins rows"):
        predict(PosteriorDraws(Centring(), {"f": torch.randn(3, 8, 1)}, (x, y)), x)


def test_an_upper_layer_above_joined_rows_is_not_predicted_row_by_row():
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.randn(8)
    model = Centred()
    draws = PosteriorDraws(model, {"h": torch.randn(3, 8, 1)}, (x, y))
    with pytest.raises(ValueError, match="the site 'y' joins rows"):
        predict(draws, x)
    assert predict(draws, x, site="h").mean.shape == (8,)
