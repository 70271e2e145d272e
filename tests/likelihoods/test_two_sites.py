"""Targets of likelihoods that are given function values, at a site of their own."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Variational,
    predict,
    reliability,
    scores,
)

pytestmark = pytest.mark.usefixtures("local")

WRONG = {
    "classes of -1 and 1": (Bernoulli, 1, [-1.0, 1.0], "0 and 1"),
    "classes of 1 and 2": (Bernoulli, 1, [1.0, 2.0], "0 and 1"),
    "halves of classes": (lambda: RobustMax(3), 3, [0.5, 1.5], "0, ..., 2"),
    "a class too many": (lambda: RobustMax(3), 3, [2.0, 3.0], "0, ..., 2"),
    "a rank below the first": (lambda: Ordinal(3), 1, [-1.0, 0.0], "0, ..., 2"),
    "halves of counts": (Poisson, 1, [0.5, 2.5], "0, 1, 2, ..."),
    "negative counts": (NegativeBinomial, 1, [-1.0, 3.0], "0, 1, 2, ..."),
}


class TwoSites(PyroModule):
    def __init__(self, likelihood, functions):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(), num_outputs=functions), likelihood

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.likelihood.given(f), obs=y)


@pytest.mark.parametrize("case", WRONG)
def test_targets_that_a_likelihood_cannot_have_produced_are_refused(case):
    kind, functions, values, said = WRONG[case]
    x = torch.linspace(-1, 1, 8)[:, None]
    y, right = torch.tensor(values).repeat(4), torch.tensor([0.0, 1.0]).repeat(4)
    guide = Variational(TwoSites(kind(), functions), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, right)
    loss = ELBO(8)(guide.model, guide)
    assert torch.isfinite(loss(x, right))
    with pytest.raises(ValueError, match=said):
        loss(x, y)
    with pytest.raises(ValueError, match=said):
        kind().given(torch.zeros(8, functions)).log_prob(y)


def test_predictions_refuse_such_targets_too():
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.tensor([0.0, 1.0]).repeat(4)

    class OneSite(TwoSites):
        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)

    guide = Variational(OneSite(Bernoulli(), 1), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    prediction = predict(guide, x)
    for wrong in (2 * y - 1, y + 1, 0.5 * y):
        for score in (prediction.log_prob, lambda y: scores(prediction, y), lambda y: reliability(prediction, y)):
            with pytest.raises(ValueError, match="0 and 1"):
                score(wrong)
    for same in (y.long(), y.bool()):
        torch.testing.assert_close(prediction.log_prob(same), prediction.log_prob(y))
        assert scores(prediction, same) == scores(prediction, y)
        torch.testing.assert_close(
            Bernoulli().given(torch.ones(8, 1)).log_prob(same), Bernoulli().given(torch.ones(8, 1)).log_prob(y)
        )
