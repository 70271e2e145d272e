"""Predictions from draws of models whose hidden layer is a function with noise, ``h = sample("h", likelihood(gp(x)))``, against the same by hand."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    RBF,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    PosteriorDraws,
    StudentT,
    predict,
    whitened,
)
from pyro_dgp.mcmc.density import WhitenedDensity

pytestmark = pytest.mark.usefixtures("local")
ROWS, DRAWS, NOISE = 8, 2, 0.04


class Noisy(PyroModule):
    def __init__(self, likelihood):
        super().__init__()
        functions = 2 if isinstance(likelihood, HeteroscedasticGaussian) else 1
        self.lower = GaussianProcess(RBF(lengthscale=0.8), num_outputs=functions)
        self.upper, self.between, self.top = GaussianProcess(RBF()), likelihood, Gaussian(variance=NOISE)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.between(self.lower(x)))
        return pyro.sample("y", self.top(self.upper(h.unsqueeze(-1))), obs=y)


def regression(kernel, x, values, noise, x_new):
    """Mean and variance at new rows given values at rows, without noise of the new ones."""
    known = kernel.matrix(x[None])[0] + noise * torch.eye(len(x))
    cross = kernel.matrix(x[None], x_new[None])[0]
    weights = torch.linalg.solve(known, cross)
    return weights.mT @ values, (kernel.matrix(x_new[None])[0].diagonal()[:, None] - (cross * weights).sum(0)[:, None])


@torch.no_grad()
def by_hand(model, draws, x, y, x_new):
    """Means and variances of many values of y at new rows."""
    lower, upper, found = model.lower.kernel(), model.upper.kernel(), []
    for draw in range(DRAWS):
        h = draws["h"][draw]
        if "h_f_whitened" in draws:
            f = model.lower(x).unwhiten(draws["h_f_whitened"][draw])
            mean, variance = regression(lower, x, f, 1e-8, x_new)
        else:  # the noise is normal, and f is integrated out
            mean, variance = regression(lower, x, h.unsqueeze(-1), model.between.variance, x_new)
        for _ in range(400):
            values = mean + variance.clamp_min(0).sqrt() * torch.randn_like(mean)
            h_new = model.between(model.lower(x_new)).conditional.given(values).sample()
            top, spread = regression(upper, h.unsqueeze(-1), y.unsqueeze(-1), NOISE, h_new.unsqueeze(-1))
            found.append(torch.cat([top, spread + NOISE], -1))
    means, variances = torch.stack(found).unbind(-1)
    return means.mean(0), variances.mean(0) + means.var(0)


@pytest.mark.parametrize("likelihood", [StudentT, Gaussian, HeteroscedasticGaussian])
def test_the_next_layer_is_conditioned_at_the_values_of_the_draw(likelihood):
    """It was conditioned at values drawn anew from the prior: two predictions from the same draws had means of 0.4 and -0.3."""
    torch.manual_seed(0)
    x, x_new = torch.linspace(-1, 1, ROWS)[:, None], torch.tensor([[-0.9], [0.1], [0.7]])
    y = 2 * torch.sin(3 * x[:, 0])
    model = Noisy(likelihood())
    start = WhitenedDensity(whitened(model), (x, y), {}).start
    draws = {name: torch.randn(DRAWS, *value.shape) for name, value in start.items()}
    assert ("h_f_whitened" in draws) == (likelihood is not Gaussian) and "h" in draws
    draws["h"] = 2 * x[:, 0] + 0.3 * draws["h"]
    prediction = predict(PosteriorDraws(model, draws, (x, y)), x_new, site="y", num_samples=600)
    mean, variance = by_hand(model, draws, x, y, x_new)
    torch.testing.assert_close(prediction.mean, mean, rtol=0, atol=0.15)
    torch.testing.assert_close(prediction.variance, variance, rtol=0.3, atol=0.03)
