"""Files of runs are read, mended where a line was cut off, and refused where they hold something else."""

import pytest

from benchmarks.common.records import read


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
