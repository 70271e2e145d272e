"""The study beside the mean: its normal, its steps, and what its table marks."""

import math

import numpy as np
import pytest
import torch

from benchmarks.studies import beside_the_mean as study
from pyro_dgp import Dataset
from pyro_dgp.data.splitting import split
from pyro_dgp.zoo.methods import METHODS


def data(rows=60):
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    return Dataset("d", x, 100 + 7 * x[:, 0] + random.randn(rows))


def test_the_normal_is_that_of_the_training_targets():
    part = split(data(), 1, dtype=torch.float64)
    normal = torch.distributions.Normal(part.y_train.mean(), part.y_train.std(correction=0))
    assert study.of_mean(data(), 1) == pytest.approx(-float(normal.log_prob(part.y_test).mean()), rel=1e-9)


def test_methods_have_500_steps_or_few_more():
    assert {"svgp", "sgpr", "dspp", "avdgp-ar2pp", "vff-collapsed"} < set(study.NAMED) and not {
        "nuts",
        "sghmc",
        "exact-gp",
    } & set(study.NAMED)
    for name in ("svgp", "dspp", "aep"):
        settings = study.settings_of(name, 1200, number=0)
        rows = METHODS[name].inference.settled(settings).rows_of_step
        assert 500 <= settings.num_steps(1200, rows) < 500 + 1200 / rows + 1
    assert study.settings_of("vff-collapsed", 1200, number=0).epochs == 500


def test_a_run_is_beside_the_normal(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 3)
    row = study.run(data(200), "svgp", 1, seed=4)
    assert row["steps"] == 3 and row["seed"] == 4 and row["split"] == 1
    assert row["of_mean"] == study.of_mean(data(200), 1)


def test_the_worst_seed_stands_in_the_table():
    rows = [
        {"method": "dsvi", "dataset": "a", "seed": 0, "nll": 1.0, "of_mean": 1.5},
        {"method": "dsvi", "dataset": "a", "seed": 1, "nll": 1.7, "of_mean": 1.5},
        {"method": "svgp", "dataset": "a", "seed": 0, "nll": 1.0, "of_mean": 1.5},
        {"method": "aep", "dataset": "a", "seed": 0, "error": "it broke", "of_mean": 1.5},
    ]
    found = study.table(rows)
    assert list(found.index) == ["svgp", "dsvi", "aep"]
    assert found["a"].tolist() == pytest.approx([-0.5, 0.2, math.inf])
