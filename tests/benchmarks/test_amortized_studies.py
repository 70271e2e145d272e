"""The benchmarks of amortised guides run at toy size."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import amortized, amortized_speed, collapse, letters
from pyro_dgp import ELBO, CompiledObjective, SigmaPoints, Variational, WithMean


@pytest.mark.parametrize("per_output", [False, True])
def test_the_floor_of_amortised_steps_computes_the_same_objective(per_output, local):
    x, y = torch.randn(amortized_speed.ROWS, 8), torch.randn(amortized_speed.ROWS)
    model = amortized_speed.model(per_output)
    guide = Variational(model, amortized_speed.families(), WithMean(SigmaPoints("qr3", amortized_speed.SAMPLES)))
    guide.initialize(x, y)
    floor = amortized_speed.StraightLine(per_output)
    kernels = [*(layer.kernel for layer in model.hidden), model.top.kernel]
    for layer, process, kernel in zip(floor.layers, guide.processes._modules.values(), kernels, strict=True):
        functions = process.functions
        kernel.lengthscale = torch.full_like(kernel.lengthscale, 1.3)
        layer.log_lengthscale.data.fill_(math.log(1.3))
        layer.weight.data.copy_(functions.weight)
        layer.bias.data.copy_(functions.bias)
        for number, network in enumerate((functions.means, functions.scales)):
            network.coefficients.data.add_(0.1 * torch.randn(len(network.coefficients)))
            for k, (weight, bias) in enumerate(network.layers(network.coefficients)):
                layer.networks[3 * number + k].data.copy_(weight)
                layer.shifts[3 * number + k].data.copy_(bias)
    for position, site in zip(floor.positions, ("h1", "h2"), strict=True):
        position.data.copy_(guide.propagation.propagation.positions(site).unsqueeze(1))
    model.likelihood.variance = torch.tensor(0.3)
    floor.log_noise.data.copy_(torch.tensor(0.3 - 1e-4).log())
    ours = ELBO(len(x))(model, guide)(x[:50], y[:50])
    torch.testing.assert_close(ours, floor(x[:50], y[:50]), rtol=1e-5, atol=0)


def test_the_speed_of_amortised_steps_is_measured(monkeypatch):
    monkeypatch.setattr(amortized_speed, "ROWS", 200)
    monkeypatch.setattr(CompiledObjective, "backend", "eager")
    row = amortized_speed.measure(per_output=False, batch=100, dtype="float64", repeats=1, compiled=True)
    assert min(row[f"{name}seconds_per_step"] for name in ("", "floor_", "dspp_", "compiled_")) > 0
    assert row["ratio_to_compiled"] > 0


def test_the_amortised_benchmark_has_the_settings_of_the_paper():
    x, y = torch.randn(100, 8), torch.randn(100)
    experiment = amortized.EXPERIMENTS["meng"]
    assert all(
        (s.epochs, s.learning_rate, s.beta, s.batch_size, s.samples, s.layers) == (100, 0.005, 1.0, 100, 32, 3)
        for s in experiment.methods.values()
    )
    settings = replace(experiment.methods["avdgp-ar2p"], samples=4)
    recipe = experiment.recipes["avdgp-ar2p"]
    model = recipe.architecture.build(x, settings)
    guide = recipe.inference.guide(model, x, settings)
    guide.initialize(x, y)
    functions = {key: process.functions for key, process in guide.processes._modules.items()}
    sizes = {key: (f.sizes.num_inducing, f.sizes.num_inputs, f.sizes.num_outputs) for key, f in functions.items()}
    assert sizes == {"h1": (8, 8, 16), "h2": (4, 16, 4), "y/f": (4, 4, 1)}
    assert not any(f.sizes.is_full for f in functions.values())
    assert functions["h1"].means.shapes[0] == (8, 8) and functions["y/f"].means.shapes[0] == (4, 4)
    assert model.hidden[0].kernel.lengthscale.shape == () and not list(model.hidden[0].mean.parameters())
    assert all(name in experiment.recipes for name in experiment.methods)
    assert all(name in amortized.EXPERIMENTS["ard"].recipes for name in amortized.EXPERIMENTS["ard"].methods)


def test_letters_are_trained_resumed_and_drawn(tmp_path, monkeypatch, capsys):
    assert letters.split_points(4, 64) == [32, 16, 8, 8] and letters.split_points(3, 16) == [8, 4, 4]
    out = tmp_path / "letters.jsonl"
    command = ["letters", "table", "--out", str(out), "--epochs", "1", "--rows", "240", "--cells", "2x16"]
    monkeypatch.setattr(sys, "argv", [*command, "--figures", str(tmp_path)])
    letters.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
    assert all((row["n_train"], row["n_test"], row["steps"]) == (120, 80, 2) for row in rows)
    assert (tmp_path / "letters-table.png").exists()
    letters.main()
    assert len(out.read_text().splitlines()) == 5
    shown = capsys.readouterr().out
    assert "2 layers, 16 points, affine" in shown and "5 runs), spread" in shown and "published 8.02 (0.7)" in shown
    with out.open("a") as file:  # a run of another length is none of these
        file.write(json.dumps(rows[0] | {"epochs": 2, "error": 99.0}) + "\n")
    letters.main()
    assert capsys.readouterr().out.splitlines()[-1] == shown.splitlines()[-1]


def test_spread_is_nothing_on_a_line_and_all_on_a_disc():
    line = torch.randn(500, 4, 1) * torch.tensor([1.0, 2.0])
    assert letters.spread(line) < 1e-6 and letters.spread(torch.randn(2000, 4, 2)) > 0.9


def test_the_collapse_is_a_number(monkeypatch):
    monkeypatch.setattr(collapse, "DEPTHS", (1, 4))
    rows, shown, _ = collapse.run(draws=10, points=60)
    assert rows[1]["prior"] > rows[0]["prior"] + 0.05
    assert [tuple(values.shape) for values in shown["guide"]] == [(5, 60)] * 2
    straight, jump = torch.linspace(0, 1, 101)[None], (torch.linspace(0, 1, 101) > 0.5).double()[None]
    assert float(collapse.concentration(straight)) == pytest.approx(0.05) and float(collapse.concentration(jump)) == 1
