import math

import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import Ascent, EllipticalSlice, Gaussian, WhitenedNUTS, run_chains, whitened
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity
from tests.examples import TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def sharp(x):
    model = TwoLayers(x)
    model.likelihood.variance = PyroSample(dist.LogNormal(-5.0, 0.5))
    return model.requires_grad_(False)


def test_an_ascent_ends_at_the_mode():
    """Of a linear Gaussian model: the posterior mean of the function values."""
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    density = WhitenedDensity(whitened(model), (x, y), {})
    start = Ascent()(density)
    prior = model.gp(x)
    mean, sd = posterior(prior, y, 0.1)
    values = prior.unwhiten(start["f_whitened"])[..., 0]
    assert ((values - mean).abs() / sd).max() < 0.02
    assert not start["f_whitened"].requires_grad


def test_it_climbs_from_a_prior_draw_of_each_chain():
    x, y = regression(12)
    model, reached = sharp(x), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        density = WhitenedDensity(whitened(model), (x, y), {})
        before, start = density.unconstrained_start(), Ascent(200)(density)
        reached.append(start)
        with torch.no_grad():
            assert float(density.potential(before) - density.potential(start)) > 10
        assert all((start[name] - value).abs().max() > 1e-3 for name, value in before.items())
    assert all((reached[0][name] - reached[1][name]).abs().max() > 1e-3 for name in reached[0])


@pytest.mark.parametrize(
    "make", [EllipticalSlice, lambda model, **o: WhitenedNUTS(model, 3, step_size=1e-4, adapt_step_size=False, **o)]
)
def test_kernels_start_there(make, tmp_path):
    x, y = regression(12)
    model = sharp(x)
    first, other = (
        float(run_chains(make(model, **options), (x, y), 1, warmup_steps=0, num_chains=1).stats["lp"][0, 0])
        for options in ({}, {"start": Ascent(200)})
    )
    assert other > first + 5
    run_chains(make(model, start=Ascent(20)), (x, y), 1, warmup_steps=1, num_chains=1, folder=tmp_path)
    with pytest.raises(ValueError, match="another model, kernel"):
        run_chains(make(model, start=Ascent(30)), (x, y), 1, warmup_steps=1, num_chains=1, folder=tmp_path)


@pytest.mark.parametrize("problem", [NotPositiveDefiniteError("none"), math.nan])
def test_where_the_density_ends_it_keeps_the_best(problem, monkeypatch):
    x, y = regression(8)
    model = sharp(x)
    torch.manual_seed(0)
    density = WhitenedDensity(whitened(model), (x, y), {})
    energies, original = [], density.potential

    def potential(params):
        if len(energies) == 5:
            if isinstance(problem, Exception):
                raise problem
            return original(params) * problem
        energies.append(original(params).item())
        return original(params)

    monkeypatch.setattr(density, "potential", potential)
    start = Ascent(50)(density)
    assert len(energies) == 5 and float(original(start)) == pytest.approx(min(energies), rel=1e-12)


def test_steps_and_rates_are_positive():
    for options in ({"steps": 0}, {"rate": 0.0}, {"rate": math.nan}):
        with pytest.raises(ValueError, match="positive number of steps and rate"):
            Ascent(**options)
