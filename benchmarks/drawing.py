"""Figures of the speed and scaling benchmarks."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator


def draw_speed(rows: list[dict], path: Path) -> None:
    """Steps per second beside GPyTorch and the floor: medians, bars from the smallest to the largest of the ratios; compiled in another colour."""
    labels = [
        f"{r['method']} L{r['layers']} S{r['samples']} B{r['batch']}{'' if r['per_output'] else ' a kernel a layer'}, {r['threads']} thr."
        for r in rows
    ]
    figure = Figure(figsize=(9, 1.2 + 0.28 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    titles = "times GPyTorch's steps per second\n(right is faster)", "times the straight-line step\n(left is faster)"
    for axis, name, title in ((left, "gpytorch", titles[0]), (right, "floor", titles[1])):
        middle = [row[f"ratio_to_{name}"] for row in rows]
        low = [m - row[f"ratio_to_{name}_min"] for m, row in zip(middle, rows, strict=True)]
        high = [row[f"ratio_to_{name}_max"] - m for m, row in zip(middle, rows, strict=True)]
        axis.errorbar(middle, range(len(rows)), xerr=(low, high), fmt="o", ms=4, capsize=2, color="C0")
        compiled = [row.get(f"compiled_ratio_to_{name}", float("nan")) for row in rows]
        axis.plot(compiled, range(len(rows)), "D", ms=4, color="C1")
        axis.axvline(1, color="0.6", lw=1)
        axis.set_xscale("log")
        for part in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            part(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else ""))
        axis.tick_params(axis="x", which="both", labelsize=8)
        axis.set_xlabel(title)
        axis.grid(axis="x", which="both", lw=0.3)
    left.set_yticks(range(len(rows)), labels, fontsize=7)
    left.invert_yaxis()
    if any("compiled_ratio_to_floor" in row for row in rows):
        names = (left.errorbar([], [], fmt="o", ms=4, color="C0"), left.plot([], [], "D", ms=4, color="C1")[0])
        figure.legend(
            names,
            ("as it is, median with smallest and largest", "compiled, median"),
            loc="outside upper center",
            ncols=2,
            fontsize=8,
        )
    save(figure, path)


def draw_profile(rows: list[dict], kinds: tuple[str, ...], path: Path) -> None:
    """Shares of a step, a bar for each method."""
    figure = Figure(figsize=(8, 1.3 + 0.5 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    left = [0.0] * len(rows)
    for name in kinds:
        parts = [100 * row[name] for row in rows]
        axis.barh(range(len(rows)), parts, left=left, label=name)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    axis.set_yticks(
        range(len(rows)), [f"{r['method']}\n{1000 * r['seconds_per_step']:.1f} ms" for r in rows], fontsize=8
    )
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of a training step")
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    save(figure, path)


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Seconds and peak memory by size, one column for each parameter."""
    names = [name for name in dict.fromkeys(row["parameter"] for row in rows) if "GPyTorch" not in name]
    figure = Figure(figsize=(2.2 * len(names), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        for label in (name, f"{name}, GPyTorch"):
            own = [row for row in rows if row["parameter"] == label]
            if not own:
                continue
            for line, key in enumerate(("seconds", "peak_mb")):
                color = "C1" if "GPyTorch" in label else "C0"
                axes[line, column].plot(
                    [r["value"] for r in own], [r[key] for r in own], "o-", ms=4, label=label, color=color
                )
        for axis in axes[:, column]:
            sizes = [row["value"] for row in rows if row["parameter"] == name]
            axis.set_xscale("log")
            axis.tick_params(labelsize=7)
            axis.set_xticks(
                sizes, [f"{size:,}" if size < 10_000 else f"{size:.0e}".replace("e+0", "e") for size in sizes]
            )
            axis.xaxis.set_minor_locator(NullLocator())
            top = 1.1 * max(row["peak_mb"] for row in rows if row["parameter"].startswith(name))
            axis.set_ylim(0, top) if axis is axes[1, column] else axis.set_yscale("log")
        for part in (axes[0, column].yaxis.set_major_formatter, axes[0, column].yaxis.set_minor_formatter):
            part(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "125" else ""))
        axes[0, column].tick_params(axis="y", which="minor", labelsize=7)
        axes[1, column].set_xlabel(name, fontsize=8)
        if len(axes[0, column].lines) > 1:
            axes[0, column].legend(fontsize=6)
    axes[0, 0].set_ylabel("seconds")
    axes[1, 0].set_ylabel("peak memory, MB")
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """In a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
