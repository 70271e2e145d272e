"""The study of mixing runs at toy size, and adds no row twice."""

import json
import sys
from dataclasses import replace

from benchmarks.studies import sampler_mixing
from pyro_dgp.mcmc.density import WhitenedDensity


def test_chains_are_sampled_judged_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sampler_mixing, "CompiledDensity", WhitenedDensity)  # compiling takes most of the time
    monkeypatch.setitem(sampler_mixing.PROBLEMS, "step", replace(sampler_mixing.PROBLEMS["step"], tree_depth=2))
    out, figure = tmp_path / "new" / "rows.jsonl", tmp_path / "chains.png"
    command = ["sampler_mixing", "step", "--draws", "6", "--warmup", "2", "--chains", "2", "--processes", "1"]
    places = ["--folder", str(tmp_path / "chains"), "--out", str(out), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", [*command, *places])
    sampler_mixing.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sampler"] for row in rows] == ["ess", "nuts"]
    assert all(len(row["nll_by_chain"]) == 2 and row["seconds"] > 0 for row in rows)
    assert "diverging_share" in rows[1] and figure.stat().st_size > 10_000
    sampler_mixing.main()  # chains are read from their folder
    assert len(out.read_text().splitlines()) == 2
