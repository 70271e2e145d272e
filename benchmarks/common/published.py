"""Published results beside ours. They come from the papers' tables as CSV, in a folder that is not part of this project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

#: By method of the zoo: the paper, the name of the method in its table, and how its settings differ from ours.
PEERS = {
    "svgp": (("ashman2020", "SGP 100", "M 100, RBF"),),
    "dsvi": (
        ("ashman2020", "DSVI-2", "M 100, 100 epochs or more"),
        ("meng2024", "DS-DGP", "3 layers, isotropic, M 256"),
    ),
    "dspp": (("meng2024", "DSPP", "3 layers, isotropic, beta 1"),),
    "idsgp": (("meng2024", "IDSGP", "M 16"),),
    **{
        f"avdgp-{rule}": (("meng2024", f"AVDGP-{rule.upper()}", "3 layers, isotropic"),)
        for rule in ("ar1", "ar2", "ar2p", "ar2pp")
    },
}


def read(folder: Path) -> pd.DataFrame:
    """Read the cells of NLL and RMSE by paper, data set and method, without those that are marked as doubtful."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise SystemExit(
            f"there are no tables in {folder}: give --published FOLDER with the papers' CSV files, or leave it out"
        )
    rows = pd.concat([pd.read_csv(file) for file in files if "check" not in file.name])
    rows = rows[~rows["note"].fillna("").str.contains("doubtful") & rows["mean"].notna()]
    rows["dataset"] = rows["dataset"].str.lower().str.replace(" ", "_")
    return rows[rows["metric"].isin(["NLL", "RMSE", "log-likelihood"])]


def standardised(row: pd.Series, scale: float) -> tuple[str, float, float]:
    """Convert one cell to standardised targets: the score, its mean and its standard deviation.

    :param scale: standard deviation of the target in its own units.
    """
    if row["metric"] == "log-likelihood":
        return "nll", -row["mean"] - np.log(scale), row["sd"]
    own = "original units" in row["scale"]
    return row["metric"].lower(), row["mean"] / (scale if own else 1.0), row["sd"] / (scale if own else 1.0)


def beside(results: pd.DataFrame, published: pd.DataFrame, scales: dict[str, float]) -> pd.DataFrame:
    """Build a table with our score and the published one for each data set, method and paper.

    Cells are means with standard deviations over splits, where there are several.

    :param results: rows with ``dataset, method, split, nll, rmse``.
    :param scales: standard deviation of the targets by data set.
    """
    lines = []
    for (dataset, method), group in results.groupby(["dataset", "method"], sort=False):
        for paper, name, remark in PEERS.get(method, ()):
            found = published.query("paper == @paper and dataset == @dataset and method == @name")
            theirs = {
                score: (mean, sd)
                for score, mean, sd in (standardised(row, scales[dataset]) for _, row in found.iterrows())
            }
            line = {
                "data": dataset,
                "method": method,
                "splits": group["split"].nunique(),
                "published as": f"{paper} {name} ({remark})",
            }
            for score in ("nll", "rmse"):
                spread = f" ({group[score].std():.3f})" if len(group) > 1 else ""
                line[score] = f"{group[score].mean():.3f}{spread}"
                line[f"published {score}"] = "{:.3f} ({:.3f})".format(*theirs[score]) if score in theirs else ""
            if theirs:
                lines.append(line)
    return pd.DataFrame(lines)
