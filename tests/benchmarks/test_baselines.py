"""The baselines find a function and its noise, and are swept as named methods are."""

import numpy as np
import pytest

from benchmarks.common.baselines import BASELINES
from pyro_dgp import Settings, sweep
from pyro_dgp.data.dataset import Dataset

NOISE = 0.3


def heteroscedastic(rows=1500):
    """A sine with noise that is six times larger on the right; in units of the targets, which have a standard deviation near 1."""
    random = np.random.RandomState(0)
    x = random.uniform(-2, 2, (rows, 2))
    sd = np.where(x[:, 0] > 0, NOISE, NOISE / 6)
    return Dataset("sine", x, 1.4 * np.sin(2 * x[:, 0]) + sd * random.randn(rows)), sd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "above"), [("ensemble", 0.3), ("mean-field-network", 0.8), ("quantile-boosting", 0.6)]
)
def test_it_comes_near_the_true_density(name, above):
    data, sd = heteroscedastic()
    (row,) = sweep([data], [(name, BASELINES[name])], settings=Settings(epochs=100))
    scale = data.y.std()
    floor = np.mean(np.log(sd / scale)) + 0.5 * np.log(2 * np.pi * np.e)
    assert floor - 0.1 < row["nll"] < floor + above
    assert row["rmse"] < 1.25 * np.sqrt(np.mean(sd**2)) / scale
    assert row["n_train"] == 1350


def test_they_are_swept_beside_a_method(tmp_path):
    data, _ = heteroscedastic(60)
    methods = ["svgp", *BASELINES.items()]
    rows = sweep([data], methods, settings=Settings(epochs=2, inducing=5), output=tmp_path / "runs.jsonl")
    assert [row["method"] for row in rows] == ["svgp", "ensemble", "mean-field-network", "quantile-boosting"]
    assert all(np.isfinite(row["nll"]) for row in rows)
