"""Accuracy of amortised guides on real data: the settings of Meng and Zhang 2024, ARD kernels, small sets.

``python -m benchmarks.studies.amortized_guides EXPERIMENT --data FOLDER [--out FILE] [--figures DIR] [--table]``

Resumable, one JSON line a run.

| experiment | runs |
|---|---|
| ``meng`` | the four amortisation rules, 3 layers, widths 16 and 4, M 8, 4, 4, S 32, isotropic Matern 5/2, zero means |
| ``noise`` | the same, with a noise variance of 0.7 at the start instead of 0.1 |
| ``ard`` | the zoo's model (ARD, linear means) with the amortised guides and ``dsvi``, 2 and 3 layers |
| ``small`` | ``avdgp-ar2pp`` and ``avdgp-ar2p`` against ``svgp``, the zoo's defaults, four small sets, 10 paired splits |
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common.experiments import Experiment, main
from pyro_dgp import METHODS, PRESETS, DeepGP, Settings
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.presets import zero_means

RULES = ("avdgp-ar1", "avdgp-ar2", "avdgp-ar2p", "avdgp-ar2pp")
SMALL = ("boston", "concrete", "energy", "yacht")


#: The four rules in the model of Meng and Zhang 2024.
MENG = {name: PRESETS["meng2024"].methods[name] for name in RULES}


def noisy(x: Tensor, settings: Settings) -> DeepGP:
    """Return that model with a noise variance of 0.7 at the start."""
    model = zero_means(x, settings)
    model.likelihood.variance = torch.tensor(0.7).to(x)
    return model


NOISE = {name: replace(method, architecture=Architecture(noisy, is_deep=True)) for name, method in MENG.items()}
PAPER = Settings(layers=3, row_inducing=8, samples=32, batch_size=100, epochs=100, learning_rate=0.005, beta=1.0)


def with_layers(name: str) -> dict[str, Settings]:
    """Return settings of the zoo's model with 2 and 3 layers, 200 epochs."""
    rate = 0.005 if name.startswith("avdgp") else 0.02
    return {f"{name}-{layers}": replace(PAPER, layers=layers, epochs=200, learning_rate=rate) for layers in (2, 3)}


EXPERIMENTS = {
    "meng": Experiment(
        dict.fromkeys(RULES, PAPER), {"kin8nm": 3, "protein": 1, "power": 1, "bike": 1, "wine_red": 1}, recipes=MENG
    ),
    "noise": Experiment(
        dict.fromkeys(RULES, PAPER), {"wine_red": 1, "kin8nm": 3, "protein": 1, "bike": 1, "power": 1}, recipes=NOISE
    ),
    "ard": Experiment(
        with_layers("dsvi") | with_layers("avdgp-ar2p") | with_layers("avdgp-ar2pp"),
        {"kin8nm": 1, "protein": 1},
        recipes={f"{name}-{layers}": METHODS[name] for name in ("dsvi", *RULES) for layers in (2, 3)},
    ),
    "small": Experiment(
        {name: Settings() for name in ("svgp", "avdgp-ar2p", "avdgp-ar2pp")},
        dict.fromkeys(SMALL, 10),
        keep_beta=False,
        differences=(("avdgp-ar2p", "svgp"), ("avdgp-ar2pp", "svgp")),
    ),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__ or "", Path("results/amortized_guides.jsonl"))
