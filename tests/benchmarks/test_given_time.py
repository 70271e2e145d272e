"""The study of accuracy in a given time."""

import sys

import pandas as pd
import pytest

from benchmarks.studies import given_time
from pyro_dgp import Settings


def test_the_table_has_means_over_splits_of_the_lines_that_were_run():
    runs = [
        {"dataset": "power", "method": "dsvi", "nll": nll, "rmse": 0.2, "total_seconds": 90.0} for nll in (-0.1, -0.2)
    ]
    other = {"dataset": "power", "method": "dspp", "nll": 5.0, "rmse": 5.0, "total_seconds": 5.0}
    (row,) = given_time.table(pd.DataFrame([*runs, other])).to_dict("records")
    assert row["nll"] == pytest.approx(-0.15) and row["splits"] == 2 and row["minutes"] == 1.5
    assert (row["layers"], row["published"], row["sd"]) == (3, -0.141, 0.045)


def test_a_run_that_the_file_lacks_is_made_with_the_minutes_of_its_line(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(given_time, "sweep", lambda data, methods, **named: asked.append((data, methods, named)))
    monkeypatch.setattr(given_time, "read_data", lambda name, folder: name)
    monkeypatch.setattr(given_time, "require_data", lambda arguments: None)
    monkeypatch.setattr(sys, "argv", ["given_time", "--only", "bike", "--out", str(tmp_path / "runs.jsonl")])
    given_time.main()
    ((data, methods, named),) = asked
    assert (data, methods, named["splits"], named["threads"]) == (["bike"], ["avdgp-ar2p"], (0,), 2)
    assert named["settings"] == Settings(minutes=30.0)
