"""The study of predictive losses resumes and reports at toy size, with the settings that the paper states."""

import json
import sys
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch

from benchmarks.common.experiments import Experiment, main
from benchmarks.common.records import read
from benchmarks.studies import predictive_losses
from pyro_dgp.zoo.by_guide import ByValidatedGuide
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings


def without_fallback(method):
    assert isinstance(method.inference, ByValidatedGuide)
    return replace(method, inference=replace(method.inference, fallback=None))


def test_the_predictive_benchmark_resumes_and_reports(tmp_path, monkeypatch, capsys):
    generator = np.random.RandomState(0)
    inputs = generator.randn(60, 3)
    splits = np.zeros((60, 2), dtype=np.uint8)
    splits[:10, 0], splits[10:20, 1] = 1, 1
    np.savez(tmp_path / "toy.npz", X=inputs, y=inputs[:, 0] + 0.1 * generator.randn(60), splits=splits)
    settings = Settings(inducing=5, width=2, samples=2, batch_size=60)
    recipes = {name: without_fallback(METHODS[name]) for name in ("ppgpr", "dspp")}
    toy = Experiment(
        {"ppgpr": settings, "dspp": settings}, {"toy": 2}, differences=(("dspp", "ppgpr"),), recipes=recipes
    )
    monkeypatch.setitem(predictive_losses.EXPERIMENTS, "small", toy)
    out = tmp_path / "runs.jsonl"
    command = ["predictive", "small", "--data", str(tmp_path), "--steps", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--figures", str(tmp_path)])
    main(predictive_losses.EXPERIMENTS, "toy", out)
    lines = out.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["method"], row["split"]) for row in rows] == [("ppgpr", 0), ("dspp", 0), ("ppgpr", 1), ("dspp", 1)]
    assert rows[2]["beta"] == rows[0]["beta"] and rows[3]["beta"] == rows[1]["beta"]  # kept from split 0
    assert [row["search_steps"] for row in rows] == [6, 6, 0, 0]  # two betas in three folds, one step each
    assert all(row["final_steps"] == 3 * row["run_steps"] + row["best_step"] for row in rows[2:])
    assert "dspp minus ppgpr" in capsys.readouterr().out and (tmp_path / "small.png").exists()
    out.write_text("\n".join(lines[:3]) + "\n")  # cut off, it goes on
    main(predictive_losses.EXPERIMENTS, "toy", out)
    assert json.loads(out.read_text().splitlines()[3])["nll"] == rows[3]["nll"]
    out.write_text("\n".join(lines[:3]) + "\n" + lines[3][:50])  # in the middle of a line too
    main(predictive_losses.EXPERIMENTS, "toy", out)
    assert len(read(out)) == 4
    for other in ([*command, "--steps", "8"], [*command, "--dtype", "float32"]):
        monkeypatch.setattr(sys, "argv", other)
        with pytest.raises(SystemExit, match="other settings"):
            main(predictive_losses.EXPERIMENTS, "toy", out)
    monkeypatch.setattr(sys, "argv", [*command[:-1], str(tmp_path / "single.jsonl"), "--dtype", "float32"])
    main(predictive_losses.EXPERIMENTS, "toy", out)
    single = read(tmp_path / "single.jsonl")[3]
    assert single["dtype"] == "float32" and single["nll"] != rows[3]["nll"]


def test_the_settings_of_the_amortised_paper_are_those_it_states():
    x, y = torch.randn(300, 8), torch.randn(300)
    settings = replace(predictive_losses.EXPERIMENTS["meng"].methods["dspp"], samples=4)
    recipe = predictive_losses.MENG["dspp"]
    model = recipe.architecture.build(x, settings)
    guide = recipe.inference.guide(model, x, settings)
    guide.initialize(x, y)
    shapes = {key: tuple(guide.processes._modules[key].basis.inducing_points.shape) for key in ("h1", "h2", "y/f")}
    assert shapes == {"h1": (256, 8), "h2": (128, 16), "y/f": (128, 4)}
    assert guide.processes._modules["h1"].q.scale.shape == (16, 256)
    assert model.hidden[0].kernel.lengthscale.shape == () and model.hidden[0].mean.weight.requires_grad
    assert guide.propagation.positions("h2", x).shape == (4, 4)
    trace = pyro.poutine.trace(model).get_trace(x[:5])
    assert trace.nodes["h1"]["value"].shape == (5, 16) and trace.nodes["y"]["value"].shape == (5,)
