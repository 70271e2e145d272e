"""The studies of features: their generators, their tables, and that each runs in miniature."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.common import flights
from benchmarks.studies import inter_domain, speed_of_features, spherical_features, spherical_posteriors

pytestmark = pytest.mark.usefixtures("local")


def test_flights_have_the_noise_that_is_stated_and_are_the_same_each_time():
    stream = flights.Flights(120_000, seed=3, dtype=torch.float64)
    assert stream.sizes == [50_000, 50_000, 20_000]
    (x, y), (again, _) = stream.read(1), stream.read(1)
    assert np.array_equal(x, again) and not np.array_equal(x, stream.read(0)[0])
    assert x.min() >= 0 and x.max() <= 1
    best = flights.expected_at(torch.as_tensor(x)).numpy()
    assert np.mean((y - best) ** 2) == pytest.approx(flights.BAYES_ERROR, rel=0.05)
    assert best.var() == pytest.approx(1 - flights.BAYES_ERROR, rel=0.05)
    assert y.var() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("method", inter_domain.METHODS)
def test_each_method_of_the_inter_domain_study_runs(method, monkeypatch):
    for name, value in {"POINTS": 8, "DEEP_POINTS": 8, "FREQUENCIES": 2, "WIDTH": 2}.items():
        monkeypatch.setattr(inter_domain, name, value)
    row = inter_domain.run(method, 600, 0, 20)
    assert 0.5 < row["mse"] < 1.5 and 0 < row["excess"] < 0.5


def test_ratios_are_paired_and_stand_beside_the_published(tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    runs = [
        {
            "method": method,
            "rows": 10_000,
            "repeat": repeat,
            "mse": mse + repeat,
            "excess": 0.1,
            "steps": inter_domain.STEPS,
        }
        | {"processor_seconds": 60, "peak_mb": 300}
        for method, mse in (("vff", 1.0), ("id-dgp", 0.5))
        for repeat in (0, 1)
    ]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    inter_domain.report(path)
    printed = capsys.readouterr().out
    assert "id-dgp over vff" in printed and "0.974" in printed
    assert f"{(0.5 + 1.5 / 2) / 2:.3f}" in printed


def test_speeds_of_features_are_measured_in_turns_and_the_crossover_is_found(monkeypatch):
    monkeypatch.setattr(speed_of_features, "ROWS", 100)
    rows = speed_of_features.measure(16, 2)
    assert {row["kind"] for row in rows} == set(speed_of_features.KINDS)
    assert all(row["cpu"] > 0 for row in rows)
    measured = [("points", 10, 1.0), ("points", 1000, 8.0), ("Fourier", 10, 2.0), ("Fourier", 1000, 4.0)]
    table = pd.DataFrame([{"kind": kind, "features": m, "cpu": cpu} for kind, m, cpu in measured])
    assert speed_of_features.crossover(table) == pytest.approx(100)


def test_the_table_of_spherical_features_says_what_points_repair(tmp_path, capsys):
    assert len(spherical_features.methods()) == 24
    path = tmp_path / "runs.jsonl"
    runs = [
        {"dataset": "energy", "method": f"relu.{marker}", "split": 0, "nll": nll, "rmse": 0.1}
        for marker, nll in (("M", 1.0), ("2M", 0.9), ("M+K", 0.25))
    ]
    path.write_text("".join(json.dumps(run) + "\n" for run in [*runs, {"method": "erf.M", "error": "it failed"}]))
    spherical_features.report(path, tmp_path / "figure.png")
    printed = capsys.readouterr().out
    assert "0.75" in printed and "1 runs failed\nerf.M: it failed" in printed
    assert (tmp_path / "figure.png").exists()


def test_points_repair_what_mismatched_units_leave(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["study", "--out", str(tmp_path / "out.json"), "--figures", str(tmp_path), "--repeats", "1"]
    )
    spherical_posteriors.main()
    rows = pd.DataFrame(json.loads((tmp_path / "out.json").read_text())["rows"]).set_index(
        ["kernel", "activation", "features"]
    )
    alone, with_points = (
        rows.loc[("Matern 5/2", "softplus", name)] for name in ("cut, 8 levels", "cut, 8 levels, 8 points")
    )
    assert alone["sd"] > 5 and with_points["sd"] < 1.5 and alone["gap"] > with_points["gap"] > 0
    assert rows[rows.index.get_level_values("features").str.startswith("cut")]["least"].min() > -1e-6
    assert rows["least"].min() < -1  # published units
    assert "8 levels and points over 16 levels" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "spherical_posteriors.png",
        "spherical_features-sphere.png",
    }
