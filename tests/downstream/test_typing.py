"""A user's program runs, and passes ``mypy --strict`` against the package."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pyro_dgp
from tests.downstream import program

ROOT = Path(pyro_dgp.__file__).parents[1]


def test_the_program_runs():
    rows = program.main(steps=3, draws=4)
    assert len(rows) == 4 and all(math.isfinite(figure) for row in rows for figure in row.values())


def test_the_program_passes_mypy_strict(tmp_path):
    """In a folder of its own, so that the settings of this repository do not count."""
    (tmp_path / "program.py").write_text(Path(program.__file__).read_text())
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


def test_the_package_says_that_it_is_typed():
    assert (Path(pyro_dgp.__file__).parent / "py.typed").is_file()
