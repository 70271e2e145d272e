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


def test_four_greedy_choices_share_out_the_draws():
    values = torch.tensor([[0.0, 5.0, 5.0, 5.0, 1.0], [5.0, 0.0, 5.0, 5.0, 1.0], [5.0, 5.0, 0.0, 5.0, 1.0]])
    assert study.greedy(values, torch.tensor(3.0)).tolist()[0] == 4  # good in every draw
    assert sorted(study.greedy(values, torch.tensor(3.0)).tolist()[1:]) == [0, 1, 2]


def test_draws_of_gpytorch_between_candidates_pass_through_the_data():
    x = torch.rand(8, 2)
    y = study.branin(x)
    y = (y - y.mean()) / y.std()
    draws = study.gpytorch_functions(x, y, 3)
    torch.testing.assert_close(draws(x), y.expand(3, -1), atol=0.15, rtol=0.0)
    assert draws(torch.rand(3, 5, 2)).shape == (3, 3, 5)


def test_the_table_has_medians_and_quartiles(capsys):
    rows = [
        {"experiment": "branin", "method": "random", "seed": n, "regrets": [9.0, float(n**2)], "seconds": 1.0}
        for n in range(5)
    ]
    study.print_table(rows)
    assert "| branin | random | 5 | 4.000 | 1.000 | 9.000 | 1 |" in capsys.readouterr().out
