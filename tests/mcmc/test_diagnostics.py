"""Figures of chains whose quantities are not all numbers."""

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import Chains, DeepGP, convergence, diagnose
from pyro_dgp.mcmc.diagnostics import doubts

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", ["one draw", "the last draw", "one chain", "all draws"])
def test_a_quantity_that_is_not_a_number_leaves_no_figures(fault, number):
    torch.manual_seed(0)
    sound, faulty = torch.randn(number, 61, 3), torch.randn(number, 61, 3)
    known = convergence({"a": sound, "b": faulty})
    assert known["r_hat_max"] < 1.1 and known["ess_min"] > 20
    where = {"one draw": (0, 7, 1), "the last draw": (0, 60, 1), "one chain": (0, slice(None), 1), "all draws": ()}
    faulty[where[fault]] = torch.nan
    for order in ({"a": sound, "b": faulty}, {"b": faulty, "a": sound}):
        figures = convergence(order, np.ones((number, 61), dtype=bool))
        assert figures == {"divergences": 61 * number, "r_hat_max": None, "ess_min": None}
    assert [each.symptom for each in doubts(convergence({"b": faulty}), 120)] == ["no R-hat"]


def test_quantities_of_booleans_and_whole_numbers_have_figures():
    draws = torch.rand(2, 61, generator=torch.Generator().manual_seed(0)) > 0.5
    figures = convergence({"b": draws.double()})
    assert figures["r_hat_max"] < 1.1
    assert convergence({"b": draws}) == convergence({"b": draws.long()}) == figures


@pytest.mark.parametrize("number", [1, 2])
def test_fixed_entries_of_a_matrix_are_no_quantities(number):
    """The zeros of one Cholesky factor took the figures of all sites away."""
    torch.manual_seed(0)
    others = torch.randn(number, 60)
    factors = dist.LKJCholesky(3, torch.tensor(2.0, dtype=torch.float64)).sample((number, 60))
    figures = convergence({"factor": factors, "a": others})
    assert 0.9 < figures["r_hat_max"] < 1.2 and figures["ess_min"] > 10
    rows, columns = torch.tril_indices(3, 3, -1)
    moving = torch.cat([factors[..., rows, columns], factors[..., [1, 2], [1, 2]]], -1)
    assert convergence({"factor": moving, "a": others}) == figures
    factors[..., 1, 0] = 0.3  # an entry that stands still is one that a chain does not move
    assert convergence({"factor": factors, "a": others})["r_hat_max"] is None


def test_a_log_density_that_is_not_a_number_is_said_of_chains():
    x = torch.linspace(-1, 1, 6)[:, None]
    draws = {"likelihood.variance": 0.1 + 0.1 * torch.rand(2, 20)}
    lp = np.random.default_rng(0).normal(size=(2, 20))
    model = DeepGP(x, 1)
    model.likelihood.variance = PyroSample(dist.LogNormal(0.0, 1.0))

    def said():
        chains = Chains(draws, stats={"lp": lp}, model=model, args=(x, torch.sin(x[:, 0])))
        return [finding.sentence for finding in diagnose(chains, x, torch.sin(x[:, 0])) if "R-hat" in finding.sentence]

    assert said() == []
    lp[1, 4] = np.nan
    assert said() == ["it has no R-hat: too few draws, or some quantity never moved or is NaN"]
