"""Warnings point at the line that called the library."""

import linecache
import re
from pathlib import Path

import pytest

import pyro_dgp
from pyro_dgp import (
    EllipticalSlice,
    InducingPoints,
    MonteCarlo,
    Variational,
    run_chains,
)
from pyro_dgp.internal import user_warning
from tests.examples import OneLayer, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")

PACKAGE = Path(pyro_dgp.__file__).parent


@pytest.fixture(autouse=True)
def without_checks_of_annotations(monkeypatch):
    """The checks stand between a test and the library."""
    monkeypatch.setattr(user_warning, "PASSED_OVER", [*user_warning.PASSED_OVER, "tests.annotations", "jaxtyping"])


def place(caught):
    """The file and the line of each warning."""
    return [(each.filename, linecache.getline(each.filename, each.lineno).strip()) for each in caught]


def test_it_is_the_call_of_the_library():
    x, y = regression(12)
    guide = Variational(OneLayer(), InducingPoints(4), MonteCarlo(2))
    with pytest.warns(UserWarning, match="beside the mean function") as caught:
        guide.initialize(x, 1000 + y)
    assert place(caught) == [(__file__, "guide.initialize(x, 1000 + y)")]


def test_it_is_the_call_of_a_sampler():
    x, _ = regression(6)
    with pytest.warns(UserWarning, match="no site is observed") as caught:
        run_chains(EllipticalSlice(TwoSites().requires_grad_(False)), (x,), num_samples=2, warmup_steps=1, num_chains=1)
    assert [line.startswith("run_chains(") for _, line in place(caught)] == [True]


def test_no_other_warning_is_given():
    """A level that is counted by hand goes wrong in silence."""
    found = [
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\bwarnings\.warn\(|stacklevel", file.read_text())
    ]
    assert found == [str(Path("internal", "user_warning.py"))]
