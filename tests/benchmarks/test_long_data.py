"""The study of long data, in small."""

import json
import math

import torch

from benchmarks.studies import long_data
from pyro_dgp.data.splitting import Scaler, Split
from pyro_dgp.zoo.settings import Settings


def test_a_gradient_is_timed():
    for prior in ("exact", "vecchia"):
        found = long_data.cost(30, prior)
        assert 0 < found["seconds"] < found["first_seconds"] + 5


def test_more_neighbours_are_closer():
    few, many = (long_data.closeness("matern52", 2, 2, m) for m in (5, 60))
    assert abs(many["difference"]) <= many["largest"] < 0.05 < few["largest"]
    assert few["difference"] < 0


def test_runs_are_made_once_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(long_data, "ROWS", (1000, 2000))
    monkeypatch.setattr(long_data, "MOST_EXACT", 0)
    monkeypatch.setattr(long_data, "cost", lambda rows, prior: {"seconds": rows**1.5 / 1e5, "first_seconds": 1.0})
    out, figure = tmp_path / "runs.jsonl", tmp_path / "cost.png"
    monkeypatch.setattr("sys.argv", ["long_data", "cost", "--out", str(out), "--figure", str(figure)])
    for _ in range(2):
        long_data.main()
        assert "seconds grow as rows to the power 1.50" in capsys.readouterr().out
    assert [json.loads(line)["rows"] for line in out.read_text().splitlines()] == [1000, 2000]
    assert figure.stat().st_size > 1000


def test_the_chain_has_the_time_that_is_given(monkeypatch):
    x = torch.rand(40, 2)
    y = torch.sin(5 * x[:, 0])
    data = Split(x[:30], y[:30], x[30:], y[30:], Scaler.fit(y[:, None].numpy()))
    monkeypatch.setattr(long_data, "Settings", lambda **options: Settings(**options, epochs=2, inducing=5))
    found = long_data.accuracy(data, "vecchia-ess", seconds=8.0)
    assert found["seconds"] < 40
    assert found["sweeps"] >= 4
    assert math.isfinite(found["crps"])
    assert math.isfinite(found["learned"]["crps"])
