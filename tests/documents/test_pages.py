"""The README and every page of docs/: their code runs as it stands, with loops shortened, and does what the page says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch

import pyro_dgp
from pyro_dgp import Settings

ROOT = Path(__file__).parents[2]
SHORT_FIT = {"steps=1000": "steps=5"}
SHORT_CHAINS = {"num_samples=200, warmup_steps=100": "num_samples=4, warmup_steps=2"}
TOY = Settings(inducing=5, samples=2, epochs=2, mcmc_samples=20, warmup=20)
Names = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """How the code of a page is run.

    :ivar check: raises unless the names that the code leaves behind are what the page says.
    :ivar shorter: replacements, each of which must be found in the text.
    """

    check: Callable[[Names], None]
    shorter: Mapping[str, str] = field(default_factory=dict)


def python_of(text: str) -> str:
    return "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def shell_of(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def is_prediction(prediction: Any, rows: int, *outputs: int) -> None:
    assert prediction.mean.shape == (rows, *outputs)
    assert torch.isfinite(prediction.mean).all() and (prediction.variance > 0).all()


def readme(names: Names) -> None:
    is_prediction(names["prediction"], 100)
    assert names["mcmc"].get_samples()["h_whitened"].shape == (5, 30, 2)
    assert list(names["result"]) == ["dsvi", "dspp", "nuts"]
    assert names["mean"].shape == (100,)


def compare(names: Names) -> None:
    assert [row["method"] for row in names["result"].rows] == ["dsvi", "dspp", "ess"]
    assert Path("comparison.png").stat().st_size > 10_000 and Path("results/results.json").exists()
    assert list(names["mixed"]) == ["dsvi", "points", "short-trees"]
    assert {row["reference"] for row in names["gaps"].rows} == {"ess"}
    x = names["x"]
    assert torch.equal(names["again"].predict(x).mean, names["result"]["dsvi"].predict(x).mean)
    assert 60 < names["again"].predict(x).mean.mean() < 140  # the target's own units


def own_model(names: Names) -> None:
    assert names["y_prior"].shape == (40,)
    trace = pyro_dgp.whitened(names["model"])
    assert trace is not None
    drawn = torch.stack([names["model"](names["x"]) for _ in range(2)])
    assert not torch.equal(drawn[0], drawn[1])
    guide = pyro_dgp.Variational(names["model"], pyro_dgp.InducingPoints(5), pyro_dgp.MonteCarlo(2))
    guide.initialize(names["x"], names["y"])
    assert set(guide.processes._modules) == {"h", "y/f"}
    is_prediction(pyro_dgp.predict(guide, names["x"]), 40)
    for in_units in (names["simple"], names["model_in_units"]):
        with pyro_dgp.module_local_parameters(in_units):
            assert 5e4 < in_units(names["years"]).mean() < 15e4
    assert set(guide.global_latents) == {"top.kernel.lengthscale", "likelihood.variance"}
    is_prediction(names["price_of_year"], 40)
    assert 5e4 < names["price_of_year"].mean.mean() < 15e4 and names["noisy"].global_latents == [
        "gp.kernel.lengthscale"
    ]
    assert 5e4 < names["result"]["dsvi"].predict(names["years"]).mean.mean() < 15e4
    assert names["prediction"].mean.shape == (3, 40) and names["of_each"].mean.shape == (3, 5)
    assert names["complete"].mean.shape == (40, 2)
    edges = {line.strip() for line in names["drawing"].source.splitlines() if "->" in line}
    assert {"h1 -> h2", "h2 -> y", '"top.kernel.lengthscale" -> y'} <= edges and len(edges) == 9


def validation(names: Names) -> None:
    result = names["result"]
    assert (result.rows, result.validation_rows) == (90, 10 * result.folds)
    assert set(result.searched) == {0.05, 1.0, None} and result.beta in result.searched
    assert names["validation"].held_out(90, 0).sum() == 18
    is_prediction(names["prediction"], 90)


def several_outputs(names: Names) -> None:
    prediction = names["prediction"]
    is_prediction(prediction, 60, 3)
    covariance = prediction.covariance
    assert covariance.shape == (60, 3, 3) and covariance[:, 0, 1].abs().max() > 0
    assert prediction.log_prob(names["y"]).shape == (60,)
    for model in (names["independent"], names["also_independent"]):
        assert model(names["x"]).shape == (60, 3)


def several_machines(names: Names) -> None:
    assert len(names["result"].losses) == 5 and Path("saved/run-1.safetensors").exists()
    assert names["answer"](names["x"]).shape == (60,)


def other_likelihoods(names: Names) -> None:
    probability = names["probability"]
    assert probability.shape == (60,) and (probability > 0).all() and (probability < 1).all()
    assert names["of_classes"].shape == (60, 3)
    torch.testing.assert_close(names["of_classes"].sum(-1), torch.ones(60))
    for name in ("in_a_day", "waiting"):
        assert names[name].shape == (60,) and (names[name] > 0).all()
    is_prediction(names["noisy"], 60)
    is_prediction(names["log_noise"], 60)


def predictions(names: Names) -> None:
    is_prediction(names["prediction"], 60)
    assert (names["low"] <= names["high"]).all() and (names["high"] % 1 == 0).all()
    is_prediction(names["f"], 60)
    assert (names["interval"] > 0).all() and names["interval"].shape == (2, 60)
    torch.testing.assert_close(names["probs"].sum(-1), torch.ones(60))
    assert set(names["figures"]) == {"nll", "accuracy", "brier", "ece"}
    assert names["slope"].shape == (1, 1) and (names["mean_wait"] > 5).all()
    assert all(torch.isfinite(p).all() for p in names["model"].parameters())


def neural_features(names: Names) -> None:
    is_prediction(names["prediction"], 100)
    assert names["extractor"](names["x"]).shape == (100, 3) and names["extractor"](names["x"]).abs().max() < 3
    assert names["network"][0].weight.grad is not None


def robust_losses(names: Names) -> None:
    is_prediction(names["prediction"], 60)
    model, guide = names["model"], names["guide"]
    x, y = names["x"], names["y"]
    losses = []
    for loss in (names["Tempered"](60, 1.0), pyro_dgp.ELBO(60), names["Tempered"](60, 0.5)):
        with pyro_dgp.module_local_parameters(model, guide), torch.random.fork_rng():
            torch.manual_seed(1)
            losses.append(float(loss(model, guide)(x, y).detach()))
    assert losses[0] == losses[1] != losses[2]


def expectation_propagation(names: Names) -> None:
    is_prediction(names["prediction"], 60)
    guide, x, y = names["guide"], names["x"], names["y"]
    assert isinstance(guide.propagation, pyro_dgp.MomentMatching)
    with pyro_dgp.module_local_parameters(guide.model, guide):
        losses = [float(pyro_dgp.ApproximateEP(60, 0.5)(guide.model, guide)(x, y).detach()) for _ in range(2)]
    assert losses[0] == losses[1]


def streams(names: Names) -> None:
    assert names["mean"].shape == (4,) and 50 < names["mean"].mean() < 150  # targets lie between 80 and 120
    assert names["x_batch"].shape == (50, 3) and names["y_batch"].shape == (50,)
    assert len(names["stream"]) == 5000 and names["stream"].target_mean == pytest.approx(100, abs=2)


def compiled_steps(names: Names) -> None:
    is_prediction(names["prediction"], 60)
    is_prediction(pyro_dgp.predict(names["guide"], names["x"]), 60)


def optimisers(names: Names) -> None:
    is_prediction(names["prediction"], 300)
    assert (names["prediction"].mean - torch.sin(9 * names["x"][:, 0])).abs().mean() < 0.1
    is_prediction(pyro_dgp.predict(names["guide"], names["x"]), 300)


def amortized_guides(names: Names) -> None:
    is_prediction(names["prediction"], 90)
    assert names["result"].rows == 90
    is_prediction(names["shifted"], 90)
    assert names["guide"].global_latents == ["shift"]


def features(names: Names) -> None:
    process = getattr(names["guide"].processes, "y/f")
    assert process.basis.size == 2 * 41 and getattr(names["many"].processes, "y/f").basis.size == 2 * 41 + 10
    is_prediction(names["predict"](names["many"], names["x"]), 200)
    is_prediction(
        names["predict"](
            names["PosteriorDraws"](names["sparse"], names["chains"].flat, (names["x"], names["y"])), names["x"]
        ),
        200,
    )


def own_networks(names: Names) -> None:
    is_prediction(names["prediction"], 60)
    assert type(names["hidden"]) is type(names["top"]) is names["Nearby"]
    points, means, scales = names["top"](torch.zeros(7, 2))
    assert points.shape == (7, 8, 2) and means.shape == scales.shape == (7, 1, 8)


def samplers(names: Names) -> None:
    is_prediction(names["prediction"], 50)
    assert names["chains"].draws["top.kernel.lengthscale"].shape == (2, 5, 1)
    assert names["chains"].stats["diverging"].shape == (2, 5)
    assert names["means"].shape == (2, 4, 30)
    assert set(names["from_high"].draws) == set(names["slices"].draws)
    assert names["told"].draws["top.kernel.lengthscale"].shape == (2, 3, 1)


def sampling_large_data(names: Names) -> None:
    is_prediction(names["prediction"], 50)
    is_prediction(names["by_batches"], 50)
    assert names["chains"].draws["h1_inducing_whitened"].shape[:3] == (2, 5, 20)
    assert all(len(draws) == 50 for draws in names["sampled"].draws.values())


def arviz(names: Names) -> None:
    assert names["data"].log_likelihood["y"].shape == (2, 4, 30)
    assert names["data"].predictions["y"].shape == (1, 200, 50)
    assert "likelihood.variance" in names["table"].index and "f[29, 0]" in names["table"].index
    assert names["variational"].posterior["f"].shape == (1, 200, 30, 1)


def functions(names: Names) -> None:
    assert names["values"].shape == (200, 301) and names["best"].shape == names["integral"].shape == (200,)
    assert names["slopes"].shape == (5,) and names["slopes"].abs().min() > 0
    assert names["x"].shape == (12, 1) and (names["x_next"] >= -1).all() and (names["x_next"] <= 2).all()
    starts, drawn = names["grid"][::10], pyro_dgp.draw_functions(names["guide"], 4)
    climbed = drawn(names["proposals"](drawn, starts).unsqueeze(1))[:, 0, 0]
    assert (climbed >= drawn(starts)[..., 0].amax(1) - 1e-3).all()
    assert names["exact_functions"](names["x"]).shape == (100, 12, 1)
    assert names["joint"].covariance.shape == (3, 3)


def inference_gap(names: Names) -> None:
    figures = names["gap"].figures()
    assert set(figures) == {"gap_mean", "gap_sd", "gap_wasserstein", "gap_kl"}
    assert all(np.isfinite(value) and value > 0 for value in figures.values())
    assert Path("gap.png").stat().st_size > 10_000
    assert not any("kernel" in name for name in names["chains"].draws)  # hyperparameters stay fixed


def saving(names: Names) -> None:
    trained = names["saved"]["guide"]
    assert all(
        torch.equal(value, trained[key]) for key, value in names["guide"].state_dict().items() if "_extra" not in key
    )
    torch.manual_seed(1)
    assert torch.equal(pyro_dgp.predict(names["guide"], names["x"]).mean, names["prediction"].mean)
    is_prediction(names["prediction"], 60)


def parameter_stores(names: Names) -> None:
    assert not pyro.get_param_store()._params  # neither way touches the global store
    first, second, untrained = (names[name].likelihood.variance for name in ("first", "second", "untrained"))
    assert first != second and untrained not in (first, second)
    is_prediction(names["prediction"], 60)


def pitfalls(names: Names) -> None:
    assert torch.isfinite(names["score"])
    with pyro_dgp.module_local_parameters(names["carries_units"]):
        assert 50 < names["carries_units"](names["raw_x"]).mean() < 150
    assert not torch.equal(names["first"].model.likelihood.variance, names["second"].model.likelihood.variance)
    x, y, guide = names["x"], names["y"], names["first"]
    objective = pyro_dgp.ELBO(60)(guide.model, guide)
    messages = {
        "one output it is (N,)": lambda: pyro_dgp.fit(objective, x, y[:, None], steps=1),
        "float64 and the parameters": lambda: pyro_dgp.DeepGP(x.float(), 1).float()(x, y),
        "num_data=None": lambda: pyro_dgp.fit(pyro_dgp.ELBO()(guide.model, guide), x, y, steps=1, batch_size=10),
    }
    for message, do in messages.items():
        with pytest.raises((ValueError, TypeError), match=re.escape(message)):
            do()
    before, unread = pyro_dgp.predict(guide, x), pyro_dgp.predict(guide, x)
    mean = before.mean
    pyro_dgp.fit(objective, x, y, steps=20)
    assert torch.equal(before.mean, mean) and not torch.allclose(unread.mean, mean, atol=0.01)


def quickstart(names: Names) -> None:
    is_prediction(names["prediction"], 100)
    assert (names["low"] < names["high"]).all() and 60 < names["low"].mean() < 140  # the units of y
    assert list(names["result"]) == ["dsvi", "dspp"] and Path("comparison.png").exists()
    assert 60 < names["mean"].mean() < 140


def choosing(names: Names) -> None:
    """The comparison of the page runs, and the methods that it names exist."""
    assert [(row["method"], row["layers"]) for row in names["result"].rows] == [("svgp", 1), ("dsvi", 2)]
    assert names["advice"].method in {row["name"] for row in names["advice"].rows} <= set(pyro_dgp.METHODS)
    named = re.findall(r"^\|[^|]+\| (`.+?`) \|", (ROOT / "docs/choosing.md").read_text(), re.MULTILINE)
    methods = {name for cell in named for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    assert methods <= set(pyro_dgp.METHODS) and len(methods) >= 9, methods


def pitfall(page: str) -> Callable[[Names], None]:
    """What was planted is found, and is gone after the remedy."""

    def check(names: Names) -> None:
        assert page in names["diagnosis"].pages
        assert "mended" not in names or page not in names["mended"].pages

    return check


def parts(names: Names) -> None:
    """Every public name is in the table, and every name of the table is public."""
    text = (ROOT / "docs/parts.md").read_text()
    listed = {name for name in re.findall(r"`([A-Za-z]\w*)`", text) if name not in {"qr1", "qr2", "qr3", "SVI"}}
    table = {name for name in listed if hasattr(pyro_dgp, name)}
    assert set(pyro_dgp.__all__) <= table, set(pyro_dgp.__all__) - table
    assert listed - table <= {"pyro_dgp", "cdf", "diagonal", "log_prob", "quantile", "sample"}, listed - table


def command_line(names: Names) -> None:
    """Every option is on the page, and its model runs."""
    text = (ROOT / "docs/command-line.md").read_text()
    for command in commands().values():
        for action in command._actions:
            assert (
                not action.option_strings or f"`{action.option_strings[-1]}`" in text or "-h" in action.option_strings
            )
    x = torch.linspace(-1, 1, 20)[:, None]
    assert names["TwoLayer"](x)(x).shape == (20,)


def idea(names: Names) -> None:
    assert names["drawn"].shape == (40,)
    is_prediction(names["prediction"], 40)
    is_prediction(names["sampled"], 40)
    assert names["points"].propagation.num_components == 10


def theory(names: Names) -> None:
    """The limits hold, the equations are numbered in order, and every class that is named exists."""
    assert names["gamma"] == pytest.approx(names["elbo"], abs=0.01) and names["ep"] == pytest.approx(
        names["elbo"], abs=0.01
    )
    torch.testing.assert_close(names["by_process"], names["by_torch"])
    text = (ROOT / "docs/theory.md").read_text()
    numbers = [int(number) for number in re.findall(r"\\tag\{(\d+)\}", text)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 13
    for name, file in re.findall(r"\[`([A-Z]\w+)[^`]*`\]\(\.\./(\S+)\)", text):
        assert re.search(rf"^class {name}\b", (ROOT / file).read_text(), re.MULTILINE), name


def extending(names: Names) -> None:
    """The files and tests of the table exist, and what has to be written stands in it."""
    text = (ROOT / "docs/extending.md").read_text()
    rows = re.findall(r"^\| (.+?) \| .+ \| .+ \| `(\S+)` \| `(\S+)` \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for what, file, test in rows:
        assert (ROOT / file).exists() and (ROOT / test).exists(), what
    assert len(text.splitlines()) <= 45
    assert names["abstract"]["Loss"] == ["observed"] and names["abstract"]["ProcessFamily"] == ["create", "restore"]
    assert all(names["documents"].values())


@dataclass(frozen=True)
class Extension:
    """The check of a page of docs/extending/: its test passes, and finds each of some mistakes.

    :ivar mistakes: right code and wrong code in its place.
    """

    name: str
    mistakes: Mapping[str, str]

    def __call__(self, names: Names) -> None:
        text = (ROOT / "docs/extending" / self.name).read_text()
        code, (example, *_) = python_of(text), re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert len([line for line in example.splitlines() if line.strip()]) <= 30
        self.own_test(names)()
        for right, wrong in self.mistakes.items():
            assert code.count(right) == 1, right
            changed: Names = {"__name__": "page"}
            exec(compile(code.replace(right, wrong), self.name, "exec"), changed)
            pyro.clear_param_store()
            with pytest.raises((AssertionError, RuntimeError, ValueError)):
                self.own_test(changed)()

    def own_test(self, names: Names) -> Callable[[], None]:
        (test,) = [value for name, value in names.items() if name.startswith("test_")]
        pyro.set_rng_seed(0)
        return test  # type: ignore[no-any-return]


def sharp_bits(names: Names) -> None:
    for what, sentence in {
        "stores": "holds another object's",
        "refused": "num_data=None",
        "plates": "stands inside the plate",
        "types": "inputs are float64 and the parameters",
    }.items():
        assert sentence in names[what], names[what]
    assert "another thread" in names["threads"][0]
    assert float(names["own"]) == pytest.approx(0.1) and "would take over" in names["taken_over"]
    assert (names["before"] - names["after"]).abs().max() > 0.01
    assert names["parts"].mean() == pytest.approx(float(names["whole"])) and names["unscaled"] < names["parts"][0] - 1
    once, twice = (dict(names[each].named_parameters()) for each in ("once", "twice"))
    assert max(float((value - twice[name]).detach().abs().max()) for name, value in once.items()) > 0.01
    assert names["keys"] == ["h1", "y/f"] and names["functions"].shape == (40,) and 5e4 < names["priced"].mean() < 15e4
    plain = pyro_dgp.DeepGP(names["years"], layers=1)
    units = names["in_units"].standardizer
    with pyro_dgp.module_local_parameters(plain, names["in_units"]), torch.no_grad():
        standard = pyro_dgp.MarginalLikelihood(plain)(units.inputs(names["years"]), units.targets(names["price"]))
        own = pyro_dgp.MarginalLikelihood(names["in_units"])(names["years"], names["price"])
    assert float(own - standard) == pytest.approx(40 * float(names["price"].std(correction=0).log()))


def own_kernel_or_mean(names: Names) -> None:
    x, kernel = names["x"], names["kernel"]
    assert kernel.parts[0].parts[0].part.lengthscale.item() == pytest.approx(0.3)
    assert torch.isclose(kernel().diagonal(x[None]), torch.tensor(3.5).to(x)).all()  # 2 + 1 * 1 + 0.5
    assert len(names["total"].parts) == 2
    assert torch.equal(names["gp"](x).mean, x)
    assert names["slope"].shape == (1, 1) and names["paths"].shape == (5, 60, 1)
    by_class, by_function = names["Brownian"]()(), names["brownian"]()
    torch.testing.assert_close(by_function.matrix(x[None]), 2 * by_class.matrix(x[None]))
    torch.testing.assert_close(by_function.diagonal(x[None]), 2 * by_class.diagonal(x[None]))
    trained = dict(names["model"].top.named_parameters())
    assert {"kernel.parts.0.variance_unconstrained", "mean.amplitude_unconstrained"} <= set(trained)
    assert trained["mean.amplitude_unconstrained"] != 1 and names["model"](x).shape == (60,)


PAGES = {
    "README.md": Page(
        readme,
        SHORT_FIT
        | {
            "range(1000)": "range(5)",
            "num_samples=200, warmup_steps=200": "num_samples=5, warmup_steps=5",
            '"nuts"])': '"nuts"], settings=TOY)',
        },
    ),
    "docs/choosing.md": Page(
        choosing,
        {"inducing=20)": "inducing=5, samples=2, epochs=2)", "inducing=20, width=1)": "inducing=5, width=1, epochs=2)"},
    ),
    "docs/command-line.md": Page(command_line),
    "docs/extending.md": Page(extending),
    "docs/extending/basis.md": Page(
        Extension("basis.md", {" * prior.covariance.scale": "", 'int(state["inputs"])': "2"})
    ),
    "docs/extending/kernel.md": Page(
        Extension("kernel.md", {"-value.square()": "-value", "2 * torch.empty_like": "torch.empty_like"})
    ),
    "docs/extending/likelihood.md": Page(
        Extension("likelihood.md", {"variance / 2 - mean)": "variance - mean)", "torch.exp(-f[": "torch.exp(f["})
    ),
    "docs/extending/loss.md": Page(Extension("loss.md", {"return self.temperature * (": "return ("})),
    "docs/extending/process.md": Page(Extension("process.md", {"- log_scale.sum()": "", "torch.expm1(": "torch.exp("})),
    "docs/extending/propagation.md": Page(Extension("propagation.md", {"[noise, -noise]": "[noise, noise]"})),
    "docs/extending/sampler.md": Page(Extension("sampler.md", {">= level - self.level": ">= self.level - level"})),
    "docs/idea.md": Page(idea, SHORT_FIT | SHORT_CHAINS),
    "docs/parts.md": Page(parts),
    "docs/sharp-bits.md": Page(sharp_bits),
    "docs/pitfalls.md": Page(pitfalls, SHORT_FIT),
    "docs/quickstart.md": Page(quickstart, SHORT_FIT | {'"dspp"])': '"dspp"], settings=TOY)'}),
    "docs/theory.md": Page(theory),
    **{
        f"docs/pitfalls/{name}.md": Page(pitfall(f"docs/pitfalls/{name}.md"))
        for name in (
            "amortised-extrapolation",
            "coinciding-points",
            "collapsed-noise",
            "divergences",
            "exploding-predictive-losses",
            "flat-hidden-layers",
            "float32-long-ranges",
            "mirror-images",
            "unscaled-targets",
        )
    },
    "docs/how-to/amortized-guides.md": Page(amortized_guides, SHORT_FIT),
    "docs/how-to/arviz.md": Page(arviz, SHORT_FIT | SHORT_CHAINS | {"draws = 2 * 200": "draws = 2 * 4"}),
    "docs/how-to/compare.md": Page(
        compare,
        {
            'output="results")': 'output="results", settings=TOY)',
            '("short-trees", short_trees)]': '("short-trees", short_trees)], settings=TOY',
        },
    ),
    "docs/how-to/compiled-steps.md": Page(compiled_steps, SHORT_FIT | {"layers=2, width=2": "layers=1"}),
    "docs/how-to/features.md": Page(features, {"steps=300": "steps=5", "steps=100": "steps=5"}),
    "docs/how-to/functions.md": Page(functions, SHORT_FIT),
    "docs/how-to/inference-gap.md": Page(
        inference_gap, SHORT_FIT | SHORT_CHAINS | {"num_samples=400": "num_samples=8"}
    ),
    "docs/how-to/neural-features.md": Page(neural_features, SHORT_FIT),
    "docs/how-to/optimisers.md": Page(optimisers, {"steps=1000": "steps=300"}),
    "docs/how-to/other-likelihoods.md": Page(other_likelihoods, SHORT_FIT),
    "docs/how-to/own-kernel-or-mean.md": Page(own_kernel_or_mean, SHORT_FIT),
    "docs/how-to/own-model.md": Page(
        own_model, {"steps=300": "steps=5", 'methods=["dsvi"])': 'methods=["dsvi"], settings=TOY)'}
    ),
    "docs/how-to/own-networks.md": Page(own_networks, SHORT_FIT),
    "docs/how-to/parameter-stores.md": Page(parameter_stores, SHORT_FIT | {"range(1000)": "range(5)"}),
    "docs/how-to/expectation-propagation.md": Page(expectation_propagation, SHORT_FIT),
    "docs/how-to/robust-losses.md": Page(robust_losses, SHORT_FIT),
    "docs/how-to/samplers.md": Page(
        samplers,
        SHORT_CHAINS
        | {
            "num_samples=200, warmup_steps=200": "num_samples=5, warmup_steps=5",
            "num_samples=400": "num_samples=8",
            "reshape(2, 200, len(x))": "reshape(2, 4, len(x))",
            "start=Ascent(500))\nfrom_high": "start=Ascent(5))\nfrom_high",
        },
    ),
    "docs/how-to/sampling-large-data.md": Page(
        sampling_large_data,
        {
            "num_samples=20, warmup_steps=20": "num_samples=3, warmup_steps=3",
            "num_samples=200, warmup_steps=200": "num_samples=5, warmup_steps=5",
            "StochasticGradientHMC(burn_in=1000)": "StochasticGradientHMC(burn_in=3, thin=1)",
        },
    ),
    "docs/how-to/saving.md": Page(saving, SHORT_FIT),
    "docs/how-to/predictions.md": Page(predictions, SHORT_FIT),
    "docs/how-to/several-machines.md": Page(
        several_machines,
        SHORT_FIT
        | {
            'init_process_group("gloo")': 'init_process_group("gloo", init_method="file://" + __import__("os").path.abspath("g"), rank=0, world_size=1)'
        },
    ),
    "docs/how-to/several-outputs.md": Page(several_outputs, SHORT_FIT),
    "docs/how-to/streams.md": Page(streams, SHORT_FIT),
    "docs/how-to/validation.md": Page(validation, SHORT_FIT),
}


#: Pages without code, and the tests that hold them.
TABLES = {
    "docs/contract.md": "tests/contract/test_contract.py",
    "docs/papers.md": "tests/documents/test_papers.py",
    **{
        f"docs/papers/{name}.md": "tests/documents/test_papers.py"
        for name in ("2018-rudner", "2020-ashman", "2020-jankowiak", "2023-spherical", "2024-meng")
    },
}

#: Pages whose code needs another library, and the test that runs them.
BESIDE = {
    f"docs/coming-from/{peer}.md": "tests/documents/test_coming_from.py"
    for peer in ("dgpsi", "gpflow", "gpytorch", "numpyro")
}


def test_every_page_is_run():
    pages = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    found = {str(path) for path in pages if path.parts[1] != "site"}
    assert found | {"README.md"} == {*PAGES, *TABLES, *BESIDE}
    for page, test in BESIDE.items():
        assert page in (ROOT / test).read_text(), page
    for page, test in TABLES.items():
        assert not python_of((ROOT / page).read_text()) and Path(page).name in (ROOT / test).read_text(), page


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.filterwarnings("ignore:.*inducing points are wanted|the target of the site:UserWarning")
def test_its_code_runs_and_does_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, text = PAGES[name], python_of((ROOT / name).read_text())
    assert text, f"{name} has no code: give it an example"
    for long, short in page.shorter.items():
        assert long in text, long
        text = text.replace(long, short)
    names: Names = {"TOY": TOY, "__name__": "page"}
    exec(compile(text, name, "exec"), names)
    page.check(names)


def commands():
    """The parsers of the commands, by name."""
    from pyro_dgp.comparison.cli import parser

    (choices,) = [action.choices for action in parser()._actions if isinstance(action.choices, dict)]
    return choices


DOCUMENTS = [*PAGES, *TABLES, *BESIDE, "CONTRIBUTING.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_its_shell_commands_exist(name):
    from pyro_dgp.comparison.cli import parser

    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / name).read_text()
    for target in re.findall(r"`?make ([a-z][\w-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for line in shell_of(text):
        program, *arguments = line.split()
        if program == "make":
            assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), line
        elif program == "pyro-dgp":
            parser().parse_args(arguments)
        else:
            assert program in {"pip", "git"} or Path(program).name == "pre-commit", line
    for command in re.findall(r"`pyro-dgp ([a-z]+)", text):
        assert command in commands(), command


def test_the_readme_is_one_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    first = python_of(text)
    body = first[first.index("class") : first.index("x = torch")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 15
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1:4]:
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith(("from", "import"))]
        assert len(lines) <= 6, block
