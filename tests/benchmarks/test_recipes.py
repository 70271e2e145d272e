"""The study of recipes: what differs between them, and the planted data sets."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.common.data import read_data
from benchmarks.common.experiments import main
from benchmarks.common.planted import PLANTED
from benchmarks.studies import recipes
from pyro_dgp import METHODS, RBF, LinearMean, Matern52, NaturalGradients, Sum


@pytest.mark.parametrize(("name", "noise"), [("sum-of-few", 0.22), ("product-of-few", 0.3)])
def test_planted_data_have_a_known_function_of_few_inputs(name, noise):
    data = PLANTED[name]()
    assert data.x.shape == (6000, 32) and data.splits.sum(1).tolist() == [1] * 6000
    assert read_data(name, None).fingerprint() == data.fingerprint()
    x = data.x
    parts = {
        "sum-of-few": np.sin(2 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.5 * np.cos(2 * x[:, 3]),
        "product-of-few": x[:, 0] * np.sin(2.5 * x[:, 1]) * (1 + 0.5 * x[:, 2]),
    }
    rest = data.y - parts[name] / parts[name].std()
    assert rest.std() == pytest.approx(noise, rel=0.05)
    seen = [abs(np.corrcoef(x[:, i], rest)[0, 1]) for i in range(32)]
    assert max(seen) < 5 / 6000**0.5


def test_recipes_differ_in_what_their_names_say():
    x = torch.randn(40, 8)
    settings = replace(recipes.SETTINGS["dsvi"], inducing=6)
    of = {name: recipes.RECIPES[name] for name in recipes.EXPERIMENTS["two"].methods}
    models = {name: method.architecture.build(x, settings) for name, method in of.items()}
    assert [name for name, model in models.items() if isinstance(model.hidden[0].mean, LinearMean)] == [
        "dsvi",
        "dsvi-learned",
        "dsvi-learned-per-output",
        "dsvi-learned-per-output-0.05",
    ]
    name = "dsvi-learned-per-output"
    guide = of[name].inference.guide(models[name], x, settings)
    guide.initialize(x, torch.randn(40))
    assert guide.processes.h1.basis.inducing_points.shape == (5, 6, 8)
    assert models[name].hidden[0].kernel.lengthscale.shape == (5, 8)
    assert recipes.SETTINGS[name + "-0.05"].learning_rate == 0.05
    optimizer = recipes.fast_kernels(models["dsvi-fixed"], 0.02)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.08]
    assert len(optimizer.param_groups[1]["params"]) == 4


def test_choices_of_kernel_and_optimiser_are_what_their_names_say():
    x = torch.randn(40, 4)
    experiment = recipes.EXPERIMENTS["kernels"]
    for name, method in experiment.recipes.items():
        settings = experiment.methods[name]
        kernel = method.architecture.build(x, settings).top.kernel
        wanted = {"one": Matern52, "rbf": RBF, "two": Sum}[name.split("-")[-1]]
        assert type(kernel) is wanted
        assert isinstance(method.inference.optimizer, NaturalGradients) == ("natural" in name)
    assert METHODS["svgp"].inference == experiment.recipes["svgp-adam-two"].inference  # what the zoo took
    assert METHODS["dsvi"].inference == experiment.recipes["dsvi-adam-two"].inference
    natural = recipes.EXPERIMENTS["natural"]
    assert natural.recipes["dsvi-natural-0.03-one"].inference.optimizer.step == 0.03
    assert set(recipes.WITH_SIMULATORS) - set(recipes.SPLITS) <= set(PLANTED)


def test_the_study_runs_at_toy_size(tmp_path, monkeypatch, capsys):
    splits = np.zeros((40, 1), dtype=np.uint8)
    splits[:8] = 1
    np.savez(tmp_path / "toy.npz", X=np.random.randn(40, 2), y=np.random.randn(40), splits=splits)
    small = {name: replace(settings, inducing=4, samples=2) for name, settings in recipes.SETTINGS.items()}
    toy = replace(
        recipes.EXPERIMENTS["one"], splits={"toy": 1}, methods={name: small[name] for name in ("svgp", "svgp-0.05")}
    )
    monkeypatch.setitem(recipes.EXPERIMENTS, "one", toy)
    out = tmp_path / "runs.jsonl"
    monkeypatch.setattr(sys, "argv", ["recipes", "one", "--data", str(tmp_path), "--steps", "4", "--out", str(out)])
    main(recipes.EXPERIMENTS, "toy", out)
    assert "NLL, svgp-0.05 minus svgp" in capsys.readouterr().out and len(out.read_text().splitlines()) == 2
