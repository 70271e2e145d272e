"""Densities that rounding makes rough: how rough is measured, chains warn of it, and chains that stand still are found."""

import warnings

import numpy as np
import pytest
import torch

from pyro_dgp import (
    DeepGP,
    EllipticalSlice,
    Gaussian,
    WhitenedNUTS,
    convergence,
    diagnose,
    run_chains,
    whitened,
    with_priors,
)
from pyro_dgp.mcmc.chains import Chains
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.rounding import rounding

pytestmark = pytest.mark.usefixtures("local")


def step(dtype, rows=40):
    x = torch.linspace(-1, 1, rows, dtype=dtype)[:, None]
    return x, torch.sign(x[:, 0])


def sharp(x, y, variance):
    """Two layers under little noise, whose residuals magnify the rounding of function values."""
    model = DeepGP(x, 2, 1, kernel="rbf", likelihood=Gaussian(variance=variance, floor=0.0)).to(x)
    return model.requires_grad_(False)


def test_rounding_is_that_of_the_type():
    found = {}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        x, y = step(dtype)
        density = WhitenedDensity(whitened(sharp(x, y, 1e-5)), (x, y), {})
        before = torch.get_rng_state()
        found[dtype] = rounding(density, density.vector(density.unconstrained_start()))
        assert torch.equal(before, torch.get_rng_state())
    assert found[torch.float32] > 1.0 and found[torch.float64] < 1e-5


def test_rounding_is_nothing_where_there_is_no_density():
    x, y = step(torch.float64)
    density = WhitenedDensity(whitened(with_priors(DeepGP(x, 1))), (x, y), {})
    low = density.unconstrained_start() | {"likelihood.variance": torch.tensor(-800.0)}
    assert rounding(density, density.vector(low)) == 0.0


@pytest.mark.parametrize("kernel", [WhitenedNUTS, EllipticalSlice])
def test_chains_warn_where_rounding_decides(kernel):
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        x, y = step(dtype)
        made = kernel(sharp(x, y, 1e-5))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run_chains(made, (x, y), num_samples=2, warmup_steps=2, num_chains=1, processes=1)
        words = [str(each.message) for each in said if "rounding changes" in str(each.message)]
        assert len(words) == (dtype == torch.float32)
        assert all("give the model and the data in float64" in each for each in words)


def test_chains_in_single_precision_with_more_noise_say_nothing():
    torch.manual_seed(0)
    x, y = step(torch.float32)
    y += 0.3 * torch.randn(len(y), dtype=y.dtype)
    made = WhitenedNUTS(with_priors(DeepGP(x, 1).to(x)), max_tree_depth=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run_chains(made, (x, y), num_samples=2, warmup_steps=40, num_chains=2, processes=1)
    assert not [each for each in said if "rounding changes" in str(each.message)]


def test_chains_that_stand_still_are_found_first():
    x, y = step(torch.float64, rows=10)
    chains = run_chains(
        WhitenedNUTS(with_priors(DeepGP(x, 1)), max_tree_depth=3, step_size=1e-6),
        (x, y),
        num_samples=10,
        warmup_steps=0,
        num_chains=2,
        processes=1,
    )
    assert isinstance(chains, Chains) and np.median(chains.stats["step_size"]) == 1e-6
    first = diagnose(chains, x, y).findings[0]
    assert first.symptom == "frozen chains" and first.seen.startswith("the steps of a chain have fallen to 1e-06")
    assert first.page == "docs/pitfalls/divergences.md"


def test_figures_of_chains_that_hardly_move_come_without_a_warning():
    torch.manual_seed(0)
    where = torch.randn(2, 1, 3).double().expand(2, 40, 3)
    assert convergence({"f": where + 1e-14 * torch.randn(40).double()[None, :, None]})["divergences"] is None
    still = where + 1e-9 * torch.arange(40)[None, :, None]
    still[:, :, 0] = torch.tensor([1.0, 2.0])[:, None] + 1e-16 * (torch.arange(40) % 2)
    r_hat = convergence({"f": still})["r_hat_max"]
    assert r_hat is None or r_hat > 1.5
