"""The commands of ``python -m benchmarks`` keep what they measured and say what is missing."""

import json
import sys

import pytest

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.__main__ import write


def test_rows_are_on_disk_before_the_last_one_is_there(tmp_path):
    def interrupted():
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(interrupted(), str, tmp_path / "new" / "rows.json")
    assert json.loads((tmp_path / "new" / "rows.json").read_text()) == [{"a": 1}]


@pytest.mark.parametrize("command", ["speed", "scaling"])
def test_a_missing_gpytorch_is_a_word_at_the_start(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", command, "--quick"])
    with pytest.raises(SystemExit, match="GPyTorch is not installed: pip install"):
        benchmarks_main()
