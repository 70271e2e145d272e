import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    Ascent,
    Bernoulli,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    GuideMean,
    InducingPoints,
    MonteCarlo,
    NeighborSearch,
    Variational,
    VecchiaModel,
    VecchiaPrior,
    WhitenedNUTS,
    fit,
    inducing_inputs,
    run_chains,
    vecchia,
    whitened,
)
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.initial_points import prior_draw
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


def test_of_several_ascents_the_highest_is_taken():
    x, y = regression(12)
    torch.manual_seed(1)
    density = WhitenedDensity(whitened(sharp(x)), (x, y), {})
    ascent = Ascent(60, draws=5)
    torch.manual_seed(2)
    starts = [density.unconstrained_start(), *(prior_draw(density) for _ in range(4))]
    names = set(starts[0])
    assert all(
        set(start) == names and not torch.equal(start["h_whitened"], starts[0]["h_whitened"]) for start in starts[1:]
    )
    ends = [Ascent(60)._ascend(density, start) for start in starts]
    torch.manual_seed(2)
    found = ascent(density)
    with torch.no_grad():
        energy = float(density.potential(found))
    assert energy == pytest.approx(min(lowest for lowest, _ in ends), rel=1e-12)
    assert energy < ends[0][0]  # the first is not the highest here


def test_a_draw_of_the_prior_of_a_density_has_its_distribution():
    x, y = regression(12)
    density = WhitenedDensity(whitened(sharp(x)), (x, y), {})
    torch.manual_seed(0)
    draws = [float(prior_draw(density)["likelihood.variance"]) for _ in range(400)]
    assert np.mean(draws) == pytest.approx(-5.0, abs=0.1) and np.std(draws) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    "make",
    [
        EllipticalSlice,
        lambda model, **o: WhitenedNUTS(model, max_tree_depth=3, step_size=1e-4, **o),
    ],
)
def test_kernels_start_there(make, tmp_path):
    x, y = regression(12)
    model = sharp(x)
    first, other = (
        float(run_chains(make(model, **options), (x, y), num_samples=1, warmup_steps=0, num_chains=1).stats["lp"][0, 0])
        for options in ({}, {"start": Ascent(200)})
    )
    assert other > first + 5
    run_chains(make(model, start=Ascent(20)), (x, y), num_samples=1, warmup_steps=1, num_chains=1, folder=tmp_path)
    with pytest.raises(ValueError, match="another model, kernel"):
        run_chains(make(model, start=Ascent(30)), (x, y), num_samples=1, warmup_steps=1, num_chains=1, folder=tmp_path)


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
    for options in ({"steps": 0}, {"rate": 0.0}, {"rate": math.nan}, {"draws": 0}):
        with pytest.raises(ValueError, match="positive number of steps and draws and a positive rate"):
            Ascent(**options)


@pytest.mark.parametrize("approximate", [lambda model: model, lambda model: vecchia(model, num_neighbors=19)])
def test_chains_start_at_the_means_of_a_guide(approximate):
    x = torch.linspace(-1, 1, 20)[:, None]
    model = Several()
    guide = Variational(model, InducingPoints(6), MonteCarlo(2))
    y = (torch.rand(20) > 0.5).double()
    guide.initialize(x, y)
    fit(ELBO(20)(model, guide), x, y, steps=30, batch_size=20, learning_rate=0.1)
    density = WhitenedDensity(whitened(approximate(model)), (x, y), {})
    start = GuideMean(guide)(density)
    assert start.keys() == density.start.keys() == {"h_whitened", "y_f_whitened", "shift"}
    assert torch.equal(start["shift"], density.start["shift"])
    assert float(start["h_whitened"].detach().abs().max()) > 0.1
    inner = (
        VecchiaPrior(model.inner(x), NeighborSearch(19))
        if isinstance(approximate(model), VecchiaModel)
        else model.inner(x)
    )
    hidden = guide.processes.h(model.inner(x)).mean
    torch.testing.assert_close(inner.unwhiten(start["h_whitened"]), hidden, rtol=0, atol=1e-6)
    outer = model.outer(hidden + start["shift"])
    outer = VecchiaPrior(outer, NeighborSearch(19)) if isinstance(inner, VecchiaPrior) else outer
    mean = next(iter([p for name, p in guide.processes.named_children() if name != "h"]))(
        model.outer(hidden + start["shift"])
    ).mean
    torch.testing.assert_close(outer.unwhiten(start["y_f_whitened"]), mean, rtol=0, atol=1e-6)


class Several(PyroModule):
    """Two layers, a latent number between them, and classes."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Bernoulli()

    def forward(self, x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        return pyro.sample("y", self.likelihood(self.outer(pyro.sample("h", self.inner(x)) + shift)), obs=y)


def test_a_guide_of_another_model_is_no_start():
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    guides = {layers: Variational(DeepGP(x, layers, 1), InducingPoints(6), MonteCarlo(2)) for layers in (1, 2)}
    for guide in guides.values():
        guide.initialize(x, y)
    deep = guides[2].model
    with pytest.raises(ValueError, match="the guide has no process of 'h1'"):
        GuideMean(guides[1])(WhitenedDensity(whitened(deep), (x, y), {}))
    sparse = whitened(deep, inducing_inputs(deep, x, y, num_inducing=5))
    with pytest.raises(ValueError, match="the guide has no function values for 'h1_inducing_whitened'"):
        GuideMean(guides[2])(WhitenedDensity(sparse, (x, y), {}))


def test_what_is_no_guide_is_no_start(unannotated):
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    model = DeepGP(x, 2, 1)
    guide = Variational(model, InducingPoints(6), MonteCarlo(2))
    with pytest.raises(TypeError, match="GuideMean takes a guide, Variational"):
        GuideMean(model)
    with pytest.raises(ValueError, match="was not initialised: call guide.initialize"):
        GuideMean(guide)(WhitenedDensity(whitened(model), (x, y), {}))
    for start in (guide, GuideMean):
        with pytest.raises(TypeError, match=r"such as PriorDraw\(\), Ascent\(\) or GuideMean\(guide\)"):
            WhitenedNUTS(model, start=start)
