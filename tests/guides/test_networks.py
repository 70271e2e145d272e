import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide.effect import AutoNormalMessenger
from pyro.nn import PyroModule

from pyro_dgp import ELBO, RBF, Gaussian, GaussianProcess, InducingPoints, MonteCarlo, Variational, predict
from tests.examples import Encoder, LatentInputs, regression

pytestmark = pytest.mark.usefixtures("local")


def a_guide(network, model=None, samples=1):
    return Variational(model or LatentInputs(), InducingPoints(4), MonteCarlo(samples), networks={"w": network})


class NeedsTarget(Encoder):
    def forward(self, x, y):
        return super().forward(x, y)


class LooksAtTarget(Encoder):
    def forward(self, x, y=None):
        return dist.Normal(self.layers(torch.stack([x[:, 0], y], -1))[:, 0], self.spread)


@pytest.mark.parametrize("network", [NeedsTarget, LooksAtTarget])
def test_a_network_that_needs_y_is_found_out_before_training(network):
    x, y = regression(6)
    with pytest.raises(ValueError, match="'w' fails without y, as predictions call it: give y a"):
        a_guide(network()).initialize(x, y)
    a_guide(Encoder()).initialize(x, y=y)


def test_a_model_s_own_arguments_are_not_taken_for_targets():
    class Timed(LatentInputs):
        def forward(self, x, t, y=None):
            return super().forward(x + t, y)

    class OfTime(Encoder):
        def forward(self, x, t, y=None):
            return super().forward(x + t, y)

    x, y = regression(6)
    for arguments in ({"t": torch.zeros(6, 1), "y": y}, {"y": y, "t": torch.zeros(6, 1)}):
        guide = a_guide(OfTime(), Timed())
        guide.initialize(x, **arguments)
        assert set(guide.structure.local) == {"w"}
    guide = a_guide(OfTime(), poutine.scale(Timed(), scale=1.0))
    guide.initialize(x=x, t=torch.zeros(6, 1), y=y)
    assert set(guide.structure.local) == {"w"} and guide.is_initialized


def test_a_guide_that_was_not_initialised_does_not_say_so():
    x, y = regression(6)
    guide = Variational(LatentInputs(), InducingPoints(3), MonteCarlo(1), networks={"v": Encoder()})
    with pytest.raises(ValueError, match="networks= names 'v'"):
        guide.initialize(x, y)
    assert not guide.is_initialized


def test_a_network_that_samples_its_own_site_is_told_to_return_the_distribution():
    class Samples(Encoder):
        def forward(self, x, y=None):
            return pyro.sample("w", dist.Normal(torch.zeros(len(x)), 1.0))

    x, y = regression(6)
    guide = a_guide(Samples())
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=r"the network of 'w' calls pyro.sample\('w', ...\) itself: let it return"):
        ELBO()(guide.model, guide)(x, y)


def test_one_posterior_for_all_rows_is_refused():
    class One(Encoder):
        def forward(self, x, y=None):
            return dist.Normal(torch.zeros(1), 1.0)

    x, y = regression(6)
    with pytest.raises(
        ValueError, match=r"of batch shape \(1,\) and the prior has \(6,\): return one of the prior's shape"
    ):
        a_guide(One()).initialize(x, y)


class Shift(PyroModule):
    """One shift for all rows."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian(variance=0.01)

    def forward(self, x, y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(a, 1.0))
        return pyro.sample("y", self.likelihood(self.gp(x + b)), obs=y)


class OfAll(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x, y=None):
        return dist.Normal(self.weight * x.mean(), 0.1)


def test_a_site_with_one_value_for_all_rows_may_have_a_network_and_is_charged_once():
    x, y = regression(12)
    model = Shift()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1), networks={"b": OfAll()})
    guide.initialize(x, y)
    torch.manual_seed(0)
    trace = guide.components(x, y).trace
    assert float(trace.nodes["b"]["fn"].loc.detach()) == pytest.approx(0.3 * float(x.mean()))
    losses = []
    for rows in (12, 24):  # the data's share doubles, the KL of b does not
        torch.manual_seed(0)
        losses.append(float(ELBO(rows)(model, guide)(x, y).detach()))
    torch.manual_seed(0)
    passed = guide.components(x, y)
    data = ELBO().observed(passed.trace.nodes["y"], passed)
    assert losses[1] - losses[0] == pytest.approx(-float(data.detach()))


@pytest.mark.slow
def test_predictions_with_a_network_of_all_rows_do_not_depend_on_their_order():
    x, y = regression(12)
    model = Shift()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1), networks={"b": OfAll()})
    guide.initialize(x, y)
    getattr(guide.processes, "y/f").q.targets.data.normal_()
    torch.manual_seed(0)
    forwards = predict(guide, x, num_hyperparameter_draws=200).mean
    torch.manual_seed(0)
    backwards = predict(guide, x.flip(0), num_hyperparameter_draws=200).mean.flip(0)
    torch.testing.assert_close(forwards, backwards)


class LooksAround(AutoNormalMessenger):
    """As Pyro documents it: a guide that looks at the arguments and at values upstream."""

    def get_posterior(self, name, prior):
        if name == "b":
            (x, *_), _ = self.args_kwargs
            return dist.Normal(self.upstream_value("a") + x.mean(), 0.1)
        return super().get_posterior(name, prior)


def test_a_messenger_guide_looks_at_the_arguments_and_upstream_from_the_start():
    x, y = regression(12)
    model = Shift()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1), latents=LooksAround(model))
    guide.initialize(x, y)
    trace = guide.components(x, y).trace
    expected = trace.nodes["a"]["value"].detach() + x.mean()
    torch.testing.assert_close(trace.nodes["b"]["fn"].loc.detach(), expected)
    assert not hasattr(guide.latents, "args_kwargs")  # data are not kept


def test_rows_of_inputs_without_columns_are_rows():
    class Flat(LatentInputs):
        def forward(self, x, y=None):
            return super().forward(x[:, None], y)

    class OfFlat(Encoder):
        def forward(self, x, y=None):
            return super().forward(x[:, None], y)

    x, y = regression(8)
    guide = a_guide(OfFlat(), Flat())
    guide.initialize(x[:, 0], y)
    assert set(guide.structure.local) == {"w"}


def test_a_vector_of_another_length_is_no_row_of_data():
    class Weighted(Shift):
        def forward(self, x, w, y=None):
            with pyro.plate("weights", len(w)):
                c = pyro.sample("c", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(x + (c * w).sum(-1))), obs=y)

    x, y = regression(8)
    for arguments in ({"x": x, "w": torch.ones(3), "y": y}, {"w": torch.ones(3), "x": x, "y": y}):
        guide = Variational(Weighted(), InducingPoints(4), MonteCarlo(1))
        guide.initialize(**arguments)
        assert not guide.structure.local


def test_a_prediction_draws_the_latents_of_a_row_for_each_component():
    x, y = regression(8)
    guide = a_guide(Encoder(), samples=3)
    guide.initialize(x, y)
    getattr(guide.processes, "y/f").q.mean.data.normal_()
    means = predict(guide, x, num_samples=40).mixture().components.mean
    assert means.shape == (40, 8)
    assert len(means[:, 0].unique()) == 40
    shared = predict(guide, x, num_samples=40, num_hyperparameter_draws=8).mixture().components.mean
    assert len(shared[:, 0].unique()) == 8
