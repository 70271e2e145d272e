"""Digits: deep GPs as classifiers beside one layer.

``python -m benchmarks.studies.mnist --data FOLDER [--out FILE] [--methods svgp,dsvi] [--splits 0,1,2] [--inducing M] [--threads N] [--device cuda] [--figure FILE] [--table]``

The 10,000 test images of MNIST, ``FOLDER/images/mnist_t10k.npz``: 8,000 for training and 2,000 for testing, three splits of the file. Pixels are divided
by 255, and those that are constant in training are left out. [2020-ashman] section 5.2 trains on 60,000 images: DSVI with two layers 97.73 %, AEP
96.46 %, one layer 92.26 %. Makes the runs that FILE (one JSON line a run) lacks and prints the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from benchmarks.common.calibration import calibration_figures, draw_calibration, pooled
from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.records import append, kept, read
from pyro_dgp.data.reading import load
from pyro_dgp.likelihoods import RobustMax
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.prediction.rescaled import default_dtype
from pyro_dgp.processes import InducingPoints, ProcessFamily
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.recipes import approximate_ep, elbo, matched, monte_carlo
from pyro_dgp.zoo.settings import Settings

#: Hidden layers are 30 wide, as in the paper. The kernel and the inducing points (the paper has 100) were chosen on 1,000 training images.
SETTINGS = Settings(
    kernel="rbf-isotropic",
    width=30,
    inducing=1000,
    epochs=125,
    batch_size=500,
    samples=1,
    task="multiclass",
    classes=10,
)
#: Inducing points of a hidden layer, and of both layers of ``aep``.
FEW_POINTS = 100
#: Number of layers of each method, all trained by the ELBO but ``aep``.
LAYERS = {"svgp": 1, "dsvi": 2, "dsvi-3": 3, "aep": 2}
PUBLISHED = {"svgp": 92.26, "dsvi": 97.73, "dsvi-3": 97.99, "aep": 96.46}


def inference(method: str) -> ByGuide:
    """Return how a method is fitted: many points with a diagonal covariance on top, few with a full one in hidden layers."""
    if method == "aep":
        return ByGuide(InducingPoints(FEW_POINTS), matched, approximate_ep)
    hidden: dict[str, ProcessFamily] = {f"h{n}": InducingPoints(FEW_POINTS) for n in range(1, LAYERS[method])}
    return ByGuide(lambda settings: hidden | {"y": InducingPoints(settings.inducing, "diagonal")}, monte_carlo, elbo)


def images(folder: Path, split: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test images ``(N, D)`` with their digits, in single precision."""
    data = load(folder / "images" / "mnist_t10k.npz")
    assert data.splits is not None
    test = torch.as_tensor(data.splits[:, split])
    x, y = torch.as_tensor(data.x, dtype=torch.float32) / 255, torch.as_tensor(data.y, dtype=torch.float32)
    seen = x[~test].std(0) > 0
    return x[~test][:, seen], y[~test], x[test][:, seen], y[test]


def classifier(x: Tensor, method: str, settings: Settings) -> DeepGP:
    """Return a model whose layers share a kernel and points, with lengthscales at which scaled inputs have a total variance of one.

    The likelihood is the robust-max of the paper.
    """
    likelihood = RobustMax(settings.classes)
    options = {"kernel": settings.kernel, "likelihood": likelihood, "outputs": settings.classes}
    model = DeepGP(x, LAYERS[method], settings.width, **options).to(x)
    with torch.no_grad():
        inputs = x
        for gp in (*model.hidden, model.top):
            gp.kernel.lengthscale = inputs.var(0).sum().sqrt().expand_as(gp.kernel.lengthscale).clone()
            inputs = gp.mean.forward()(inputs)
    return model


def run(folder: Path, method: str, split: int, settings: Settings, *, device: str = "cpu") -> dict[str, object]:
    """Fit and score one method on one split."""
    with default_dtype(torch.float32):
        x, y, x_test, y_test = (part.to(device) for part in images(folder, split))
        start, settings = time.perf_counter(), replace(settings, split=split)
        torch.manual_seed(settings.seed)
        model = classifier(x, method, settings)
        fitted = inference(method).run(model, x, y, settings=settings, progress=lambda *_: None)
        seconds = time.perf_counter() - start
        prediction = fitted.predict(x_test)
        figures = calibration_figures(prediction, y_test)
    row = {"method": method, "split": split, "seed": settings.seed, "device": device, **figures}
    return row | {"seconds": round(seconds), "steps": fitted.steps, "settings": asdict(settings)}


def settings_of(method: str, epochs: int, inducing: int) -> Settings:
    """Return the settings of a method: ``aep`` has few points whatever is asked for."""
    return replace(SETTINGS, epochs=epochs, inducing=FEW_POINTS if method == "aep" else inducing)


def runs(path: Path) -> pd.DataFrame:
    """Return the runs that a file holds, with the points of the top layer and the passes of each."""
    rows = pd.DataFrame(read(path, "method"))
    for name in ("inducing", "epochs") if len(rows) else ():
        rows[name] = [settings[name] for settings in rows["settings"]]
    return rows


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means over splits of each method, beside the published accuracy."""
    found = []
    for (method, points, _), own in rows.groupby(["method", "inducing", "epochs"], sort=False):
        found.append(
            {
                "method": method,
                "splits": len(own),
                "accuracy %": 100 * own["accuracy"].mean(),
                "published %": PUBLISHED.get(str(method), float("nan")),
                "log-likelihood": -own["nll"].mean(),
                "ECE": own["ece"].mean(),
                "by chance, at most": own["ece_high"].mean(),
                "minutes": own["seconds"].mean() / 60,
                "points": points,
                "steps": own["steps"].iloc[0],
            }
        )
    return pd.DataFrame(found)


def curves(rows: pd.DataFrame) -> list[tuple[str, dict[str, list[float]]]]:
    """Return a calibration curve for each method, number of points and number of steps, of all splits that have kept theirs."""
    kept = rows[rows["curve"].notna()].groupby(["method", "inducing", "steps"], sort=False)
    return [
        (f"{method}, {points} points, {steps} steps", pooled(own["curve"])) for (method, points, steps), own in kept
    ]


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    out = Path("results/mnist.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--methods", default="svgp,dsvi", help=f"some of {', '.join(LAYERS)}, commas between")
    parser.add_argument("--splits", default="0,1,2", help="splits with commas between")
    parser.add_argument("--epochs", type=int, default=SETTINGS.epochs, help="passes over the training images")
    parser.add_argument(
        "--inducing",
        type=int,
        default=SETTINGS.inducing,
        help="points of the top layer, but of aep",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--device", default="cpu", help="device that fits and predicts")
    parser.add_argument("--figure", type=Path, help="file of the calibration curves; none is drawn if not given")
    parser.add_argument(
        "--table", action="store_true", help="run nothing: print the table of the runs that the file holds"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for split in map(int, arguments.splits.split(",")):
            for method in arguments.methods.split(","):
                settings = settings_of(method, arguments.epochs, arguments.inducing)
                wanted = {"method": method, "split": split, "inducing": settings.inducing, "epochs": settings.epochs}
                done = runs(arguments.out).to_dict("records")
                if not any(wanted.items() <= {name: row[name] for name in wanted}.items() for row in done):
                    row = run(arguments.data, method, split, settings, device=arguments.device)
                    append(arguments.out, row)
                    print(row, flush=True)
    kept(arguments.out, "method")
    rows = runs(arguments.out)
    print(table(rows).to_string(index=False, float_format="%.3f"))
    if arguments.figure is not None and "curve" not in rows:
        sys.exit(f"the runs of {arguments.out} are older than calibration curves: make them again in another file")
    if arguments.figure is not None:
        draw_calibration(curves(rows), arguments.figure)


if __name__ == "__main__":
    main()
