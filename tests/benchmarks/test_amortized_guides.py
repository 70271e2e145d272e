"""The study of amortised guides has the settings of the paper."""

from dataclasses import replace

import torch

from benchmarks.studies import amortized_guides


def test_the_amortised_benchmark_has_the_settings_of_the_paper():
    x, y = torch.randn(100, 8), torch.randn(100)
    experiment = amortized_guides.EXPERIMENTS["meng"]
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
    assert all(
        name in amortized_guides.EXPERIMENTS["ard"].recipes for name in amortized_guides.EXPERIMENTS["ard"].methods
    )
