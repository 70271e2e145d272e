"""Time and memory of the study of scaling are measured at toy size."""

import pickle

import pytest

from benchmarks.common.drawing import draw_scaling
from benchmarks.studies import scaling_of_time_and_memory as scaling


def test_scaling_measures_time_and_memory(tmp_path):
    rows = [{"parameter": "samples", "value": v, **scaling.step("samples", v, repeats=1)} for v in (2, 4)] + [
        {"parameter": "rows", "value": v, **scaling.epoch(v, inducing=8)} for v in (300, 600)
    ]
    for name, measured in (("test rows", scaling.prediction), ("test rows, GPyTorch", scaling.peer_prediction)):
        rows += [{"parameter": name, "value": v, **measured(v, inducing=8)} for v in (100, 200)]
    assert all(row["seconds"] > 0 and row["peak_mb"] > 10 for row in rows)
    assert set(scaling.exponents(rows)) == {"samples", "rows", "test rows", "test rows, GPyTorch"}
    draw_scaling(rows, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    assert "rows a second" in scaling.described(rows[-1])


def test_exponents_are_slopes_of_logarithms():
    rows = [{"parameter": "batch", "value": v, "seconds": 3.0 * v**1.5} for v in (1, 10, 100)]
    assert scaling.exponents(rows)["batch"] == pytest.approx(1.5)


def test_every_point_of_scaling_can_be_sent_to_another_process():
    names = {name for name, _, call in scaling.points(quick=False) if pickle.dumps(call)}
    assert names == {*scaling.STEPS, "rows", "test rows", "test rows, GPyTorch"}
