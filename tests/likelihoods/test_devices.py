"""Every likelihood trains and predicts on a device beside the processor."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingPoints,
    LinearCoregionalization,
    MonteCarlo,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    Variational,
    coverage,
    fit,
    predict,
)
from tests.virtual_device import virtual_device

#: By name: the likelihood, the number of its functions, targets, and whether these have quantiles.
CASES = {
    "gaussian": (Gaussian, 1, [0.5, 1.0, -1.0], True),
    "student": (StudentT, 1, [0.5, 1.0, -1.0], True),
    "heteroscedastic": (HeteroscedasticGaussian, 2, [0.5, 1.0, -1.0], True),
    "mixed outputs": (lambda: LinearCoregionalization(2, 2), 2, [[0.5, 1.0], [1.0, 0.0], [-1.0, 0.2]], True),
    "bernoulli": (Bernoulli, 1, [0.0, 1.0, 1.0], True),
    "ordinal": (lambda: Ordinal(3), 1, [0, 2, 1], False),
    "softmax": (lambda: Softmax(3), 3, [0, 2, 1], False),
    "robust max": (lambda: RobustMax(3), 3, [0, 2, 1], False),
    "poisson": (Poisson, 1, [0.0, 2.0, 1.0], True),
    "negative binomial": (NegativeBinomial, 1, [0.0, 2.0, 1.0], True),
}


class Deep(PyroModule):
    def __init__(self, likelihood, functions):
        super().__init__()
        self.hidden = GaussianProcess(RBF(), num_outputs=2)
        self.top = GaussianProcess(RBF(), num_outputs=functions)
        self.likelihood = likelihood

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


@pytest.mark.parametrize("name", CASES)
def test_a_likelihood_trains_and_predicts_on_another_device(name, monkeypatch):
    make, functions, targets, has_quantiles = CASES[name]
    with virtual_device(monkeypatch) as device:
        x, y = torch.randn(3, 2).to(device), torch.tensor(targets).to(device)
        model = Deep(make(), functions).to(device)
        guide = Variational(model, InducingPoints(2), MonteCarlo(3))
        guide.initialize(x, y)
        fit(ELBO(3)(model, guide), x, y, steps=2)
        prediction = predict(guide, x, 5)
        found = [prediction.log_prob(y), prediction.sample((4,))]
        found += [prediction.mean, prediction.quantile(0.5), prediction.cdf(y)] if has_quantiles else [prediction.probs]
        if has_quantiles and y.dim() == 1:
            found.append(coverage(prediction, y, [0.5, 0.9]))
        assert {each.device for each in found} == {device}
        assert all(bool(torch.isfinite(each.cpu()).all()) for each in found)
