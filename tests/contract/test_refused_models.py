"""Models that no inference can serve as they are written: each is refused in a sentence with the remedy."""

import contextlib

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO
from torch.distributions import AffineTransform

from pyro_dgp import (
    ELBO,
    RBF,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    PosteriorDraws,
    StudentT,
    Variational,
    WhitenedNUTS,
    draw_functions,
    fit,
    predict,
    whitened,
)
from tests.contract.case import Model, gaussian
from tests.contract.known import X, Y
from tests.contract.one_layer import TwoSites


class InDataPlate(Model):
    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(f[..., 0], 0.4), obs=y)


class SubsampledDataPlate(Model):
    def forward(self, x, y=None):
        with pyro.plate("data", len(x), subsample_size=3) as rows:
            f = pyro.sample("f", self.gp(x[rows]))
            return pyro.sample("y", dist.Normal(f[..., 0], 0.4), obs=None if y is None else y[rows])


class WithFactor(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        pyro.factor("likelihood", dist.Normal(f, 0.4).log_prob(Y).sum(-1))


class WithClasses(Model):
    def forward(self, x, y=None):
        which = pyro.sample("which", dist.Bernoulli(0.5))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + which.unsqueeze(-1), 0.4).to_event(1), obs=y)


class HiddenInPlate(Model):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.gp(x))
        with pyro.plate("groups", 2):
            return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class PlainTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GaussianProcess(RBF(lengthscale=0.5)), GaussianProcess(RBF(lengthscale=2.0))

    def forward(self, x, y=None):
        f = pyro.sample("f", self.first(x)) + pyro.sample("g", self.second(x))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.4).to_event(1), obs=y)


def one_gp(kind):
    return kind(gp=GaussianProcess(RBF()))


def a_step(model, y=Y, loss=None, samples=3):
    guide = Variational(model, InducingPoints(5), MonteCarlo(samples))
    guide.initialize(X, y)
    SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.01}), loss or ELBO()).step(X, y)


@pytest.mark.parametrize("kind", [InDataPlate, SubsampledDataPlate])
def test_function_values_in_a_data_plate(kind):
    for run in (a_step, lambda model: MCMC(NUTS(whitened(model)), 2, warmup_steps=1).run(X, Y)):
        with pytest.raises(ValueError, match="move the sample statement out of the data plate"):
            run(one_gp(kind))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (WithFactor, "says neither which rows it is of nor what its target is"),
        (WithClasses, "which no normal approximates"),
    ],
)
def test_factors_and_discrete_latent_sites(kind, sentence):
    with pytest.raises(ValueError, match=sentence):
        a_step(one_gp(kind))


@pytest.mark.parametrize(("samples", "sentence"), [(3, r"h\.unsqueeze\(-3\)"), (2, "cannot be told apart")])
def test_a_hidden_layer_in_a_plate_without_an_axis_for_it(samples, sentence):
    """With as many samples as groups the shapes fit, and each group would get one sample."""
    model = HiddenInPlate(gp=GaussianProcess(RBF()), top=GaussianProcess(RBF()), likelihood=gaussian())
    with pytest.raises(ValueError, match=sentence):
        a_step(model, torch.stack([Y, -Y]), samples=samples)


def test_parts_of_a_plain_torch_module_are_refused_by_svi_and_trained_by_fit():
    with pytest.raises(ValueError, match="make them attributes of one PyroModule"):
        a_step(PlainTorch())
    model = PlainTorch()
    guide = Variational(model, InducingPoints(5), MonteCarlo(2))
    guide.initialize(X, Y)
    fit(ELBO(len(X))(guide.model, guide), X, Y, steps=20, learning_rate=0.05)
    first, second = (gp.kernel.lengthscale.item() for gp in (model.first, model.second))
    assert abs(first - 0.5) > 1e-3 and abs(second - 2.0) > 1e-3 and second > 2 * first


def test_a_scale_around_function_values_under_mcmc():
    model = TwoSites(gp=GaussianProcess(RBF()))
    with pytest.raises(ValueError, match="which would scale their prior too"):
        MCMC(NUTS(whitened(poutine.scale(model, scale=0.5))), 2, warmup_steps=1).run(X, Y)


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceGraph_ELBO, RenyiELBO])
def test_losses_of_density_ratios(loss):
    with pytest.raises(ValueError, match="needs the joint density of the function values"):
        a_step(TwoSites(gp=GaussianProcess(RBF())), loss=loss())


class MaskedEvent(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with poutine.mask(mask=torch.arange(len(x)) < 3):
            return pyro.sample("y", dist.Normal(f, 0.4).to_event(1), obs=y)


def test_a_mask_over_rows_that_are_one_event():
    """It would count the one term of all rows once for each row that is left."""
    for run in (a_step, lambda model: MCMC(NUTS(whitened(model)), 2, warmup_steps=1).run(X, Y)):
        with pytest.raises(ValueError, match="has a mask of shape"):
            run(one_gp(MaskedEvent))


def test_targets_that_are_not_finite():
    bad = Y.clone()
    bad[2] = torch.nan
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        a_step(TwoSites(gp=GaussianProcess(RBF())), bad)


class Marked(Model):
    """Exact regression with a handler around y."""

    def forward(self, x, y=None):
        with self.how():
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


MARKS = {
    "rows": (lambda: poutine.mask(mask=torch.arange(5) < 3), "has a mask of shape"),
    "all": (lambda: poutine.mask(mask=False), "has no place for either"),
    "scale": (lambda: poutine.scale(scale=0.1), "has no place for either"),
    "rows of a scale": (lambda: poutine.scale(scale=torch.full((), 0.3)), "has no place for either"),
}


class MaskedGroups(Model):
    def forward(self, x, y=None):
        with pyro.plate("groups", 2), poutine.mask(mask=torch.tensor([True, False])):
            f = pyro.sample("f", self.gp(x))[..., 0]
            return pyro.sample("y", dist.Normal(f, 0.4).to_event(1), obs=y)


def test_a_mask_over_groups_around_their_functions():
    with pytest.raises(ValueError, match=r"stands in a mask over groups, of shape \(2,\)"):
        a_step(MaskedGroups(gp=GaussianProcess(RBF())), torch.stack([Y, Y]))


@pytest.mark.parametrize("mark", MARKS)
def test_a_mask_or_a_scale_under_exact_regression(mark):
    """The closed form read the targets and left the handler out, without a word."""
    how, sentence = MARKS[mark]
    model = Marked(gp=GaussianProcess(RBF()), likelihood=Gaussian(variance=0.2), how=how)
    exact = PosteriorDraws(model, {}, (X, Y))
    for run in (
        lambda: predict(exact, X),
        lambda: draw_functions(exact, 2)(X),
        lambda: MarginalLikelihood(model)(X, Y),
    ):
        with pytest.raises(ValueError, match=sentence):
            run()


def test_targets_that_are_not_finite_under_exact_regression():
    bad = Y.clone()
    bad[2] = torch.nan
    model = Marked(gp=GaussianProcess(RBF()), likelihood=Gaussian(variance=0.2), how=contextlib.nullcontext)
    with pytest.raises(ValueError, match="the targets of the site 'y' hold NaN or infinity: leave such rows out"):
        predict(PosteriorDraws(model, {}, (X, bad)), X)
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        fit(MarginalLikelihood(model), X, bad, steps=1)


class PartlyObserved(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.4), obs=y, obs_mask=torch.arange(len(x)) < 3)


def test_obs_mask():
    """A sampler draws what is missing; a guide would need a latent value for each row."""
    model = PartlyObserved(gp=GaussianProcess(RBF()))
    with pytest.raises(ValueError, match=r"as in pyro.sample\('y', distribution.mask\(observed\)"):
        a_step(model)


class Turned(Model):
    """A latent angle."""

    def forward(self, x, y=None):
        t = pyro.sample("t", self.angle)
        t = t.flatten(t.dim() - len(self.angle.event_shape)).sum(-1) if self.angle.event_shape else t
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + t.unsqueeze(-1), 0.4).to_event(1), obs=y)


@pytest.mark.parametrize(
    "angle",
    [
        dist.VonMises(torch.zeros((), dtype=X.dtype), torch.ones((), dtype=X.dtype)),
        dist.SineBivariateVonMises(
            *torch.zeros(2, dtype=X.dtype), *torch.ones(2, dtype=X.dtype), torch.zeros((), dtype=X.dtype)
        ),
        dist.TransformedDistribution(
            dist.VonMises(torch.zeros((), dtype=X.dtype), torch.ones((), dtype=X.dtype)), AffineTransform(1.0, 2.0)
        ),
    ],
    ids=["one", "two", "shifted"],
)
def test_a_latent_angle(angle):
    """Its density repeats itself along the line, so that a posterior there had an sd of 33 where 1.26 is right, and an ELBO above the evidence."""
    model = Turned(gp=GaussianProcess(RBF()), angle=angle)
    sentence = "the latent site 't' is an angle, .*, whose density repeats itself .*: give it a prior on an interval, such as Uniform"
    with pytest.raises(ValueError, match=sentence):
        Variational(model, InducingPoints(4)).initialize(X, Y)
    for kernel in (WhitenedNUTS, EllipticalSlice, lambda each: NUTS(whitened(each))):
        with pytest.raises(ValueError, match=sentence):
            MCMC(kernel(model), num_samples=2, warmup_steps=1, disable_progbar=True).run(X, Y)


@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        (
            dist.MixtureSameFamily(
                dist.Categorical(torch.tensor([0.3, 0.7], dtype=X.dtype)),
                dist.Normal(torch.tensor([-1.0, 1.0], dtype=X.dtype), 1.0),
            ),
            "the latent site 't' is a MixtureSameFamily, and no map .*: take a prior of one part; a sampler also takes",
        ),
        (
            dist.Wishart(torch.tensor(5.0, dtype=X.dtype), torch.eye(2, dtype=X.dtype)),
            "the latent site 't' is a Wishart, and no map .*: for a covariance matrix sample LKJCholesky",
        ),
    ],
    ids=["mixture", "matrix"],
)
@pytest.mark.filterwarnings("ignore:Singular sample detected")  # PyTorch's check of its own draws
def test_a_latent_site_whose_support_has_no_map(prior, sentence):
    """The error was PyTorch's, which named no site."""
    model = Turned(gp=GaussianProcess(RBF()), angle=prior)
    with pytest.raises(ValueError, match=sentence):
        Variational(model, InducingPoints(4)).initialize(X, Y)
    for kernel in (WhitenedNUTS, EllipticalSlice):
        with pytest.raises(ValueError, match=sentence):
            MCMC(kernel(model), num_samples=2, warmup_steps=1, disable_progbar=True).run(X, Y)


class InputsByClass(Model):
    """A function whose prior depends on a class that stock NUTS sums out."""

    def forward(self, x, y=None):
        which = pyro.sample("which", dist.Categorical(torch.tensor([0.3, 0.7])))
        f = pyro.sample("f", self.gp(x * torch.tensor([1.0, 4.0], dtype=x.dtype)[which][..., None, None]))[..., 0]
        return pyro.sample("y", dist.Normal(f, 0.4).to_event(1), obs=y)


class CountsByClass(Model):
    """The same where the function is inside the observation."""

    def forward(self, x, y=None):
        which = pyro.sample("which", dist.Categorical(torch.tensor([0.3, 0.7])))
        scaled = x * torch.tensor([1.0, 4.0], dtype=x.dtype)[which][..., None, None]
        return pyro.sample("y", StudentT()(self.gp(scaled)), obs=y)


@pytest.mark.parametrize("kind", [InputsByClass, CountsByClass])
def test_a_function_whose_prior_depends_on_a_class_that_is_summed_out(kind):
    """Under each class only its own copy of the function had a prior: whitened values of the other were 40 where 1 is right."""
    with pytest.raises(
        ValueError,
        match="Pyro sums out 'which', and the function of '[fy]' has another prior under each of the values",
    ):
        MCMC(
            NUTS(whitened(one_gp(kind)), max_plate_nesting=0), num_samples=2, warmup_steps=1, disable_progbar=True
        ).run(X, Y)
    MCMC(
        NUTS(whitened(one_gp(WithClasses)), max_plate_nesting=0), num_samples=2, warmup_steps=1, disable_progbar=True
    ).run(X, Y)


def test_a_class_that_is_drawn_once_leaves_batches_of_inputs_alone():
    """Nothing is summed out where Pyro draws the class."""

    class NoiseByClass(Model):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))[..., 0]
            which = pyro.sample("which", dist.Categorical(torch.tensor([0.3, 0.7])))
            return pyro.sample("y", dist.Normal(f, torch.tensor([0.4, 1.0], dtype=x.dtype)[which]).to_event(2), obs=y)

    model = whitened(one_gp(NoiseByClass))
    for _ in range(2):
        assert poutine.trace(model).get_trace(torch.stack([X, X, X])).nodes["f"]["value"].shape[0] == 3
