from dataclasses import replace

import pytest

from pyro_dgp import METHODS
from pyro_dgp.comparison import one_method
from pyro_dgp.zoo.by_sghmc import BySGHMC


@pytest.fixture(autouse=True)
def _coarse_figures(monkeypatch):
    """Bands of figures have 60 inputs, and their quantiles 200 draws where a likelihood has none of its own."""
    monkeypatch.setattr(one_method, "_GRID", 60)
    monkeypatch.setattr(one_method, "_DRAWS", 200)


@pytest.fixture
def near_draws(monkeypatch):
    """Draws of ``sghmc`` are 4 steps apart in the place of 20."""
    method = METHODS["sghmc"]
    assert isinstance(method.inference, BySGHMC)
    inference = replace(method.inference, sampler=replace(method.inference.sampler, thin=4))
    monkeypatch.setitem(METHODS, "sghmc", replace(method, inference=inference))
