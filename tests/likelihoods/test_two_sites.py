"""Targets of likelihoods that are given function values, at a site of their own."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    GaussianProcess,
    InducingPoints,
    MissingOutputs,
    MonteCarlo,
    NegativeBinomial,
    Ordinal,
    Poisson,
    PredictiveLogLikelihood,
    RobustMax,
    Softmax,
    Variational,
    predict,
    reliability,
    scores,
)

pytestmark = pytest.mark.usefixtures("local")

WRONG = {
    "classes of -1 and 1": (Bernoulli, 1, [-1.0, 1.0], "0 and 1"),
    "classes of 1 and 2": (Bernoulli, 1, [1.0, 2.0], "0 and 1"),
    "halves of classes": (lambda: Softmax(3), 3, [0.5, 1.5], "0, ..., 2"),
    "a class too many": (lambda: Softmax(3), 3, [2.0, 3.0], "0, ..., 2"),
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


def test_steps_of_drawn_function_values_are_refused_where_they_are_the_library_s():
    """No gradient reaches the functions, so that a fit would stay where it begins."""
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.tensor([0.0, 1.0, 2.0, 1.0]).repeat(2)
    for likelihood in (RobustMax(3), MissingOutputs(RobustMax(3))):
        guide = Variational(TwoSites(likelihood, 3), InducingPoints(4), MonteCarlo(2))
        with pytest.raises(ValueError, match=r"likelihood at 'y' has no gradient .*likelihood\(gp\(x\)\), obs=y\)"):
            guide.initialize(x, y)
    with pytest.raises(ValueError, match="0, ..., 2"):
        RobustMax(3).given(torch.zeros(8, 3)).log_prob(y + 1)


@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
@pytest.mark.parametrize("samples", [1, 3])
def test_steps_of_one_s_own_are_refused_by_losses(loss, samples):
    class Steps(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Bernoulli(torch.where(f[..., 0] > 0, 0.9, 0.1)).to_event(1), obs=y)

    class Smooth(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Bernoulli(logits=f[..., 0]).to_event(1), obs=y)

    x, y = torch.linspace(-1, 1, 8)[:, None], torch.tensor([0.0, 1.0]).repeat(4)
    for model in (Steps(Bernoulli(), 1), Smooth(Bernoulli(), 1)):
        guide = Variational(model, InducingPoints(4), MonteCarlo(samples))
        guide.initialize(x, y)
        objective = loss(8)(model, guide)
        with torch.no_grad():
            assert torch.isfinite(objective(x, y))
        if isinstance(model, Smooth):
            objective(x, y).backward()
            continue
        with pytest.raises(
            ValueError, match="site 'y' has no gradient in the function values that the model draws at 'f'"
        ):
            objective(x, y)
