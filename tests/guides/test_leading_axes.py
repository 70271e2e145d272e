"""Models whose operations count axes from the front: another model inside a guide, in the same shape."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.nn import PyroModule

from pyro_dgp import (
    RBF,
    Bernoulli,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Likelihood,
    MonteCarlo,
    SigmaPoints,
    Variational,
    predict,
    run_chains,
    whitened,
)
from pyro_dgp.likelihoods import Conditional, RowObservation

X = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
CLASSES = (1.49 * (1 + torch.sin(5 * X[:, 0]))).long()
MESSAGE = "count axes from the end"


class Function(PyroModule):
    """Values of a GP with three outputs, observed through a function of them."""

    def __init__(self, between):
        super().__init__()
        self.gp, self.between = GaussianProcess(RBF(), num_outputs=3), between

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Categorical(logits=self.between(f)).to_event(1), obs=y)


class Hidden(PyroModule):
    """A hidden layer, a function of it, and a GP on top."""

    def __init__(self, between, likelihood=None):
        super().__init__()
        self.h, self.top = GaussianProcess(RBF(), num_outputs=3), GaussianProcess(RBF())
        self.likelihood, self.between = likelihood or Gaussian(), between

    def forward(self, x, y=None):
        h = pyro.sample("h", self.h(x))
        return pyro.sample("y", self.likelihood(self.top(self.between(h))), obs=y)


def initialised(model, y, propagation=None):
    guide = Variational(model, InducingPoints(5), propagation or MonteCarlo(3))
    guide.initialize(X, y)
    return guide


FROM_THE_FRONT = {
    "softmax": lambda f: torch.softmax(f, 1),
    "log_softmax over rows": lambda f: f.log_softmax(0),
    "normalize": lambda f: F.normalize(f),
    "flip": lambda f: f.flip(1),
    "sort": lambda f: f.sort(1).values,
    "mean of outputs": lambda f: f - f.mean(1, keepdim=True),
    "cumsum": lambda f: f.cumsum(1),
    "mean of rows": lambda f: f - f.mean(0),
}
FROM_THE_END = {
    "softmax": lambda f: torch.softmax(f, -1),
    "normalize": lambda f: F.normalize(f, dim=-1),
    "flip": lambda f: f.flip(-1),
    "mean of rows": lambda f: f - f.mean(-2, keepdim=True),
    "times the first": lambda f: f * f[..., :1],
    "network": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double(),
}


@pytest.mark.parametrize("name", FROM_THE_FRONT)
def test_axes_from_the_front_are_refused(name):
    with pytest.raises(ValueError, match=rf"site 'y' the model makes other numbers.*{MESSAGE}"):
        initialised(Function(FROM_THE_FRONT[name]), CLASSES)
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=MESSAGE):
        initialised(Hidden(FROM_THE_FRONT[name]), X[:, 0])


@pytest.mark.parametrize("name", FROM_THE_END)
def test_axes_from_the_end_are_taken(name):
    assert initialised(Function(FROM_THE_END[name]), CLASSES).hidden == ["f"]
    pyro.clear_param_store()
    assert initialised(Hidden(FROM_THE_END[name]), X[:, 0]).hidden == ["h"]


def test_other_propagations_are_asked_too():
    with pytest.raises(ValueError, match=MESSAGE):
        initialised(Hidden(F.normalize), X[:, 0], SigmaPoints("qr3", 4))


def test_a_latent_site_between_layers_is_carried():
    """A noise scale from a hidden layer has components where the layer has them."""

    def noisy(axis):
        def model(x, y=None):
            h = pyro.sample("h", gp(x))
            z = pyro.sample("z", dist.Normal(h.softmax(axis)[..., 0], 1.0).to_event(1))
            return pyro.sample("y", dist.Normal(z, 0.1).to_event(1), obs=y)

        gp = GaussianProcess(RBF(), num_outputs=3)
        return model

    Variational(noisy(-1), InducingPoints(5), MonteCarlo(3)).initialize(X, X[:, 0])
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=rf"site 'z'.*{MESSAGE}"):
        Variational(noisy(1), InducingPoints(5), MonteCarlo(3)).initialize(X, X[:, 0])


def test_a_deterministic_site_is_looked_at():
    def model(x, y=None):
        h = pyro.sample("h", gp(x))
        pyro.deterministic("share", h.softmax(1))
        return pyro.sample("y", dist.Normal(h[..., 0], 0.1).to_event(1), obs=y)

    gp = GaussianProcess(RBF(), num_outputs=3)
    with pytest.raises(ValueError, match=rf"site 'share'.*{MESSAGE}"):
        Variational(model, InducingPoints(5), MonteCarlo(3)).initialize(X, X[:, 0])


class Shares(Conditional):
    """Classes by a softmax along an axis."""

    def __init__(self, axis):
        self.axis = axis

    def given(self, f):
        return RowObservation(dist.Categorical(probs=torch.softmax(f, self.axis)), 1)


class OwnClasses(Likelihood):
    """A user's own likelihood of classes."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def conditional(self):
        return Shares(self.axis)

    def target_outputs(self, outputs):
        return 1


def test_an_own_likelihood_is_asked_at_stacked_values():
    y = (X[:, 0] > 0).to(X)
    initialised(DeepGP(X, layers=1, likelihood=OwnClasses(-1), outputs=2), y)
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=MESSAGE):
        initialised(DeepGP(X, layers=1, likelihood=OwnClasses(1), outputs=2), y)


class Dropped(Hidden):
    """A model with dropout, which is out of action while axes are looked at."""

    def __init__(self, between):
        dropout = torch.nn.Dropout(0.5)
        super().__init__(lambda h: between(dropout(h)))
        self.dropout = dropout


def test_dropout_hides_no_axis():
    model = Dropped(torch.tanh)
    initialised(model, X[:, 0])
    assert model.dropout.training
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=MESSAGE):
        initialised(Dropped(F.normalize), X[:, 0])


def test_a_model_that_is_random_itself_is_refused_for_that():
    with pytest.raises(ValueError, match="the model draws at random beyond its sites"):
        initialised(Hidden(lambda h: F.normalize(F.dropout(h, 0.5))), X[:, 0])


def test_batch_norm_of_a_hidden_layer_is_explained():
    guide = initialised(Hidden(torch.nn.BatchNorm1d(3).double()), X[:, 0])
    with pytest.raises(ValueError, match="LayerNorm for BatchNorm1d"):
        guide.components(X, X[:, 0])


def test_random_numbers_go_on_as_before():
    torch.manual_seed(3)
    initialised(Hidden(torch.tanh, Bernoulli()), (X[:, 0] > 0).to(X))
    first = torch.rand(())
    torch.manual_seed(3)
    pyro.clear_param_store()
    initialised(Hidden(torch.sin, Bernoulli()), (X[:, 0] > 0).to(X))
    assert torch.rand(()) == first


def test_an_own_likelihood_is_asked_before_draws_predict_by_it():
    """Samplers run a model as it is; the integrals of a prediction have nodes in front."""
    y = (X[:, 0] > 0).to(X)
    for axis, refused in ((-1, False), (1, True)):
        model = DeepGP(X, layers=1, likelihood=OwnClasses(axis), outputs=2)
        whole = whitened(model)
        chains = run_chains(EllipticalSlice(whole), (X, y), num_samples=2, warmup_steps=1, num_chains=1, processes=1)
        if refused:
            with pytest.raises(ValueError, match=MESSAGE):
                predict(chains, X)
        else:
            assert predict(chains, X).probs.shape == (12, 2)
