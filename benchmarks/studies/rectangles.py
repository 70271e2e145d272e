"""Tall or wide? Deep GPs as classifiers of rectangles beside one layer, and whether their probabilities are calibrated.

``python -m benchmarks.studies.rectangles [--rows TRAINING,TEST] [--steps N] [--batch-size B] [--learning-rate R] [--out FILE] [--methods A,B] [--device cuda] [--figure FILE] [--table]``

Tables 2 and 3 and Fig. 4 of [2020-ashman] section 5.2, on a generator of the task: rectangles cut from one photograph and laid over another, 28 x 28 pixels,
12,000 images for training and 50,000 for testing if ``--rows`` is not given. Probit likelihood; ``svgp`` with 100 and 500 points, ``dsvi`` with hidden layers 30 wide and
100 points, ``dsvi-2-narrow`` with two hidden outputs, ``aep-2`` with two. 5,000 steps of 1,000 images. Makes the runs that FILE (one JSON line a
run) lacks and prints the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks.common.calibration import calibration_figures, draw_calibration
from benchmarks.common.records import append, kept, read
from benchmarks.common.rectangles import TEST, TRAINING, rectangles
from pyro_dgp.data.splitting import Split, split
from pyro_dgp.likelihoods import Bernoulli
from pyro_dgp.means import LinearMean, Mean, Projection
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.prediction.rescaled import default_dtype
from pyro_dgp.training.loop import steps_for
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.recipes import approximate_ep, elbo, inducing_points, matched, monte_carlo, points_of_outputs
from pyro_dgp.zoo.settings import Settings

SETTINGS = Settings(
    kernel="rbf", inducing=100, samples=1, batch_size=1000, learning_rate=0.01, task="binary", classes=2
)
STEPS = 5000
BY_ELBO = ByGuide(inducing_points, monte_carlo, elbo)
BY_AEP = ByGuide(points_of_outputs, matched, approximate_ep)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    :ivar per_output: whether each output of a hidden layer has a kernel of its own.
    :ivar mean: makes the mean of a hidden layer from its inputs and width. Two principal directions of the pixels, brightness and a slope of it, say
        nothing of rectangles, so narrow layers learn theirs.
    :ivar log_likelihood: published, with ``accuracy`` in percent, for other images; not a number where the report has none.
    """

    layers: int = 1
    width: int = 30
    inducing: int = 100
    inference: ByGuide = BY_ELBO
    per_output: bool = False
    mean: Callable[[Tensor, int], Mean] = Projection.fit
    log_likelihood: float = float("nan")
    accuracy: float = float("nan")


ROWS = {
    "svgp-100": Row(log_likelihood=-0.6575, accuracy=72.12),
    "svgp-500": Row(inducing=500, log_likelihood=-0.6541, accuracy=72.87),
    "dsvi-2": Row(layers=2, log_likelihood=-0.4646, accuracy=77.51),
    "dsvi-3": Row(layers=3, log_likelihood=-0.4620, accuracy=77.48),
    "dsvi-2-narrow": Row(layers=2, width=2, mean=LinearMean.fit),
    "aep-2": Row(2, 2, inference=BY_AEP, per_output=True, mean=LinearMean.fit, log_likelihood=-0.4815, accuracy=75.19),
}


def classifier(x: Tensor, row: Row, settings: Settings) -> DeepGP:
    """Return a model with lengthscales at which scaled inputs have a total variance of one."""
    options: dict[str, Any] = {
        "kernel": settings.kernel,
        "likelihood": Bernoulli(),
        "per_output": row.per_output,
        "mean": row.mean,
    }
    model = DeepGP(x, row.layers, row.width, **options).to(x)
    with torch.no_grad():
        inputs = x
        for gp in (*model.hidden, model.top):
            gp.kernel.lengthscale = inputs.var(0).sum().sqrt().expand_as(gp.kernel.lengthscale).clone()
            inputs = gp.mean.forward()(inputs)
    return model


def run(part: Split, name: str, settings: Settings, *, device: str) -> dict[str, Any]:
    """Fit and score one method, with the bins of its calibration curve."""
    row, start = ROWS[name], time.perf_counter()
    settings = replace(settings, layers=row.layers, width=row.width, inducing=row.inducing)
    torch.manual_seed(settings.seed)
    model = classifier(part.x_train, row, settings)
    fitted = row.inference.run(model, part.x_train, part.y_train, settings=settings, progress=lambda *_: None)
    seconds = time.perf_counter() - start
    prediction = fitted.predict(part.x_test)
    return {
        "method": name,
        "training": len(part.x_train),
        "test": len(part.x_test),
        "steps": fitted.steps,
        "device": device,
        "batch_size": settings.rows_of_step,
        **calibration_figures(prediction, part.y_test),
        "seconds": round(seconds),
        "settings": asdict(settings),
    }


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return scores beside the published ones, a row for each method and number of images."""
    of = [ROWS[name] for name in rows["method"]]
    found = rows[["method", "training", "test", "steps"]].copy()
    found["accuracy %"], found["published %"] = 100 * rows["accuracy"], [row.accuracy for row in of]
    found["log-likelihood"], found["published"] = -rows["nll"], [row.log_likelihood for row in of]
    found["ECE"], found["by chance, at most"] = rows["ece"], rows["ece_high"]
    return found.assign(minutes=rows["seconds"] / 60)


def carry_out(arguments: argparse.Namespace) -> None:
    """Make the runs that the file lacks."""
    training, test = map(int, arguments.rows.split(","))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with default_dtype(torch.float32):
        part = split(rectangles(training, test), 0, dtype=torch.float32, device=arguments.device)
        each = steps_for(1, training, arguments.batch_size)
        settings = replace(
            SETTINGS,
            batch_size=arguments.batch_size,
            learning_rate=arguments.learning_rate,
            epochs=-(-arguments.steps // each),
        )
        key = {"training": training, "test": test, "steps": settings.num_steps(training, arguments.batch_size)}
        for name in arguments.methods.split(","):
            wanted = {
                "method": name,
                "batch_size": arguments.batch_size,
                "learning_rate": settings.learning_rate,
                **key,
            }
            done = [row | {"learning_rate": row["settings"]["learning_rate"]} for row in read(arguments.out, "method")]
            if not any(wanted.items() <= {k: row[k] for k in wanted}.items() for row in done):
                row = run(part, name, settings, device=arguments.device)
                append(arguments.out, row)
                print({k: v for k, v in row.items() if k not in ("curve", "settings")}, flush=True)


def main() -> None:
    """Make the runs that the file lacks, print the table and draw the curves."""
    out = Path("results/rectangles.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default=f"{TRAINING},{TEST}", help="images for training and for testing")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps, in whole passes over the images")
    parser.add_argument("--batch-size", type=int, default=SETTINGS.batch_size, help="images of a step")
    parser.add_argument("--learning-rate", type=float, default=SETTINGS.learning_rate, help="rate of Adam")
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--methods", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}, commas between")
    parser.add_argument("--figure", type=Path, help="file of the calibration curves; none is drawn if not given")
    parser.add_argument("--device", default="cpu", help="device that fits and predicts")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.table:
        carry_out(arguments)
    rows = pd.DataFrame(kept(arguments.out, "method"))
    print(table(rows).to_string(index=False, float_format="%.3f"))
    if arguments.figure is not None:
        draw_calibration(zip(rows["method"], rows["curve"], strict=True), arguments.figure)


if __name__ == "__main__":
    main()
