"""Bayesian optimisation by drawn functions runs at toy size, and its test functions have the minima that are published."""

import pytest
import torch

from benchmarks.studies import bayesian_optimization as study


def test_minima_are_those_of_the_literature():
    branin = torch.tensor([[(-3.14159265 + 5) / 15, 12.275 / 15], [(3.14159265 + 5) / 15, 2.275 / 15]])
    assert study.branin(branin).tolist() == pytest.approx([0.397887] * 2, abs=1e-5)
    hartmann = torch.tensor([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]])
    assert study.hartmann6(hartmann).item() == pytest.approx(-3.32237, abs=1e-4)


@pytest.mark.parametrize("method", ["random", *study.METHODS])
def test_a_run_improves(method, monkeypatch):
    for name, value in {"ROUNDS": 1, "STEPS": 5, "DEEP_STEPS": 5, "CLIMBS": 3}.items():
        monkeypatch.setattr(study, name, value)
    row = study.run("branin", method, 0)
    assert len(row["regrets"]) == 2 and row["regrets"][1] <= row["regrets"][0] and row["regrets"][1] >= 0
