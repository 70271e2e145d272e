"""Comparisons on a device beside the processor: all tasks run, and their fits are kept."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Settings, load_fit
from pyro_dgp.comparison import request, run, sweep
from pyro_dgp.comparison.cli import main
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.training.held_out import RowScores
from tests.virtual_device import ELSEWHERE, virtual_device

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
F = np.sin(2 * X[:, 0]) + X[:, 1]
TASKS = {
    "regression": F + 0.1 * rng.normal(size=40),
    "binary": (F > 0).astype(int),
    "multiclass": np.digitize(F, [-0.5, 0.5]),
    "counts": rng.poisson(np.exp(F)),
}


@pytest.mark.usefixtures("near_draws")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("ignore")  # of fits that are too short
def test_a_task_runs_and_its_fits_are_kept(task, tmp_path, monkeypatch, capsys):
    file, folder = tmp_path / "rows.csv", tmp_path / "out"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": TASKS[task]}).to_csv(file, index=False)
    for module in (request, run):
        if hasattr(module, "device_of"):
            monkeypatch.setattr(module, "device_of", lambda choice: ELSEWHERE.type)
    methods = ["svgp", "dsvi", *(["ess", "sghmc"] if task == "regression" else [])]
    options = [
        "--epochs",
        "2",
        "--inducing",
        "5",
        "--samples",
        "2",
        "--width",
        "2",
        "--mcmc-points",
        "6",
        "--mcmc-samples",
        "8",
        "--warmup",
        "2",
        "--threads",
        "1",
    ]
    with virtual_device(monkeypatch):
        code = main(
            [
                "compare",
                "--data",
                str(file),
                "--methods",
                ",".join(methods),
                *options,
                "--task",
                task,
                "--output",
                str(folder),
            ]
        )
    said = capsys.readouterr()
    assert not code, said.err
    assert "not kept" not in said.out + said.err
    for method in methods:
        fit = load_fit(folder, method)
        assert fit.like.device.type == "cpu"
        prediction = fit.predict(X[:3])
        found = prediction.probs if task in ("binary", "multiclass") else prediction.mean
        assert bool(torch.isfinite(torch.as_tensor(found)).all())


def test_runs_of_a_sweep_are_made_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "device_of", lambda choice: ELSEWHERE.type if choice == "cuda" else choice)
    data, settings = Dataset("rows", X, TASKS["regression"]), Settings(inducing=8, width=2, epochs=2)
    with virtual_device(monkeypatch):
        rows = sweep.sweep([data], ["svgp", "dsvi"], settings=settings, device="cuda", output=tmp_path / "runs.jsonl")
    here = sweep.sweep([data], ["svgp", "dsvi"], settings=settings, device="cpu")
    for there, row in zip(rows, here, strict=True):
        assert (there["device"], row["device"]) == (ELSEWHERE.type, "cpu")
        assert there["nll"] == pytest.approx(row["nll"], rel=0.1)
    assert (
        sweep.sweep([data], ["svgp", "dsvi"], settings=settings, device="cpu", output=tmp_path / "runs.jsonl") == rows
    )


def test_what_is_saved_of_a_run_is_of_one_device(tmp_path, monkeypatch):
    data = Dataset("rows", X, TASKS["regression"])
    (run,) = sweep.planned([data], ["svgp"], splits=(0,), seeds=(0,), settings=Settings(epochs=1), device="auto")
    run = replace(run, folder=tmp_path)
    here = run._kept
    assert here == replace(run, device="cpu")._kept
    monkeypatch.setattr(sweep, "device_of", lambda choice: "cuda")
    assert run._kept != here


def test_scores_of_held_out_rows_lie_on_the_processor_where_saved_ones_are(monkeypatch):
    with virtual_device(monkeypatch) as device:
        made = RowScores(torch.ones(3).to(device), torch.ones(3).to(device))
        read = RowScores(torch.zeros(3), torch.ones(3))
        assert made.is_clearly_better_than(read) is False and read.is_clearly_better_than(made)


def test_a_name_of_no_device_is_refused_before_anything_is_given_to_workers():
    data = Dataset("rows", X, TASKS["regression"])
    with pytest.raises(ValueError, match="device is auto, cpu or cuda, not 'gpu'"):
        sweep.planned([data], ["svgp"], splits=(0,), seeds=(0,), settings=Settings(), device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_said_before_anything_runs():
    with pytest.raises(ValueError, match="torch sees none: use --device cpu"):
        sweep.sweep([Dataset("rows", X, TASKS["regression"])], ["svgp"], device="cuda")
