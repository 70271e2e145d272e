"""A small simulation-based calibration; the full one is ``python -m benchmarks.studies.sampler_calibration``."""

import math

import pytest
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

from benchmarks.studies import sampler_calibration
from benchmarks.studies.sampler_calibration import TwoLayers, p_values, ranks
from pyro_dgp import EllipticalSlice, whitened
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.lines import Position

pytestmark = pytest.mark.usefixtures("local")

DRAWS = 9


def calibrate(kernel, simulations, shift=0.0, thin=1, warmup=8):
    """p values of uniform ranks, by quantity."""
    x = torch.linspace(-1, 1, 5)[:, None]
    model, data_model = TwoLayers(), TwoLayers(shift)
    rows = [
        ranks(model, data_model, kernel(model), x, draws=DRAWS, thin=thin, warmup=warmup, seed=seed)
        for seed in range(simulations)
    ]
    return p_values(rows, DRAWS, bins=5)


def test_ranks_are_uniform_under_elliptical_slices():
    p = calibrate(EllipticalSlice, 16)
    assert len(p) == 6 and "log likelihood" in p and "top.kernel.lengthscale" in p
    assert min(p.values()) > 0.005


def test_the_chain_does_not_start_at_the_truth(monkeypatch):
    """It would have uniform ranks then however badly it mixed."""
    starts = []

    def recorded(kernel, args, *, num_samples, warmup_steps, num_chains, seed):
        torch.manual_seed(seed)
        kernel.setup(warmup_steps, *args)
        starts.append(Position(kernel.initial_params, kernel.require_density().transforms).values)
        raise InterruptedError

    monkeypatch.setattr(sampler_calibration, "run_chains", recorded)
    x = torch.linspace(-1, 1, 5)[:, None]
    model, seed = TwoLayers(), 3
    with pytest.raises(InterruptedError):
        ranks(model, model, EllipticalSlice(model), x, draws=2, thin=1, warmup=0, seed=seed)
    torch.manual_seed(seed)
    truth, _, _ = sampler_calibration.simulate(model, x, x[:1])
    assert all((starts[0][name] - value).abs().min() > 1e-6 for name, value in truth.items())


def test_a_shifted_prior_is_found_out():
    p = calibrate(EllipticalSlice, 12, shift=2.0)
    assert min(p["hidden.kernel.lengthscale"], p["top.kernel.lengthscale"]) < 0.005


class FromPrior(MCMCKernel):
    """A sampler that has never seen the data."""

    def __init__(self, model):
        self.model = whitened(model)

    def setup(self, warmup_steps, *args, **kwargs):
        self.args, self.transforms = args, {}

    @property
    def initial_params(self):
        return WhitenedDensity(self.model, self.args, {}).start

    def sample(self, params):
        return self.initial_params

    def cleanup(self):
        del self.args

    def diagnostics(self):
        return {}


def test_a_sampler_that_returns_the_prior_is_found_out_by_the_joint_likelihood_alone():
    p = calibrate(FromPrior, 24, thin=1, warmup=0)
    assert p["log likelihood"] < 1e-4
    assert min(p["hidden.kernel.lengthscale"], p["likelihood.variance"]) > 0.005


def test_p_values_are_of_uniform_ranks():
    even = [{"a": rank} for rank in range(20)] * 3
    assert p_values(even, 19, bins=4)["a"] == pytest.approx(1.0)
    assert p_values([{"a": 3}] * 40, 19, bins=4)["a"] < 1e-10
    assert p_values([{"a": rank} for rank in range(101)] * 100, 100)["a"] == pytest.approx(
        1.0
    )  # one bin holds 11 ranks, the others 10
    assert math.isclose(p_values([{"a": 0}, {"a": 10}], 19, bins=2)["a"], 1.0)
