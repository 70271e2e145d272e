"""Steps of amortised guides are timed beside straight-line torch, which computes the same objective."""

import math

import pytest
import torch

from benchmarks.studies import speed_of_amortized_guides as speed
from pyro_dgp import ELBO, CompiledObjective, SigmaPoints, Variational, WithMean


@pytest.mark.parametrize("per_output", [False, True])
def test_the_floor_of_amortised_steps_computes_the_same_objective(per_output, local):
    x, y = torch.randn(speed.ROWS, 8), torch.randn(speed.ROWS)
    model = speed.model(per_output)
    guide = Variational(model, speed.families(), WithMean(SigmaPoints("qr3", speed.SAMPLES)))
    guide.initialize(x, y)
    floor = speed.StraightLine(per_output)
    kernels = [*(layer.kernel for layer in model.hidden), model.top.kernel]
    for layer, process, kernel in zip(floor.layers, guide.processes._modules.values(), kernels, strict=True):
        functions = process.functions
        kernel.lengthscale = torch.full_like(kernel.lengthscale, 1.3)
        layer.log_lengthscale.data.fill_(math.log(1.3))
        layer.weight.data.copy_(functions.weight)
        layer.bias.data.copy_(functions.bias)
        for number, network in enumerate((functions.means, functions.scales)):
            network.coefficients.data.add_(0.1 * torch.randn(len(network.coefficients)))
            for k, (weight, bias) in enumerate(network.layers(network.coefficients)):
                layer.networks[3 * number + k].data.copy_(weight)
                layer.shifts[3 * number + k].data.copy_(bias)
    for position, site in zip(floor.positions, ("h1", "h2"), strict=True):
        position.data.copy_(guide.propagation.propagation.positions(site).unsqueeze(1))
    model.likelihood.variance = torch.tensor(0.3)
    floor.log_noise.data.copy_(torch.tensor(0.3 - 1e-4).log())
    ours = ELBO(len(x))(model, guide)(x[:50], y[:50])
    torch.testing.assert_close(ours, floor(x[:50], y[:50]), rtol=1e-5, atol=0)


def test_the_speed_of_amortised_steps_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "ROWS", 200)
    monkeypatch.setattr(CompiledObjective, "backend", "eager")
    row = speed.measure(per_output=False, batch=100, dtype="float64", repeats=1, compiled=True)
    assert min(row[f"{name}seconds_per_step"] for name in ("", "floor_", "dspp_", "compiled_")) > 0
    assert row["ratio_to_compiled"] > 0
