"""Drawn functions are timed at many points."""

import torch

from benchmarks.studies import speed_of_functions


def test_functions_are_timed(monkeypatch):
    monkeypatch.setattr(speed_of_functions, "INDUCING", 8)
    row = speed_of_functions.measure(50, 2, torch.float32)
    assert row["wall"] > 0 and row["peak_mb"] > 0 and row["dtype"] == "float32"
