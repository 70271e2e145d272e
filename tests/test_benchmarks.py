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

from benchmarks import accuracy, dspp_speed, experiments, predictive, speed, step_function
from pyro_dgp.inference import Settings

ROOT = Path(__file__).parents[1]


def test_speed_measures_all_three(monkeypatch):
    for name, value in {"INDUCING": 8, "BATCH": 10, "ROWS": 50}.items():
        monkeypatch.setattr(speed, name, value)
    row = speed.measure(samples=2, repeats=2, threads=1)
    assert row["ratio_to_gpytorch"] > 0 and row["ratio_to_floor"] > 0
    assert row["seconds_per_step"] > 0


def test_the_three_compute_the_same_objective(monkeypatch):
    """The straight-line floor is the same arithmetic: put into it, the library's parameters give the library's loss."""
    monkeypatch.setattr(speed, "INDUCING", 8)
    monkeypatch.setattr(speed, "ROWS", 20)
    from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational
    from pyro_dgp.models import DeepGP

    x, y = torch.randn(20, speed.INPUTS), torch.randn(20)
    model = DeepGP(x, 2, speed.WIDTH, per_output=True)
    guide = Variational(model, InducingPoints(8), MonteCarlo(3))
    guide.initialize(x, y)
    line = speed.StraightLine(x, 3)
    line.projection = model.hidden[0].mean.weight
    with torch.no_grad():
        for i, (gp, key) in enumerate(((model.hidden[0], "h1"), (model.top, "y/f"))):
            process = guide.processes._modules[key]
            line.z[i].copy_(process.inducing_points)
            line.t[i].copy_(process.whitened_scale)
            line.m[i].copy_(process.whitened_mean.normal_())
            line.log_lengthscale[i].copy_(gp.kernel.lengthscale.log().reshape(line.log_lengthscale[i].shape))
            line.log_variance[i].copy_(gp.kernel.variance.log().reshape(line.log_variance[i].shape))
        line.log_noise.copy_((model.likelihood.variance - 1e-4).log())
    monkeypatch.setattr(speed, "BATCH", 20)
    ours = torch.tensor([ELBO(num_data=20).loss(model, guide, x, y) for _ in range(300)])
    floor = torch.tensor([float(line(x, y).detach()) for _ in range(300)])
    error = (ours.var() / 300 + floor.var() / 300).sqrt()
    assert abs(ours.mean() - floor.mean()) < 4 * error + 0.01 * abs(floor.mean())


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


def test_accuracy_says_where_data_is_wanted():
    environment = {k: v for k, v in os.environ.items() if k != "PYRO_DGP_DATA"}
    command = [sys.executable, "-m", "benchmarks.accuracy"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and "--data FOLDER or PYRO_DGP_DATA" in run.stderr


def test_accuracy_is_resumable(tmp_path, monkeypatch):
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    np.savez(tmp_path / "yacht.npz", X=x, y=x[:, :1], splits=(np.arange(40) < 4)[:, None])
    out = tmp_path / "out.jsonl"
    arguments = ["accuracy", "--data", str(tmp_path), "--out", str(out), "--quick"]
    for name, value in {"inducing": 8, "steps": 2, "samples": 2}.items():
        monkeypatch.setitem(accuracy.SETTINGS, name, value)
    monkeypatch.setattr(sys, "argv", arguments)
    accuracy.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["library"], row["method"]) for row in rows} == {
        (library, method) for library in ("pyro_dgp", "gpytorch") for method in ("svgp", "dsvi")
    }
    accuracy.main()
    assert len(out.read_text().splitlines()) == 4


def test_dsvi_fits_the_step_function_out_of_the_box():
    from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, predict
    from pyro_dgp.fit import fit
    from pyro_dgp.models import DeepGP

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
    if folder is None:
        pytest.skip("set PYRO_DGP_DATA to a folder with energy.npz and yacht.npz to run this on real data")
    settings = accuracy.SETTINGS | {"steps": 600}
    row = accuracy.run("pyro_dgp", "svgp", name, 0, 0, Path(folder), settings)
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
    model = recipe.model(x, settings)
    guide = recipe.inference.guide(model, settings)
    guide.initialize(x, y)
    shapes = {key: tuple(guide.processes._modules[key].inducing_points.shape) for key in ("h1", "h2", "y/f")}
    assert shapes == {"h1": (256, 8), "h2": (128, 16), "y/f": (128, 4)}
    assert guide.processes._modules["h1"].whitened_scale.shape == (16, 256)
    assert model.hidden[0].kernel.lengthscale.shape == () and model.hidden[0].mean.weight.requires_grad
    assert guide.propagation.positions("h2", x).shape == (4, 4)
    trace = pyro.poutine.trace(model).get_trace(x[:5])
    assert trace.nodes["h1"]["value"].shape == (5, 16) and trace.nodes["y"]["value"].shape == (5,)
