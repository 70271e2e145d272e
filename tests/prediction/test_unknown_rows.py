"""Models whose values at new rows do not follow from a pass of the model at these rows: refused in a sentence, by guides and by draws."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.nn import PyroModule, PyroSample
from torch.distributions.transforms import ExpTransform

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
    Variational,
    fit,
    module_local_parameters,
    predict,
    run_chains,
)
from pyro_dgp.guides.other_rows import sees_other_rows

X = torch.linspace(-1.5, 1.5, 5).double()[:, None]
Y = torch.sin(2 * X[:, 0])
NEW = torch.tensor([[-1.0], [0.4], [2.0]]).double()

pytestmark = pytest.mark.usefixtures("local")


class Model(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian(variance=0.1)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class MeasuredInputs(Model):
    """Inputs that are measured with an error: the measurement stands in x, at new rows too."""

    def forward(self, x, y=None):
        with pyro.plate("rows", x.shape[-2]):
            t = pyro.sample("t", dist.Normal(0.0, 1.5))
            pyro.sample("measured", dist.Normal(t, 0.2), obs=x[..., 0])
        return pyro.sample("y", self.likelihood(self.gp(t.unsqueeze(-1))), obs=y)


class MeasuredTwice(Model):
    """A second measurement of the function, which may be there at new rows."""

    def forward(self, x, y=None, z=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        pyro.sample("z", dist.Normal(f, 0.1).to_event(1), obs=z)
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


class MeasuredApart(Model):
    """Another function of the same rows is measured, which says nothing of y."""

    def __init__(self):
        super().__init__()
        self.other = GaussianProcess(RBF())

    def forward(self, x, y=None):
        g = pyro.sample("g", self.other(x))[..., 0]
        pyro.sample("z", dist.Normal(g, 0.1).to_event(1), obs=x[..., 0])
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Network(torch.nn.Module):
    def forward(self, x, y=None):
        return dist.Normal(x[..., 0], 0.2)


def guide_of(model, *args, **kwargs):
    networks = kwargs.pop("networks", None)
    guide = Variational(model, InducingPoints(5), MonteCarlo(3), networks=networks)
    guide.initialize(*args, **kwargs)
    return guide


def test_a_measurement_at_new_rows_of_what_is_drawn_there_is_refused():
    """Latent inputs came from their prior, and every new row had the same prediction."""
    message = "'measured' is observed at the new rows and depends on 't', .* networks={'t': network}"
    draws = {"t": X[:, 0].expand(4, 5)}
    guide = guide_of(MeasuredInputs(), X, Y)
    fit(ELBO()(guide.model, guide), X, Y, steps=3)
    for posterior in (guide, PosteriorDraws(MeasuredInputs(), draws, (X, Y))):
        with pytest.raises(ValueError, match=message):
            predict(posterior, NEW, 20)
    seen = predict(guide_of(MeasuredInputs(), X, Y, networks={"t": Network()}), NEW, 200, site="t")
    assert (seen.mean - NEW[:, 0]).abs().max() < 0.1


def test_function_values_with_an_observation_at_new_rows_are_refused():
    message = r"'z' is observed at the new rows and depends on 'f', .*as in obs=z if self.training else None$"
    draws = {"f": Y.expand(4, 5)[..., None]}
    guide = guide_of(MeasuredTwice(), X, Y, z=Y)
    for posterior in (guide, PosteriorDraws(MeasuredTwice(), draws, (X, Y), kwargs={"z": Y})):
        for site in ("y", "f"):
            with pytest.raises(ValueError, match=message):
                predict(posterior, NEW, 20, site=site, z=NEW[:, 0])
        with pytest.raises(ValueError, match=message):
            predict(posterior, NEW[:1], 20, site="y", z=NEW[:1, 0])
    assert predict(guide, NEW, 20, site="y").mean.shape == (3,)


def test_an_observation_that_says_nothing_of_the_prediction_is_passed_over():
    assert predict(guide_of(MeasuredApart(), X, Y), NEW, 20, site="y").mean.shape == (3,)
    with pytest.raises(ValueError, match="'z' is observed at the new rows and depends on 'g'"):
        predict(guide_of(MeasuredApart(), X, Y), NEW, 20, site="g")


class Factor(Model):
    """A soft constraint of the function at the rows of a call."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        pyro.factor("soft", -10 * torch.relu(-f).square())
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


def test_a_factor_is_no_observation():
    draws = PosteriorDraws(Factor(), {"f": Y.expand(4, 5)[..., None]}, (X, Y))
    assert predict(draws, NEW, 20, site="y").mean.shape == (3,)


class MaskedTwice(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.poutine.mask(mask=self.training):
            pyro.sample("z", dist.Normal(f, 0.1).to_event(1), obs=x[..., 0])
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


class Fidelities(Model):
    """Cheap rows of their own, which are passed to predictions too."""

    def forward(self, x, cheap, y=None, of_cheap=None):
        f = pyro.sample("f", self.gp(torch.cat([cheap, x])))[..., 0]
        pyro.sample("cheap", dist.Normal(f[..., : len(cheap)], 0.3).to_event(1), obs=of_cheap)
        return pyro.sample("y", dist.Normal(f[..., len(cheap) :], 0.1).to_event(1), obs=y)


class MeasuredByRow(Model):
    """A second measurement in a loop over the rows."""

    def forward(self, x, y=None, z=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        for i in pyro.plate("rows", len(x)):
            pyro.sample(f"z_{i}", dist.Normal(f[..., i], 0.1), obs=None if z is None else z[i])
        return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)


def test_what_a_mask_hides_the_predicted_site_and_rows_of_training_are_no_observations():
    draws = {"f": Y.expand(4, 5)[..., None]}
    for posterior in (guide_of(MaskedTwice(), X, Y), PosteriorDraws(MaskedTwice(), draws, (X, Y))):
        assert predict(posterior, NEW, 20, site="y").mean.shape == (3,)
    plain = guide_of(MeasuredTwice(), X, Y, z=Y)
    assert predict(plain, NEW, 20, site="y", y=NEW[:, 0]).mean.shape == (3,)
    low = guide_of(Fidelities(), X, X, Y, of_cheap=Y)  # as many cheap rows as others
    assert predict(low, NEW, 20, site="y", cheap=X, of_cheap=Y).mean.shape == (3,)


def test_observations_in_a_loop_over_new_rows_are_refused():
    guide = guide_of(MeasuredByRow(), X, Y, z=Y)
    with pytest.raises(ValueError, match="'z_1' is observed at the new rows and depends on 'f'"):
        predict(guide, NEW, 20, site="y", z=NEW[:, 0])


class Positive(Model):
    """Values of rows that are independent, in a transformed event."""

    def forward(self, x, y=None):
        normal = dist.Normal(torch.zeros(len(x)), 1.0).to_event(1)
        e = pyro.sample("e", dist.TransformedDistribution(normal, [ExpTransform()]))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + e, 0.3).to_event(1), obs=y)


def test_rows_of_a_transformed_event_are_apart():
    assert predict(guide_of(Positive(), X, Y), NEW, 20).mean.shape == (3,)


class Latent(Model):
    """Inputs of a Gaussian process made of latent values of each row."""

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            t = pyro.sample("t", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        weights = torch.linspace(-1, 1, 6).reshape(2, 3).to(t)
        return pyro.sample("y", self.likelihood(self.gp(torch.tanh(t @ weights))), obs=y)


@pytest.mark.parametrize("rows", [7, 20, 47])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_latent_inputs_look_at_no_other_rows(rows, dtype):
    x = torch.linspace(-1, 1, rows, dtype=dtype)[:, None]
    model = Latent().to(dtype)
    assert sees_other_rows(model, ((x, x[:, 0]), {}), [model]) is None


class Loop(Model):
    def forward(self, x, y=None):
        errors = torch.stack([pyro.sample(f"e_{i}", dist.Normal(0.0, 2.0)) for i in pyro.plate("rows", len(x))], -1)
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + errors, 0.3).to_event(1), obs=y)


class ByHand(Model):
    """A function that is written by hand, as one normal of all rows."""

    def forward(self, x, y=None):
        covariance = torch.exp(-0.5 * (x - x.mT).square()) + 1e-6 * torch.eye(len(x))
        z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(len(x)), covariance))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + z, 0.3).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "site", "sentence"),
    [
        (Loop, "e_0", "the latent site 'e_4' is there at 5 rows and not at 4, .* write one site in a vectorised plate"),
        (ByHand, "z", "the latent site 'z' has one MultivariateNormal of all rows, .*: write it as a Gaussian process"),
    ],
)
def test_latent_values_of_rows_that_new_rows_would_take_or_forget_are_refused(model, site, sentence):
    """New rows took the values of training rows, or were drawn without regard to them."""
    with pytest.raises(ValueError, match=sentence):
        guide_of(model(), X, Y)
    with module_local_parameters():
        chains = run_chains(EllipticalSlice(model()), (X, Y), num_samples=3, warmup_steps=1, num_chains=1, processes=1)
    assert site in chains.draws  # sampling at the training rows is right
    with pytest.raises(ValueError, match=sentence):
        predict(chains, NEW, 3)


class Mixed(Model):
    """A function that is written by hand, as a matrix times one number for each row."""

    def forward(self, x, y=None):
        covariance = torch.exp(-0.5 * (x - x.mT).square()) + 1e-6 * torch.eye(len(x))
        with pyro.plate("rows", len(x)):
            e = pyro.sample("e", dist.Normal(0.0, 1.0))
        z = (torch.linalg.cholesky(covariance) @ e.unsqueeze(-1))[..., 0]
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + z, 0.3).to_event(1), obs=y)


def test_latent_values_that_are_joined_across_rows_are_told():
    model = Mixed()
    with pytest.warns(UserWarning, match="the parameters of the site 'y' at a row depend on the other rows"):
        guide_of(model, X, Y)
    assert sees_other_rows(model, ((X, Y), {}), [model]) == ("parameters", "y")


class Replicates(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("replicates", 3, dim=-2), pyro.plate("rows", len(x), dim=-1):
            return pyro.sample("y", dist.Normal(f.unsqueeze(-2), 0.3), obs=y)


def test_as_many_new_rows_as_replicates_are_refused_as_others_are():
    """The first axis, of replicates, was taken for rows."""
    guide = guide_of(Replicates(), X, Y.expand(3, 5))
    SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO()).step(X, Y.expand(3, 5))
    for rows in (NEW, NEW[:2]):
        with pytest.raises(ValueError, match=r"'y' has shape \(3, 1\) at one row, where predictions need the rows"):
            predict(guide, rows, 20)
    assert predict(guide, NEW, 20, site="f").mean.shape == (3,)


class Slope(PyroModule):
    def __init__(self):
        super().__init__()
        self.slope = PyroSample(dist.Normal(0.0, 1.0))
        self.gp = GaussianProcess(RBF(), mean=lambda x: self.slope * x)
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Linear(PyroModule):
    def __init__(self):
        super().__init__()
        self.slope = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x):
        return self.slope * x


class Names(PyroModule):
    """Attributes of the same names as priors, which the mean does not read, and a helper that does."""

    def __init__(self, mean):
        super().__init__()
        self.shift, self.slope = 0.5, PyroSample(dist.Normal(0.0, 1.0))
        self.gp = GaussianProcess(RBF(), mean=lambda x: mean(self, x))

    def helper(self, x):
        return self.slope * x

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + 0 * self.slope.unsqueeze(-1), 0.3).to_event(1), obs=y)


def test_whether_a_mean_reads_a_prior_is_seen_when_it_runs():
    fine = SimpleNamespace(slope=2.0)
    assert guide_of(Names(lambda model, x: model.shift * fine.slope * x), X, Y).global_latents == ["slope"]
    for read in (
        lambda model, x: model.helper(x),
        lambda model, x: getattr(model, "slope") * x,  # noqa: B009
        lambda model, x: sum((lambda: model.slope)() * x for _ in range(1)),
    ):
        with pytest.raises(ValueError, match="reads the prior 'slope' of Names by itself"):
            guide_of(Names(read), X, Y)


class CallsAHelper:
    """An object that is called as a function, and names a model in its method alone."""

    def __call__(self, x):
        return HOLDER.slope * x


def of_a_default(x, model=None):
    return model.slope * x


HOLDER = Linear()


def test_a_mean_that_is_an_object_or_has_a_default_argument_is_searched():
    of_a_default.__defaults__ = (HOLDER,)
    for mean in (CallsAHelper(), of_a_default):
        model = Model()
        model.gp = GaussianProcess(RBF(), mean=mean)
        with pytest.raises(ValueError, match="reads the prior 'slope' of Linear by itself"):
            guide_of(model, X, Y)


def test_a_mean_that_reads_a_prior_by_itself_is_refused():
    """Each evaluation drew another slope: five calls of the marginal likelihood gave five numbers."""
    model = Slope()
    for ask in (lambda: MarginalLikelihood(model)(X, Y), lambda: guide_of(model, X, Y)):
        with pytest.raises(
            ValueError, match="reads the prior 'slope' of Slope by itself, .* as a PyroModule that holds"
        ):
            ask()
    remedied = Model()
    remedied.gp = GaussianProcess(RBF(), mean=Linear())
    assert guide_of(remedied, X, Y).global_latents == ["gp.mean.function.slope"]


class OwnRows(Model):
    """The GP stands at the training rows, whatever the inputs are."""

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(X)), obs=y)


def guide_of_own_rows():
    guide = Variational(OwnRows().double(), InducingPoints(5), MonteCarlo(2))
    guide.initialize(X, Y)
    return guide


def draws_of_own_rows():
    return PosteriorDraws(OwnRows().double(), {}, (X, Y))


@pytest.mark.parametrize("fitted", [guide_of_own_rows, draws_of_own_rows])
def test_a_model_that_does_not_use_its_inputs_has_no_prediction_unless_it_is_asked_for(fitted):
    """The values at the five training rows stood in each of the three new ones."""
    posterior = fitted()
    with pytest.raises(
        ValueError, match=r"'y' has values of shape \(5,\) that are the same whatever the test inputs are"
    ):
        predict(posterior, NEW)
    assert predict(posterior, NEW, site="y").mean.shape == (3, 5)


class NeedsTargets(Model):
    """The number of its rows is that of the targets."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", y.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)


class TakesTargets(Model):
    def forward(self, x, y):
        return super().forward(x, y)


class HiddenStates(Model):
    """The rows are those of a chain of two hidden states."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        moves = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).double().log()
        states = dist.Normal(torch.stack([f, -f], -1), 0.2)
        return pyro.sample("y", dist.DiscreteHMM(torch.zeros(2).double(), moves, states), obs=y)


@pytest.mark.parametrize("model", [NeedsTargets, TakesTargets, HiddenStates])
def test_a_model_that_cannot_be_called_without_targets_is_refused_in_a_sentence(model):
    """Python's own errors said nothing of predictions, one of them nothing at all."""
    model = model().double()
    guide = Variational(model, InducingPoints(5), MonteCarlo(2))
    guide.initialize(X, Y)
    with pytest.raises(
        ValueError, match="a prediction calls the model first with one row of test inputs and without y, and there"
    ):
        predict(guide, NEW)
    if isinstance(model, HiddenStates):
        return
    values = {} if isinstance(model, TakesTargets) else {"f": torch.zeros(3, 5, 1).double()}
    draws = PosteriorDraws(model, values, (X, Y))
    with pytest.raises(
        ValueError, match="a prediction calls the model first with one row of test inputs and without y, and there"
    ):
        predict(draws, NEW)


class Forgetful(Model):
    """A mistake that has nothing to do with y."""

    def forward(self, x, y=None):
        if y is None:
            self.shifted(x)  # type: ignore[call-arg]
        return super().forward(x, y)

    def shifted(self, x, by):
        return x + by


def test_other_errors_of_a_model_are_its_own():
    guide = Variational(Forgetful().double(), InducingPoints(5), MonteCarlo(2))
    guide.initialize(X, Y)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'by'"):
        predict(guide, NEW)
