"""The study of GPUs, on the processor and on the virtual device."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.cases import Case
from benchmarks.studies import speed_on_gpu as study
from pyro_dgp import CompiledObjective
from tests.virtual_device import virtual_device

ROOT = Path(__file__).parents[2] / "benchmarks" / "results"


def test_all_implementations_are_timed(monkeypatch):
    monkeypatch.setattr(CompiledObjective, "backend", "eager")
    record = study.measure(replace(study.QUICK[0], batch=20), "cpu", repeats=2, compiled=True)
    assert {f"{name}seconds" for name in study.LIBRARIES | study.COMPILED} <= set(record)
    assert record["best_ratio"] >= record["ratio"] > 0
    assert "GPyTorch, large batches" in study.described(record)
    assert record["method"] in study.table([record])


def test_a_failure_stands_in_the_place_of_its_time(monkeypatch):
    def broken(case, data):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(study.LIBRARIES, "gpytorch_", broken)
    record = study.measure(Case("svgp", batch=20, inducing=8), "cpu", repeats=1, compiled=False)
    assert record["gpytorch_error"] == "RuntimeError: out of memory" and "ratio" in record
    assert "out of memory" in study.described(record)


@pytest.mark.parametrize("name", ["dsvi", "avdgp-ar2"])
def test_parity_is_seen_and_its_loss_too(name, monkeypatch):
    with virtual_device(monkeypatch) as device:
        record = study.parity(name, device.type)
        assert max(record[key] for key in ("loss", "gradient", "mean", "stddev")) < 1e-9
        monkeypatch.setattr(study, "ProcessorNumbers", nullcontext)  # other random numbers on each device
        record = study.parity(name, device.type)
        assert record["gradient"] > 1e-6


def test_the_page_shows_the_file():
    page = (ROOT / "README.md").read_text()
    assert study.table(json.loads((ROOT / "speed_on_gpu.json").read_text())) in page
    assert re.search(
        r"524,281 .* residual here 3\.\de-16, torch.linalg.solve_triangular 2\.9e\+00",
        "\n".join(
            map(study.described, [r for r in json.loads((ROOT / "speed_on_gpu.json").read_text()) if "columns" in r])
        ),
    )
