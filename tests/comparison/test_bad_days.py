"""Bad days of the command line: broken and hostile folders, two runs at once, full disks, folders that go away."""

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import pyro_dgp.comparison.keep as keep_module
import pyro_dgp.comparison.run as run_module
from pyro_dgp import ByGuide, InducingPoints, MonteCarlo, Settings, compare, sweep
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.finished import broken_file
from pyro_dgp.comparison.gap_study import read_gap
from pyro_dgp.comparison.lock import FOLDER_LOCK, locked_file, locked_folder
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.comparison.run import MethodFailedError
from pyro_dgp.comparison.run_lines import read_lines
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.internal.checkpoint import write_state
from pyro_dgp.internal.untrusted_files import read_npz
from pyro_dgp.internal.whole_file import write_whole
from tests import hostile

SMALL = Settings(inducing=5, epochs=2, batch_size=20, width=1, samples=2)
X, Y = hostile.X, hostile.Y


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished comparison of one method, with its kept fit, and the data as a file."""
    folder = tmp_path_factory.mktemp("made")
    np.savez(folder / "waves.npz", X=X, y=Y)
    arguments = ["--inducing", "5", "--epochs", "2"]
    assert main(["compare", "--data", str(folder / "waves.npz"), "--methods", "svgp", *arguments, *output(folder)]) == 0
    return folder


def output(folder):
    return ["--output", str(folder / "out")]


@pytest.fixture
def copied(made, tmp_path):
    """A copy of it that a test may break, and the command that goes on in it."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def resume(folder, methods="svgp"):
    data = ["--data", str(folder / "waves.npz"), "--methods", methods, "--inducing", "5", "--epochs", "2"]
    return main(["compare", *data, *output(folder), "--resume"])


def predict(folder):
    fit = ["--fit", str(folder / "out"), "--method", "svgp", "--data", str(folder / "waves.npz")]
    return main(["predict", *fit, "--output", str(folder / "predictions.csv")])


def one_line(capsys):
    error = capsys.readouterr().err
    assert error.startswith("pyro-dgp: ") and error.count("\n") == 1 and "Traceback" not in error, error
    assert "TypeCheckError" not in error
    return error


@pytest.mark.parametrize("ending", ["nc", "npz"])
@pytest.mark.parametrize("damage", ["half", "nothing", "rubbish", "pickle", "gone", "folder"])
def test_a_broken_file_of_a_method_is_noticed(damage, ending, copied):
    path = copied / "out" / f"svgp.{ending}"
    assert broken_file(copied / "out", "svgp") is None
    content = {
        "half": path.read_bytes()[: path.stat().st_size // 2],
        "nothing": b"",
        "rubbish": b"\x89HDF\r\n\x1a\n" * 99,
        "pickle": hostile.pickled(copied / "marker"),
    }
    path.unlink()
    if damage in content:
        path.write_bytes(content[damage])
    elif damage == "folder":
        path.mkdir()
    found = broken_file(copied / "out", "svgp")
    assert found is not None
    name, reason = found
    assert name == path.name and reason and "\n" not in reason
    assert not (copied / "marker").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_method_whose_file_was_cut_off_is_made_again_and_it_is_said(copied, capsys):
    path = copied / "out" / "svgp.nc"
    os.truncate(path, path.stat().st_size // 2)
    assert resume(copied) == 0
    error = capsys.readouterr().err
    assert "svgp.nc' cannot be read (it is cut off, or no netCDF file): it is made again" in error
    assert "finished before" not in error and broken_file(copied / "out", "svgp") is None
    os.truncate(copied / "out" / "fits" / "svgp.npz", 900)
    assert (broken_file(copied / "out", "svgp") or [""])[0] == "fits/svgp.npz"


def names_of(contents):
    row = {"method": "svgp", "config": {}, "nll": 1.0, "rmse": 1.0, "crps": 1.0}
    facts = {"method": "svgp", "settings": {}}
    arrays = {"x_train": X, "predictor.a": X, "given": np.arange(3), "probe": X}
    line = {"dataset": "waves", "method": "svgp", "settings": {}}
    made = {
        hostile.result_tables: [row],
        hostile.kept_facts: facts,
        hostile.kept_arrays: arrays,
        hostile.sweep_files: json.dumps(line),
    }
    return list(contents(made[contents], ""))


@pytest.mark.parametrize("name", names_of(hostile.result_tables))
def test_a_table_that_is_none_is_one_sentence(name, copied, capsys):
    path = copied / "out" / "results.json"
    contents = hostile.result_tables(json.loads(path.read_text()), copied / "marker")
    path.write_bytes(contents[name])
    assert resume(copied) == 2
    assert "results.json' is not a result of this program (" in one_line(capsys)
    assert path.read_bytes() == contents[name] and not (copied / "marker").exists()
    assert not (copied / "out" / FOLDER_LOCK).exists()


@pytest.mark.parametrize("name", names_of(hostile.kept_facts))
def test_plain_values_that_are_no_fit_are_one_sentence(name, copied, capsys):
    path = copied / "out" / "fits" / "svgp.json"
    path.write_bytes(hostile.kept_facts(json.loads(path.read_text()), copied / "marker")[name])
    assert predict(copied) == 2
    assert "svgp" in one_line(capsys)
    assert not (copied / "marker").exists() and not (copied / "predictions.csv").exists()


@pytest.mark.parametrize("name", names_of(hostile.kept_arrays))
def test_arrays_that_are_no_fit_are_one_sentence(name, copied, capsys):
    path = copied / "out" / "fits" / "svgp.npz"
    path.write_bytes(hostile.kept_arrays(read_npz(path), copied / "marker")[name])
    assert predict(copied) == 2
    assert "svgp" in one_line(capsys)
    assert not (copied / "marker").exists() and not (copied / "predictions.csv").exists()


def test_a_fit_predicts_where_nothing_is_broken(copied):
    assert predict(copied) == 0
    assert len((copied / "predictions.csv").read_text().splitlines()) == len(X) + 1


def waves():
    return Dataset("waves", X, Y)


@functools.cache
def line_of_a_sweep():
    (row,) = sweep([waves()], ["svgp"], settings=SMALL)
    return json.dumps(row)


@pytest.mark.parametrize("name", names_of(hostile.sweep_files))
def test_a_file_that_is_no_sweep_is_one_sentence_and_stays(name, tmp_path):
    path = tmp_path / "runs.jsonl"
    content = hostile.sweep_files(line_of_a_sweep(), tmp_path / "marker")[name]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="runs.jsonl' is no file of a sweep") as caught:
        read_lines(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content and not (tmp_path / "marker").exists()


def test_a_sweep_into_no_plain_file_is_one_sentence(tmp_path, capsys):
    for path in hostile.paths(tmp_path)[:4]:
        assert main(["sweep", "--data", "diabetes", "--methods", "svgp", "--output", str(path)]) == 2
        assert path.name in one_line(capsys)


def test_settings_of_a_later_program_are_other_settings(tmp_path):
    row = json.loads(line_of_a_sweep())
    row["settings"]["warp"] = 9
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="with warp 9, now None: repeat that, or name another --output"):
        sweep([waves()], ["svgp"], settings=SMALL, output=path)


def test_a_line_that_cannot_be_written_ends_the_sweep_and_keeps_those_before(tmp_path, monkeypatch):
    path, synced = tmp_path / "runs.jsonl", []
    monkeypatch.setattr(
        "pyro_dgp.comparison.run_lines.os.fsync", lambda handle: full() if synced else synced.append(handle)
    )
    monkeypatch.setattr("pyro_dgp.comparison.sweep.Checkpoints", lambda folder: nullcontext())
    with pytest.raises(OSError, match="the run of svgp on waves cannot be written to .*No space left.*: make room"):
        sweep([waves()], ["svgp"], splits=(0, 1, 2), settings=SMALL, output=path)
    monkeypatch.undo()
    assert [row["split"] for row in read_lines(path).values()] == [0]
    said = []
    sweep([waves()], ["svgp"], splits=(0, 1, 2), settings=SMALL, output=path, say=said.append)
    assert len(said) == 2


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def by_guide(inducing):
    return ByGuide(InducingPoints(inducing), MonteCarlo(1))


def by_hand(folder, *names):
    methods = [(name, by_guide(4)) for name in names]
    said = []
    given = {"methods": methods, "settings": SMALL, "output": folder / "out", "resume": True}
    return compare(None, X, Y, say=said.append, **given), said


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time of such small comparisons."""
    monkeypatch.setattr(ComparisonResult, "draw", lambda self, path: path.write_text("drawn"))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    by_hand(folder, "one")
    return folder


@pytest.mark.parametrize(
    ("place", "function"),
    [
        (os, "posix_fallocate"),
        (run_module, "write_arrays"),
        (keep_module, "write_arrays"),
        (keep_module, "write_text"),
        (run_module, "write_table"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_keeps_what_was_written_and_is_one_sentence(place, function, one, tmp_path, monkeypatch):
    shutil.copytree(one, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(place, function, full)
    with pytest.raises(MethodFailedError, match="two failed: its files cannot be written .*No space left") as caught:
        by_hand(tmp_path, "one", "two", "three")
    assert "\n" not in str(caught.value) and [row["method"] for row in caught.value.result.rows] == ["one", "two"]
    assert [row["method"] for row in json.loads((tmp_path / "out" / "results.json").read_text())] == ["one"]
    assert broken_file(tmp_path / "out", "one") is None
    assert not list((tmp_path / "out").rglob(".part-*"))
    if function == "write_table":
        monkeypatch.undo()
        result, said = by_hand(tmp_path, "one", "two")
        assert list(result) == ["one", "two"] and "one: finished before, not run again" in said
        assert "two: finished before, not run again" not in said


def test_a_figure_that_cannot_be_written_loses_nothing(one, tmp_path, monkeypatch):
    shutil.copytree(one, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("pyro_dgp.comparison.results.write_whole", full)
    with pytest.raises(MethodFailedError, match="the figure failed: it cannot be written to .*No space left"):
        by_hand(tmp_path, "one")
    assert broken_file(tmp_path / "out", "one") is None


@pytest.mark.usefixtures("undrawn")
def test_the_command_ends_with_1_on_a_full_disk(copied, monkeypatch, capsys):
    before = (copied / "out" / "results.json").read_bytes()
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert resume(copied, "svgp,ppgpr") == 1
    out = capsys.readouterr()
    assert "ppgpr" in out.out and "Traceback" not in out.err
    assert "pyro-dgp: ppgpr failed: its files cannot be written to" in out.err.splitlines()[-1]
    assert (copied / "out" / "results.json").read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_an_interrupt_while_files_are_written_leaves_no_part_of_one(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_dgp.comparison.keep.write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        by_hand(tmp_path, "one")
    assert not list((tmp_path / "out").rglob(".part-*")) and not (tmp_path / "out" / "results.json").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_folder_that_goes_away_is_one_sentence(tmp_path):
    class Removing(ByGuide):
        def run(self, *arguments, **options):
            fitted = super().run(*arguments, **options)
            shutil.rmtree(tmp_path / "out")
            return fitted

    removing = Removing(InducingPoints(4), MonteCarlo(1))
    with pytest.raises(MethodFailedError, match="its files cannot be written to .*out.* .it is gone") as caught:
        compare(None, X, Y, methods=[("a", removing)], settings=SMALL, output=tmp_path / "out", say=lambda _: None)
    assert len(caught.value.result) == 1 and "\n" not in str(caught.value)


def test_the_second_run_in_a_folder_is_told_of_the_first(copied, capsys):
    with locked_folder(copied / "out"):
        before = sorted(path.name for path in (copied / "out").iterdir())
        assert resume(copied, "svgp,ppgpr") == 2
        error = one_line(capsys)
        assert f"is in use by another run (process {os.getpid()} on " in error and str(copied / "out") in error
        assert sorted(path.name for path in (copied / "out").iterdir()) == before
        with pytest.raises(ValueError, match="is in use by another run"):  # not only that it exists
            compare(None, X, Y, methods=["svgp"], output=copied / "out", say=lambda _: None)
        assert sorted(path.name for path in (copied / "out").iterdir()) == before
    (copied / "out" / ".lock").write_text("left by a run that was killed")
    with pytest.raises(ValueError, match="exists: name another"):
        compare(None, X, Y, methods=["svgp"], output=copied / "out", say=lambda _: None)
    assert (copied / "out" / ".lock").read_text() == "left by a run that was killed"


def test_the_second_sweep_into_a_file_is_told_of_the_first(tmp_path, capsys):
    command = ["sweep", "--data", "diabetes", "--methods", "svgp", "--output", str(tmp_path / "runs.jsonl")]
    with locked_file(tmp_path / "runs.jsonl"):
        assert main(command) == 2
    assert "runs.jsonl' is in use by another run (process " in one_line(capsys)
    assert not list(tmp_path.iterdir())


def test_a_gap_is_not_written_where_another_run_is(tmp_path):
    from pyro_dgp.comparison.gap_study import GapResult, GapStudy
    from pyro_dgp.zoo.methods import METHODS

    result = GapResult({}, GapStudy([METHODS["dsvi"]], METHODS["ess"]), torch.ones(2, 1), draws=8)
    with locked_folder(tmp_path), pytest.raises(ValueError, match="is in use by another run"):
        result.write(tmp_path)
    result.write(tmp_path)
    assert (tmp_path / "gap.json").exists()
    for content in (b"", b"[]", b"{}", b"[1]", b'[{"method": "a"}]', hostile.pickled(tmp_path / "marker")):
        (tmp_path / "gap.json").write_bytes(content)
        assert not result.study.finished(tmp_path, 8)
        with pytest.raises(ValueError, match="gap.json' cannot be read"):
            read_gap(tmp_path)
    assert not (tmp_path / "marker").exists()


def test_the_lock_of_a_killed_process_does_not_block(tmp_path):
    program = (
        "import runpy, sys, time\n"
        "locked_folder = runpy.run_path(sys.argv[1])['locked_folder']\n"
        "from pathlib import Path\n"
        "with locked_folder(Path(sys.argv[2])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    lock = Path(sys.modules[locked_folder.__module__].__file__)
    process = subprocess.Popen([sys.executable, "-c", program, lock, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match=f"in use by another run .process {process.pid} on "), locked_folder(tmp_path):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / FOLDER_LOCK).exists()
    with locked_folder(tmp_path):
        pass
    assert not (tmp_path / FOLDER_LOCK).exists()


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("keep")
    (tmp_path / FOLDER_LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="cannot be written to"), locked_folder(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "keep"


def test_an_output_that_cannot_be_made_is_one_sentence(tmp_path, capsys):
    (tmp_path / "plain").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in ("plain", "plain/below", "loop", "n" * 300, "/proc/none/out", "/dev/null"):
        assert main(["compare", "--methods", "svgp", "--output", str(tmp_path / path)]) == 2
        assert "name a" in one_line(capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "plain"]


def test_a_model_s_file_that_is_none_is_one_sentence(tmp_path, capsys):
    (tmp_path / "rubbish.py").write_bytes(b"\xff\xfe\x00" * 50)
    (tmp_path / "zeros.py").write_bytes(bytes(50))
    for path in (tmp_path / "rubbish.py", tmp_path / "zeros.py", *hostile.paths(tmp_path)):
        assert main(["compare", "--data", "diabetes", "--methods", "svgp", "--model", f"{path}:Model"]) == 2
        assert path.name[:40] in one_line(capsys)


def test_a_long_name_of_a_method_is_refused():
    with pytest.raises(ValueError, match="of a method has 300 characters and names files: give it 100 at most"):
        compare(None, X, Y, methods=[("m" * 300, by_guide(4))], settings=SMALL, say=lambda _: None)


def test_long_names_of_data_and_columns_are_drawn(tmp_path):
    import pandas as pd

    long = "a column of a very long name " * 10
    table = pd.DataFrame({long: X[:, 0]})
    given = {"methods": [("mine", by_guide(4))], "settings": SMALL, "name": "n" * 300, "output": tmp_path / "out"}
    compare(None, table, Y, say=lambda _: None, **given)
    assert (tmp_path / "out" / "comparison.png").exists()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "run-1.safetensors"
    write_state(path, {"facts": {"steps": 3}, "first": 1.0, "began": 1, "state": {"a": torch.ones(8)}})
    return path.read_bytes()


def test_a_checkpoint_that_is_none_is_one_sentence(checkpoint, tmp_path):
    from pyro_dgp.training.checkpoints import Checkpoints, Run, recorded

    path = tmp_path / "run-1.safetensors"
    for name, content in hostile.states(checkpoint, tmp_path / "marker").items():
        path.write_bytes(content)
        for read in (
            lambda: Run({"steps": 3}).resume(torch.nn.Linear(1, 1), lambda: 1.0),
            lambda: recorded(lambda: 1.0),
        ):
            refused = pytest.raises(ValueError, match="run-1.safetensors' cannot be read .*: give another folder")
            with refused as caught, Checkpoints(tmp_path):
                read()
            assert "\n" not in str(caught.value), name
    assert not (tmp_path / "marker").exists()


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / f"{'n' * 240}.txt"
    write_whole(path, lambda part: part.write_text("old"))

    def failing(part):
        part.write_text("new, but not")
        full()

    with pytest.raises(OSError, match="No space"):
        write_whole(path, failing)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
