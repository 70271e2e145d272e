import logging
import pickle

import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import (
    Bernoulli,
    CompiledDensity,
    EllipticalSlice,
    WhitenedNUTS,
    inducing_inputs,
    run_chains,
    whitened,
)
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity
from tests.examples import OneLayer, Recorded, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


def with_priors(x, likelihood=None):
    model = TwoLayers(x, likelihood=likelihood)
    model.hidden.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5).expand([1]).to_event(1))
    model.top.kernel.variance = PyroSample(dist.LogNormal(0.0, 0.5))
    return model.requires_grad_(False)


def gradients(density, params):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    energy = density.potential(leaves)
    return energy.detach(), *torch.autograd.grad(3 * energy, list(leaves.values()))


@pytest.mark.parametrize("likelihood", [None, Bernoulli])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_recorded_model_has_the_numbers_of_the_model(likelihood, sparse, caplog):
    x, y = regression(9)
    model = with_priors(x, likelihood and likelihood())
    y = y if likelihood is None else (y > 0).to(y)
    inducing = inducing_inputs(model, x, y, num_inducing=4) if sparse else None
    caplog.clear()
    compiled, reference = (
        Recorded(whitened(model, inducing), (x, y), {}),
        WhitenedDensity(whitened(model, inducing), (x, y), {}),
    )
    start = reference.unconstrained_start()
    for move in (0.0, 0.3, -0.5):
        params = {name: value + move for name, value in start.items()}
        torch.testing.assert_close(gradients(compiled, params), gradients(reference, params), rtol=1e-6, atol=1e-7)
        values = {k: reference.transforms[k](v) if k in reference.transforms else v for k, v in params.items()}
        found, expected = compiled.evaluate(values), reference.evaluate(values)
        assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-8)
        assert found.log_priors == pytest.approx(expected.log_priors, rel=1e-8)
    assert "not compiled" not in caplog.text


def test_the_compiler_s_program_drives_both_samplers(caplog):
    """Once through the real compiler: chains from it begin as those of the model do."""
    x, y = regression(6)
    model = OneLayer()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    model.requires_grad_(False)
    fixed = {"step_size": 0.2}
    for make in (EllipticalSlice, lambda model, **options: WhitenedNUTS(model, max_tree_depth=2, **options, **fixed)):
        first, other = (
            run_chains(make(model, **o), (x, y), num_samples=3, warmup_steps=0, num_chains=1)
            for o in ({}, {"density": CompiledDensity})
        )
        for name, values in first.draws.items():
            torch.testing.assert_close(other.draws[name], values, rtol=1e-6, atol=1e-8)
            assert len(values.unique()) == 3
    assert "not compiled" not in caplog.text


def test_where_a_factor_needs_more_jitter_the_model_runs_as_it_is(monkeypatch):
    x, y = torch.linspace(-1, 1, 300)[:, None].float(), torch.ones(300).float()
    model = OneLayer(likelihood=Bernoulli()).requires_grad_(False).float()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(torch.zeros(()).float(), torch.ones(()).float()))
    density = Recorded(whitened(model), (x, y), {})
    runs = []
    original = WhitenedDensity.evaluate

    def counted(self, *arguments):
        runs.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(WhitenedDensity, "evaluate", counted)
    for lengthscale, as_it_is in ((0.004, 0), (30.0, 1)):
        runs.clear()
        values = density.start | {"gp.kernel.lengthscale": torch.tensor(lengthscale).float()}
        found = density.evaluate(values)
        assert len(runs) == as_it_is
        expected = original(density, values)
        assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-5)
        assert abs(found.log_likelihood) < 1e4


def test_where_there_is_no_factor_it_says_what_the_model_says():
    x, y = regression(6)
    model = with_priors(x)
    density = Recorded(whitened(model), (x, y), {})
    broken = density.unconstrained_start() | {"h_whitened": torch.full((6, 2), float("nan"))}
    with pytest.raises(NotPositiveDefiniteError, match="hold NaN"):
        density.potential(broken)
    values = density.start | {"h_whitened": broken["h_whitened"]}
    assert density.evaluate(values).log_likelihood == -float("inf")


class LooksAtNumbers(OneLayer):
    def forward(self, x, y=None):
        if self.gp.kernel.lengthscale > 1:
            x = 2 * x
        return super().forward(x, y)


def test_values_of_infinite_density_are_impossible():
    """A Gamma density of shape below 1 is infinite at 0: a slice would never leave it."""
    x, y = regression(6)
    model = OneLayer()
    model.gp.kernel.variance = PyroSample(dist.Gamma(0.5, 1.0))
    density = Recorded(whitened(model.requires_grad_(False)), (x, y), {})
    assert density.evaluate(density.start).log_likelihood > -float("inf")
    for kind in (density, WhitenedDensity(whitened(model), (x, y), {})):
        assert kind.evaluate({"gp.kernel.variance": torch.zeros(())}).log_density == -float("inf")


def test_what_cannot_be_recorded_runs_as_it_is_and_a_word_is_said(caplog):
    x, y = regression(6)
    model = LooksAtNumbers()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    model.requires_grad_(False)
    density = Recorded(whitened(model), (x, y), {})
    for value in (0.5, 1.5):
        values = {"gp.kernel.lengthscale": torch.tensor(value)}
        expected = WhitenedDensity.evaluate(density, values)
        assert density.evaluate(values).log_likelihood == pytest.approx(expected.log_likelihood)
    (record,) = [
        record for record in caplog.records if record.levelno == logging.WARNING and "compiled" in record.message
    ]
    assert record.message.startswith("the density is not compiled, the model runs as it is: ")


class Freezes(OneLayer):
    def forward(self, x, y=None):
        return super().forward(x * float(self.gp.kernel.lengthscale.detach().numpy()), y)


def test_numbers_that_would_be_frozen_have_no_program(caplog):
    x, y = regression(6)
    model = Freezes()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    density = Recorded(whitened(model.requires_grad_(False)), (x, y), {})
    for value in (0.5, 1.7, 3.0):
        values = {"gp.kernel.lengthscale": torch.tensor(value)}
        expected = WhitenedDensity.evaluate(density, values)
        assert density.evaluate(values).log_likelihood == pytest.approx(expected.log_likelihood)
    assert (
        "the density is not compiled, the model runs as it is: a part of it gives values to Python or NumPy"
        in caplog.text
    )


def test_values_go_by_name_not_by_place():
    x, y = regression(6)
    density = Recorded(whitened(with_priors(x)), (x, y), {})
    params = density.unconstrained_start()
    turned = dict(reversed(list(params.items())))
    assert float(density.potential(params)) == float(density.potential(turned))
    values = dict(reversed(list(density.start.items())))
    assert density.evaluate(density.start).log_density == density.evaluate(values).log_density


def test_nothing_is_compiled_for_starts_that_are_refused(caplog):
    x, y = regression(6)
    with pytest.raises(ValueError, match="none of 100 prior draws"):
        WhitenedNUTS(with_priors(x), density=Recorded).setup(1, x, y * float("inf"))
    assert "compiled" not in caplog.text


def test_a_program_with_other_numbers_is_refused(caplog):
    class Wrong(CompiledDensity):
        @staticmethod
        def backend(graph, inputs):
            return lambda *values: tuple(r + 1 if r.is_floating_point() else r for r in graph(*values))

    x, y = regression(6)
    model = with_priors(x)
    density = Wrong(whitened(model), (x, y), {})
    params = density.unconstrained_start()
    assert float(density.potential(params)) == pytest.approx(float(WhitenedDensity.potential(density, params)))
    assert "the gradient is not compiled, the model runs as it is: the program gives other numbers" in caplog.text


def test_it_pickles_without_its_programs():
    x, y = regression(6)
    density = Recorded(whitened(with_priors(x)), (x, y), {})
    params = density.unconstrained_start()
    energy = float(density.potential(params))
    copy = pickle.loads(pickle.dumps(density))
    assert density._programs and not copy._programs
    assert float(copy.potential(params)) == pytest.approx(energy)
