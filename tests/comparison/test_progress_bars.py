"""Progress lines in a terminal, and in a file that keeps every state of them."""

import io
import sys

import pytest

from pyro_dgp.comparison import progress_bars
from pyro_dgp.comparison.progress_bars import Bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


def states(stream, monkeypatch):
    """States of the line that a hundred steps write, at no least time between two of them in a terminal."""
    monkeypatch.setattr(progress_bars, "SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    bars = Bars()
    progress = bars.start("svgp")
    for step in range(1, 101):
        progress(step, 100, {"loss": 1.0 / step})
    bars.say("a remark")
    written = stream.getvalue()
    assert "svgp" in written and "100/100" in written and "loss=0.01" in written and written.endswith("a remark\n")
    return written.count("\r")


@pytest.mark.parametrize(("stream", "least", "most"), [(Terminal, 50, 210), (io.StringIO, 1, 4)])
def test_a_file_keeps_the_first_state_of_a_line_and_the_last(stream, least, most, monkeypatch):
    assert least <= states(stream(), monkeypatch) <= most
