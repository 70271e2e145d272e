"""A ``poutine.scale`` that weights the rows of a step, beside the ``num_data`` of a loss."""

from contextlib import nullcontext

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule
from torch.distributions import AffineTransform

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    PredictiveLogLikelihood,
    Variational,
    fit,
    predict,
)

ROWS = 20


class ScaledRows(PyroModule):
    """The idiom of mini-batches in plain Pyro, or a scale of its own."""

    def __init__(self, scale=None):
        super().__init__()
        self.scale, self.gp = scale, GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.poutine.scale(scale=ROWS / len(x) if self.scale is None else self.scale):
            return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


def guided(model):
    x = torch.linspace(-1, 1, ROWS)[:, None]
    y = torch.sin(3 * x[:, 0])
    guide = Variational(model, InducingPoints(6), MonteCarlo(1000))
    guide.initialize(x, y)
    return guide, x, y


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loaded", [False, True])
def test_a_scale_that_follows_the_rows_would_count_twice(loaded):
    guide, x, y = guided(ScaledRows())
    if loaded:
        state = guide.state_dict()
        guide = Variational(ScaledRows(), InducingPoints(6), MonteCarlo(1))
        guide.load_state_dict(state)
    with pytest.raises(
        ValueError, match="'y' stands in a poutine.scale that follows the number of rows, and num_data=20"
    ):
        fit(ELBO(ROWS)(guide.model, guide), x, y, steps=1, batch_size=5)
    assert len(fit(ELBO(ROWS)(guide.model, guide), x, y, steps=2).losses) == 2  # all rows: the scale is one


@pytest.mark.usefixtures("local")
def test_a_fixed_scale_stays():
    guide, x, y = guided(ScaledRows(0.5))
    whole = ELBO(ROWS).loss(guide.model, guide, x, y)
    halves = [ELBO(ROWS).loss(guide.model, guide, x[part], y[part]) for part in (slice(0, None, 2), slice(1, None, 2))]
    assert sum(halves) / 2 == pytest.approx(whole, rel=0.05)


class Annealed(ScaledRows):
    """A scale that grows from call to call."""

    calls = 0

    def forward(self, x, y=None):
        self.calls += 1
        self.scale = min(1.0, 0.1 + self.calls / 1000)
        return super().forward(x, y)


@pytest.mark.usefixtures("local")
def test_a_scale_that_is_annealed_stays():
    guide, x, y = guided(Annealed())
    assert len(fit(ELBO(ROWS)(guide.model, guide), x, y, steps=2, batch_size=5).losses) == 2


class PlateOfAll(PyroModule):
    """A plate of all rows that takes those of a step, which weights them by itself."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
            return pyro.sample("y", dist.Normal(f, 0.5), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", [ELBO, lambda rows: PredictiveLogLikelihood(rows, 1.0)])
def test_a_plate_of_all_rows_weights_those_of_a_step_once(loss):
    guide, x, y = guided(PlateOfAll())
    plain, *_ = guided(ScaledRows(1.0))
    expected = loss(ROWS).loss(plain.model, plain, x[:5], y[:5])
    assert loss(ROWS).loss(guide.model, guide, x[:5], y[:5]) == pytest.approx(expected, rel=0.02)
    assert len(fit(loss(ROWS)(guide.model, guide), x, y, steps=2, batch_size=5).losses) == 2


class ObservedFunction(PyroModule):
    """A hidden layer that is observed without noise."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian()

    def forward(self, x, h=None, y=None):
        h = pyro.sample("h", self.hidden(x), obs=h)
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


@pytest.mark.usefixtures("local")
def test_observed_function_values_are_fitted_from_all_rows_alone():
    x = torch.linspace(-1, 1, ROWS)[:, None]
    h = torch.sin(3 * x)
    guide = Variational(ObservedFunction(), InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, h, h[:, 0])
    assert ELBO(ROWS).loss(guide.model, guide, x, h, h[:, 0]) == ELBO().loss(guide.model, guide, x, h, h[:, 0])
    with pytest.raises(ValueError, match="observed function values at 'h', which have one joint density of all rows"):
        ELBO(ROWS).loss(guide.model, guide, x[:5], h[:5], h[:5, 0])
    with pytest.raises(ValueError, match="no process for the GP 'h', .* if 'h' was observed there, pass its values"):
        predict(guide, x, site="y")
    assert predict(guide, x, h=h, site="y").mean.shape == (ROWS,)


@pytest.mark.usefixtures("local")
def test_function_values_of_other_rows_are_refused():
    x = torch.linspace(-1, 1, ROWS)[:, None]
    h = torch.sin(3 * x)
    guide = Variational(pyro.condition(ObservedFunction(), {"h": h}), InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, y=h[:, 0])
    exact = PosteriorDraws(guide.model, {}, (x,), kwargs={"y": h[:, 0]})
    for posterior in (guide, exact):
        for rows in (x[:5], x + 1):  # as many other rows as in training, too
            with pytest.raises(
                ValueError, match=r"'h' are observed with shape \(20, 1\), and their inputs have 1 rows"
            ):
                predict(posterior, rows, site="y")


class ScaledFunctions(PyroModule):
    """Function values as a site of their own, within a scale."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        with pyro.poutine.scale(scale=0.5):
            f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


@pytest.mark.usefixtures("local")
def test_a_scale_around_function_values_is_refused():
    """It multiplied their KL, so that the bound was above the evidence."""
    x = torch.linspace(-1, 1, ROWS)[:, None]
    guide = Variational(ScaledFunctions(), InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, x[:, 0])
    with pytest.raises(
        ValueError, match="the function values at 'f' stand in a poutine.scale, which would scale their"
    ):
        ELBO().loss(guide.model, guide, x, x[:, 0])


class Shifted(PyroModule):
    """A latent shift of all rows in a handler, and a function that is nearly zero, so that the posterior of the shift is known."""

    def __init__(self, handler=nullcontext, around_all=False):
        super().__init__()
        self.handler, self.around_all, self.gp = handler, around_all, GaussianProcess(RBF())
        self.gp.kernel.variance = torch.tensor(1e-8)
        self.gp.kernel.requires_grad_(False)

    def forward(self, x, y=None):
        with self.handler():
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
            if self.around_all:
                return self.rest(x, y, shift)
        return self.rest(x, y, shift)

    def rest(self, x, y, shift):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + shift.unsqueeze(-1), 1.0).to_event(1), obs=y)


def posterior_of_shift(model, x, y):
    guide = Variational(model, InducingPoints(3), MonteCarlo(20))
    guide.initialize(x, y)
    fit(ELBO()(guide.model, guide), x, y, steps=400, learning_rate=0.05)
    return predict(guide, x[:1], num_samples=2000, site="shift")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("power", [0.25, 4.0])
def test_a_scale_around_a_latent_site_is_a_power_of_its_prior(power):
    """It scaled the density of the guide too: the likelihood had the power 1 / 0.25 beside the prior."""
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.tensor([2.5, 3.0, 2.2, 2.7])
    torch.manual_seed(0)
    found = posterior_of_shift(Shifted(lambda: pyro.poutine.scale(scale=power)), x, y)
    assert float(found.mean) == pytest.approx(float(y.sum()) / (4 + power), abs=0.1)
    assert float(found.variance.sqrt()) == pytest.approx((4 + power) ** -0.5, rel=0.12)


@pytest.mark.usefixtures("local")
def test_a_scale_around_all_sites_is_one_of_the_units_of_the_loss():
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.tensor([2.5, 3.0, 2.2, 2.7])
    losses = []
    for scale in (1.0, 0.25):
        model = Shifted(lambda scale=scale: pyro.poutine.scale(scale=scale), around_all=True)
        guide = Variational(model, InducingPoints(3), MonteCarlo(20))
        guide.initialize(x, y)
        torch.manual_seed(0)
        losses.append(ELBO().loss(guide.model, guide, x, y) / scale)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.usefixtures("local")
def test_a_mask_that_hides_a_prior_is_refused_where_observations_may_depend_on_it():
    """It hid the density of the guide too, which shrank to a point."""
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.tensor([2.5, 3.0, 2.2, 2.7])
    guide = Variational(Shifted(lambda: pyro.poutine.mask(mask=torch.tensor(False))), InducingPoints(3), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(
        ValueError, match=r"latent site 'shift' stands in a poutine.mask .* the observation 'y', .*mask\(False"
    ):
        ELBO().loss(guide.model, guide, x, y)
    hidden = Shifted(lambda: pyro.poutine.mask(mask=torch.tensor(False)), around_all=True)
    shown = Shifted(lambda: pyro.poutine.mask(mask=torch.tensor(True)))
    for model, expected in ((hidden, True), (shown, False)):
        guide = Variational(model, InducingPoints(3), MonteCarlo(2))
        guide.initialize(x, y)
        assert (ELBO().loss(guide.model, guide, x, y) == 0.0) is expected


class PaddedRows(PyroModule):
    """Rows of which some are padding: hidden with their latent values, or the latent values alone."""

    def __init__(self, kept, alone=False):
        super().__init__()
        self.kept, self.alone, self.gp = kept, alone, GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", x.shape[-2]), pyro.poutine.mask(mask=self.kept):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            if not self.alone:
                return pyro.sample("y", dist.Normal(f + w, 0.5), obs=y)
        with pyro.plate("data", x.shape[-2]):
            return pyro.sample("y", dist.Normal(f + w, 0.5), obs=y)


@pytest.mark.usefixtures("local")
def test_rows_of_padding_may_be_hidden_with_their_latent_values():
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.tensor([2.5, 3.0, 2.2, 2.7])
    kept = torch.tensor([True, True, True, False])
    losses = []
    for target in (2.7, 1e3):
        guide = Variational(PaddedRows(kept), InducingPoints(3), MonteCarlo(2))
        guide.initialize(x, y)
        torch.manual_seed(0)
        losses.append(ELBO().loss(guide.model, guide, x, torch.cat([y[:3], torch.tensor([target])])))
    assert losses[0] == losses[1] != 0.0
    guide = Variational(PaddedRows(kept, alone=True), InducingPoints(3), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="the latent site 'w' stands in a poutine.mask"):
        ELBO().loss(guide.model, guide, x, y)


class People(PyroModule):
    """Groups of which a plate takes some, as many as a step has rows, and as many in all as there are rows."""

    def __init__(self, people, some):
        super().__init__()
        self.people, self.some, self.gp = people, some, GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("people", self.people, subsample_size=self.some) as chosen:
            return pyro.sample("y", dist.Normal(f.unsqueeze(-2), 0.3).to_event(1), obs=y.mT[chosen])


@pytest.mark.usefixtures("local")
def test_a_plate_of_groups_as_large_as_the_data_is_not_that_of_the_rows():
    """Four of eight people beside four of eight rows: the likelihood was half of what it is."""
    torch.manual_seed(0)
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.randn(8, 8)
    means = {}
    for some, rows in ((8, 8), (4, 4)):
        guide = Variational(People(8, some), InducingPoints(3), MonteCarlo(20))
        guide.initialize(x, y)
        found = []
        for _ in range(1 if rows == 8 else 200):
            taken = torch.randperm(8)[:rows]
            with torch.no_grad():
                terms = ELBO(8).terms(guide.model, guide, x[taken], y[taken])
            found.append(terms["the likelihood at 'y'"])
        means[some] = float(torch.stack(found).mean())
    assert means[4] == pytest.approx(means[8], rel=0.1)


class RowEvent(PyroModule):
    """A latent value of each row, all in one event."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + w, 0.5).to_event(1), obs=y)


class Posterior(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x, y=None):
        if self.kind == "joint":
            return dist.MultivariateNormal(x[:, 0], 0.01 * torch.eye(len(x)))
        normal = dist.Normal(x[:, 0], 0.1).to_event(1)
        return normal if self.kind == "apart" else dist.TransformedDistribution(normal, [AffineTransform(0.0, 1.0)])


@pytest.mark.usefixtures("local")
def test_the_kl_of_latent_values_of_rows_is_weighted_whatever_their_posterior_is():
    """That of a posterior with the rows in an event of its own counted a row as all rows."""
    x = torch.linspace(-1, 1, ROWS)[:, None]
    found = []
    for kind in ("apart", "joint", "transformed"):
        guide = Variational(RowEvent(), InducingPoints(6), MonteCarlo(1), networks={"w": Posterior(kind)})
        guide.initialize(x, x[:, 0])
        torch.manual_seed(0)
        found.append(ELBO(ROWS).terms(guide.model, guide, x[:1], x[:1, 0])["the regulariser at 'w'"])
    torch.testing.assert_close(found[1:], [found[0], found[0]])


class OfTheTarget(torch.nn.Module):
    """Posterior of a latent value of each row from its target."""

    def __init__(self):
        super().__init__()
        self.slope, self.log_scale = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))

    def forward(self, x, y=None):
        return None if y is None else dist.Normal(self.slope * y, self.log_scale.exp())


class LatentRows(PyroModule):
    """A latent value of each row, in a scale or a plate that stands for the rows that a step leaves out."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.gp = kind, GaussianProcess(RBF())
        self.gp.kernel.variance = torch.tensor(1e-8)
        self.gp.kernel.requires_grad_(False)

    def forward(self, x, y=None):
        f, rows = pyro.sample("f", self.gp(x))[..., 0], x.shape[-2]
        if self.kind == "scale":
            with pyro.plate("rows", rows), pyro.poutine.scale(scale=ROWS / rows):
                return self.row(f, y)
        taken = {"size": {"subsample_size": rows}, "index": {"subsample": torch.arange(rows)}}[self.kind]
        with pyro.plate("rows", ROWS, **taken):
            return self.row(f, y)

    def row(self, f, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(f + w, 1.0), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("kind", "num_data"), [("scale", None), ("size", None), ("size", ROWS), ("index", ROWS)])
def test_rows_that_a_step_leaves_out_are_counted_once_in_priors_and_likelihoods(kind, num_data):
    """A step of five rows of twenty has four times their terms."""
    torch.manual_seed(0)
    x, y = torch.linspace(-1, 1, ROWS)[:, None], torch.randn(ROWS)
    guide = Variational(LatentRows(kind), InducingPoints(3), MonteCarlo(1), networks={"w": OfTheTarget()})
    guide.initialize(x, y)
    with torch.no_grad():
        guide.networks.w.slope.fill_(0.5)
        guide.networks.w.log_scale.fill_(-0.2)
        draws = [ELBO(num_data).terms(guide.model, guide, x[:5], y[:5]) for _ in range(800)]
    terms = {name: float(torch.stack([each[name] for each in draws]).mean()) for name in draws[0]}
    q = dist.Normal(0.5 * y[:5], torch.tensor(-0.2).exp())
    kl = 4 * torch.distributions.kl_divergence(q, dist.Normal(torch.zeros(5), torch.ones(5))).sum()
    expected = dist.Normal(0.5 * y[:5], 1.0).log_prob(y[:5]).sum() - 0.5 * 5 * torch.tensor(-0.4).exp()
    assert terms["the regulariser at 'w'"] == pytest.approx(-float(kl), abs=1.0)
    assert terms["the likelihood at 'y'"] == pytest.approx(4 * float(expected), abs=1.0)


class SecondInstrument(PyroModule):
    """A second observation, hidden with the latent value that it alone depends on."""

    def __init__(self, has_second, plates=("rows", "rows")):
        super().__init__()
        self.has_second, self.plates, self.gp = has_second, plates, GaussianProcess(RBF())

    def forward(self, x, y=None, z=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        plates = {name: pyro.plate(name, x.shape[-2]) for name in dict.fromkeys(("data", *self.plates))}
        with plates["data"]:
            pyro.sample("y", dist.Normal(f, 0.5), obs=y)
        first, second = self.plates
        with plates[first], pyro.poutine.mask(mask=self.has_second):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with plates[second], pyro.poutine.mask(mask=self.has_second):
            pyro.sample("z", dist.Normal(f + w, 0.5), obs=z)


@pytest.mark.usefixtures("local")
def test_observations_that_come_before_a_hidden_site_do_not_depend_on_it():
    x, y = torch.linspace(-1, 1, 4)[:, None], torch.randn(4)
    kept = torch.tensor([True, True, False, True])
    for mask in (kept, torch.tensor(False), False):
        guide = Variational(SecondInstrument(mask), InducingPoints(3), MonteCarlo(2))
        guide.initialize(x, y, y)
        assert ELBO().loss(guide.model, guide, x, y, y) > 0
    guide = Variational(SecondInstrument(kept, ("people", "rows")), InducingPoints(3), MonteCarlo(2))
    guide.initialize(x, y, y)
    with pytest.raises(ValueError, match="'w' stands in a poutine.mask .* the observation 'z'"):  # of other rows
        ELBO().loss(guide.model, guide, x, y, y)
