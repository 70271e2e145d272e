"""Arguments of a likelihood that a hidden layer makes, such as a log exposure, where the function itself lies above the inputs."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    ApproximateEP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MomentMatching,
    MonteCarlo,
    NegativeBinomial,
    Poisson,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WithMean,
    predict,
)

pytestmark = pytest.mark.usefixtures("local")

X = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
Y = torch.arange(9.0, dtype=torch.float64) % 4


class Counts(PyroModule):
    """Counts ``y_n ~ Poisson(exp(h_n) exp(f_n))``, each of h and f above the inputs."""

    def __init__(self, likelihood=None):
        super().__init__()
        self.first, self.gp = GaussianProcess(RBF(variance=1.5, ard=1)), GaussianProcess(RBF(variance=0.5, ard=1))
        self.likelihood = likelihood or Poisson()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.first(x))
        return pyro.sample("y", self.likelihood(self.gp(x), exposure=h[..., 0].exp()), obs=y)


class InGroups(Counts):
    """The same for two groups, each with an h and a function of its own."""

    def forward(self, x, y=None):
        with pyro.plate("groups", 2):
            return super().forward(x, y)


def guided(model, propagation, y=Y):
    guide = Variational(model, InducingPoints(6), propagation)
    guide.initialize(X, y)
    for name, parameter in guide.named_parameters():
        if "inducing_points" not in name and not name.startswith("propagation"):
            parameter.data.add_(0.2 * torch.arange(parameter.numel()).sin().reshape(parameter.shape))
    return guide


def closed_form(guide, y, *, share=1.0):
    """``sum_n E log Poisson(y_n; exp(h_n + f_n))`` under the guide, nats in total.

    :param share: share of the variance of h that is counted; none is what an argument at the mean of h would give.
    """
    h, f = (predict(guide, X, site=name) for name in ("h", "y/f"))
    rate = (h.mean + share * h.variance / 2 + f.mean + f.variance / 2).exp()
    return (y * (h.mean + f.mean) - rate - torch.lgamma(y + 1)).sum()


TWO = torch.stack([Y, Y.flip(0)])


@pytest.mark.parametrize(
    ("model", "y", "count"),
    [(Counts, Y, 1), (Counts, Y, 2), (Counts, Y, 9), (Counts, Y, 200), (InGroups, TWO, 1), (InGroups, TWO, 9)],
)
def test_the_likelihood_counts_once_however_many_components_its_argument_has(model, y, count):
    """As many components as rows among them."""
    guide = guided(model(), MonteCarlo(count), y)
    expected, loss = closed_form(guide, y), ELBO(len(X))
    with torch.no_grad():
        found = torch.stack(
            [loss.terms(guide.model, guide, X, y)["the likelihood at 'y'"] for _ in range(2000 // count)]
        )
    error = found.std() / len(found) ** 0.5
    assert abs(found.mean() - expected) < 4 * error
    assert 4 * error < 0.5 * abs(expected - closed_form(guide, y, share=0.0))


def test_gradients_reach_all_parameters():
    guide = guided(Counts(), MonteCarlo(3))
    objective = ELBO(len(X))(guide.model, guide)
    torch.manual_seed(1)
    objective(X, Y).backward()
    left = [name for name, each in guide.named_parameters() if each.grad is None or not each.grad.any()]
    assert not left and guide.model.first.kernel.variance_unconstrained.grad != 0


def test_a_propagation_that_carries_moments_is_refused():
    """It would take the exposure at the mean of h."""

    class Measured(Counts):
        def __init__(self):
            super().__init__()
            self.top, self.noise = GaussianProcess(RBF(ard=1)), Gaussian()

        def forward(self, x, y=None):
            h = pyro.sample("h", self.first(x))
            pyro.sample("z", self.noise(self.top(h)), obs=torch.zeros(len(x)))
            return pyro.sample("y", self.likelihood(self.gp(x), exposure=h[..., 0].exp()), obs=y)

    guide = Variational(Measured(), InducingPoints(6), MomentMatching())
    guide.initialize(X, Y)
    with pytest.raises(ValueError, match="'y'"):
        ELBO(len(X))(guide.model, guide)(X, Y)


@pytest.mark.parametrize("likelihood", [Poisson, NegativeBinomial])
@pytest.mark.parametrize("loss", [PredictiveLogLikelihood, ApproximateEP])
@pytest.mark.parametrize(
    "propagation", [lambda: MonteCarlo(40), lambda: SigmaPoints("qr3", 7), lambda: WithMean(MonteCarlo(40))]
)
def test_other_losses_and_propagations_do_not_count_components_either(likelihood, loss, propagation):
    """More components of the argument are no more rows: one draw has the larger loss, by Jensen's inequality, and no other."""
    means = []
    for made in (lambda: MonteCarlo(1), propagation):
        pyro.clear_param_store()
        torch.manual_seed(0)
        guide = guided(Counts(likelihood()), made())
        objective = loss(len(X))(guide.model, guide)
        with torch.no_grad():
            means.append(torch.stack([objective(X, Y) for _ in range(60)]).mean())
    one, many = means
    assert 0.7 * one < many < one


def test_predictions_average_over_the_argument():
    guide = guided(Counts(), MonteCarlo(5))
    h, f = (predict(guide, X, site=name) for name in ("h", "y/f"))
    prediction = predict(guide, X, num_samples=4_000)
    expected = (h.mean + h.variance / 2 + f.mean + f.variance / 2).exp()
    torch.testing.assert_close(prediction.mean, expected, rtol=0.2, atol=0)
    torch.testing.assert_close(prediction.sample((1_000,)).mean(0), expected, rtol=0.4, atol=0)
    assert (prediction.mean > 1.5 * (h.mean + f.mean + f.variance / 2).exp()).all()  # those at the mean of h


def test_a_parameter_of_the_component_without_weight_is_refused():
    guide = guided(Counts(), WithMean(MonteCarlo(5)))
    with pytest.raises(ValueError, match=r"likelihood of 'y' .* as 401 values beside 400 .* MonteCarlo\(100\)"):
        _ = predict(guide, X, num_samples=400).mean
    guide.propagation = MonteCarlo(100)
    assert predict(guide, X).mean.isfinite().all()
