"""Stock losses of Pyro: which serve a model whose function values are a site, and which are refused."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import (
    SVI,
    EmpiricalMarginal,
    Importance,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.importance import vectorized_importance_weights
from pyro.optim import Adam

from pyro_dgp import ELBO, EllipticalSlice, InducingPoints, MonteCarlo, SigmaPoints, Variational
from tests.examples import OneLayer, TwoLayers, TwoSites, regression


def guided(model, x, y, propagation=None):
    guide = Variational(model, InducingPoints(6), propagation or MonteCarlo(1))
    guide.initialize(x, y)
    return guide


@pytest.mark.parametrize("propagation", [MonteCarlo(1), SigmaPoints("qr3", 3)])
@pytest.mark.parametrize("loss", [Trace_ELBO, TraceGraph_ELBO, RenyiELBO])
def test_losses_of_density_ratios_are_refused_where_function_values_are_a_site(loss, propagation):
    x, y = regression(12)
    for number, model in enumerate((TwoSites(), TwoLayers(x))):
        pyro.clear_param_store()
        guide = guided(model, x, y, propagation)
        with pytest.raises(
            ValueError, match=f"{loss.__name__} needs the joint density of the function values at '{'fh'[number]}'"
        ):
            SVI(model, guide, Adam({"lr": 0.01}), loss()).step(x, y)


class InPlate(TwoSites):
    """Rows in a plate, beside function values whose rows are an event."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)


@pytest.mark.usefixtures("local")
def test_vectorised_particles_beside_a_plate_of_rows_are_refused():
    x, y = regression(8)
    model = InPlate()
    guide = guided(model, x, y)
    loop = TraceMeanField_ELBO(num_particles=400).loss(model, guide, x, y)
    assert loop == pytest.approx(ELBO().loss(model, guided(model, x, y, MonteCarlo(400)), x, y), rel=0.1)
    said = "the 400 draws of the plate 'num_particles_vectorized' stand in another axis of the site 'y' .*: write the rows as an event"
    with pytest.raises(ValueError, match=said):
        TraceMeanField_ELBO(num_particles=400, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    with pytest.raises(ValueError, match=r"'_num_predictive_samples' .* or parallel=False"):
        Predictive(model, guide=guide, num_samples=5, parallel=True)(x)
    assert Predictive(model, guide=guide, num_samples=5)(x)["y"].shape == (5, 8)


def test_enumeration_is_refused_by_pyro():
    x, y = regression(12)
    model = OneLayer()
    with pytest.raises(NotImplementedError, match="TraceEnum_ELBO does not support GuideMessenger"):
        TraceEnum_ELBO().loss(model, guided(model, x, y), x, y)


def test_importance_sampling_is_refused_too():
    x, y = regression(12)
    model = TwoSites()
    guide = guided(model, x, y)
    with pytest.raises(ValueError, match="Importance needs the joint density"):
        EmpiricalMarginal(Importance(model, guide, num_samples=2).run(x, y))
    with pytest.raises(ValueError, match="vectorized_importance_weights needs the joint density"):
        vectorized_importance_weights(model, guide, x, y, num_samples=2, max_plate_nesting=0)


def test_what_needs_no_joint_density_is_served():
    x, y = regression(12)
    model = TwoSites()
    guide = guided(model, x, y)
    assert torch.isfinite(torch.tensor(TraceMeanField_ELBO().loss(model, guide, x, y)))
    assert Predictive(model, guide=guide, num_samples=3)(x)["f"].shape == (3, 12, 1)
    assert torch.isfinite(torch.tensor(ELBO().loss(model, guide, x, y)))


def test_a_data_plate_around_function_values_is_refused():
    class Idiom(OneLayer):
        def __init__(self, subsample):
            super().__init__()
            self.subsample = subsample

        def forward(self, x, y=None):
            with pyro.plate("data", len(x), subsample_size=self.subsample) as index:
                f = pyro.sample("f", self.gp(x[index]))
                return pyro.sample("y", dist.Normal(f[..., 0], 0.1), obs=None if y is None else y[index])

    x, y = regression(12)
    for subsample in (None, 5):
        with pytest.raises(
            ValueError, match="a sample of the Gaussian process 'gp' at .* rows stands inside the plate 'data'"
        ):
            guided(Idiom(subsample), x, y)
        pyro.clear_param_store()
        remedy = (
            "$" if subsample is None else r", and take no rows at random in the model: fit\(..., batch_size=5\) does$"
        )
        with pytest.raises(ValueError, match=f"move the sample statement out of the data plate{remedy}"):
            Idiom(subsample)(x, y)


@pytest.mark.usefixtures("local")
def test_rows_that_a_plate_takes_for_sites_outside_it_are_refused():
    """The likelihood counted the rows of the plate, and the prior all."""

    class Outside(OneLayer):
        def forward(self, x, y=None):
            with pyro.plate("data", len(x), subsample_size=5) as index:
                pass
            f = pyro.sample("f", self.gp(x[index]))[..., 0]
            y = None if y is None else y[index]
            return pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)

    x, y = regression(12)
    with pytest.raises(
        ValueError, match=r"the plate 'data' takes 5 of 12 rows and no site stands inside, .*batch_size=5\)"
    ):
        guided(Outside(), x, y)


def test_a_factor_and_a_discrete_latent_site_are_refused_with_the_remedy():
    class Factor(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            if y is not None:
                pyro.factor("y", dist.Normal(f[..., 0], 0.1).log_prob(y).sum(-1))

    class Discrete(OneLayer):
        def forward(self, x, y=None):
            z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            return super().forward(x + z, y)

    x, y = regression(12)
    with pytest.raises(
        ValueError,
        match=r"the factor 'y' says neither which rows it is of nor what its target is, .* write pyro.sample\('y'",
    ):
        guided(Factor(), x, y)
    with pytest.raises(ValueError, match="the latent site 'z' is discrete, which no normal approximates: sum it out"):
        guided(Discrete(), x, y)


def test_a_latent_delta_is_refused_by_guides_and_samplers():
    """A guide had an infinite loss, and a chain stood still."""

    class Fixed(OneLayer):
        def forward(self, x, y=None):
            return super().forward(x * pyro.sample("a", dist.Delta(torch.tensor(0.5))), y)

    class Computed(OneLayer):
        def forward(self, x, y=None):
            return super().forward(x * pyro.deterministic("a", torch.tensor(0.5)), y)

    x, y = regression(12)
    for fitted in (lambda model: guided(model, x, y), lambda model: EllipticalSlice(model).setup(1, x, y)):
        with pytest.raises(ValueError, match=r"'a' is a Delta, .* write pyro.deterministic\('a', value\)"):
            fitted(Fixed())
    assert guided(Computed(), x, y).global_latents == []


def test_dependencies_of_a_model_are_found():
    x, y = regression(12)
    found = pyro.infer.inspect.get_dependencies(TwoLayers(x), (x, y))
    assert found["posterior_dependencies"] == {"h": {"h": set(), "y": set()}}
    pyro.clear_param_store()
    guide = guided(TwoLayers(x), x, y)
    with pytest.raises(ValueError, match="a stock loss asked for the log_prob of an observation"):
        pyro.infer.inspect.get_dependencies(guide, (x, y))
