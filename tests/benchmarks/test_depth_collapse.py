"""The study of depth measures how concentrated the variation of draws is."""

import pytest
import torch

from benchmarks.studies import depth_collapse


def test_the_collapse_is_a_number(monkeypatch):
    monkeypatch.setattr(depth_collapse, "DEPTHS", (1, 4))
    rows, shown, _ = depth_collapse.run(draws=10, points=60)
    assert rows[1]["prior"] > rows[0]["prior"] + 0.05
    assert [tuple(values.shape) for values in shown["guide"]] == [(5, 60)] * 2
    straight, jump = torch.linspace(0, 1, 101)[None], (torch.linspace(0, 1, 101) > 0.5).double()[None]
    assert (
        float(depth_collapse.concentration(straight)) == pytest.approx(0.05)
        and float(depth_collapse.concentration(jump)) == 1
    )
