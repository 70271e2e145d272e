"""The study of layers and networks: runs of three layers beside those of two in one file, differences and figures."""

import sys

import numpy as np
import pytest

from benchmarks.common.records import append, read
from benchmarks.studies import layers_and_networks as study
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.zoo.settings import Settings


def waves(name):
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (60, 2))
    return Dataset(name, x, np.sin(3 * x[:, 0]) + 0.1 * random.randn(60))


def test_runs_of_three_layers_are_told_from_those_of_two(tmp_path, monkeypatch, capsys):
    small = {"inducing": 5, "epochs": 1, "width": 2, "samples": 2}
    monkeypatch.setattr(study, "read_data", lambda name, folder: waves(name))
    monkeypatch.setattr(study, "Settings", lambda **options: Settings(**small, **options))
    monkeypatch.setattr(study, "PLAIN", ("svgp", "dsvi"))
    monkeypatch.setattr(study, "NEURAL", ("dkl-svgp", "dkl-dsvi"))
    monkeypatch.setattr(study, "PAIRS", {"ELBO": ("svgp", "dsvi")})
    out = tmp_path / "runs.jsonl"
    command = ["layers", "--data", str(tmp_path), "--only", "kin8nm", "--out", str(out), "--figures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    study.main()
    rows = read(out, "method")
    assert [(row["method"], row["settings"]["layers"]) for row in rows] == [
        ("svgp", 2), ("dsvi", 2), ("dkl-svgp", 2), ("dkl-dsvi", 2), ("dsvi", 3)
    ]  # fmt: skip
    assert {"layers.png", "networks.png"} <= {path.name for path in tmp_path.iterdir()}
    assert "dsvi-3" in capsys.readouterr().out
    study.main()
    assert len(read(out, "method")) == len(rows)  # nothing is made twice


def test_differences_are_those_of_equal_splits(tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    nll = {("dsvi", 0): 1.0, ("dsvi", 1): 5.0, ("dspp", 0): 0.5}
    for (method, split), value in nll.items():
        append(out, {"dataset": "kin8nm", "method": method, "split": split, "nll": value, "rmse": 0.2, "crps": 0.1})
    three = {"dataset": "kin8nm, three layers", "method": "dsvi", "split": 0, "nll": 0.75, "rmse": 0.1, "crps": 0.1}
    append(out, three)
    study.report(out, None)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dsvi-3 "))
    assert line.split() == ["dsvi-3", "dsvi", "-0.250", "-0.100", "1", "pairs"]


@pytest.mark.parametrize("splits", [1, 2])
def test_a_figure_of_few_methods_is_drawn(tmp_path, splits):
    out = tmp_path / "runs.jsonl"
    for split in range(splits):
        append(out, {"dataset": "bike", "method": "svgp", "split": split, "nll": 1.0, "rmse": 0.2, "crps": 0.1})
    study.draw(study.runs(out), {"ELBO": ["svgp", "dsvi"]}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
