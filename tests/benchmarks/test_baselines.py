"""The baselines find a function and its noise, and are swept as named methods are."""

import numpy as np
import pytest

from benchmarks.common.baselines import BASELINES
from pyro_dgp import Settings, sweep
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.tasks import Task

NOISE = 0.3


def heteroscedastic(rows=800):
    """A sine with noise that is six times larger on the right; in units of the targets, which have a standard deviation near 1."""
    random = np.random.RandomState(0)
    x = random.uniform(-2, 2, (rows, 2))
    sd = np.where(x[:, 0] > 0, NOISE, NOISE / 6)
    return Dataset("sine", x, 1.4 * np.sin(2 * x[:, 0]) + sd * random.randn(rows)), sd


@pytest.mark.slow
@pytest.mark.parametrize(("name", "above"), [("ensemble", 0.3), ("bnn-svi", 0.8), ("quantile-boosting", 0.6)])
def test_it_comes_near_the_true_density(name, above):
    data, sd = heteroscedastic()
    (row,) = sweep([data], [(name, BASELINES[name])], settings=Settings(epochs=100))
    scale = data.y.std()
    floor = np.mean(np.log(sd / scale)) + 0.5 * np.log(2 * np.pi * np.e)
    assert floor - 0.1 < row["nll"] < floor + above
    assert row["rmse"] < 1.25 * np.sqrt(np.mean(sd**2)) / scale
    assert row["n_train"] == 720


def test_they_are_swept_beside_a_method(tmp_path):
    data, _ = heteroscedastic(60)
    methods = ["svgp", *BASELINES.items()]
    rows = sweep(
        [data],
        methods,
        settings=Settings(epochs=2, inducing=5, mcmc_samples=8, warmup=8),
        output=tmp_path / "runs.jsonl",
    )
    assert [row["method"] for row in rows] == ["svgp", *BASELINES]
    assert all(np.isfinite(row["nll"]) for row in rows)


def classes(rows=650):
    """Three classes whose probabilities are known: a softmax of linear functions. 250 rows are trained on."""
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    logits = np.stack([2 * x[:, 0], 2 * x[:, 1], np.zeros(rows)], 1)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (random.rand(rows, 1) > probs.cumsum(1)).sum(1)
    test = np.arange(rows)[:, None] >= 250
    entropy = -(probs * np.log(probs)).sum(1)[test[:, 0]].mean()
    return Dataset("classes", x, y.astype(float), splits=test, task=Task("multiclass", 3)), entropy


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_it_finds_the_probabilities_of_classes(name):
    data, entropy = classes()
    settings = Settings(epochs=80, mcmc_samples=40, warmup=40)
    (row,) = sweep([data], [(name, BASELINES[name])], settings=settings)
    assert (row["n_train"], row["n_test"]) == (250, 400)
    assert entropy - 0.1 < row["nll"] < entropy + 0.2
    assert {"accuracy", "brier", "ece"} <= row.keys()


def test_counts_are_refused():
    data, _ = heteroscedastic(60)
    counts = Dataset("counts", data.x, np.arange(60.0), task=Task("counts"))
    (row,) = sweep([counts], [("ensemble", BASELINES["ensemble"])], settings=Settings(epochs=2))
    assert "of real numbers and of classes" in row["error"]
