"""Figures of the studies of speed, profile and scaling."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator


def draw_speed(rows: list[dict], path: Path) -> None:
    """Draw the ratios to GPyTorch and to straight-line torch: medians with bars from smallest to largest.

    Ratios of compiled steps are drawn in another colour.
    """
    figure = Figure(figsize=(9, 1.2 + 0.28 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_ratios(left, rows, "gpytorch", "times GPyTorch's steps per second\n(right is faster)")
    _draw_ratios(right, rows, "floor", "times the straight-line step\n(left is faster)")
    left.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    left.invert_yaxis()
    if any("compiled_ratio_to_floor" in row for row in rows):
        names = (left.errorbar([], [], fmt="o", ms=4, color="C0"), left.plot([], [], "D", ms=4, color="C1")[0])
        words = ("as it is, median with smallest and largest", "compiled, median")
        figure.legend(names, words, loc="outside upper center", ncols=2, fontsize=8)
    save(figure, path)


def _label(row: dict) -> str:
    kernels = "" if row["per_output"] else " a kernel a layer"
    return f"{row['method']} L{row['layers']} S{row['samples']} B{row['batch']}{kernels}, {row['threads']} thr."


def _draw_ratios(axis: Axes, rows: list[dict], name: str, title: str) -> None:
    middle = [row[f"ratio_to_{name}"] for row in rows]
    low = [m - row[f"ratio_to_{name}_min"] for m, row in zip(middle, rows, strict=True)]
    high = [row[f"ratio_to_{name}_max"] - m for m, row in zip(middle, rows, strict=True)]
    axis.errorbar(middle, range(len(rows)), xerr=(low, high), fmt="o", ms=4, capsize=2, color="C0")
    compiled = [row.get(f"compiled_ratio_to_{name}", float("nan")) for row in rows]
    axis.plot(compiled, range(len(rows)), "D", ms=4, color="C1")
    axis.axvline(1, color="0.6", lw=1)
    axis.set_xscale("log")
    _show_digits(axis.xaxis, "1235")
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel(title)
    axis.grid(axis="x", which="both", lw=0.3)


def _show_digits(axis: Axis, digits: str) -> None:
    """Label the ticks of a logarithmic axis whose leading digit is one of these."""
    for set_formatter in (axis.set_major_formatter, axis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in digits else ""))


def draw_profile(rows: list[dict], kinds: tuple[str, ...], path: Path) -> None:
    """Draw the share of each part of a training step, one bar for each method."""
    figure = Figure(figsize=(8, 1.3 + 0.5 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    left = [0.0] * len(rows)
    for name in kinds:
        parts = [100 * row[name] for row in rows]
        axis.barh(range(len(rows)), parts, left=left, label=name)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    labels = [f"{row['method']}\n{1000 * row['seconds_per_step']:.1f} ms" for row in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of a training step")
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    save(figure, path)


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Draw seconds (above) and peak memory (below) by size, one column for each parameter."""
    names = [name for name in dict.fromkeys(row["parameter"] for row in rows) if "GPyTorch" not in name]
    figure = Figure(figsize=(2.2 * len(names), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        _draw_growth(axes[0, column], axes[1, column], rows, name)
    axes[0, 0].set_ylabel("seconds")
    axes[1, 0].set_ylabel("peak memory, MB")
    save(figure, path)


def _draw_growth(above: Axes, below: Axes, rows: list[dict], name: str) -> None:
    for label, color in ((name, "C0"), (f"{name}, GPyTorch", "C1")):
        own = [row for row in rows if row["parameter"] == label]
        if not own:
            continue
        for axis, key in ((above, "seconds"), (below, "peak_mb")):
            axis.plot([r["value"] for r in own], [r[key] for r in own], "o-", ms=4, label=label, color=color)
    sizes = [row["value"] for row in rows if row["parameter"] == name]
    words = [f"{size:,}" if size < 10_000 else f"{size:.0e}".replace("e+0", "e") for size in sizes]
    for axis in (above, below):
        axis.set_xscale("log")
        axis.tick_params(labelsize=7)
        axis.set_xticks(sizes, words)
        axis.xaxis.set_minor_locator(NullLocator())
    above.set_yscale("log")
    below.set_ylim(0, 1.1 * max(row["peak_mb"] for row in rows if row["parameter"].startswith(name)))
    _show_digits(above.yaxis, "125")
    above.tick_params(axis="y", which="minor", labelsize=7)
    below.set_xlabel(name, fontsize=8)
    if len(above.lines) > 1:
        above.legend(fontsize=6)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, and make its folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
