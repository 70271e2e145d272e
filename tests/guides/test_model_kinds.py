"""The state of a guide goes into a guide of the same kind of model, and no other."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    RBF,
    ActiveDims,
    ArcCosine,
    Bernoulli,
    FunctionMean,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern32,
    Variational,
    predict,
)


class Own(RBF):
    """A kernel of a user's own."""


class Renamed(RBF):
    """The same under another name."""


class Layer(PyroModule):
    """One layer of given parts."""

    def __init__(self, kernel, likelihood, mean=None):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(kernel, mean=mean), likelihood

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def fitted(*parts):
    guide = Variational(Layer(*parts), InducingPoints(4))
    guide.initialize(torch.linspace(-1, 1, 8)[:, None], torch.tensor([0.0, 1.0] * 4))
    return guide


def loaded(guide, *parts):
    other = Variational(Layer(*parts), InducingPoints(4))
    other.load_state_dict(guide.state_dict())
    return other


@pytest.mark.parametrize(
    ("saved", "other", "said"),
    [
        (lambda: (RBF(), Gaussian()), lambda: (Matern32(), Gaussian()), r"RBF\(\) at 'gp.kernel', .* has Matern32"),
        (lambda: (RBF() + RBF(), Gaussian()), lambda: (RBF() * RBF(), Gaussian()), r"Sum\(\) at .* has Product"),
        (
            lambda: (ActiveDims(RBF(), [0]), Gaussian()),
            lambda: (ActiveDims(RBF(), [-1]), Gaussian()),
            r"ActiveDims\(dims=\(0,\)\) at 'gp.kernel', .* has ActiveDims\(dims=\(-1,\)\)",
        ),
        (lambda: (ArcCosine(order=0), Gaussian()), lambda: (ArcCosine(order=1), Gaussian()), r"\(order=0\) .*order=1"),
        (
            lambda: (RBF(), Bernoulli("logit")),
            lambda: (RBF(), Bernoulli()),
            r".*link='logit'\) at 'likelihood', .*probit",
        ),
        (
            lambda: (RBF(), Gaussian(), FunctionMean(torch.sin)),
            lambda: (RBF(), Gaussian()),
            r"FunctionMean.* at 'gp.mean'",
        ),
    ],
)
def test_the_state_of_another_kind_of_model_is_refused(saved, other, said):
    with pytest.raises(ValueError, match=f"the state is that of a model with .*{said}.*: build the model as it was"):
        loaded(fitted(*saved()), *other())


@pytest.mark.parametrize("other", [Own, Renamed])
def test_a_kernel_of_a_user_s_own_may_change_its_name(other):
    guide, x = fitted(Own(), Gaussian()), torch.zeros(1, 1)
    torch.testing.assert_close(predict(loaded(guide, other(), Gaussian()), x).mean, predict(guide, x).mean)


def test_a_state_without_kinds_is_loaded():
    guide, x = fitted(RBF(), Gaussian()), torch.zeros(1, 1)
    state = guide.state_dict()
    del state["_extra_state"]["kinds"]
    other = Variational(Layer(RBF(), Gaussian()), InducingPoints(4))
    other.load_state_dict(state)
    torch.testing.assert_close(predict(other, x).mean, predict(guide, x).mean)
