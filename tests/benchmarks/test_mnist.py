"""The study of digits in miniature: its points are those that are asked for, and it goes on in its file and draws."""

import json
import sys

import numpy as np
import pytest

from benchmarks.common.calibration import pooled
from benchmarks.studies import mnist

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def folder(tmp_path):
    """A folder of data with 60 images of 64 pixels, ten of them for tests."""
    rng = np.random.default_rng(0)
    digits = np.arange(60) % 10
    pixels = np.clip(rng.integers(0, 256, (10, 64))[digits] * rng.uniform(0.8, 1.0, (60, 64)), 0, 255)
    pixels[:, 0] = 0  # one pixel that is constant
    test = (np.arange(60) < 10).astype(np.uint8)[:, None]
    (tmp_path / "images").mkdir()
    np.savez(tmp_path / "images" / "mnist_t10k.npz", X=pixels.astype(np.uint8), y=digits[:, None], splits=test)
    return tmp_path


def test_the_study_goes_on_in_its_file_and_draws(folder, monkeypatch, capsys):
    monkeypatch.setattr(mnist, "FEW_POINTS", 9)
    out = folder / "runs.jsonl"
    figure = folder / "curves.png"
    options = ["--data", str(folder), "--splits", "0", "--out", str(out), "--figure", str(figure)]
    for methods, epochs, points in (
        ("dsvi", 2, 12),
        ("dsvi,dsvi-3,aep", 2, 12),
        ("dsvi,aep", 1, 12),
        ("dsvi,aep", 2, 11),
    ):
        named = ["--methods", methods, "--epochs", str(epochs), "--inducing", str(points)]
        monkeypatch.setattr(sys, "argv", ["study", *options, *named])
        mnist.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["method"] for row in rows] == ["dsvi", "dsvi-3", "aep", "dsvi", "aep", "dsvi"]
    assert [row["settings"]["inducing"] for row in rows] == [12, 12, 9, 12, 9, 11]
    assert [row["steps"] for row in rows] == [2, 2, 2, 1, 1, 2]
    assert all(sum(row["curve"]["count"]) == 10 for row in rows)
    assert all(0 <= row["ece_low"] <= row["ece_high"] <= 1 for row in rows)
    assert [name for name, _ in mnist.curves(mnist.runs(out))][:2] == [
        "dsvi, 12 points, 2 steps",
        "dsvi-3, 12 points, 2 steps",
    ]
    assert figure.exists() and "97.730" in capsys.readouterr().out


def test_pixels_that_are_constant_in_training_are_left_out(folder):
    x, y, x_test, y_test = mnist.images(folder, 0)
    assert (x.shape, y.shape, x_test.shape, y_test.shape) == ((50, 63), (50,), (10, 63), (10,))
    assert float(x.max()) <= 1
    model = mnist.classifier(x, "dsvi-3", mnist.SETTINGS)
    scaled = x / model.hidden[0].kernel.lengthscale.detach()
    assert float(scaled.var(0).sum()) == pytest.approx(1, rel=1e-5)
    assert len(model.hidden) == 2 and model.top.num_outputs == 10


def test_runs_without_curves_are_not_drawn(tmp_path, monkeypatch):
    row = {
        "method": "dsvi",
        "split": 0,
        "nll": 0.1,
        "accuracy": 0.9,
        "ece": 0.01,
        "ece_high": 0.02,
        "seconds": 1,
        "steps": 2,
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(row | {"settings": {"inducing": 10, "epochs": 1}}) + "\n")
    options = ["--table", "--out", str(tmp_path / "runs.jsonl"), "--figure", str(tmp_path / "curves.png")]
    monkeypatch.setattr(sys, "argv", ["study", *options])
    with pytest.raises(SystemExit, match="are older than calibration curves"):
        mnist.main()
    assert not (tmp_path / "curves.png").exists()


def test_the_curves_of_splits_are_pooled_by_bin():
    first: dict[str, list[float]] = {"confidence": [0.5, 0.9], "accuracy": [1.0, 0.75], "count": [1, 4]}
    second: dict[str, list[float]] = {"confidence": [0.9, 1.0], "accuracy": [0.25, 1.0], "count": [12, 2]}
    found = pooled([first, second])
    assert found == {"confidence": [0.5, pytest.approx(0.9), 1.0], "accuracy": [1.0, 0.375, 1.0], "count": [1, 16, 2]}
