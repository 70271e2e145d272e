import fcntl
import json
import math
import os
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import EllipticalSlice
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.gap_study import GapStudy
from pyro_dgp.comparison.request import DEFAULT_METHODS, Request, no_progress
from pyro_dgp.comparison.run import MethodFailedError, run
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.named import load_named
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split
from pyro_dgp.export.arviz_groups import import_arviz
from pyro_dgp.mcmc.diagnostics import convergence, doubts
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.by_marginal_likelihood import ByMarginalLikelihood
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

FAST = Settings(inducing=10, samples=2, epochs=2, mcmc_points=12, mcmc_samples=8, warmup=6)
KEYS = set(
    [
        "method",
        "dataset",
        "split",
        "seed",
        "n_train",
        "n_test",
        "layers",
        "width",
        "inducing",
        "samples",
        "steps",
        "nll",
        "rmse",
        "crps",
        "nll_original",
        "rmse_original",
        "crps_original",
        "train_seconds",
        "seconds_per_step",
        "predict_seconds",
        "peak_memory_mb",
    ]
)


def dataset(rows=60, inputs=2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs))
    return Dataset("waves", x, 5 + 3 * np.sin(x[:, 0]) + 0.3 * rng.normal(size=rows))


def quiet(sentence):
    del sentence


def asked(output, data=None, methods=DEFAULT_METHODS, settings=Settings(), **rest):
    return Request(output=output, dataset=data, methods=methods, settings=settings, **rest)


def rows_of(request, say):
    return run(request, say=say).rows


def test_every_method_of_the_table_runs_and_writes_what_is_promised(tmp_path):
    said, settings = [], replace(FAST, beta=0.3)  # searches for beta are made below
    rows = rows_of(asked(tmp_path / "out", dataset(), tuple(METHODS), settings), said.append)
    assert [row["method"] for row in rows] == list(METHODS)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == rows
    for row in rows:
        assert set(row) >= KEYS
        assert all(math.isfinite(row[key]) for key in KEYS if isinstance(row[key], float))
        scale = float(split(dataset(), 0).target.scale)
        assert row["nll_original"] == pytest.approx(row["nll"] + math.log(scale))
    az = import_arviz()
    posterior = az.from_netcdf(str(tmp_path / "out" / "sghmc.nc")).posterior
    assert posterior["h1_inducing_whitened"].shape == (1, 8, 10, 5) and posterior["y_f_inducing_whitened"].shape == (
        1,
        8,
        10,
        1,
    )
    nuts = rows[list(METHODS).index("nuts")]
    assert nuts["n_train"] == 12 and {"divergences", "r_hat_max", "ess_min"} <= set(nuts)
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 20_000
    text = " ".join(said)
    assert "random subset of 12 of the 54" in text and "nuts: priors of" in text and "stays above 0.0001" in text


def test_arviz_files_hold_what_was_trained_on_and_the_test_set(tmp_path):
    az = import_arviz()
    rows_of(asked(tmp_path / "out", dataset(), ("svgp", "nuts"), replace(FAST, chains=2)), quiet)
    part = split(dataset(), 0)
    for name, rows, chains, draws in (("svgp", 54, 1, 200), ("nuts", 12, 2, 8)):
        data = az.from_netcdf(str(tmp_path / "out" / f"{name}.nc"))
        numbers = torch.tensor(data.observed_data["row"].values.tolist())
        assert len(numbers.unique()) == rows
        np.testing.assert_allclose(data.observed_data["y"].values, part.y_train[numbers])
        np.testing.assert_allclose(data.constant_data["x"].values, part.x_train[numbers])
        assert data.posterior_predictive["y"].shape[2:] == (rows,)
        assert data.log_likelihood["y"].shape == (chains, draws, rows)
        np.testing.assert_allclose(data.predictions_constant_data["x"].values, part.x_test)
        np.testing.assert_allclose(data.predictions_constant_data["y"].values, part.y_test)
        assert data.predictions["y"].shape[2:] == (6,)
    assert data.sample_stats["diverging"].shape == data.sample_stats["energy"].shape == (2, 8)
    assert data.posterior["h1_whitened"].shape == (2, 8, 12, 5) and data.posterior["f"].shape == (2, 8, 12, 1)


def test_results_do_not_depend_on_the_company_and_repeat(tmp_path):
    both = rows_of(asked(tmp_path / "a", dataset(), ("svgp", "dsvi"), FAST), quiet)
    alone = rows_of(asked(tmp_path / "b", dataset(), ("dsvi",), FAST), quiet)
    assert both[1]["nll"] == alone[0]["nll"] and both[1]["crps"] == alone[0]["crps"]
    other = rows_of(asked(tmp_path / "c", dataset(), ("dsvi",), replace(FAST, seed=1)), quiet)
    assert other[0]["nll"] != alone[0]["nll"]


def test_resume_runs_only_what_is_missing(tmp_path):
    first = rows_of(asked(tmp_path / "out", dataset(), ("svgp",), FAST), quiet)
    said = []
    again = rows_of(asked(tmp_path / "out", dataset(), ("svgp", "ppgpr"), FAST, resume=True), said.append)
    assert again[0] == first[0] and [row["method"] for row in again] == ["svgp", "ppgpr"]
    assert any("svgp: finished before" in sentence for sentence in said)
    with pytest.raises(ValueError, match=r"made with other settings \(seed 0 in svgp, now 5\)"):
        rows_of(asked(tmp_path / "out", dataset(), ("svgp",), replace(FAST, seed=5), resume=True), quiet)
    with pytest.raises(ValueError, match="exists: name another --output, or go on in it with --resume"):
        rows_of(asked(tmp_path / "out", dataset(), ("svgp",), FAST), quiet)


def test_resume_knows_other_data_of_the_same_name_and_missing_files(tmp_path):
    first = asked(tmp_path / "out", dataset(), ("svgp",), FAST)
    rows_of(first, quiet)
    other = replace(dataset(), y=dataset().y + 1.0)
    with pytest.raises(ValueError, match="made with other settings"):
        rows_of(replace(first, dataset=other, resume=True), quiet)
    (tmp_path / "out" / "svgp.npz").unlink()
    assert len(rows_of(replace(first, resume=True), quiet)) == 1
    assert (tmp_path / "out" / "svgp.npz").exists()


def test_data_given_from_python_is_checked_before_training(tmp_path):
    x, y = dataset().x, dataset().y.copy()
    y[3] = np.nan
    for bad, sentence in (
        (Dataset("d", x, y), "NaN or infinity in the target 'y', row 3"),
        (Dataset("d", x, dataset().y[:, None]), "must be .N, D. and .N,."),
        (Dataset("d", x, dataset().y[:7]), "must be .N, D. and .N,."),
    ):
        with pytest.raises(ValueError, match=sentence):
            rows_of(asked(tmp_path / "out", bad, ("svgp",), FAST), quiet)
    assert not (tmp_path / "out").exists()


def test_a_method_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no factor")

    monkeypatch.setattr(ByMarginalLikelihood, "run", fail)
    with pytest.raises(MethodFailedError, match="exact-gp failed: no factor") as raised:
        rows_of(asked(tmp_path / "out", dataset(), ("exact-gp", "svgp"), FAST), quiet)
    assert [row["method"] for row in json.loads((tmp_path / "out" / "results.json").read_text())] == ["svgp"]
    assert [row["method"] for row in raised.value.result.rows] == ["svgp"]


def test_one_input_draws_bands(tmp_path):
    rows_of(asked(tmp_path / "out", dataset(inputs=1), ("exact-gp", "dsvi"), FAST), quiet)
    with np.load(tmp_path / "out" / "dsvi.npz") as curves:
        assert (curves["grid_high"] > curves["grid_low"]).all()


def test_float32_and_threads(tmp_path):
    threads = torch.get_num_threads()
    comparison = asked(tmp_path / "out", dataset(), ("svgp", "dsvi"), FAST, dtype="float32", threads=2)
    rows = rows_of(comparison, quiet)
    assert all(math.isfinite(row["nll"]) for row in rows)
    assert torch.get_default_dtype() == torch.float64 and torch.get_num_threads() == threads


def test_more_inducing_points_than_rows_are_reduced_aloud(tmp_path):
    said = []
    rows = rows_of(asked(tmp_path / "out", dataset(), ("svgp",), replace(FAST, inducing=500)), said.append)
    assert rows[0]["inducing"] == 54
    assert any("500 inducing points are more than the 54 distinct training inputs: reduced to 54" in s for s in said)


def test_splits_are_the_file_s_or_random(tmp_path):
    data = dataset()
    tests = [split(data, k).x_test for k in (0, 1)]
    assert not torch.equal(*tests)
    mask = np.zeros((60, 1))
    mask[:7] = 1
    np.savez(tmp_path / "d.npz", X=data.x, y=data.y[:, None], splits=mask)
    part = split(load(tmp_path / "d.npz"), 0)
    assert len(part.x_test) == 7 and len(part.y_train) == 53
    torch.testing.assert_close(part.x_train.mean(0), torch.zeros(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(part.y_train.std(correction=0), torch.tensor(1.0))
    expected = (data.y[:7] - data.y[7:].mean()) / data.y[7:].std()
    torch.testing.assert_close(part.y_test, torch.tensor(expected))
    assert len(load_named("diabetes").x) == 442


def write(path, **columns):
    frame = pd.DataFrame(columns)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def test_tables_are_read_with_their_target(tmp_path):
    a, b = np.arange(12.0), np.arange(12.0) ** 2
    for suffix in (".csv", ".parquet"):
        data = load(write(tmp_path / f"t{suffix}", a=a, b=b), "a")
        np.testing.assert_array_equal(data.y, a)
        np.testing.assert_array_equal(data.x[:, 0], b)
    np.testing.assert_array_equal(load(tmp_path / "t.csv").y, b)


def bad_inputs(folder):
    n = 20
    a, b = np.linspace(0, 1, n), np.sin(np.arange(n))
    nan, inf = b.copy(), b.copy()
    nan[3], inf[4] = np.nan, np.inf
    words = ["x"] * n
    npz = folder / "d.npz"
    np.savez(npz, X=np.ones((n, 2)), y=np.ones((n, 3, 2)))
    flat = folder / "flat.npz"
    np.savez(flat, X=np.ones(n), y=np.ones(n))
    whole = npz.read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "nothing.npz").write_bytes(b"")
    with (folder / "array.npz").open("wb") as file:
        np.save(file, np.ones(3))
    lone = folder / "lone.npz"
    np.savez(lone, X=np.ones((n, 2)))
    (folder / "broken.npz").write_bytes(b"no archive")
    (folder / "empty.csv").write_text("")
    (folder / "words.txt").write_text("hello")
    good = write(folder / "good.csv", a=a, b=b)
    return {
        "'cut.npz' cannot be read as .npz": ["--data", folder / "cut.npz"],
        "'nothing.npz' cannot be read as .npz": ["--data", folder / "nothing.npz"],
        "'array.npz' cannot be read as .npz": ["--data", folder / "array.npz"],
        "seed must be below": ["--seed", "9" * 20],
        "cannot be made": ["--output", "/dev/null/x"],
        "there is no file": ["--data", folder / "absent.csv"],
        "has no column 'price'": ["--data", good, "--target", "price"],
        "there is no method 'dvsi': did you mean dsvi? choose from ": ["--methods", "svgp,dvsi"],
        "there is no method 'zebra': choose from ": ["--methods", "zebra"],
        "there is no method 'nutz' to take as reference: did you mean nuts? ": ["--gap", "nutz"],
        "'svgp dsvi' is no name of a method: separate names by commas, svgp,dsvi": ["--methods", "svgp dsvi"],
        "no methods to compare": ["--methods", ","],
        "named twice": ["--methods", "svgp,svgp"],
        "NaN or infinity in input column 'a', row 3 counted from 0 (line 5 of the file), as an empty": [
            "--data",
            write(folder / "nan.csv", a=nan, b=b),
        ],
        "NaN or infinity in the target 'b', row 4": ["--data", write(folder / "inf.csv", a=a, b=inf)],
        "it must be (N,) or (N, P)": ["--data", npz],
        "it must be (N, D)": ["--data", flat],
        "has no array 'y'": ["--data", lone],
        "cannot be read as .npz": ["--data", folder / "broken.npz"],
        "cannot be read as csv": ["--data", folder / "empty.csv"],
        "neither CSV, Parquet nor .npz": ["--data", folder / "words.txt"],
        "input column 'a' of 'constant' is constant": ["--data", write(folder / "constant.csv", a=0 * a + 2, b=b)],
        "the target of 'level' is constant": ["--data", write(folder / "level.csv", a=a, b=0 * b)],
        "input column 'a=x' of 'letters' is constant": ["--data", write(folder / "letters.csv", a=words, b=b)],
        "has zero rows": ["--data", write(folder / "none.csv", a=a[:0], b=b[:0])],
        "no input columns": ["--data", write(folder / "alone.csv", b=b)],
        "at least 10 are needed": ["--data", write(folder / "few.csv", a=a[:4], b=b[:4])],
        "--target is that of --data, which is not given": ["--target", "a"],
        "there is no kernel 'rbff'": ["--kernel", "rbff"],
        "layers must be at least 1": ["--layers", "0"],
        "epochs must be at least 1": ["--epochs", "-3"],
        "minutes must be a positive number": ["--minutes", "-1"],
        "given twice: say --epochs, --steps or --minutes": ["--minutes", "1", "--epochs", "3"],
        "the length of training is given twice: say": ["--steps", "1", "--epochs", "3"],
        "learning_rate must be a positive number": ["--learning-rate", "nan"],
        "beta must be at least 0": ["--beta", "nan"],
        "alpha must be above 0 and at most 1": ["--alpha", "1.5"],
        "threads must be at least 1": ["--threads", "0"],
        "split must be at least 0": ["--split", "-1"],
        "rule 'qr1' is a grid over one hidden layer and layers is 3": ["--methods", "dspp-qr1", "--layers", "3"],
        "2 points in each of 9 dimensions has more than 256": ["--methods", "dspp-gh", "--width", "9"],
        "is a file: name a folder": ["--output", good],
    } | ({} if torch.cuda.is_available() else {"device cuda was asked for": ["--device", "cuda"]})


def test_bad_input_is_one_sentence_exit_status_2_and_nothing_written(tmp_path, capsys):
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for sentence, arguments in bad_inputs(folder).items():
        chosen = list(map(str, arguments))
        chosen += [] if "--output" in chosen else ["--output", str(out)]
        assert main(["compare", *chosen]) == 2, sentence
        error = capsys.readouterr().err
        assert sentence in error, error
        assert error.count("\n") == 1 and "Traceback" not in error
        assert not out.exists()


def test_an_existing_folder_is_never_overwritten(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("keep")
    assert main(["compare", "--output", str(tmp_path / "out")]) == 2
    assert "exists: name another --output" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious.txt"]


def test_methods_are_listed_with_their_papers(capsys):
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    assert all(method.name in text and method.paper in text for method in METHODS.values())
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(METHODS)
    promised = "exact-gp sgpr svgp ppgpr dsvi dsvi-collapsed dspp dspp-qr1 dspp-qr2 dspp-gh mc-predictive gamma-dgp gp-nuts nuts ess"
    promised += " sparse-nuts sghmc dkl-svgp dkl-ppgpr dkl-dsvi dkl-dspp idsgp sgp-avi avdgp-ar1 avdgp-ar2 avdgp-ar2p avdgp-ar2pp"
    promised += " vff vff-collapsed id-dgp vish vish-dgp activated-svgp activated-dgp solve-gp solve-dgp od-svgp od-dgp"
    promised += " activated-solve activated-solve-dgp aep vecchia-gp vecchia-ess"
    assert set(promised.split()) == set(METHODS)


def test_the_table_and_exit_status_of_a_run(tmp_path, capsys):
    arguments = ["--methods", "svgp,exact-gp", "--epochs", "2", "--output", str(tmp_path / "out")]
    assert main(["compare", *arguments]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0].split()[:4] == ["method", "n_train", "folds", "steps"]
    assert lines[1].startswith("svgp") and lines[2].startswith("exact-gp")
    assert "svgp" in output.err and "loss" in output.err
    assert "Traceback" not in output.err


def test_interrupted_it_stops_without_a_trace_of_the_unfinished(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pyro_dgp", "compare", "--methods", "exact-gp", "--epochs", "20000"]
    terminal, end = os.openpty()  # in a terminal the progress line moves at once, in a pipe once a minute
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    process = subprocess.Popen(
        [*command, "--output", str(out)],
        stderr=end,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # started in the background, a shell's children ignore it
    )
    os.close(end)
    seen = b""
    while b"loss=" not in seen:
        seen += os.read(terminal, 1000)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # a terminal that nobody writes to any more
        while part := os.read(terminal, 1000):
            seen += part
    os.close(terminal)
    assert process.wait(timeout=60) == 130, seen.decode()
    assert b"interrupted" in seen and b"Traceback" not in seen
    assert not out.exists() or not any(out.iterdir())


def test_an_interrupt_between_methods_keeps_the_first(tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(ByMarginalLikelihood, "run", interrupt)
    arguments = ["--methods", "svgp,exact-gp", "--epochs", "2", "--output", str(tmp_path / "out")]
    assert main(["compare", *arguments]) == 130
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "results.json",
        "svgp.nc",
        "svgp.npz",
        "comparison.png",
        "fits",
    }


def test_an_interrupted_chain_goes_on_with_resume(tmp_path, monkeypatch):
    """Killed in a chain: what it drew is kept, and the end is that of an uninterrupted run."""
    monkeypatch.setattr("pyro_dgp.mcmc.single_chain.SAVE_EVERY", 0.0)
    settings = replace(FAST, mcmc_points=8, warmup=3)
    whole = rows_of(asked(tmp_path / "whole", dataset(), ("ess",), settings), quiet)[0]
    sample, calls = EllipticalSlice.sample, []

    def stops(self, params):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return sample(self, params)

    monkeypatch.setattr(EllipticalSlice, "sample", stops)
    parts = asked(tmp_path / "parts", dataset(), ("ess",), settings)
    with pytest.raises(KeyboardInterrupt):
        rows_of(parts, quiet)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [".ess"]
    row = rows_of(replace(parts, resume=True), quiet)[0]
    assert len(calls) == 8 + 11 - 7
    assert (row["nll"], row["r_hat_max"]) == (whole["nll"], whole["r_hat_max"])
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {
        "results.json",
        "ess.nc",
        "ess.npz",
        "comparison.png",
        "fits",
        ".ess",
    }


def test_what_is_doubtful_of_a_chain_is_said():
    def said(**figures):
        return [finding.sentence for finding in doubts(figures, 40)]

    assert said(r_hat_max=1.02, divergences=0) == said() == []
    assert said(r_hat_max=None) == ["it has no R-hat: too few draws, or some quantity never moved or is NaN"]
    slow, diverged = said(r_hat_max=3.021, divergences=14)
    assert slow.startswith("its largest R-hat is 3.02: not converged") and diverged.startswith("14 of its 40")


@pytest.mark.parametrize("chains", [1, 4])
def test_a_quantity_that_never_moves_leaves_no_r_hat(chains):
    moving = torch.randn(chains, 100, 2, dtype=torch.float64)
    known = convergence({"a": moving}, None)
    assert 0.9 < known["r_hat_max"] < 1.2 and known["ess_min"] > 20
    stuck = moving.clone()
    stuck[..., 1] = 0.3
    unknown = convergence({"a": moving, "b": stuck}, None)
    assert unknown["r_hat_max"] is None and unknown["ess_min"] is None


def test_what_becomes_of_the_settings_of_chains_is_said(monkeypatch):
    assert "one chain, whatever --chains says" in METHODS["sghmc"].inference.remarks(Settings())[0]
    few, many = (METHODS["ess"].inference.remarks(Settings(mcmc_samples=n, chains=3)) for n in (300, 400))
    assert few == [] and "made from 999 of its 1200 draws" in many[0]


def test_chains_of_an_interrupted_gap_are_kept(tmp_path, monkeypatch):
    """The reference is sampled before the interruption and not again."""
    study = GapStudy([METHODS["dsvi"]], METHODS["ess"])
    x, y = torch.randn(8, 2, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    settings = replace(FAST, inducing=8, width=2, warmup=2)
    options = {"settings": settings, "progress": no_progress, "say": quiet, "folder": tmp_path / "gap"}
    own_run = ByGuide.run

    def interrupted(self, model, *rest, **options):
        if (tmp_path / "gap" / "fixed" / "ess again").exists():
            raise KeyboardInterrupt
        return own_run(self, model, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ByGuide, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.run(x, y, x[:3], **options)
    kept = tmp_path / "gap" / "fixed" / "ess" / "chain-0.safetensors"
    before = kept.stat().st_mtime_ns
    gaps = study.run(x, y, x[:3], **options).gaps
    assert kept.stat().st_mtime_ns == before and set(gaps) == {"fixed", "priors"}
    assert set(gaps["fixed"]) == {"ess again", "dsvi"}


def test_the_gap_is_measured_on_one_model(tmp_path, capsys):
    """Six methods on 10 rows, a few iterations each: what is written, and for whom."""
    options = [
        "--mcmc-points",
        "10",
        "--mcmc-samples",
        "8",
        "--warmup",
        "2",
        "--inducing",
        "6",
        "--samples",
        "2",
        "--width",
        "2",
    ]
    np.savez(tmp_path / "waves.npz", X=dataset().x, y=dataset().y)
    options += ["--data", str(tmp_path / "waves.npz")]
    command = ["compare", *options, "--methods", "exact-gp,dsvi,dspp", "--epochs", "2", "--gap", "ess"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "gap.json").read_text())
    expected = [(name, c) for c in ("fixed", "priors") for name in ("ess again", "dsvi", "dspp")]
    assert [(row["method"], row["hyperparameters"]) for row in rows] == expected
    assert [row["approximates_posterior"] for row in rows[:3]] == [True, True, False]
    assert all(row["gap_wasserstein"] > 0 and row["gap_kl"] > 0 and row["reference"] == "ess" for row in rows)
    assert (tmp_path / "out" / "gap-fixed.png").stat().st_size > 10_000
    assert not (tmp_path / "out" / ".gap").exists()
    assert (tmp_path / "out" / "gap-priors.png").stat().st_size > 10_000
    output = capsys.readouterr().out
    assert (
        "distance from ess" in output
        and "hyperparameters" in output
        and output.rstrip().splitlines()[-1].endswith("no")
    )
    for bad, message in (
        ("dspp", "dspp is no approximation of the posterior"),
        ("svgp", "svgp fits another"),
        ("x", "no method 'x'"),
    ):
        assert main([*command[:-1], bad, "--output", str(tmp_path / "other")]) == 2
        assert message in capsys.readouterr().err


def test_python_raises_value_errors(tmp_path):
    with pytest.raises(ValueError, match="there is no method 'magic'"):
        rows_of(asked(tmp_path / "out", methods=("magic",)), quiet)
    with pytest.raises(ValueError, match="there is no file"):
        load(Path("absent.csv"))
    assert not (tmp_path / "out").exists()


def test_validated_methods_say_what_was_held_out_and_chosen(tmp_path):
    said = []
    settings = Settings(epochs=2, inducing=8, width=2, samples=4, batch_size=200)
    names = ("ppgpr", "dspp", "dspp-qr1", "dspp-qr2", "dspp-gh", "mc-predictive", "dkl-dspp")
    rows = rows_of(asked(tmp_path / "out", data=load_named("diabetes"), methods=names, settings=settings), said.append)
    for row in rows:
        folds = row["validation_folds"]
        assert (row["n_train"], row["n_validation"], row["n_test"]) == (398, 44 * folds, 44) and 1 <= folds <= 3
        assert row["beta"] in (0.05, 1.0, None) and 0 < row["best_step"] <= row["run_steps"] <= 4
        assert 3 <= row["search_steps"] <= 3 * 3 and row["steps"] == row["search_steps"] + row["final_steps"]
        stops = row["beta"] is not None or row["method"] == "dkl-dspp"  # its fallback overfits
        last = row["best_step"] if stops else 4  # the run on all rows
        # long runs of a beta and of the fallback; a fallback that stops has its short run on the folds that the search left out
        short = range(3) if row["method"] == "dkl-dspp" else [0]
        assert row["final_steps"] - last in [4 * runs + own for runs in range(2 * 3 + 1) for own in short]
        searched = row["searched_validation_nll"]
        assert list(searched) == ["0.05", "1", "fallback"]
        assert 0 < row["validation_seconds"] < row["train_seconds"] and row["validation_crps"] > 0
    for name in names:
        assert any(s.startswith(f"{name}: holds out 11% of the training rows") for s in said)
    given = replace(settings, beta=0.3)
    (row,) = rows_of(asked(tmp_path / "given", methods=("dspp",), settings=given), said.append)
    assert row["beta"] == 0.3 and row["steps"] == row["final_steps"]
    assert row["search_steps"] == 0 and row["searched_validation_nll"] == {}


def test_a_grid_of_too_many_points_is_reduced_aloud(tmp_path):
    said = []
    settings = Settings(epochs=1, inducing=8, width=5, samples=10, batch_size=400, beta=1.0)
    (row,) = rows_of(asked(tmp_path / "out", methods=("dspp-gh",), settings=settings), said.append)
    assert "dspp-gh: 3 points in each of 5 dimensions, 243 components, not 10" in said
    assert row["components"] == 243


def test_methods_without_a_validation_set_run(tmp_path):
    settings = Settings(epochs=1, inducing=8, width=2, samples=2, batch_size=200)
    names = ("gamma-dgp", "svgp", "dsvi")
    rows = rows_of(asked(tmp_path / "out", data=load_named("diabetes"), methods=names, settings=settings), quiet)
    assert [row["method"] for row in rows] == list(names)
    assert all(row["n_train"] == 398 and "n_validation" not in row for row in rows)
    assert [row.get("gamma") for row in rows] == [1.03, None, None]
    assert [row.get("components") for row in rows] == [2, None, 2]  # one layer has no components to mix


def test_what_ran_before_a_method_does_not_change_its_figures(tmp_path):
    settings = Settings(epochs=1, inducing=8, width=2, samples=2, batch_size=200)
    figures = []
    for folder, names in (("alone", ("dkl-dspp",)), ("after", ("dkl-dsvi", "dkl-dspp"))):
        rows = rows_of(asked(tmp_path / folder, methods=names, settings=settings), quiet)
        figures.append([rows[-1][key] for key in ("nll", "rmse", "validation_nll")])
    assert figures[0] == figures[1]


def test_an_option_of_another_command_is_named_beside_the_usage_of_this_one(capsys):
    for arguments, sentence in (
        (
            ["advise", "--model", "m.py:A", "--data", "x.csv"],
            "--model m.py:A (an option of pyro-dgp compare and predict)",
        ),
        (["methods", "--chains=4"], "--chains=4 (an option of pyro-dgp compare and sweep)"),
        (["methods", "--nothing"], "unrecognized arguments: --nothing\n"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        error = capsys.readouterr().err
        assert sentence in error and f"usage: pyro-dgp {arguments[0]} " in error
