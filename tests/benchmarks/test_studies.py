"""Every benchmark runs at toy size; with the data at hand the accuracy benchmark does too."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyro
import pytest
import torch

from benchmarks import (
    drawing,
    dspp_speed,
    experiments,
    peer_gpytorch,
    predictive,
    profiling,
    published,
    scaling,
    speed,
    step_function,
)
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.__main__ import write
from benchmarks.straight_line import StraightLine
from pyro_dgp import ELBO, CompiledObjective, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Variational
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.zoo.settings import Settings

ROOT = Path(__file__).parents[2]


def test_speed_measures_all_three(capsys, tmp_path, monkeypatch):
    rows = [speed.measure(replace(case, inducing=8, batch=10), threads=1, repeats=2) for case in speed.QUICK]
    for row in rows:
        assert row["ratio_to_gpytorch_min"] <= row["ratio_to_gpytorch"] <= row["ratio_to_gpytorch_max"]
        assert row["ratio_to_floor_min"] <= row["ratio_to_floor"] <= row["ratio_to_floor_max"]
        assert min(row[f"{name}seconds_per_step"] for name in ("", "gpytorch_", "floor_", "cpu_")) > 0
        assert row["calibration_seconds"] > 0 and row["dtype"] == "float32"
        assert "GPyTorch / here" in speed.described(row)
    monkeypatch.setattr(CompiledObjective, "backend", "eager")
    rows.append(speed.measure(speed.Case("svgp", inducing=8, batch=10), threads=1, repeats=2, compiled=True))
    assert rows[-1]["compiled_ratio_to_floor_min"] <= rows[-1]["compiled_ratio_to_floor"]
    assert "GPyTorch / compiled" in speed.described(rows[-1]) and "compiled" not in speed.described(rows[0])
    drawing.draw_speed(rows, tmp_path / "new" / "speed.png")
    assert (tmp_path / "new" / "speed.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "case",
    [
        speed.Case("svgp"),
        speed.Case("ppgpr"),
        speed.Case("dsvi", 2, 3),
        speed.Case("dsvi", 3, 3),
        speed.Case("dsvi", 3, 3, per_output=False),
    ],
    ids=str,
)
def test_the_floor_computes_the_same_objective(case):
    """The straight-line floor is the same arithmetic: put into it, the library's parameters give the library's loss."""
    x, y = torch.randn(20, speed.INPUTS), torch.randn(20)
    model = DeepGP(x, case.layers, case.width, per_output=case.per_output)
    guide = Variational(model, InducingPoints(8), MonteCarlo(case.samples))
    guide.initialize(x, y)
    line = StraightLine(x, case.layers, case.width, 8, case.samples, case.per_output, case.beta)
    with torch.no_grad():
        for i, gp in enumerate([*model.hidden, model.top]):
            process = guide.processes._modules[f"h{i + 1}" if i < case.layers - 1 else "y/f"]
            line.z[i].copy_(process.inducing_points)
            line.t[i].copy_(process.whitened_scale)
            line.m[i].copy_(process.whitened_mean.normal_())
            line.log_lengthscale[i].copy_(gp.kernel.lengthscale.log().reshape(line.log_lengthscale[i].shape))
            line.log_variance[i].copy_(gp.kernel.variance.log().reshape(line.log_variance[i].shape))
        line.log_noise.copy_((model.likelihood.variance - 1e-4).log())
    loss = ELBO(num_data=20) if case.beta is None else PredictiveLogLikelihood(20, case.beta)
    repeats = 1 if case.layers == 1 else 300
    ours = torch.tensor([loss.loss(model, guide, x, y) for _ in range(repeats)])
    floor = torch.tensor([float(line(x, y).detach()) for _ in range(repeats)])
    if case.layers == 1:
        assert float(ours) == pytest.approx(float(floor), rel=1e-3)  # jitter differs
        return
    error = (ours.var() / repeats + floor.var() / repeats).sqrt()
    assert abs(ours.mean() - floor.mean()) < 4 * error + 0.01 * abs(floor.mean())


@pytest.mark.parametrize("layers", [1, 2])
def test_gpytorch_gets_a_model_of_the_same_size(layers):
    from benchmarks.peers import PeerDeepGP, PeerGP

    x = torch.randn(30, speed.INPUTS)
    peer = PeerGP(x, 8) if layers == 1 else PeerDeepGP(x, 2, 5, 8, per_output=True)
    line = StraightLine(x, layers, 5, 8, 1, True)
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in line.parameters())


def test_the_profile_divides_a_step_among_kinds(tmp_path):
    rows = []
    for name, part in (("svgp", "moments"), ("avdgp-ar2pp", "networks")):
        row = {
            "method": name,
            **profiling.shares(profiling.training_step(name, profiling.SETTINGS[name], 8), repeats=2),
        }
        assert sum(row[kind] for kind in profiling.KINDS) == pytest.approx(1)
        everywhere = {kind for kind in profiling.KINDS if kind not in ("networks", "moments")} | {part}
        assert all(row[kind] > 0 for kind in everywhere), row
        assert profiling.described(row).startswith(name)
        rows.append(row)
    assert rows[0]["networks"] == 0
    drawing.draw_profile(rows, profiling.KINDS, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


def test_a_stopwatch_leaves_out_what_runs_inside(monkeypatch):
    times = iter([0.0, 1.0, 5.0, 7.0])
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: next(times))
    watch = profiling.Stopwatch()
    inner = watch.around(lambda value: value + 1, "moments")
    with watch.on(profiling.FORWARD):
        assert inner(1) == 2
    assert watch.seconds["moments"] == 4.0 and watch.seconds[profiling.FORWARD] == 3.0


def test_scaling_measures_time_and_memory(tmp_path):
    rows = [{"parameter": "samples", "value": v, **scaling.step("samples", v, repeats=1)} for v in (2, 4)] + [
        {"parameter": "rows", "value": v, **scaling.epoch(v, inducing=8)} for v in (300, 600)
    ]
    for name, measured in (("test rows", scaling.prediction), ("test rows, GPyTorch", scaling.peer_prediction)):
        rows += [{"parameter": name, "value": v, **measured(v, inducing=8)} for v in (100, 200)]
    assert all(row["seconds"] > 0 and row["peak_mb"] > 10 for row in rows)
    assert set(scaling.exponents(rows)) == {"samples", "rows", "test rows", "test rows, GPyTorch"}
    drawing.draw_scaling(rows, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    assert "rows a second" in scaling.described(rows[-1])


def test_exponents_are_slopes_of_logarithms():
    rows = [{"parameter": "batch", "value": v, "seconds": 3.0 * v**1.5} for v in (1, 10, 100)]
    assert scaling.exponents(rows)["batch"] == pytest.approx(1.5)


def test_every_point_of_scaling_can_be_sent_to_another_process():
    import pickle

    names = {name for name, _, call in scaling.points(quick=False) if pickle.dumps(call)}
    assert names == {*scaling.STEPS, "rows", "test rows", "test rows, GPyTorch"}


def test_accuracy_runs_by_default_on_data_that_a_dependency_ships(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PYRO_DGP_DATA", raising=False)
    out = tmp_path / "runs.jsonl"
    command = ["benchmarks", "accuracy", "--quick", "--steps", "3", "--methods", "svgp", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):
        benchmarks_main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["dataset"], row["method"]) for row in rows] == [("diabetes", "svgp")]
    said = capsys.readouterr().out
    assert "running on diabetes" in said and "no --published FOLDER" in said
    monkeypatch.setattr(sys, "argv", [*command, "--methods", "svgb"])
    with pytest.raises(SystemExit, match="no method 'svgb'"):
        benchmarks_main()


@pytest.mark.parametrize(
    "text", ['[\n  {"method": "svgp"}\n]', "# What was measured\n\nends here.", '{"method": "svgp"}\n']
)
def test_a_file_of_something_else_is_refused_and_left_alone(text, tmp_path):
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(SystemExit, match="holds something else than runs"):
        experiments.read(path)
    assert path.read_text() == text


def test_a_run_whose_line_was_cut_off_is_made_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"experiment": "accuracy"}\n{"experim')
    assert experiments.read(path) == [{"experiment": "accuracy"}]
    assert path.read_text() == '{"experiment": "accuracy"}\n'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "/nowhere"], "there is no file '/nowhere/energy.npz'"),
        (["--sets", "energy"], "--sets names files of a folder"),
        (["--methods", "svgp, nosuch"], "there is no method 'nosuch'"),
        (["--splits", "0"], "--splits is 1 at least"),
        (["--json", "/proc/nowhere/runs.jsonl"], "nothing can be written to /proc/nowhere"),
    ],
)
def test_mistakes_at_the_accuracy_command_are_one_sentence_before_anything_is_trained(options, words, monkeypatch):
    monkeypatch.delenv("PYRO_DGP_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "accuracy", "--quick", *options])
    monkeypatch.setattr(experiments, "run", None)
    with pytest.raises(SystemExit, match=words):
        benchmarks_main()


def test_published_numbers_stand_beside_ours_in_the_same_units(tmp_path):
    cells = pd.DataFrame(
        [
            (
                "ashman2020",
                "log-likelihood",
                "energy",
                "DSVI-2",
                -0.7,
                0.1,
                "log likelihood in the original units of y",
                "",
            ),
            ("ashman2020", "RMSE", "energy", "DSVI-2", 0.5, 0.02, "original units of y", ""),
            ("meng2024", "NLL", "Energy", "DS-DGP", 0.3, 0.01, "standardised y units", ""),
            ("meng2024", "RMSE", "Energy", "DS-DGP", 0.2, 0.01, "standardised y units", "doubtful: a misprint"),
        ],
        columns=["paper", "metric", "dataset", "method", "mean", "sd", "scale", "note"],
    )
    cells.to_csv(tmp_path / "cells.csv")
    runs = pd.DataFrame({"dataset": "energy", "method": "dsvi", "split": [0, 1], "nll": [0.1, 0.3], "rmse": [0.2, 0.2]})
    table = published.beside(runs, published.read(tmp_path), {"energy": 10.0})
    first, second = (table.iloc[i] for i in (0, 1))
    assert first["published as"].startswith("ashman2020 DSVI-2") and first["nll"] == "0.200 (0.141)"
    assert first["published nll"] == f"{0.7 - np.log(10):.3f} (0.100)" and first["published rmse"] == "0.050 (0.002)"
    assert second["published nll"] == "0.300 (0.010)" and second["published rmse"] == ""
    with pytest.raises(SystemExit, match="no tables"):
        published.read(tmp_path / "elsewhere")


def test_step_function_runs_and_its_figure_is_drawn(tmp_path):
    outcome = step_function.run(draws=8, warmup=4, steps=5, depth=2)
    step_function.draw(outcome, tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert outcome["figures"]["wasserstein_mean"] > 0


def test_wasserstein_of_two_shifted_normals_is_the_shift():
    from pyro import distributions as dist

    from pyro_dgp import Mixture, Prediction

    def normal(loc):
        return Prediction(lambda rows: Mixture(dist.Normal(torch.full((1, 3), loc), 1.0), torch.zeros(1)), 3)

    torch.testing.assert_close(step_function.wasserstein(normal(0.0), normal(0.7)), torch.full((3,), 0.7))


def test_the_comparison_with_gpytorch_says_where_data_is_wanted():
    environment = {k: v for k, v in os.environ.items() if k != "PYRO_DGP_DATA"}
    command = [sys.executable, "-m", "benchmarks.peer_gpytorch"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and "--data FOLDER or PYRO_DGP_DATA" in run.stderr


def test_the_comparison_with_gpytorch_is_resumable(tmp_path, monkeypatch):
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    np.savez(tmp_path / "yacht.npz", X=x, y=x[:, :1], splits=(np.arange(40) < 4)[:, None])
    out = tmp_path / "out.jsonl"
    arguments = ["peer_gpytorch", "--data", str(tmp_path), "--out", str(out), "--quick"]
    for name, value in {"inducing": 8, "steps": 2, "samples": 2}.items():
        monkeypatch.setitem(peer_gpytorch.SETTINGS, name, value)
    monkeypatch.setattr(sys, "argv", arguments)
    peer_gpytorch.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["library"], row["method"]) for row in rows} == {
        (library, method) for library in ("pyro_dgp", "gpytorch") for method in ("svgp", "dsvi")
    }
    peer_gpytorch.main()
    assert len(out.read_text().splitlines()) == 4


def test_dsvi_fits_the_step_function_out_of_the_box():
    from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, predict
    from pyro_dgp.models.deep_gp import DeepGP
    from pyro_dgp.training.loop import fit

    x, y = step_function.data()
    model = DeepGP(x, 2, 1)
    guide = Variational(model, InducingPoints(40), MonteCarlo(10))
    guide.initialize(x, y)
    fit(ELBO(num_data=40)(model, guide), x, y, 1200)
    grid = torch.linspace(-1, 1, 101)[:, None]
    away = grid[:, 0].abs() > 0.1
    error = (predict(guide, grid).mean - step_function.step(grid))[away]
    assert error.square().mean().sqrt() < 0.15
    assert error.abs().max() < 0.5


@pytest.mark.parametrize("name", ["energy", "yacht"])
def test_zoo_defaults_on_real_data_where_it_is_at_hand(name):
    folder = os.environ.get("PYRO_DGP_DATA")
    if not folder:
        pytest.skip("set PYRO_DGP_DATA to a folder with energy.npz and yacht.npz to run this on real data")
    settings = peer_gpytorch.SETTINGS | {"steps": 600}
    row = peer_gpytorch.run("pyro_dgp", "svgp", name, 0, 0, Path(folder), settings)
    assert row["nll"] < -0.7  # predicting the mean scores 1.4


def test_speed_of_sigma_points_is_measured_beside_gpytorch(monkeypatch):
    for name, value in {"INDUCING": 8, "BATCH": 10, "ROWS": 50}.items():
        monkeypatch.setattr(dspp_speed, name, value)
    row = dspp_speed.measure("qr1", 3, 2, repeats=2, threads=1)
    assert row["components"] == 9 and row["ratio_to_gpytorch"] > 0


def test_the_predictive_benchmark_resumes_and_reports(tmp_path, monkeypatch, capsys):
    generator = np.random.RandomState(0)
    inputs = generator.randn(60, 3)
    splits = np.zeros((60, 2), dtype=np.uint8)
    splits[:10, 0], splits[10:20, 1] = 1, 1
    np.savez(tmp_path / "toy.npz", X=inputs, y=inputs[:, 0] + 0.1 * generator.randn(60), splits=splits)
    settings = Settings(inducing=5, width=2, samples=2, batch_size=60)
    toy = experiments.Experiment({"ppgpr": settings, "dspp": settings}, {"toy": 2}, differences=(("dspp", "ppgpr"),))
    monkeypatch.setitem(predictive.EXPERIMENTS, "small", toy)
    out = tmp_path / "runs.jsonl"
    command = ["predictive", "small", "--data", str(tmp_path), "--steps", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--figures", str(tmp_path)])
    experiments.main(predictive.EXPERIMENTS, "toy")
    lines = out.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["method"], row["split"]) for row in rows] == [("ppgpr", 0), ("dspp", 0), ("ppgpr", 1), ("dspp", 1)]
    assert rows[2]["beta"] == rows[0]["beta"] and rows[3]["beta"] == rows[1]["beta"]  # kept from split 0
    assert rows[2]["steps"] == 5 < rows[0]["steps"] == 9
    assert "dspp minus ppgpr" in capsys.readouterr().out and (tmp_path / "small.png").exists()
    out.write_text("\n".join(lines[:3]) + "\n")  # cut off, it goes on
    experiments.main(predictive.EXPERIMENTS, "toy")
    assert json.loads(out.read_text().splitlines()[3])["nll"] == rows[3]["nll"]
    out.write_text("\n".join(lines[:3]) + "\n" + lines[3][:50])  # in the middle of a line too
    experiments.main(predictive.EXPERIMENTS, "toy")
    assert len(experiments.read(out)) == 4
    for other in ([*command, "--steps", "8"], [*command, "--dtype", "float32"]):
        monkeypatch.setattr(sys, "argv", other)
        with pytest.raises(SystemExit, match="other settings"):
            experiments.main(predictive.EXPERIMENTS, "toy")
    monkeypatch.setattr(sys, "argv", [*command[:-1], str(tmp_path / "single.jsonl"), "--dtype", "float32"])
    experiments.main(predictive.EXPERIMENTS, "toy")
    single = experiments.read(tmp_path / "single.jsonl")[3]
    assert single["dtype"] == "float32" and single["nll"] != rows[3]["nll"]


def test_differences_and_ranks_against_a_table_by_hand():
    rows = pd.DataFrame(
        [
            {"dataset": d, "split": k, "method": m, "nll": value, "rmse": value, "crps": -value}
            for d, k, m, value in [
                ("a", 0, "dspp", 1.0), ("a", 0, "ppgpr", 2.0), ("a", 1, "dspp", 4.0), ("a", 1, "ppgpr", 3.0),
                ("b", 0, "dspp", 0.0), ("b", 0, "ppgpr", 3.0), ("b", 1, "dspp", 9.0),
            ]
        ]
    )  # fmt: skip
    table = experiments.paired(rows, "dspp", "ppgpr")
    assert table.loc["a", "mean"] == 0.0 and table.loc["a", "largest"] == 1.0 and table.loc["a", "sem"] == 1.0
    assert table.loc["pooled", "pairs"] == 3 and table.loc["pooled", "mean"] == -1.0
    ranks = experiments.ranks(rows)
    assert ranks.loc["dspp", "rank of NLL"] == pytest.approx(4 / 3, abs=0.01)
    assert ranks.loc["dspp", "rank of CRPS"] == pytest.approx(5 / 3, abs=0.01)


def test_the_settings_of_the_amortised_paper_are_those_it_states():
    x, y = torch.randn(300, 8), torch.randn(300)
    settings = replace(predictive.EXPERIMENTS["meng"].methods["dspp"], samples=4)
    recipe = predictive.MENG["dspp"]
    model = recipe.architecture.build(x, settings)
    guide = recipe.inference.guide(model, x, settings)
    guide.initialize(x, y)
    shapes = {key: tuple(guide.processes._modules[key].inducing_points.shape) for key in ("h1", "h2", "y/f")}
    assert shapes == {"h1": (256, 8), "h2": (128, 16), "y/f": (128, 4)}
    assert guide.processes._modules["h1"].whitened_scale.shape == (16, 256)
    assert model.hidden[0].kernel.lengthscale.shape == () and model.hidden[0].mean.weight.requires_grad
    assert guide.propagation.positions("h2", x).shape == (4, 4)
    trace = pyro.poutine.trace(model).get_trace(x[:5])
    assert trace.nodes["h1"]["value"].shape == (5, 16) and trace.nodes["y"]["value"].shape == (5,)


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
