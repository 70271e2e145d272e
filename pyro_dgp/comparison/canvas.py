"""Blank figures."""

from __future__ import annotations

from typing import Any

from pyro_dgp.internal.optional import optional


def blank_figure(width: float, height: float) -> Any:
    """A figure of Matplotlib, in inches, that is drawn without a screen and without ``pyplot``.

    :raises ImportError: without Matplotlib, which the extra ``compare`` installs.
    """
    optional("matplotlib", extra="compare", what="drawing a figure")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
