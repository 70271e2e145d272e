"""Files of runs are read, mended where a line was cut off, and refused where they hold something else."""

import sys

import pytest

from benchmarks.common.records import read
from benchmarks.studies import mnist, rectangles, report_tables


@pytest.mark.parametrize(
    "text", ['[\n  {"method": "svgp"}\n]', "# What was measured\n\nends here.", '{"method": "svgp"}\n']
)
def test_a_file_of_something_else_is_refused_and_left_alone(text, tmp_path):
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(SystemExit, match="holds something else than runs"):
        read(path)
    assert path.read_text() == text


def test_a_run_whose_line_was_cut_off_is_made_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"experiment": "accuracy"}\n{"experim')
    assert read(path) == [{"experiment": "accuracy"}]
    assert path.read_text() == '{"experiment": "accuracy"}\n'


@pytest.mark.parametrize("study", [mnist, rectangles, report_tables])
def test_a_table_of_no_runs_names_the_file(study, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["study", "--table", "--out", str(tmp_path / "runs.jsonl")])
    with pytest.raises(
        SystemExit,
        match=r"runs.jsonl holds no runs: name a file of them by --out, such as benchmarks/results/runs.jsonl",
    ):
        study.main()
