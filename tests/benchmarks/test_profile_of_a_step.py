"""The profile divides the time of a training step among its parts."""

from typing import Any

import pytest

from benchmarks.common.drawing import draw_profile
from benchmarks.studies import profile_of_a_step


def test_the_profile_divides_a_step_among_kinds(tmp_path):
    rows = []
    for name, part in (("svgp", "moments"), ("avdgp-ar2pp", "networks")):
        row: dict[str, Any] = {
            "method": name,
            **profile_of_a_step.shares(
                profile_of_a_step.training_step(name, profile_of_a_step.SETTINGS[name], 8), repeats=2
            ),
        }
        assert sum(row[kind] for kind in profile_of_a_step.KINDS) == pytest.approx(1)
        everywhere = {kind for kind in profile_of_a_step.KINDS if kind not in ("networks", "moments")} | {part}
        assert all(row[kind] > 0 for kind in everywhere), row
        assert profile_of_a_step.described(row).startswith(name)
        rows.append(row)
    assert rows[0]["networks"] == 0
    draw_profile(rows, profile_of_a_step.KINDS, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


def test_a_stopwatch_leaves_out_what_runs_inside(monkeypatch):
    times = iter([0.0, 1.0, 5.0, 7.0])
    monkeypatch.setattr(profile_of_a_step.time, "perf_counter", lambda: next(times))
    watch = profile_of_a_step.Stopwatch()
    inner = watch.around(lambda value: value + 1, "moments")
    with watch.on(profile_of_a_step.FORWARD):
        assert inner(1) == 2
    assert watch.seconds["moments"] == 4.0 and watch.seconds[profile_of_a_step.FORWARD] == 3.0
