"""A figure of the inference gap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pyro_dgp.comparison.canvas import blank_figure
from pyro_dgp.prediction.gap import InferenceGap

_PANELS = {
    "mean": "mean of f, off by\n(sd of the reference)",
    "sd": "log ratio\nof sd of f",
    "wasserstein": "1-Wasserstein of f\n(sd of the reference)",
    "kl": "KL of predictions\n(nats)",
}


def draw_gap(gaps: Mapping[str, InferenceGap], x: Tensor, path: Path, *, reference: str) -> None:
    """Draw the four distances of each method from the reference.

    With one input they are drawn over it; with several each panel shows the distances at all inputs in increasing order.

    :param gaps: distances by method.
    :param x: the inputs at which they were measured, ``(N, D)``.
    :param reference: name of the sampler.
    """
    one_input = x.shape[-1] == 1
    order = x[:, 0].argsort()
    figure = blank_figure(15.0, 4.4)
    axes = figure.subplots(1, len(_PANELS))
    for axis, (field, title) in zip(axes, _PANELS.items(), strict=True):
        for name, gap in gaps.items():
            values = getattr(gap, field)
            if one_input:
                axis.plot(x[order, 0].cpu(), values[order].cpu(), label=name, lw=1.8)
            else:
                axis.plot(values.sort().values.cpu(), label=name, lw=1.8)
        axis.axhline(0.0, color="0.6", lw=1)
        axis.set_title(title, fontsize=13)
        axis.set_xlabel("input (standardised)" if one_input else "inputs, in order of distance", fontsize=13)
        axis.tick_params(labelsize=11.5)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=13, ncols=6, frameon=False)
    figure.suptitle(
        f"Distance of each method from {reference}: zero is the same posterior",
        fontsize=17,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150)
