"""Priors of hyperparameters that ``with_priors`` gives to a model in place."""

import pyro
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import RBF, DeepGP, Gaussian, GaussianProcess, MissingOutputs, with_priors


class TwoTasks(PyroModule):
    """One function of two targets, with a noise each under names of its own."""

    def __init__(self, first, second):
        super().__init__()
        self.gp, self.first, self.second = GaussianProcess(RBF(ard=1)), first, second

    def forward(self, x):
        pyro.sample("a", self.first(self.gp(x)))
        pyro.sample("b", self.second(self.gp(x)))


def priors_of(model, x):
    """The names of the parameters that have a prior, with the density of each at 0.2."""
    trace = pyro.poutine.trace(model).get_trace(x)
    names = [name for name in trace.stochastic_nodes if name.endswith(("variance", "lengthscale"))]
    return {
        name: float(trace.nodes[name]["fn"].log_prob(torch.full_like(trace.nodes[name]["value"], 0.2)))
        for name in names
    }


class OwnNoise(PyroModule):
    """A likelihood that is none of this library's."""

    def __init__(self):
        super().__init__()
        self.variance = PyroParam(torch.tensor(0.3, dtype=torch.float64), constraints.greater_than(1e-4))

    def forward(self, f):
        return pyro.distributions.Normal(f, self.variance.sqrt()).to_event(2)


class WithOwnNoise(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=1)), OwnNoise()

    def forward(self, x):
        return pyro.sample("y", self.likelihood(pyro.sample("f", self.gp(x))))


def test_a_likelihood_of_another_kind_is_found_by_its_name():
    x = torch.linspace(-1, 1, 5)[:, None]
    usual = priors_of(with_priors(DeepGP(x, layers=1)), x)["likelihood.variance"]
    found = priors_of(with_priors(WithOwnNoise()), x)
    assert set(found) == {"gp.kernel.variance", "gp.kernel.lengthscale", "likelihood.variance"}
    assert found["likelihood.variance"] == pytest.approx(usual)


def test_noises_of_any_name_have_the_prior_of_the_noise_of_a_deep_gp():
    x = torch.linspace(-1, 1, 5)[:, None]
    usual = priors_of(with_priors(DeepGP(x, layers=1)), x)["likelihood.variance"]
    found = priors_of(with_priors(TwoTasks(Gaussian(), MissingOutputs(Gaussian()))), x)
    noises = {name: density for name, density in found.items() if not name.startswith("gp.")}
    assert set(found) - set(noises) == {"gp.kernel.variance", "gp.kernel.lengthscale"}
    assert len(noises) == 2 and all(density == pytest.approx(usual) for density in noises.values())


class TwoNoises(PyroModule):
    """Two targets, whose noises are in a list."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second = GaussianProcess(RBF(ard=1)), GaussianProcess(RBF(ard=1))
        self.noises = kind([Gaussian(), Gaussian()])

    def forward(self, x):
        return [
            pyro.sample(name, noise(gp(x)))
            for name, noise, gp in zip("yz", self.noises, (self.first, self.second), strict=True)
        ]


def test_priors_that_would_have_one_name_are_refused_and_nothing_changes():
    model = TwoNoises(torch.nn.ModuleList)
    with pytest.raises(ValueError, match=r"two modules of the model have a parameter 'variance', .*PyroModule\[torch"):
        with_priors(model)
    assert len(list(model.parameters())) == 6
    sites = pyro.poutine.trace(with_priors(TwoNoises(PyroModule[torch.nn.ModuleList]))).get_trace(torch.zeros(3, 1))
    assert {"noises.0.variance", "noises.1.variance"} < set(sites.stochastic_nodes)
