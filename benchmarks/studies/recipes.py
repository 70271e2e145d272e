"""Recipes of one and two layers: means of hidden layers, kernels and points per output, learning rates.

``python -m benchmarks.studies.recipes one|two|steps|kernels|natural|points|means|collapsed --data FOLDER [--out FILE] [--dtype float32] [--table]``

``dsvi-fixed`` is what ``dsvi`` was until 0.2: means fixed at the principal directions, a kernel and inducing points for each layer. ``dsvi`` is
``dsvi-learned-per-output`` started from one layer. All of these take ten samples of 100 rows in a step and have the zoo's other settings.
``steps`` compares them with one sample of 500 rows, which is what ``svgp`` and ``dsvi`` take. ``kernels`` compares one kernel with the sum of a smooth and a
rougher one (of ``dspp`` with the search and the fallback of the zoo), and Adam with natural gradients for one layer; ``natural`` has natural gradients in all layers; ``points``
varies the number of inducing points; ``means`` starts ``dsvi`` at the means of its hidden functions; ``collapsed`` compares it with ``dsvi-collapsed``, with and without the prior of hyperparameters. Two data sets are planted: 32 inputs, of which three or four matter. Two are simulators without noise. Makes the runs that FILE (one JSON line a run)
lacks and prints the table, the ranks, and the paired differences of NLL from ``svgp`` or ``dsvi``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common.experiments import Experiment, main
from pyro_dgp import DeepGP, InducingPoints, LinearMean, NaturalGradients, Variational, adam, start_at_means
from pyro_dgp.training.optimising import OptimizerRecipe
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.method import DEEP_BY_ELBO, Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.recipes import elbo, inducing_points, monte_carlo
from pyro_dgp.zoo.settings import Settings


def fixed(x: Tensor, settings: Settings) -> DeepGP:
    """Hidden means fixed at the leading principal directions, a kernel for each layer."""
    return DeepGP(x, settings.layers, settings.width, kernel=settings.kernel or "matern52").to(x)


def learned(x: Tensor, settings: Settings) -> DeepGP:
    """Hidden means that start at the projection and are learned."""
    return DeepGP(x, settings.layers, settings.width, kernel=settings.kernel or "matern52", mean=LinearMean.fit).to(x)


def learned_per_output(x: Tensor, settings: Settings) -> DeepGP:
    """The same with a kernel for each output."""
    return DeepGP(
        x, settings.layers, settings.width, kernel=settings.kernel or "matern52", mean=LinearMean.fit, per_output=True
    ).to(x)


def points_per_output(settings: Settings) -> InducingPoints:
    """Inducing points for each output."""
    return InducingPoints(settings.inducing, per_output=True)


def fast_kernels(objective: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Adam with four times the learning rate for kernels."""
    named = dict(objective.named_parameters())
    kernels = [value for name, value in named.items() if ".kernel." in name]
    others = [value for name, value in named.items() if ".kernel." not in name]
    groups = [{"params": others, "lr": learning_rate}, {"params": kernels, "lr": 4 * learning_rate}]
    return torch.optim.Adam(groups, fused=True)


def _method(name: str, base: str, inference: ByGuide, architecture: Architecture | None = None) -> Method:
    zoo = METHODS[base]
    return Method(name, zoo.summary, zoo.paper, architecture or zoo.architecture, inference)


FIXED, LEARNED = Architecture(fixed, is_deep=True), Architecture(learned, is_deep=True)
LEARNED_PER_OUTPUT = Architecture(learned_per_output, is_deep=True)
PLAIN, PER_OUTPUT = ByGuide(inducing_points, monte_carlo, elbo), ByGuide(points_per_output, monte_carlo, elbo)
FAST_KERNELS = ByGuide(inducing_points, monte_carlo, elbo, optimizer=fast_kernels)
RECIPES = {
    method.name: method
    for method in (
        _method("svgp", "svgp", PLAIN),
        _method("svgp-0.05", "svgp", PLAIN),
        _method("svgp-fast-kernels", "svgp", FAST_KERNELS),
        _method("dsvi-fixed", "dsvi", PLAIN, FIXED),
        METHODS["dsvi"],
        _method("dsvi-learned", "dsvi", PLAIN, LEARNED),
        _method("dsvi-learned-per-output", "dsvi", PER_OUTPUT, LEARNED_PER_OUTPUT),
        _method("dsvi-learned-per-output-0.05", "dsvi", PER_OUTPUT, LEARNED_PER_OUTPUT),
    )
}
#: What a step was when hidden means, kernels, points and rates were chosen.
TEN_OF_100 = Settings(batch_size=100, samples=10, kernel="matern52")
FAST = replace(TEN_OF_100, learning_rate=0.05)
SETTINGS = {name: FAST if name.endswith("0.05") else TEN_OF_100 for name in RECIPES}
STEPS = {
    "svgp": Settings(kernel="matern52"),
    "svgp-ten-of-100": TEN_OF_100,
    "dsvi": Settings(kernel="matern52"),
    "dsvi-ten-of-100": TEN_OF_100,
}
#: Sets that choices are made on, with the number of splits.
SPLITS = {
    "product-of-few": 2,
    "sum-of-few": 2,
    "concrete": 2,
    "energy": 2,
    "kin8nm": 2,
    "power": 2,
    "wine_red": 2,
    "boston": 2,
    "protein": 1,
}
#: The same, and simulators.
WITH_SIMULATORS = SPLITS | {"wing-weight-300": 2, "wing-weight-3000": 1, "robot-arm-300": 2}

ONE, TWO, SMOOTH = Settings(kernel="matern52"), Settings(kernel="rbf+matern52"), Settings(kernel="rbf")
#: Settings and optimiser of each choice of kernel; ``one`` in a name is Matern 5/2 alone.
KERNELS = {
    "svgp-adam-one": (ONE, adam),
    "svgp-adam-two": (TWO, adam),
    "svgp-natural-one": (ONE, NaturalGradients()),
    "svgp-natural-rbf": (SMOOTH, NaturalGradients()),
    "svgp-natural-two": (TWO, NaturalGradients()),
    "dsvi-adam-one": (ONE, adam),
    "dsvi-adam-two": (TWO, adam),
    "dspp-adam-one": (ONE, adam),
    "dspp-adam-two": (TWO, adam),
}
#: Methods by the number of inducing points, at the end of their names.
POINTS = {
    f"{name}-{inducing}": Settings(inducing=inducing)
    for name in ("svgp", "dsvi", "dspp")
    for inducing in (128, 256, 512)
}
NATURAL = {
    "dsvi-adam-one": (ONE, adam),
    "dsvi-natural-one": (ONE, NaturalGradients()),
    "dsvi-natural-0.03-one": (ONE, NaturalGradients(0.03)),
}


def at_means(guide: Variational, x: Tensor, y: Tensor, settings: Settings) -> bool:
    """Start the deep model as the one layer that it is at the means of its hidden functions, which are trained with it."""
    return start_at_means(guide, x, y, family=points_per_output(settings), seed=settings.seed)


def at_kept_means(guide: Variational, x: Tensor, y: Tensor, settings: Settings) -> bool:
    """The same with means that stay as they are."""
    (model,) = guide.model_modules
    kept = [parameter for layer in getattr(model, "hidden", ()) for parameter in layer.mean.parameters()]
    for parameter in kept:
        parameter.requires_grad_(False)
    is_done = at_means(guide, x, y, settings)
    for parameter in kept:
        parameter.requires_grad_(True)
    return is_done


#: ``dsvi`` from the start of the zoo alone, and from two more that follow it.
MEANS = {"dsvi": METHODS["dsvi"]} | {
    name: replace(METHODS["dsvi"], name=name, inference=replace(DEEP_BY_ELBO, begin=begin))
    for name, begin in (("dsvi-at-means", at_means), ("dsvi-at-kept-means", at_kept_means))
}


def _collapsed(spread: float | None) -> Method:
    """``dsvi-collapsed`` with a prior of hyperparameters of some spread, or without one."""
    zoo = METHODS["dsvi-collapsed"]
    assert isinstance(zoo.inference, ByCollapsedELBO)
    name = f"{zoo.name}-free" if spread is None else f"{zoo.name}-{spread:g}"
    return replace(zoo, name=name, inference=replace(zoo.inference, spread=spread))


#: ``dsvi`` beside the same model with the best q(v) of the top layer in each step, without and with a prior of hyperparameters of each spread.
COLLAPSED = {method.name: method for method in (METHODS["dsvi"], METHODS["sgpr"], *map(_collapsed, (None, 0.5, 1.0)))}


def _by_optimizer(
    choices: dict[str, tuple[Settings, OptimizerRecipe]],
    splits: dict[str, int],
    differences: tuple[tuple[str, str], ...],
) -> Experiment:
    recipes = {}
    for name, (_, optimizer) in choices.items():
        zoo = METHODS[name.split("-")[0]]
        assert isinstance(zoo.inference, ByGuide)
        recipes[name] = replace(zoo, name=name, inference=replace(zoo.inference, optimizer=optimizer))
    settings = {name: settings for name, (settings, _) in choices.items()}
    return Experiment(settings, splits, keep_beta=False, differences=differences, recipes=recipes)


def _experiment(base: str) -> Experiment:
    methods = {name: settings for name, settings in SETTINGS.items() if name.startswith(base)}
    return Experiment(
        methods,
        SPLITS,
        keep_beta=False,
        differences=tuple((name, base) for name in methods if name != base),
        recipes=RECIPES,
    )


EXPERIMENTS = {
    "one": _experiment("svgp"),
    "two": _experiment("dsvi"),
    "steps": Experiment(
        STEPS,
        SPLITS,
        keep_beta=False,
        differences=(("svgp", "svgp-ten-of-100"), ("dsvi", "dsvi-ten-of-100")),
        recipes={name: METHODS[name.split("-")[0]] for name in STEPS},
    ),
    "kernels": _by_optimizer(
        KERNELS,
        WITH_SIMULATORS,
        (
            ("svgp-adam-two", "svgp-adam-one"),
            ("svgp-natural-one", "svgp-adam-one"),
            ("svgp-natural-two", "svgp-adam-one"),
            ("svgp-natural-two", "svgp-natural-rbf"),
            ("dsvi-adam-two", "dsvi-adam-one"),
            ("dspp-adam-two", "dspp-adam-one"),
        ),
    ),
    "points": Experiment(
        POINTS,
        {name: 2 for name in ("concrete", "boston", "energy", "wine_red", "kin8nm", "power")},
        keep_beta=False,
        differences=tuple(
            (f"{name}-{more}", f"{name}-128") for name in ("svgp", "dsvi", "dspp") for more in (256, 512)
        ),
        recipes={name: METHODS[name.split("-")[0]] for name in POINTS},
    ),
    "means": Experiment(
        dict.fromkeys(MEANS, Settings()),
        {name: 1 for name in ("wing-weight-300", "energy", "concrete", "boston", "power", "kin8nm", "wine_red")},
        keep_beta=False,
        differences=(("dsvi-at-means", "dsvi"), ("dsvi-at-kept-means", "dsvi")),
        recipes=MEANS,
    ),
    "collapsed": Experiment(
        dict.fromkeys(COLLAPSED, Settings()),
        {
            name: 2
            for name in (
                "boston",
                "concrete",
                "energy",
                "wine_red",
                "robot-arm-300",
                "wing-weight-300",
                "power",
                "kin8nm",
            )
        },
        keep_beta=False,
        differences=tuple((name, "dsvi") for name in COLLAPSED if name != "dsvi"),
        recipes=COLLAPSED,
    ),
    "natural": _by_optimizer(
        NATURAL,
        {"energy": 1, "kin8nm": 1, "wing-weight-300": 1},
        (("dsvi-natural-one", "dsvi-adam-one"), ("dsvi-natural-0.03-one", "dsvi-adam-one")),
    ),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__ or "", Path("results/recipes.jsonl"))
