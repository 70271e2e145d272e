"""The README's code runs as it stands, with loops shortened."""

import math
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SHORTER = {
    "range(1000)": "range(5)",
    "steps=1000": "steps=5",
    "stream, steps=200": "stream, steps=5",
    "num_samples=200, warmup_steps=200": "num_samples=5, warmup_steps=5",
    "num_samples=200, warmup_steps=100": "num_samples=4, warmup_steps=2",
    "num_samples=100, warmup_steps=100": "num_samples=4, warmup_steps=2",
    "StochasticGradientHMC(burn_in=1000)": "StochasticGradientHMC(burn_in=3, thin=1)",
}


def blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_a_model_of_fifteen_lines_runs_under_two_guides_and_nuts():
    text = "".join(blocks())
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    namespace = {}
    exec(compile(text, "README.md", "exec"), namespace)
    prediction = namespace["prediction"]
    assert namespace["validation"].held_out(30, 0).sum() == 6
    assert namespace["predict"](namespace["guide"], namespace["x"]).mean.shape == (
        30,
    )  # trained from disk, the last guide
    assert len(namespace["stream"]) == 30
    amortized = namespace["predict"](namespace["amortized"], namespace["x"])
    assert torch.isfinite(amortized.log_prob(namespace["y"])).all()
    assert torch.isfinite(prediction.mean).all() and prediction.mean.shape == (100,)
    assert prediction.component_log_prob(torch.zeros(100)).shape == (8, 100)
    assert namespace["result"].steps == 5 + 4 and text.count("Variational(") == 9 and "NUTS(" in text
    assert namespace["data"].log_likelihood["y"].shape == (2, 4, 30)
    assert all(math.isfinite(figure) for figure in namespace["gap"].figures().values())
    assert (namespace["folder"] / "gap.png").stat().st_size > 10_000


def test_the_model_takes_fifteen_lines():
    first = blocks()[0]
    body = first[first.index("class") : first.index("x = torch")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 15


def test_every_command_of_the_readme_exists():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


BENCHMARKS = [f"benchmarks/{folder}README.md" for folder in ("", "studies/", "results/", "figures/")]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *BENCHMARKS])
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
