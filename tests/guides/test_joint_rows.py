"""Models that join rows of function values: differences and means of neighbours, noise that is correlated over rows."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI
from pyro.nn import PyroModule
from pyro.optim import ClippedAdam

from pyro_dgp import ELBO, RBF, GaussianProcess, InducingPoints, MonteCarlo, SigmaPoints, Variational, predict
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
