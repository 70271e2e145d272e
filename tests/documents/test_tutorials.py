"""Every tutorial runs at smoke length, and its notebook holds what its source says, executed."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tutorials"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))


def test_tutorials_were_found():
    assert [source.name for source in SOURCES] == [
        "01_a_deep_gp_is_a_pyro_model.py",
        "02_predictions_that_can_be_trusted.py",
        "03_amortized_guides.py",
        "04_sampling_a_deep_gp.py",
        "05_one_model_many_algorithms.py",
        "06_features_beyond_inducing_points.py",
        "07_a_model_of_your_own.py",
        "08_classes_and_images.py",
        "09_whole_functions.py",
        "10_long_runs.py",
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_runs_and_its_assertions_hold(source):
    environment = os.environ | {"PYRO_DGP_SMOKE": "1", "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-W", "error", source], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_notebook_is_the_executed_source(source):
    notebook = json.loads(source.with_suffix(".ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    squeeze = lambda text: re.sub(r"\s+", "", text)
    text = squeeze(source.read_text())
    assert all(squeeze("".join(cell["source"])) in text for cell in code)
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3


@pytest.mark.parametrize(
    ("urls", "badge"),
    [
        ("", None),
        ('[project.urls]\nHome = "https://example.org"', None),
        ('[project.urls]\nIssues = "https://github.com/a/b/issues"\nSource = "https://github.com/a/b.git"', "a/b"),
        ('[project.urls]\nSource = "https://github.com/a/b.c/"', "a/b.c"),
    ],
)
def test_a_badge_is_of_the_repository_that_the_project_names(urls, badge):
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert build.repository('[project]\nname = "x"\n' + urls) == badge
    if badge:
        assert f"/github/{badge}/blob/main/tutorials/01.ipynb)" in build.badge(badge, "01.ipynb")
