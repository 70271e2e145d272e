"""The tables of the report: the runs that they plan, what they mark, and the study in miniature."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.studies import report_tables
from pyro_dgp.data.dataset import Dataset

pytestmark = pytest.mark.usefixtures("local")


def toy(name, rows):
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    return Dataset(name, x, np.sin(x[:, 0]) + 0.1 * random.randn(rows))


def test_runs_have_the_settings_of_the_report():
    data = [toy("boston", 500), toy("protein", 2500)]
    runs = list(report_tables.planned(data, list(report_tables.COLUMNS), [0, 1]))
    assert [(run.dataset.name, run.settings.split) for run in runs[:: len(report_tables.COLUMNS)]] == [
        ("boston", 0),
        ("protein", 0),
        ("boston", 1),
    ]
    by_name = {(run.dataset.name, run.method.name): run for run in runs if run.settings.split == 0}
    for name in ("boston", "protein"):
        collapsed = by_name.pop((name, "collapsed-2")).settings
        assert (collapsed.epochs, collapsed.batch_size, collapsed.layers) == (500, None, 2)
    for (name, method), run in by_name.items():
        steps = run.settings.num_steps(450 if name == "boston" else 2250, run.settings.rows_of_step)
        assert 5000 <= steps < 5050, (name, method)
        assert (run.settings.samples, run.settings.learning_rate, run.settings.preset) == (1, 0.01, "ashman2020")
    longer = next(report_tables.planned(data, ["dsvi-2"], [0], steps=20_000)).settings
    assert longer.num_steps(450, longer.rows_of_step) == 20_000
    assert by_name["boston", "svgp-500"].settings.inducing == 500
    assert by_name["boston", "dsvi-4"].settings.layers == 4
    assert by_name["boston", "aep-2"].settings.rows_of_step == 50
    assert [by_name[name, "pbp"].method.inference.hidden for name in ("boston", "protein")] == [50, 100]
    isotropic = by_name["boston", "dsvi-2-isotropic"]
    x = run.dataset.x[:20]
    model = isotropic.method.architecture.build(torch.as_tensor(x), isotropic.settings)
    assert model.hidden[0].kernel.lengthscale.shape == ()


def published(folder):
    head = "paper,table,metric,dataset,n,d,method,setting,mean,sd,sd_kind,better,scale,as_printed,note\n"
    rows = [
        ("log-likelihood", "SGP 100", -1.0, 0.1, "standard deviation over 20 splits", ""),
        ("RMSE", "SGP 100", 0.5, 0.1, "standard deviation over 20 splits", ""),
        ("log-likelihood", "PBP", -1.0, 0.1, "standard error (?)", ""),
        ("RMSE", "PBP", 0.5, 0.1, "standard error (?)", "doubtful: another column"),
    ]
    lines = [
        f"ashman2020,4,{m},boston,506,13,{name},,{mean},{sd},{kind},x,original units,,{note}"
        for m, name, mean, sd, kind, note in rows
    ]
    (folder / "2020-ashman.csv").write_text(head + "\n".join(lines) + "\n")


def test_marks_that_are_far_off_do_not_stretch_an_axis():
    marks = [report_tables.Mark(mean, 0.1, 0.0, "C0") for mean in (1.0, 1.1, 1.2, 1.3, -16.0)]
    low, high = report_tables.limits(marks)
    assert 0.8 < low < 0.9 and 1.4 < high < 1.5
    low, high = report_tables.limits([report_tables.Mark(2.0, None, 0.0, "C0")])
    assert low < 2 < high


def test_cells_that_are_more_than_one_published_deviation_behind_are_marked(tmp_path):
    published(tmp_path)
    cells = report_tables.of_report(tmp_path)
    runs = pd.DataFrame(
        [
            {
                "dataset": "boston",
                "method": method,
                "split": split,
                "log-likelihood": level + 0.02 * split,
                "RMSE": 0.65,
            }
            for method, level in (("svgp-100", -1.15), ("pbp", -1.4))
            for split in (0, 1)
        ]
    )
    likelihood = report_tables.table(runs, "log-likelihood", cells).set_index("method")
    assert likelihood.loc["svgp-100", "log-likelihood"] == "-1.140 (0.014)"
    assert likelihood["behind"].to_dict() == {
        "svgp-100": "*",
        "pbp": "",
    }  # a standard error of 0.1 is a deviation of 0.447
    assert likelihood.loc["pbp", "published"] == "-1.000 (0.447)"
    errors = report_tables.table(runs, "RMSE", cells).set_index("method")
    assert errors["behind"].to_dict() == {"svgp-100": "*", "pbp": ""} and errors.loc["pbp", "published"] == ""
    assert "published" not in report_tables.table(runs, "RMSE", None)


def test_the_study_goes_on_in_its_file_and_draws(tmp_path, monkeypatch, capsys):
    data = toy("boston", 30)
    np.savez(tmp_path / "boston.npz", X=data.x, y=data.y)
    published(tmp_path)
    monkeypatch.setattr(report_tables, "STEPS", 2)
    few = {n: replace(c, settings=replace(c.settings, inducing=9)) for n, c in report_tables.COLUMNS.items()}
    monkeypatch.setattr(report_tables, "COLUMNS", few)
    out, figure = tmp_path / "runs.jsonl", tmp_path / "figure.png"
    options = ["--data", str(tmp_path), "--out", str(out), "--published", str(tmp_path), "--figure", str(figure)]
    methods = "svgp-100,dsvi-2-isotropic,aep-2,bnn-svi"
    command = ["study", *options, "--only", "boston", "--splits", "0", "--methods", methods]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command)
        report_tables.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["method"] for row in rows] == methods.split(",")
    assert not any("error" in row for row in rows)
    assert figure.exists() and "-1.000 (0.100)" in capsys.readouterr().out
