"""The default posterior of hyperparameters with priors: where it starts, its density, and how wide it is."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    Variational,
    fit,
    predict,
)
from pyro_dgp.guides.coupled_normal import MOST
from pyro_dgp.processes.pseudo_targets import PseudoTargets
from tests.examples import OneLayer, TwoLayers, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


class Priors(OneLayer):
    """A layer whose three hyperparameters have priors."""

    def __init__(self, inputs=1):
        super().__init__(RBF(ard=inputs))
        self.gp.kernel.lengthscale = PyroSample(dist.LogNormal(-0.5, 0.7).expand([inputs]).to_event(1))
        self.gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
        self.likelihood.variance = PyroSample(dist.LogNormal(-3.0, 1.0))


NAMES = ("gp.kernel.lengthscale", "gp.kernel.variance", "likelihood.variance")


def guided(model, x, y, family=None, **options):
    guide = Variational(model, family or InducingPoints(6), MonteCarlo(1), **options)
    guide.initialize(x, y)
    return guide


def shaken(guide):
    """The guide with every parameter moved a little."""
    for name, parameter in guide.named_parameters():
        if "inducing_points" not in name:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return guide


@pytest.mark.parametrize(
    ("prior", "median"),
    [
        (dist.HalfCauchy(2.0), 2.0),
        (dist.InverseGamma(1.0, 1.0), 1 / math.log(2)),
        (dist.LogNormal(0.3, 2.0), math.exp(0.3)),
        (dist.Gamma(2.0, 3.0), 1.678347 / 3),
        (dist.HalfNormal(1.0), 0.674490),
        (dist.Uniform(0.1, 3.1), 1.6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_starts_at_the_median_of_the_prior(prior, median):
    x, y = regression(15)
    model = OneLayer()
    model.gp.kernel.lengthscale = PyroSample(prior)
    torch.manual_seed(0)
    guide = guided(model, x, y)
    guide.latents.scales.gp.kernel.lengthscale = torch.tensor(1e-8)
    start = float(guide.components(x, y).trace.nodes["gp.kernel.lengthscale"]["value"].detach())
    exact = isinstance(prior, dist.HalfCauchy | dist.LogNormal | dist.HalfNormal | dist.Uniform)
    assert start == pytest.approx(median, rel=1e-5 if exact else 0.35)  # the others' are estimated by draws
    assert math.isfinite(ELBO().loss(model, guide, x, y))


def test_its_density_is_that_of_one_normal_with_full_covariance():
    x, y = regression(15, 2)
    model = Priors(2)
    guide = shaken(guided(model, x, y))
    trace = guide.components(x, y).trace
    names = list(guide.latents.sizes)
    assert sorted(names) == sorted(NAMES)
    values = [trace.nodes[name]["value"].log().reshape(-1) for name in names]
    total = sum(trace.nodes[name]["fn"].log_prob(trace.nodes[name]["value"]) for name in names)
    size = guide.latents.total
    assert size == 4

    def moved(eps):
        """Values on the real line at given standardised deviations, site by site."""
        out, at = [], 0
        for name in names:
            loc, scale = (getattr(guide.latents, kind) for kind in ("locs", "scales"))
            for part in name.split("."):
                loc, scale = getattr(loc, part), getattr(scale, part)
            n = loc.numel()
            weights, lower = (guide.latents._matrix(kind, name) for kind in ("weights", "lower"))
            weights = torch.zeros(n, 0) if weights is None else weights
            inner = torch.eye(n) + (0 if lower is None else lower.tril(-1))
            out.append(loc.reshape(-1) + scale.reshape(-1) * (weights @ eps[:at] + inner @ eps[at : at + n]))
            at += n
        return torch.cat(out)

    centre = moved(torch.zeros(size))
    root = torch.stack([moved(e) - centre for e in torch.eye(size)], -1)
    joint = dist.MultivariateNormal(centre, scale_tril=root).log_prob(torch.cat(values)) - torch.cat(values).sum()
    assert float(total.detach()) == pytest.approx(float(joint.detach()))
    torch.testing.assert_close(moved(guide.latents.deviations(trace)), torch.cat(values))


def test_pseudo_targets_hold_the_exact_posterior_under_every_hyperparameter():
    """With points at the data, t = y and Lambda = 1 / noise, q is p(f given y, theta) and the bound given theta is the evidence."""
    x, y = regression(8)
    model = OneLayer(jitter=1e-10)
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(-0.5, 0.7))
    guide = guided(model, x, y, InducingPoints(8))
    process = guide.processes._modules["y/f"]
    assert isinstance(process.q, PseudoTargets)
    noise = model.likelihood.variance.item()
    process.basis.inducing_points = x.clone()
    process.q.log_scales = torch.full_like(process.q.log_scales, -0.5 * math.log(noise))
    process.q.targets = y.reshape(1, -1).clone()
    for _ in range(5):
        weighted = guide.components(x, y)
        lengthscale = weighted.trace.nodes["gp.kernel.lengthscale"]["value"]
        prior = GaussianProcess(
            RBF(lengthscale=lengthscale.item(), variance=model.gp.kernel.variance.item()), jitter=1e-10
        )(x)
        site = weighted.trace.nodes["y"]
        bound = ELBO().observed(site, weighted) - weighted.record(site).regularizer
        assert bound.item() == pytest.approx(Gaussian(variance=noise)(prior).log_prob(y).item(), rel=1e-6)


@pytest.mark.slow
def test_it_is_as_wide_as_the_posterior():
    """Beside a grid over lengthscale and noise, whose evidence has a closed form: mean within 0.3 sd, sd within 30 %."""
    torch.manual_seed(0)
    x, y = regression(40)
    model = OneLayer()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(-0.5, 0.7))
    model.likelihood.variance = PyroSample(dist.LogNormal(-3.0, 1.0))
    guide = guided(model, x, y, InducingPoints(15))
    fit(ELBO()(model, guide), x, y, steps=1200, learning_rate=0.04)
    names = ("gp.kernel.lengthscale", "likelihood.variance")
    with torch.no_grad():
        draws = torch.tensor(
            [[guide.components(x, y).trace.nodes[n]["value"].log() for n in names] for _ in range(400)]
        )
        variance = model.gp.kernel.variance
        axes = [torch.linspace(-1.5, 0.8, 60), torch.linspace(-4.8, -1.5, 50)]
        a, b = torch.meshgrid(*axes, indexing="ij")
        squared = (x - x.T).square() / a.exp().square()[..., None, None]
        k = variance * torch.exp(-0.5 * squared) + b.exp()[..., None, None] * torch.eye(len(x))
        log = dist.MultivariateNormal(torch.zeros(len(x)), k).log_prob(y)
        log = log + dist.Normal(-0.5, 0.7).log_prob(a) + dist.Normal(-3.0, 1.0).log_prob(b)
        weight = (log - log.max()).exp() / (log - log.max()).exp().sum()
    for axis, values in ((0, a), (1, b)):
        mean = (weight * values).sum()
        sd = (weight * (values - mean).square()).sum().sqrt()
        assert abs(draws[:, axis].mean() - mean) < 0.3 * sd
        assert abs(draws[:, axis].std() / sd - 1) < 0.3


def test_stock_losses_see_the_same_bound_with_vectorised_particles():
    x, y = regression(12)
    guide = shaken(guided(model := Priors(), x, y))
    two = shaken(guided(sites := with_priors(TwoSites()), x, y))
    for number, (each, at) in enumerate(((model, guide), (sites, two))):
        ours = torch.tensor([ELBO().loss(each, at, x, y) for _ in range(300)])
        if number:
            stock = TraceMeanField_ELBO(num_particles=300, vectorize_particles=True, max_plate_nesting=0)
            assert abs(stock.loss(each, at, x, y) - ours.mean()) < 6 * ours.std() / math.sqrt(300)
    before = TraceMeanField_ELBO(num_particles=50).loss(sites, two, x, y)
    svi = SVI(sites, two, Adam({"lr": 0.03}), TraceMeanField_ELBO())
    for _ in range(80):
        svi.step(x, y)
    assert TraceMeanField_ELBO(num_particles=50).loss(sites, two, x, y) < before


def with_priors(model):
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(-0.5, 0.7))
    model.gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    return model


@pytest.mark.parametrize("family", [InducingPoints(6), InducingPoints(6, "diagonal"), InducingPoints(6, "delta")])
def test_a_saved_guide_has_its_posterior_again(family):
    x, y = regression(12)
    guide = shaken(guided(Priors(), x, y, family))
    other = Variational(Priors(), family, MonteCarlo(1))
    other.model.load_state_dict(guide.model.state_dict())
    other.load_state_dict(guide.state_dict())
    losses = []
    for each in (guide, other):
        torch.manual_seed(1)
        losses.append(ELBO().loss(each.model, each, x, y))
        torch.manual_seed(1)
        losses.append(float(predict(each, x).mean.sum()))
    assert losses[:2] == pytest.approx(losses[2:])


def test_two_layers_and_groups_move_with_hyperparameters():
    class Two(TwoLayers):
        def __init__(self, x):
            super().__init__(x)
            self.top.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
            self.hidden.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))

    class Groups(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner = Priors()

        def forward(self, x, y=None):
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.1))
            with pyro.plate("groups", 3):
                return self.inner(x * scale, y)

    x, y = regression(12)
    for model, target in ((Two(x), y), (Groups(), torch.stack([y, -y, 2 * y]))):
        guide = shaken(guided(model, x, target))
        objective = ELBO()(model, guide)
        value = objective(x, target)
        value.backward()
        assert torch.isfinite(value)
        moved = [
            n
            for n, p in guide.named_parameters()
            if "latent_weights" in n and p.grad is not None and p.grad.abs().sum() > 0
        ]
        assert moved, [n for n, _ in guide.named_parameters()]


def test_large_sites_are_independent_and_small_ones_are_not():
    class Wide(OneLayer):
        def forward(self, x, y=None):
            pyro.sample("wide", dist.Normal(0.0, 1.0).expand([MOST + 1]).to_event(1))
            pyro.sample("small", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
            return super().forward(x, y)

    x, y = regression(12)
    guide = guided(Wide(), x, y)
    assert guide.latents.sizes == {"small": 3}
    assert math.isfinite(ELBO().loss(guide.model, guide, x, y))


def test_float32_works():
    torch.set_default_dtype(torch.float32)
    x, y = regression(12)
    guide = shaken(guided(model := Priors(), x, y))
    value = ELBO()(model, guide)(x, y)
    value.backward()
    assert value.dtype == torch.float32 and torch.isfinite(value)


class ErrorsInInputs(OneLayer):
    """Inputs that were measured with an error: a latent input for each row, in a plate or as one event."""

    def __init__(self, plated):
        super().__init__(RBF(lengthscale=0.5))
        self.plated = plated

    def forward(self, x, y=None):
        if self.plated:
            with pyro.plate("rows", len(x), dim=-1):
                z = pyro.sample("z", dist.Normal(x, 0.1).to_event(1))
        else:
            z = pyro.sample("z", dist.Normal(x, 0.1).to_event(2))
        return pyro.sample("y", self.likelihood(self.gp(z)), obs=y)


def test_latent_rows_in_one_event_are_those_of_a_plate():
    def mean_of(guide, rows, size):
        torch.manual_seed(1)
        return predict(guide, rows, 50, batch_size=size).mean

    x, y = regression(12)
    found = []
    for plated in (True, False):
        torch.manual_seed(0)
        guide = guided(ErrorsInInputs(plated), x, y)
        fit(ELBO(len(x))(guide.model, guide), x, y, steps=20)
        found.append([mean_of(guide, rows, size) for rows, size in ((x, 12), (x, 1), (x[:5], 5))])
        loaded = Variational(ErrorsInInputs(plated), InducingPoints(6), MonteCarlo(1))
        loaded.load_state_dict(guide.state_dict())
        loaded.model.load_state_dict(guide.model.state_dict())
        torch.testing.assert_close(mean_of(loaded, x, 12), found[-1][0])
    for in_plate, as_event in zip(*found, strict=True):
        torch.testing.assert_close(as_event, in_plate)


class Watched(Priors):
    """Counts how often it runs to its end, and lets no error of its likelihood through."""

    def __init__(self):
        super().__init__()
        self.ends = 0

    def forward(self, x, y=None):
        try:
            super().forward(x, y)
        except Exception as error:
            raise AssertionError from error
        self.ends += 1


def test_latent_sites_are_drawn_by_a_pass_that_ends_with_them():
    """The last of them is the noise, which the model reads just before its likelihood."""
    x, y = regression(20)
    model = Watched()
    guide = shaken(guided(model, x, y))
    torch.manual_seed(0)
    whole = guide.components(x, new_rows=True, propagation=MonteCarlo(1)).trace
    model.ends = 0
    torch.manual_seed(0)
    part = guide.components(x, new_rows=True, propagation=MonteCarlo(1), wanted=NAMES).trace
    assert model.ends == 0 and "y" not in part.nodes and not pyro.poutine.runtime._PYRO_STACK
    for name in NAMES:
        torch.testing.assert_close(part.nodes[name]["value"], whole.nodes[name]["value"], rtol=0, atol=0)
    predict(guide, x, num_hyperparameter_draws=3)
    assert model.ends < 6  # a pass at the first row, and one or two that look at the shape of the answer
