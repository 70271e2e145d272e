"""The files of runs are read by their studies, whose tables have the numbers of the README."""

import importlib
import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TABLES = {
    "advice": (["--group", "fourth"], "advice.jsonl", r"regret +0\.012 +0\.076 +8"),
    "beside_the_mean": ([], "beside_the_mean.jsonl", r"735 pairs of a method and a set, 0 of them behind"),
    "diagnose": ([], "diagnose.jsonl", r"planted \| all \| 100 \| 95"),
    "accuracy_beside_gpytorch": ([], "accuracy_beside_gpytorch.jsonl", r"yacht +dsvi .* 15\.0 +-0\.0049"),
    "accuracy_beside_dgpsi": (["small"], "accuracy_beside_dgpsi.jsonl", r"yacht +dgpsi"),
    "predictive_losses": (["small"], "predictive_losses.jsonl", r"pooled +50 +-0\.328 +0\.098 +0\.715"),
    "amortized_guides": (["small"], "amortized_guides-small.jsonl", r"pooled +40 +-0\.200 +0\.066 +0\.539"),
    "amortized_letters": (["table", "--dtype", "float32"], "amortized_letters.jsonl", r"4 layers, 64 points.*1\.02 %"),
    "sampler_calibration": (["nuts"], "sampler_calibration.jsonl", r"top\.kernel\.lengthscale +p = 0\.163"),
    "bayesian_optimization": ([], "bayesian_optimization.jsonl", r"hartmann6 \| deep-thompson \| 20 \| 0\.753"),
    "speed_of_features": ([], "speed_of_features.jsonl", r"1024 +207\.7 +284\.2 +82\.6"),
    "inter_domain": ([], "inter_domain.jsonl", r" +5929413 +0\.797"),
    "spherical_features": ([], "spherical_features.jsonl", r"softplus +-0\.047 +-0\.148 +-0\.356"),
    "mnist": ([], "mnist.jsonl", r"dsvi +3 +96\.900 +97\.730 +-0\.105"),
    "report_tables": ([], "report_tables.jsonl", r"boston +svgp-100 +5 +-2\.382"),
    "rectangles": ([], "rectangles.jsonl", r"svgp-100 +12000 +50000 +5004 +86\.638 +72\.120 +-0\.300"),
    "several_outputs": ([], "several_outputs.jsonl", r"gamma-dgp +2\.25 +2\.00 +1\.50"),
    "layers_and_networks": (
        ["--only", "kin8nm,power"],
        "layers_and_networks.jsonl",
        r"dspp-3 +dspp +-0\.006 +-0\.000 +2 pairs",
    ),
    "time_to_quality": (
        [],
        "time_to_quality.jsonl",
        r"dsvi-collapsed beside gpytorch-dgp: .* \(22\.4 in processor seconds\)",
    ),
    "sghmc_beside_dsvi": (["same"], "sghmc_beside_dsvi.jsonl", r"kin8nm +3 +0\.012 +0\.001 +0\.014"),
}


@pytest.mark.parametrize("study", TABLES)
def test_tables_are_those_of_the_readme(study, monkeypatch, capsys):
    options, name, line = TABLES[study]
    before = (RESULTS / name).read_text()
    monkeypatch.setattr(sys, "argv", [study, *options, "--table", "--out", str(RESULTS / name)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        runpy.run_module(f"benchmarks.studies.{study}", run_name="__main__")
    assert re.search(line, capsys.readouterr().out)
    assert (RESULTS / name).read_text() == before


def test_the_other_files_of_runs_are_read():
    records = importlib.import_module("benchmarks.common.records")
    for path in RESULTS.glob("*.jsonl"):
        key = {
            "accuracy_beside_gpytorch": "library",
            "sampler_mixing": "sampler",
            "sampler_calibration": "sampler",
            "samplers_beside_jax": "sampler",
            "time_to_quality": "library",
        }
        key |= dict.fromkeys(
            (
                "held_aside",
                "given_time",
                "spherical_features",
                "inter_domain",
                "several_outputs",
                "mnist",
                "mnist-2000",
                "report_tables",
                "report_tables-long",
                "rectangles",
                "layers_and_networks",
                "advice_fits",
                "beside_the_mean",
            ),
            "method",
        )
        key |= {"speed_of_features": "kind", "advice": "advised", "advice_of_older_rules": "advised"}
        assert records.read(path, key.get(path.stem, "experiment"))
