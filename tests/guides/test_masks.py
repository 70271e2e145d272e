import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    PredictiveLogLikelihood,
    Variational,
    whitened,
)
from pyro_dgp.mcmc.density import WhitenedDensity
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("local")
LOSSES = {"ELBO": ELBO(), "predictive": PredictiveLogLikelihood(None, 1.0), "gamma": GammaDivergence(None, 1.1)}


class Rows(PyroModule):
    """Observed row by row, so that rows can be masked."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF(lengthscale=0.7))
        self.mask: bool | torch.Tensor = True

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f[..., 0], 0.3), obs=y)


def value(loss, model, guide, x, y, mask):
    model.mask = mask
    torch.manual_seed(3)
    return float(loss(model, guide)(x, y).detach())


@pytest.mark.parametrize("family", [InducingPoints(5), AmortizedInducingPoints(3)])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_masked_rows_do_not_count(loss, family):
    x, y = regression(12)
    model = Rows()
    guide = Variational(model, family, MonteCarlo(4))
    guide.initialize(x, y)
    mask = torch.arange(12) % 3 == 0
    whole, kept, rest = (value(loss, model, guide, x, y, m) for m in (torch.ones_like(mask), mask, ~mask))
    kl = value(loss, model, guide, x, y, torch.zeros_like(mask))
    assert kept + rest == pytest.approx(whole + kl)
    assert min(abs(kept - whole), abs(rest - whole), abs(whole - kl)) > 0.1
    assert value(loss, model, guide, x, y, False) == pytest.approx(kl)
    assert value(loss, model, guide, x, y, True) == pytest.approx(whole)
    far = torch.where(mask, y, y + 100.0)
    assert value(loss, model, guide, x, far, mask) == pytest.approx(kept)


class Hidden(Rows):
    """Rows that the distribution itself hides, or a handler around it."""

    def __init__(self, of, *, by_handler):
        super().__init__()
        self.of, self.by_handler = of, by_handler

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        fn, handler = self.of(f[..., 0]), poutine.mask(mask=self.mask if self.by_handler else True)
        with handler, pyro.plate("rows", len(x)):
            return pyro.sample("y", fn if self.by_handler else fn.mask(self.mask), obs=y)


@pytest.mark.parametrize("of", [lambda f: dist.Normal(f, 0.3), lambda f: dist.Bernoulli(logits=f)])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_masked_distribution_has_the_loss_of_a_masked_site(loss, of):
    """The gamma divergence counted a constant for each hidden class, and refused a normal."""
    x, y = regression(12)
    y, mask, found = (y > 0).to(y), torch.arange(12) % 4 > 0, []
    for by_handler in (True, False):
        model = Hidden(of, by_handler=by_handler)
        guide = Variational(model, InducingPoints(5), MonteCarlo(4))
        torch.manual_seed(0)
        guide.initialize(x, y)
        found += [value(loss, model, guide, x, y, each) for each in (mask, ~mask)]
    assert found[2:] == pytest.approx(found[:2]) and abs(found[0] - found[1]) > 0.1


@pytest.mark.slow
def test_a_mask_is_that_of_stock_pyro():
    x, y = regression(12)
    model = Rows()
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    model.mask = torch.arange(12) < 4
    ours, stock = ELBO(), TraceMeanField_ELBO(num_particles=200, vectorize_particles=False)
    mean = sum(ours.loss(model, guide, x, y) for _ in range(200)) / 200
    assert mean == pytest.approx(stock.loss(model, guide, x, y), rel=0.05)


class Whole(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood, self.mask = GaussianProcess(RBF()), Gaussian(), True

    def forward(self, x, y=None):
        with poutine.mask(mask=self.mask):
            with pyro.plate("rows", len(x)):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)


def test_a_site_that_is_hidden_has_no_term_and_rows_of_one_event_cannot_be_masked():
    x, y = regression(9)
    model = Whole()
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    assert abs(value(ELBO(), model, guide, x, y, True)) > 1
    for hidden in (False, torch.tensor(False)):
        assert value(ELBO(), model, guide, x, y, hidden) == 0.0
    with pytest.raises(ValueError, match=r"site 'y', whose rows are one event, has a mask of shape \(9,\)"):
        value(ELBO(), model, guide, x, y, torch.ones(9, dtype=torch.bool))


def test_a_latent_row_whose_prior_alone_is_hidden_is_refused():
    """The density of the guide was hidden with the prior, so that its scale would shrink to nothing."""

    class Latent(Whole):
        def forward(self, x, y=None):
            with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)

    x, y = regression(6)
    model = Latent()
    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    assert value(ELBO(), model, guide, x, y, True) == value(ELBO(), model, guide, x, y, torch.ones(6, dtype=torch.bool))
    with pytest.raises(ValueError, match="'w' stands in a poutine.mask that hides its prior, and the observation 'y'"):
        value(ELBO(), model, guide, x, y, torch.tensor([True, False, True, False, True, True]))


@pytest.mark.parametrize("path", ["marginal", "whitened"])
def test_rows_of_one_event_cannot_be_masked_for_other_algorithms_either(path):
    class Masked(OneLayer):
        def forward(self, x, y=None):
            with poutine.mask(mask=torch.arange(len(x)) < 4):
                return super().forward(x, y)

    x, y = regression(9)
    with pytest.raises(ValueError, match=r"site 'y', whose rows are one event, has a mask of shape \(9,\)"):
        MarginalLikelihood(Masked())(x, y) if path == "marginal" else whitened(Masked())(x, y)


def test_a_mask_wider_than_the_terms_is_refused_and_outputs_of_a_row_are_masked_together():
    x, y = regression(9)

    class Wide(Rows):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            with poutine.mask(mask=self.mask):
                deviation = pyro.sample("deviation", dist.LogNormal(0.0, 1.0))
            with pyro.plate("rows", len(x)):
                return pyro.sample("y", dist.Normal(f[..., 0], deviation), obs=y)

    model = Wide()
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=r"site 'deviation' has a mask of shape \(9,\) and terms of shape \(\)"):
        value(ELBO(), model, guide, x, y, torch.ones(9, dtype=torch.bool))

    class Outputs(Rows):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(), num_outputs=2)

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            with poutine.mask(mask=self.mask), pyro.plate("rows", len(x)):
                return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)

    model, both = Outputs(), torch.stack([y, -y], -1)
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, both)
    mask = torch.arange(9) < 4
    parts = [value(ELBO(), model, guide, x, both, m) for m in (mask, ~mask, True, False)]
    assert parts[0] + parts[1] == pytest.approx(parts[2] + parts[3])
    assert abs(parts[0] - parts[2]) > 1


class Weighted(PyroModule):
    """Rows with weights, as one event or in a plate."""

    def __init__(self, in_plate):
        super().__init__()
        self.gp, self.in_plate = GaussianProcess(RBF()).requires_grad_(False), in_plate

    def forward(self, x, y=None, weights=1.0):
        f = pyro.sample("f", self.gp(x))[..., 0]
        normal = dist.Normal(f, 0.3)
        if not self.in_plate:
            with poutine.scale(scale=weights):
                return pyro.sample("y", normal.to_event(1), obs=y)
        with pyro.plate("rows", x.shape[-2]), poutine.scale(scale=weights):
            return pyro.sample("y", normal, obs=y)


def test_weights_of_rows_that_are_one_event_are_refused():
    x, y, ones = torch.linspace(-1, 1, 5)[:, None], torch.randn(5), torch.ones(5)
    with pytest.raises(
        ValueError, match=r"scale of shape \(5,\), and has log densities of shape \(\), each of which would count"
    ):
        WhitenedDensity(whitened(Weighted(False)), (x, y, ones), {}).evaluate({"f_whitened": torch.zeros(5, 1)})
    density = WhitenedDensity(whitened(Weighted(False)), (x, y, torch.tensor(2.0)), {})
    single = WhitenedDensity(whitened(Weighted(False)), (x, y), {})
    at = {"f_whitened": torch.randn(5, 1)}
    assert density.evaluate(at).log_likelihood == pytest.approx(2 * single.evaluate(at).log_likelihood)


def test_weights_of_rows_in_a_plate_are_those_of_their_terms():
    x, y, weights = torch.linspace(-1, 1, 5)[:, None], torch.randn(5), 1 + torch.arange(5.0)
    at = {"f_whitened": torch.randn(5, 1)}
    density = WhitenedDensity(whitened(Weighted(True)), (x, y, weights), {})
    f = GaussianProcess(RBF())(x).unwhiten(at["f_whitened"])[..., 0].detach()
    assert density.evaluate(at).log_likelihood == pytest.approx(
        float((weights * dist.Normal(f, 0.3).log_prob(y)).sum())
    )


@pytest.mark.parametrize("in_plate", [False, True])
@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
def test_losses_refuse_a_weight_for_each_row(in_plate, loss):
    x, y = torch.linspace(-1, 1, 5)[:, None], torch.randn(5)
    guide = Variational(Weighted(in_plate), InducingPoints(3), MonteCarlo(3))
    guide.initialize(x, y)
    objective = loss(len(x))(guide.model, guide)
    with pytest.raises(
        ValueError, match=r"'y' stands in a poutine.scale of shape \(5,\), and a loss multiplies a site by one number"
    ):
        objective(x, y, torch.ones(5))
    assert objective(x, y, torch.tensor(2.0)).isfinite()


def test_function_values_in_a_scale_of_ones_are_refused():
    class Scaled(Weighted):
        def forward(self, x, y=None, weights=1.0):
            with poutine.scale(scale=weights):
                f = pyro.sample("f", self.gp(x))[..., 0]
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)

    x, y = torch.linspace(-1, 1, 5)[:, None], torch.randn(5)
    with pytest.raises(ValueError, match="function values at 'f' stand in a poutine.scale"):
        WhitenedDensity(whitened(Scaled(False)), (x, y, torch.ones(5)), {})


class MaskedFunction(Rows):
    """The mask is around the function values, or around the observation of a likelihood."""

    def __init__(self, likelihood=None):
        super().__init__()
        self.likelihood = likelihood
        self.requires_grad_(False)

    def forward(self, x, y=None):
        with poutine.mask(mask=self.mask):
            if self.likelihood is not None:
                return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)
            f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=y)


@pytest.mark.parametrize("kind", [None, Bernoulli])
def test_function_values_that_a_sampler_whitens_cannot_be_hidden(kind):
    x, y = torch.linspace(-1, 1, 5)[:, None], torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    model = MaskedFunction(None if kind is None else kind())
    at = {"f_whitened" if kind is None else "y_f_whitened": torch.randn(5, 1)}
    expected = WhitenedDensity(whitened(model), (x, y), {}).evaluate(at).log_density
    for mask in (True, torch.tensor(True)):
        model.mask = mask
        assert WhitenedDensity(whitened(model), (x, y), {}).evaluate(at).log_density == expected
    for mask in (False, torch.tensor(False)):
        model.mask = mask
        with pytest.raises(ValueError, match=r"function values at '[fy]' stand in a poutine.mask that is false"):
            WhitenedDensity(whitened(model), (x, y), {})


def test_what_is_observed_of_function_values_can_be_hidden_from_a_sampler():
    """Function values that are given, and a likelihood of function values that stand before the mask."""
    x, y = torch.linspace(-1, 1, 5)[:, None], torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    given, f = MaskedFunction(), torch.randn(5, 1)

    def known(x, y=None):
        noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
        with poutine.mask(mask=False):
            pyro.sample("f", given.gp(x), obs=f)
        return pyro.sample("y", dist.Normal(f[..., 0], noise).to_event(1), obs=y)

    found = WhitenedDensity(whitened(known), (x, y), {}).evaluate({"noise": torch.tensor(0.4)}).log_likelihood
    assert found == pytest.approx(float(dist.Normal(f[..., 0], 0.4).log_prob(y).sum()))

    def remedied(x, y=None):
        f = pyro.sample("f", given.gp(x))
        with poutine.mask(mask=False):
            return pyro.sample("y", Bernoulli().given(f), obs=y)

    assert WhitenedDensity(whitened(remedied), (x, y), {}).evaluate({"f_whitened": f}).log_likelihood == 0.0


def test_losses_refuse_function_values_whose_prior_is_hidden():
    x, y = regression(9)
    model, rows = MaskedFunction(), Rows()
    guides = [Variational(each, InducingPoints(4), MonteCarlo(3)) for each in (model, rows)]
    for guide in guides:
        guide.initialize(x, y)
    rows.gp.load_state_dict(model.gp.state_dict())
    guides[1].load_state_dict(guides[0].state_dict())
    shown, remedied = (value(ELBO(), each.model, each, x, y, True) for each in guides)
    assert shown == remedied
    with pytest.raises(ValueError, match="'f' stands in a poutine.mask that hides its prior, and the observation 'y'"):
        value(ELBO(), model, guides[0], x, y, False)


@pytest.mark.parametrize("by_site", [True, False])
def test_hidden_targets_are_not_looked_at_in_warnings_of_scale(by_site):
    """A warning named the mean of targets of which one, -999, was hidden."""

    class Masked(Rows):
        def forward(self, x, y=None):
            f, kept = pyro.sample("f", self.gp(x))[..., 0], torch.arange(len(x)) != 2
            if by_site:
                with pyro.plate("rows", len(x)), poutine.mask(mask=kept):
                    return pyro.sample("y", dist.Normal(f, 0.3), obs=y)
            return pyro.sample("y", dist.Normal(f, 0.3).mask(kept).to_event(1), obs=y)

    x, y = regression(9)
    y[2] = -999.0
    Variational(Masked(), InducingPoints(4), MonteCarlo(1)).initialize(x, y)  # warnings are errors
    y[3] = -999.0
    with pytest.warns(UserWarning, match="the target of the site 'y' has mean"):
        Variational(Masked(), InducingPoints(4), MonteCarlo(1)).initialize(x, y)
