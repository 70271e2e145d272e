"""Sweeps: every run is a line, a file is gone on with, and what another call would mix up is refused."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed

from pyro_dgp import ByGuide, Checkpoints, InducingPoints, MonteCarlo, Settings, split, sweep
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.sweep import Clock
from pyro_dgp.comparison.sweep_command import means, numbers
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.prediction.scores import scores
from pyro_dgp.zoo.inference import Inference
from pyro_dgp.zoo.methods import METHODS

SMALL = Settings(inducing=5, epochs=2, batch_size=20, width=1, samples=2)


def waves(name="waves", rows=40, seed=0):
    random = np.random.RandomState(seed)
    x = random.uniform(-1, 1, (rows, 1))
    return Dataset(name, x, np.sin(3 * x[:, 0]) + 0.1 * random.randn(rows))


def test_every_run_is_a_row_and_a_line(tmp_path):
    said = []
    rows = sweep(
        [waves(), waves("more", seed=1)],
        ["svgp", ("mine", ByGuide(InducingPoints(4), MonteCarlo(2)))],
        splits=(0, 1),
        seeds=(0, 3),
        settings=SMALL,
        output=tmp_path / "runs.jsonl",
        say=said.append,
    )
    assert len(rows) == len(said) == 16
    assert {(r["dataset"], r["method"], r["split"], r["seed"]) for r in rows} == {
        (d, m, k, s) for d in ("waves", "more") for m in ("svgp", "mine") for k in (0, 1) for s in (0, 3)
    }
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert lines == rows
    assert said[0].startswith("1 of 16 runs, the last ends at about ") and "waves svgp split 0 seed 0: NLL" in said[0]
    assert said[-1].startswith("16 of 16 runs; more mine split 1 seed 3: NLL")
    assert rows[0]["nll"] != rows[1]["nll"] and rows[0]["n_test"] == 4


def test_a_row_has_the_scores_of_the_method():
    (row,) = sweep([waves()], ["svgp"], splits=(2,), seeds=(5,), settings=SMALL)
    part = split(waves(), 2)
    settings = Settings(**(SMALL.__dict__ | {"split": 2, "seed": 5}))
    torch.manual_seed(5)
    model = METHODS["svgp"].architecture.build(part.x_train, settings)
    torch.manual_seed(5)
    inference = METHODS["svgp"].inference
    fitted = inference.run(model, part.x_train, part.y_train, settings=settings, progress=lambda *_: None)
    torch.manual_seed(5)
    expected = scores(fitted.predict(part.x_test), part.y_test, torch.as_tensor(part.target.scale))
    assert {name: row[name] for name in expected} == expected


def test_processes_have_the_rows_of_one(tmp_path):
    run = lambda jobs: sweep([waves()], ["svgp", "dsvi"], splits=(0, 1), settings=SMALL, jobs=jobs)
    drop = lambda rows: [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    assert drop(run(1)) == drop(run(2))


def test_a_file_is_gone_on_with(tmp_path, monkeypatch):
    path, said = tmp_path / "runs.jsonl", []
    first = sweep([waves()], ["svgp"], splits=(0, 1), settings=SMALL, output=path)
    path.write_text(path.read_text() + '{"dataset": "waves", "method": "dsvi", "sp')  # cut off by a kill
    rows = sweep([waves()], ["svgp", "dsvi"], splits=(0, 1), settings=SMALL, output=path, say=said.append)
    assert [row for row in rows if row["method"] == "svgp"] == first
    assert len(said) == 2 and all("dsvi" in line for line in said)
    assert len(path.read_text().splitlines()) == 4


def test_a_file_from_before_a_setting_is_gone_on_with(tmp_path):
    path, said = tmp_path / "runs.jsonl", []
    (row,) = sweep([waves()], ["svgp"], settings=SMALL, output=path)
    del row["settings"]["minutes"]
    path.write_text(json.dumps(row) + "\n")
    sweep([waves()], ["svgp"], settings=SMALL, output=path, say=said.append)
    assert not said


def test_a_run_that_fails_is_a_row_and_is_made_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "runs.jsonl"
    bad = waves("bad")
    bad.y[:] = 1.0
    said = []
    rows = sweep([waves(), bad], ["svgp"], settings=SMALL, output=path, say=said.append)
    assert "the target of 'bad' is constant" in rows[1]["error"] and "nll" not in rows[1]
    assert said[-1].startswith(
        "2 of 2 runs, 1 failed; bad svgp split 0 seed 0: failed: ValueError: the target of 'bad'"
    )
    again = []
    sweep([waves(), bad], ["svgp"], settings=SMALL, output=path, say=again.append)
    assert len(again) == 1 and "bad" in again[0]


def test_what_would_be_mixed_up_is_refused(tmp_path):
    path = tmp_path / "runs.jsonl"
    run = lambda **changes: sweep(
        changes.pop("datasets", [waves()]),
        changes.pop("methods", ["svgp"]),
        **{"settings": SMALL, "output": path} | changes,
    )
    run()
    cases = {
        "holds the run of svgp on waves .split 0, seed 0. with inducing 5, now 6": {
            "settings": Settings(**(SMALL.__dict__ | {"inducing": 6}))
        },
        "with other data": {"datasets": [waves(seed=9)]},
        "with other dtype": {"dtype": "float32"},
        "two data sets are called 'waves'": {"datasets": [waves(), waves(seed=1)]},
        "at least one data set": {"splits": ()},
        "there is no method 'svpg'": {"methods": ["svpg"]},
        "jobs and threads are at least 1": {"jobs": 0},
        "there is no folder": {"output": tmp_path / "none" / "runs.jsonl"},
    }
    for message, changes in cases.items():
        with pytest.raises(ValueError, match=message):
            run(**changes)
    path.write_text("[1, 2]\n")
    with pytest.raises(ValueError, match="is no file of a sweep"):
        run()


def test_the_time_that_is_left():
    clock = Clock(["slow", "fast", "fast", "slow", "new"], 2)
    assert clock.left() == 0.0
    clock.ended({"method": "slow", "total_seconds": 100.0})
    clock.ended({"method": "fast", "total_seconds": 10.0})
    assert clock.left() == pytest.approx((10 + 100 + 55) / 2)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("waves.npz", X=waves().x, y=waves().y)
    command = "sweep --data waves.npz,diabetes --methods svgp --splits 0-1 --seeds 0,2 --inducing 5 --epochs 1 --output runs.jsonl"
    assert main(command.split()) == 0
    out = capsys.readouterr()
    lines = out.out.splitlines()
    assert lines[0].split() == ["data", "method", "runs", "NLL", "+-", "RMSE", "CRPS", "train", "s"]
    assert [line.split()[:3] for line in lines[1:]] == [["waves", "svgp", "4"], ["diabetes", "svgp", "4"]]
    assert "8 of 8 runs; " in out.err and out.err.count(", 2 remarks\n") == 8  # of one step, which explains nothing
    remarked = out.err.splitlines()[-1] + "\n"
    start = '8 of 8 runs have remarks on how the fit went, under "remarks" in runs.jsonl; the first (svgp on waves): the fit explains nothing'
    assert remarked.startswith(start)
    assert main(command.split()) == 0
    again = capsys.readouterr()
    assert again.out == out.out and again.err == "all 8 runs came from runs.jsonl: nothing was left to run\n" + remarked
    assert main(["sweep", "--data", "waves.npz", "--methods", "svgp", "--splits", "0-x"]) == 2
    assert "--splits takes numbers from 0, such as 0-4 or 0,2, not '0-x'" in capsys.readouterr().err
    assert main(["sweep", "--data", "waves.npz", "--methods", "svgp", "--splits", "0,3-1"]) == 2
    assert "--splits 3-1 runs backwards: write 1-3" in capsys.readouterr().err
    assert main(["sweep", "--data", "waves.npz", "--methods", "svgp", "--target", "price"]) == 2
    assert (
        "takes the last column of each file for the target and has no --target: write 'price' last"
        in capsys.readouterr().err
    )
    assert main(["sweep", "--data", "none.npz", "--methods", "svgp"]) == 2
    assert "there is no file 'none.npz'" in capsys.readouterr().err


def test_means_and_numbers():
    rows = [{"dataset": "a", "method": "m", "nll": v, "rmse": 1.0, "crps": 1.0, "seconds": 2.0} for v in (1.0, 3.0)]
    (row,) = means([*rows, {"dataset": "a", "method": "m", "error": "no"}])
    assert (row["nll"], row["nll_error"], row["runs"], row["failed"]) == (2.0, 1.0, 2, 1)
    assert row["seconds"] == 2.0
    (row,) = means([{**rows[0], "device": "cuda"}, rows[1]])
    assert "seconds" not in row and row["nll"] == 2.0  # no mean of times of two devices
    assert numbers("0-2,5, 1", "--x") == (0, 1, 2, 5)


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tmp_path, monkeypatch):
    np.savez(tmp_path / "waves.npz", X=waves().x, y=waves().y)
    command = ["sweep", "--data", "waves.npz", "--methods", "svgp", "--splits", "0-9"]
    command += ["--inducing", "5", "--epochs", "40", "--output", "runs.jsonl"]
    program = [sys.executable, "-m", "pyro_dgp", *command]
    process = subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path, deadline = tmp_path / "runs.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or len(path.read_text().splitlines()) < 2):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = path.read_text().splitlines()
    assert 2 <= len(kept) < 10
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    lines = path.read_text().splitlines()
    assert lines[: len(kept)] == kept and len(lines) == 10


def children(process):
    """Numbers of the processes that a process has started, from Linux."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the children of a process are read from /proc")
def test_the_processes_of_a_sweep_that_is_killed_end(tmp_path):
    np.savez(tmp_path / "waves.npz", X=waves().x, y=waves().y)
    command = [sys.executable, "-m", "pyro_dgp", "sweep", "--data", "waves.npz", "--methods", "svgp", "--splits", "0-9"]
    command += ["--inducing", "5", "--epochs", "1000000", "--jobs", "2", "--output", "runs.jsonl"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(children(process.pid)) < 2:
        time.sleep(0.1)
    time.sleep(5)  # the runs begin
    busy = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(busy) >= 2
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{each}").exists() for each in busy):
        time.sleep(0.1)
    assert not [each for each in busy if Path(f"/proc/{each}").exists()]


@dataclass(frozen=True)
class EndsItsProcess(Inference):
    """An inference that is killed: always, or where a file is not there yet.

    :ivar once: the file.
    """

    once: str | None = None

    def run(self, model, x, y, *, settings, progress):
        if self.once is None or not Path(self.once).exists():
            if self.once is not None:
                Path(self.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return METHODS["svgp"].inference.run(model, x, y, settings=settings, progress=progress)


@pytest.mark.slow
def test_a_killed_process_costs_no_row(tmp_path):
    path = tmp_path / "runs.jsonl"
    methods = ["svgp", ("killed-once", EndsItsProcess(str(tmp_path / "once"))), ("poison", EndsItsProcess())]
    with pytest.warns(UserWarning, match="ended from outside .* are made again, one at a time"):
        rows = sweep([waves()], methods, settings=SMALL, output=path, jobs=2)
    assert len(rows) == len(path.read_text().splitlines()) == 3
    assert all("nll" in row for row in rows if row["method"] != "poison")
    assert all("was ended twice" in row["error"] for row in rows if row["method"] == "poison")
    assert Parallel(n_jobs=2)(delayed(abs)(-number) for number in range(3)) == [0, 1, 2]  # whose processes are others


@pytest.mark.slow
def test_an_executor_carries_the_runs_out(tmp_path):
    drop = lambda rows: [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        run = partial(sweep, [waves()], splits=(0, 1), settings=SMALL, output=tmp_path / "runs.jsonl")
        rows = run(["svgp"], executor=executor)
        assert drop(rows) == drop(sweep([waves()], ["svgp"], splits=(0, 1), settings=SMALL))
        broken = run(["svgp", ("poison", EndsItsProcess())], executor=executor)
    assert broken[::2] == rows and all("BrokenProcessPool" in row["error"] for row in broken[1::2])


def test_threads_are_refused(tmp_path):
    with ThreadPoolExecutor() as threads, pytest.raises(ValueError, match="ThreadPoolExecutor runs threads"):
        sweep([waves()], ["svgp"], settings=SMALL, executor=threads)


def test_a_run_that_was_cut_off_goes_on_and_leaves_those_of_other_sweeps(tmp_path, monkeypatch):
    monkeypatch.setattr("pyro_dgp.comparison.sweep.Checkpoints", partial(Checkpoints, seconds=0.0))
    calls, cut, step = [], [0], torch.optim.Adam.step

    class Cut(BaseException):
        pass

    def counted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == cut[0]:
            raise Cut
        return step(self, *args, **kwargs)

    def made(name, seed=0):
        (row,) = sweep([waves()], ["svgp"], seeds=(seed,), settings=SMALL, output=tmp_path / name)
        return row["nll"]

    monkeypatch.setattr(torch.optim.Adam, "step", counted)
    whole, steps = made("whole.jsonl"), len(calls)
    cut[0] = steps + 3
    with pytest.raises(Cut):
        made("runs.jsonl")
    (saved,) = (tmp_path / ".runs.jsonl.under-way").iterdir()
    made("runs.jsonl", seed=1)
    assert saved.exists()
    before = len(calls)
    assert made("runs.jsonl") == whole
    assert len(calls) - before == steps - 2  # two steps had been saved
    assert not (tmp_path / ".runs.jsonl.under-way").exists()
