"""The comparison of accuracy with GPyTorch resumes at toy size; with the data at hand one run is made on them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import accuracy_beside_gpytorch
from benchmarks.studies.accuracy_beside_gpytorch import Sizes

ROOT = Path(__file__).parents[2]


def test_the_comparison_with_gpytorch_says_where_data_is_wanted():
    environment = {k: v for k, v in os.environ.items() if k != "PYRO_DGP_DATA"}
    command = [sys.executable, "-m", "benchmarks.studies.accuracy_beside_gpytorch"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and "--data FOLDER or PYRO_DGP_DATA" in run.stderr


def test_the_comparison_with_gpytorch_is_resumable(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    np.savez(tmp_path / "yacht.npz", X=x, y=x[:, :1], splits=(np.arange(40) < 4)[:, None])
    out = tmp_path / "out.jsonl"
    arguments = ["accuracy_beside_gpytorch", "--data", str(tmp_path), "--out", str(out), "--quick"]
    monkeypatch.setattr(accuracy_beside_gpytorch, "SIZES", Sizes(inducing=8, samples=2))
    monkeypatch.setattr(sys, "argv", arguments)
    accuracy_beside_gpytorch.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["library"], row["method"]) for row in rows} == {
        (library, method) for library in ("pyro_dgp", "gpytorch") for method in ("svgp", "dsvi")
    }
    accuracy_beside_gpytorch.main()
    assert len(out.read_text().splitlines()) == 4


@pytest.mark.parametrize("name", ["energy", "yacht"])
def test_zoo_defaults_on_real_data_where_it_is_at_hand(name):
    folder = os.environ.get("PYRO_DGP_DATA")
    if not folder:
        pytest.skip("set PYRO_DGP_DATA to a folder with energy.npz and yacht.npz to run this on real data")
    key = {"library": "pyro_dgp", "method": "svgp", "dataset": name, "split": 0, "seed": 0}
    row = accuracy_beside_gpytorch.run(key, Path(folder), Sizes(steps=600))
    assert row["nll"] < -0.7  # predicting the mean scores 1.4
