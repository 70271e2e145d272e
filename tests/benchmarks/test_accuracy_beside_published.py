"""The accuracy command runs, resumes, refuses mistakes and converts published numbers."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.common import experiments, published


def test_accuracy_runs_by_default_on_data_that_a_dependency_ships(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PYRO_DGP_DATA", raising=False)
    out = tmp_path / "runs.jsonl"
    command = ["benchmarks", "accuracy", "--quick", "--steps", "3", "--methods", "svgp", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):
        benchmarks_main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["dataset"], row["method"]) for row in rows] == [("diabetes", "svgp")]
    said = capsys.readouterr().out
    assert "running on diabetes" in said and "no --published FOLDER" in said
    monkeypatch.setattr(sys, "argv", [*command, "--methods", "svgb"])
    with pytest.raises(SystemExit, match="no method 'svgb'"):
        benchmarks_main()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "/nowhere"], "there is no file '/nowhere/energy.npz'"),
        (["--sets", "energy"], "--sets names files of a folder"),
        (["--methods", "svgp, nosuch"], "there is no method 'nosuch'"),
        (["--splits", "0"], "--splits must be at least 1"),
        (["--json", "/proc/nowhere/runs.jsonl"], "nothing can be written to /proc/nowhere"),
    ],
)
def test_mistakes_at_the_accuracy_command_are_one_sentence_before_anything_is_trained(options, words, monkeypatch):
    monkeypatch.delenv("PYRO_DGP_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "accuracy", "--quick", *options])
    monkeypatch.setattr(experiments, "run", None)
    with pytest.raises(SystemExit, match=words):
        benchmarks_main()


def test_published_numbers_stand_beside_ours_in_the_same_units(tmp_path):
    cells = pd.DataFrame(
        [
            (
                "ashman2020",
                "log-likelihood",
                "energy",
                "DSVI-2",
                -0.7,
                0.1,
                "log likelihood in the original units of y",
                "",
            ),
            ("ashman2020", "RMSE", "energy", "DSVI-2", 0.5, 0.02, "original units of y", ""),
            ("meng2024", "NLL", "Energy", "DS-DGP", 0.3, 0.01, "standardised y units", ""),
            ("meng2024", "RMSE", "Energy", "DS-DGP", 0.2, 0.01, "standardised y units", "doubtful: a misprint"),
        ],
        columns=["paper", "metric", "dataset", "method", "mean", "sd", "scale", "note"],
    )
    cells.to_csv(tmp_path / "cells.csv")
    runs = pd.DataFrame({"dataset": "energy", "method": "dsvi", "split": [0, 1], "nll": [0.1, 0.3], "rmse": [0.2, 0.2]})
    table = published.beside(runs, published.read(tmp_path), {"energy": 10.0})
    first, second = (table.iloc[i] for i in (0, 1))
    assert first["published as"].startswith("ashman2020 DSVI-2") and first["nll"] == "0.200 (0.141)"
    assert first["published nll"] == f"{0.7 - np.log(10):.3f} (0.100)" and first["published rmse"] == "0.050 (0.002)"
    assert second["published nll"] == "0.300 (0.010)" and second["published rmse"] == ""
    with pytest.raises(SystemExit, match="no tables"):
        published.read(tmp_path / "elsewhere")
