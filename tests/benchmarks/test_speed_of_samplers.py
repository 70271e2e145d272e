"""Densities and gradients are timed as they are and compiled."""

import torch

from benchmarks.studies import speed_of_samplers
from pyro_dgp import CompiledDensity


def test_densities_and_gradients_are_timed(local, monkeypatch):
    monkeypatch.setattr(CompiledDensity, "backend", "eager")
    of = speed_of_samplers.densities(rows=10)
    start = of["as it is"].unconstrained_start()
    of["compiled"].start = of["as it is"].start
    for step in (speed_of_samplers.density_step, speed_of_samplers.gradient_step):
        steps = {name: step(density, start) for name, density in of.items()}
        plain, compiled, ratio, spent = speed_of_samplers.measure(steps, repeats=2)
        assert ratio == plain / compiled and min(plain, compiled, spent) > 0
    values = [float(density.evaluate(density.start).log_likelihood) for density in of.values()]
    torch.testing.assert_close(values[0], values[1])
