"""A ``poutine.scale`` that weights the rows of a step, beside the ``num_data`` of a loss."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import ELBO, RBF, GaussianProcess, InducingPoints, MonteCarlo, Variational, fit

ROWS = 20


class ScaledRows(PyroModule):
    """The idiom of mini-batches in plain Pyro, or a scale of its own."""

    def __init__(self, scale=None):
        super().__init__()
        self.scale, self.gp = scale, GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.poutine.scale(scale=ROWS / len(x) if self.scale is None else self.scale):
            return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


def guided(model):
    x = torch.linspace(-1, 1, ROWS)[:, None]
    y = torch.sin(3 * x[:, 0])
    guide = Variational(model, InducingPoints(6), MonteCarlo(1000))
    guide.initialize(x, y)
    return guide, x, y


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loaded", [False, True])
def test_a_scale_that_follows_the_rows_would_count_twice(loaded):
    guide, x, y = guided(ScaledRows())
    if loaded:
        state = guide.state_dict()
        guide = Variational(ScaledRows(), InducingPoints(6), MonteCarlo(1))
        guide.load_state_dict(state)
    with pytest.raises(
        ValueError, match="'y' stands in a poutine.scale that follows the number of rows, and num_data=20"
    ):
        fit(ELBO(ROWS)(guide.model, guide), x, y, steps=1, batch_size=5)
    assert len(fit(ELBO(ROWS)(guide.model, guide), x, y, steps=2).losses) == 2  # all rows: the scale is one


@pytest.mark.usefixtures("local")
def test_a_fixed_scale_stays():
    guide, x, y = guided(ScaledRows(0.5))
    whole = ELBO(ROWS).loss(guide.model, guide, x, y)
    halves = [ELBO(ROWS).loss(guide.model, guide, x[part], y[part]) for part in (slice(0, None, 2), slice(1, None, 2))]
    assert sum(halves) / 2 == pytest.approx(whole, rel=0.05)
