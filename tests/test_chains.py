import pytest
import torch
from pyro.infer import NUTS

from pyro_dgp import EllipticalSlice, Gaussian, run_chains, whitened
from tests.examples import TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


def test_draws_do_not_depend_on_the_number_of_processes():
    """Also for a model whose class other processes cannot import."""

    class Own(TwoSites):
        pass

    x, y = regression(8)
    kernel = EllipticalSlice(Own(Gaussian(variance=0.1)).requires_grad_(False))
    reports, state = [], torch.get_rng_state()
    one = run_chains(kernel, (x, y), 4, 2, 3, seed=5, processes=1, report=lambda *report: reports.append(report))
    assert reports == [(done, 18) for done in range(1, 19)]
    assert torch.equal(torch.get_rng_state(), state)
    several = run_chains(kernel, (x, y), 4, 2, 3, seed=5, processes=2, report=lambda *report: reports.append(report))
    assert reports[18:] == [(6, 18), (12, 18), (18, 18)]
    assert one.draws["f_whitened"].shape == (3, 4, 8, 1) and one.flat["f_whitened"].shape == (12, 8, 1)
    assert torch.equal(one.draws["f_whitened"], several.draws["f_whitened"])
    assert not torch.equal(one.draws["f_whitened"][0], one.draws["f_whitened"][1])
    assert len(one.diagnostics) == 3 and all(known["runs_per_sweep"] >= 1 for known in several.diagnostics)


def test_other_kernels_run_too_and_errors_of_a_chain_arrive():
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    result = run_chains(NUTS(whitened(model), max_tree_depth=2), (x, y), 2, 1, 2, processes=2)
    assert result.draws["f_whitened"].shape == (2, 2, 6, 1) and "divergences" in result.diagnostics[1]
    with pytest.raises(ValueError, match="at least one chain and one draw, got num_chains=0"):
        run_chains(EllipticalSlice(model), (x, y), 2, 1, 0)
    with pytest.raises(ValueError, match="y has shape"):
        run_chains(EllipticalSlice(model), (x, y[:3]), 2, 1, 2, processes=2)
