"""A figure of the inference gap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pyro_dgp.comparison.canvas import blank_figure
from pyro_dgp.prediction.gap import InferenceGap


def draw_gap(gaps: Mapping[str, InferenceGap], x: Tensor, path: Path, *, reference: str) -> None:
    """The four distances of each method at each input, over the one input, or sorted where there are several."""
    names = {
        "mean": "mean of f, off by (sd)",
        "sd": "log ratio of sd of f",
        "wasserstein": "1-Wasserstein of f (sd)",
        "kl": "KL of predictions (nats)",
    }
    figure = blank_figure(11.0, 3.0)
    for axis, (field, title) in zip(figure.subplots(1, 4), names.items(), strict=True):
        for name, gap in gaps.items():
            values = getattr(gap, field)
            if x.shape[-1] == 1:
                order = x[:, 0].argsort()
                axis.plot(x[order, 0].cpu(), values[order].cpu(), label=name)
            else:
                axis.plot(values.sort().values.cpu(), label=name)
        axis.axhline(0.0, color="0.7", lw=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("x" if x.shape[-1] == 1 else "inputs, sorted", fontsize=8)
        axis.tick_params(labelsize=7)
    axis.legend(fontsize=7)
    figure.suptitle(f"distance from {reference}", fontsize=10)
    figure.savefig(path, dpi=120)
