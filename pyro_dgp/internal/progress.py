"""The one shape of callbacks that are told how far a fit or a sampler has come."""

from __future__ import annotations

from collections.abc import Callable

#: ``report(done, total, figures)``, called after each step or iteration: how many are done, of how many, and figures of the last by
#: name, such as ``{"loss": 1.2}``.
Progress = Callable[[int, int, dict[str, float]], object]


def silent(step: int, total: int, figures: dict[str, float]) -> None:
    """Show no progress."""
