"""Groups: a GP in a plate, or over a batch of data sets, is one function for each index and has a posterior for each."""

from operator import attrgetter

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample
from pyro.optim import Adam

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    fit,
    predict,
)
from tests.examples import OneLayer, TwoLayers, TwoSites

pytestmark = pytest.mark.usefixtures("local")
GROUPS, ROWS = 3, 8


class Plated(PyroModule):
    """A model of one data set, in a plate over groups that share inputs and hyperparameters."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y=None):
        with pyro.plate("groups", GROUPS):
            return self.inner(x, y)


class Subsampled(PyroModule):
    """A model of one data set, in a plate that takes some of the groups in training."""

    def __init__(self, inner, groups, size, own_inputs=False):
        super().__init__()
        self.inner, self.groups, self.own_inputs = inner, groups, own_inputs
        self.size, self.in_predictions, self.index, self.read = size, groups, None, None

    def forward(self, x, y=None):
        if self.read is not None:
            self.read(self.inner)  # before the plate, and so one value for all groups
        size = self.size if self.training else self.in_predictions
        with pyro.plate("groups", self.groups, subsample_size=size, subsample=self.index) as index:
            return self.inner(x[index] if self.own_inputs else x, None if y is None else y[index])


def grouped():
    x = torch.linspace(-1, 1, ROWS)[:, None]
    shift = torch.tensor([[-1.0], [0.0], [2.0]])
    return x, torch.sin(3 * x[:, 0] + shift) + shift


def guided(model, x, y, propagation=None, family=None):
    guide = Variational(model, family or InducingPoints(5), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    for name, parameter in guide.named_parameters():
        if "whitened" in name:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return guide


def parts_of(guide, make, x, y):
    """Guides of the groups, each with its own slice of the parameters."""
    parts = []
    for group in range(GROUPS):
        model = make()
        inner = guide.model.inner if hasattr(guide.model, "inner") else guide.model
        model.load_state_dict(inner.state_dict())
        part = Variational(model, guide._families, guide.propagation)
        part.initialize(x if x.dim() == 2 else x[group], y[group])
        for name, parameter in part.processes.named_parameters():
            parameter.data.copy_(dict(guide.processes.named_parameters())[name][group])
        part.propagation.load_state_dict(guide.propagation.state_dict())
        parts.append(part)
    return parts


@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
@pytest.mark.parametrize("family", [InducingPoints(5), InducingPoints(5, "diagonal"), InducingPoints(5, "delta", True)])
@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
def test_the_objective_of_a_group_plate_is_the_sum_of_those_of_its_groups(loss, family, likelihood):
    x, y = grouped()
    y = (y > 0).double() if likelihood is Bernoulli else y
    guide = guided(Plated(OneLayer(likelihood=likelihood())), x, y, family=family)
    assert guide.processes._modules["y/f"].q.mean.shape == (GROUPS, 1, 5)
    parts = parts_of(guide, lambda: OneLayer(likelihood=likelihood()), x, y)
    expected = sum(loss().loss(part.model, part, x, target) for part, target in zip(parts, y, strict=True))
    assert loss().loss(guide.model, guide, x, y) == pytest.approx(expected)


@pytest.mark.parametrize("batched", [False, True])
def test_two_layers_of_a_group_plate_and_of_a_batch_of_data_sets_are_those_of_their_groups(batched):
    x, y = grouped()
    rule = SigmaPoints("gauss-hermite", 3)
    if batched:
        x = torch.stack([x, x + 0.3, 2 * x])
        guide = guided(TwoLayers(x[0]), x, y, rule)
    else:
        guide = guided(Plated(TwoLayers(x)), x, y, rule)
    parts = parts_of(guide, lambda: TwoLayers(torch.zeros(3, 1)), x, y)
    inputs = x if batched else [x] * GROUPS
    expected = sum(ELBO().loss(p.model, p, i, t) for p, i, t in zip(parts, inputs, y, strict=True))
    assert ELBO().loss(guide.model, guide, x, y) == pytest.approx(expected)
    num_data = 10 * ROWS
    expected = sum(ELBO(num_data).loss(p.model, p, i, t) for p, i, t in zip(parts, inputs, y, strict=True))
    assert ELBO(num_data).loss(guide.model, guide, x, y) == pytest.approx(expected)


@pytest.mark.parametrize("own_inputs", [False, True])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("prior", [False, True])
def test_plates_that_take_some_groups_are_unbiased_for_all(own_inputs, deep, prior):
    x, y = grouped()
    x = torch.stack([x, x + 0.3, 2 * x]) if own_inputs else x
    model = Subsampled(TwoLayers(torch.zeros(3, 1)) if deep else OneLayer(), GROUPS, 2, own_inputs)
    if prior:
        (model.inner.top if deep else model.inner.gp).kernel.variance = PyroSample(dist.LogNormal(0.0, 0.3))
        model.read = attrgetter("top.kernel.variance" if deep else "gp.kernel.variance")
    guide = guided(model, x, y, SigmaPoints("gauss-hermite", 3))
    assert guide.groups == (GROUPS,)
    for parameter in guide.processes.parameters():
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    values, gradients = [], []
    for model.index in (torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([1, 2]), None):
        if model.index is None:
            model.size = GROUPS
        torch.manual_seed(0)  # one draw of the prior for all
        loss = ELBO(2 * ROWS).differentiable_loss(model, guide, x, y)
        gradients.append(torch.autograd.grad(loss, list(guide.processes.parameters())))
        values.append(float(loss.detach()))
    assert sum(values[:3]) / 3 == pytest.approx(values[3])
    for *parts, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(sum(parts) / 3, whole)


def test_groups_that_a_plate_takes_in_turn_are_trained_and_predicted_together():
    x, y = grouped()
    model = Subsampled(OneLayer(), GROUPS, 2)
    guide = Variational(model, InducingPoints(5))
    guide.initialize(x, y)
    before = -predict(guide, x).log_prob(y).mean(-1)
    fit(ELBO(ROWS)(model, guide), x, y, steps=100, batch_size=5, learning_rate=0.05)
    after = -predict(guide, x).log_prob(y).mean(-1)
    assert before.shape == (GROUPS,) and (after < before - 0.3).all()
    stock = Subsampled(TwoSites(), GROUPS, 2)
    guide = Variational(stock, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    svi = SVI(stock, guide, Adam({"lr": 0.05}), TraceMeanField_ELBO())
    losses = [svi.step(x, y) for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])


def test_each_group_comes_to_its_own_exact_posterior():
    """At the closed-form optimum of q the bound of each group is its evidence, and the sum is that of the model's trace."""
    x, y = grouped()
    model = Plated(OneLayer(likelihood=Gaussian(variance=0.04), jitter=1e-10))
    guide = Variational(model, InducingPoints(ROWS), MonteCarlo(1))
    guide.initialize(x, y)
    process = guide.processes._modules["y/f"]
    prior = model.inner.gp(process.basis.inducing_points[0])
    factor = prior.scale_tril[0]
    a = torch.linalg.solve_triangular(
        factor, prior.covariance.matrix(process.basis.inducing_points[:1], x[None])[0], upper=False
    )
    s = torch.linalg.inv(torch.eye(ROWS) + a @ a.T / 0.04)
    for group in range(GROUPS):
        process.q.scale.data[group, 0] = torch.linalg.cholesky(s)
        process.q.mean.data[group, 0] = s @ a @ y[group] / 0.04
    trace = pyro.poutine.trace(model).get_trace(x, y)
    trace.compute_log_prob()
    exact = trace.nodes["y"]["log_prob"]
    assert exact.shape == (GROUPS,)
    assert -ELBO().loss(model, guide, x, y) == pytest.approx(float(exact.sum().detach()), rel=1e-5)


def test_stock_mean_field_sees_the_groups():
    x, y = grouped()
    guide = guided(Plated(TwoSites()), x, y, MonteCarlo(1))
    ours = torch.tensor([ELBO().loss(guide.model, guide, x, y) for _ in range(400)])
    stock = TraceMeanField_ELBO()
    theirs = torch.tensor([stock.loss(guide.model, guide, x, y) for _ in range(400)])
    error = (ours.var() / 400 + theirs.var() / 400).sqrt()
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    vectorized = TraceMeanField_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=1)
    assert abs(vectorized.loss(guide.model, guide, x, y) - ours.mean()) < 6 * error
    before = stock.loss(guide.model, guide, x, y)
    svi = SVI(guide.model, guide, Adam({"lr": 0.05}), stock)
    for _ in range(100):
        svi.step(x, y)
    assert stock.loss(guide.model, guide, x, y) < before


class OwnHyperparameters(PyroModule):
    """Data sets trained at once, each with a lengthscale and a noise variance of its own."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()
        self.gp.kernel.lengthscale = PyroParam(torch.tensor([0.5, 0.7, 1.1]), constraints.positive, event_dim=0)
        self.likelihood.variance = PyroParam(torch.tensor([0.1, 0.2, 0.3]), constraints.positive, event_dim=0)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_a_batch_of_data_sets_has_hyperparameters_of_its_own():
    x, y = grouped()
    x = torch.stack([x, x + 0.3, 2 * x])
    model = OwnHyperparameters()
    guide = guided(model, x, y)
    total = 0.0
    for group in range(GROUPS):
        one = OneLayer(RBF(lengthscale=model.gp.kernel.lengthscale[group].item()))
        one.likelihood = Gaussian(variance=model.likelihood.variance[group].item())
        part = Variational(one, InducingPoints(5), MonteCarlo(1))
        part.initialize(x[group], y[group])
        for name, parameter in part.processes.named_parameters():
            parameter.data.copy_(dict(guide.processes.named_parameters())[name][group])
        total += ELBO().loss(one, part, x[group], y[group])
    assert ELBO().loss(model, guide, x, y) == pytest.approx(total)


def test_a_prior_in_the_plate_has_a_value_for_each_group():
    class Own(Plated):
        def __init__(self):
            super().__init__(OneLayer())
            self.inner.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.2))

    x, y = grouped()
    guide = guided(Own(), x, y)
    trace = guide.components(x, y).trace
    assert trace.nodes["inner.gp.kernel.lengthscale"]["value"].shape == (GROUPS,)
    assert torch.isfinite(torch.tensor(ELBO().loss(guide.model, guide, x, y)))


def test_what_has_no_groups_says_so():
    x, y = grouped()
    model = Plated(OneLayer())
    with pytest.raises(
        ValueError, match="'y/f' is one function for each of .3,. groups, and AmortizedProcess holds one"
    ):
        Variational(model, AmortizedInducingPoints(3), MonteCarlo(2)).initialize(x, y)
    guide = guided(TwoLayers(x), x.expand(3, ROWS, 1), y)
    with pytest.raises(
        ValueError, match="functions of 'hidden' for groups of shape .3,. and the inputs have batch shape"
    ):
        ELBO().loss(guide.model, guide, x, y[0])
    own = Subsampled(OneLayer(), 10, 3)
    own.inner.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.2))
    with pytest.raises(ValueError, match="'inner.gp.kernel.lengthscale' has a value for each group .* takes 3 of 10"):
        guided(own, x, torch.zeros(10, ROWS))
    sub = Subsampled(OneLayer(), 10, 3)
    guide = guided(sub, x, torch.zeros(10, ROWS))
    sub.in_predictions = 3
    with pytest.raises(
        ValueError, match="the plate 'groups' takes 3 of its 10 groups, .* subsample_size=3 if self.training else 10"
    ):
        predict(guide, x)


def test_a_saved_guide_has_its_groups_again():
    x, y = grouped()
    guide = guided(Plated(OneLayer()), x, y)
    other = Variational(Plated(OneLayer()), InducingPoints(5), MonteCarlo(2))
    other.model.load_state_dict(guide.model.state_dict())
    other.load_state_dict(guide.state_dict())
    assert ELBO().loss(other.model, other, x, y) == pytest.approx(ELBO().loss(guide.model, guide, x, y))


def test_float32_works():
    torch.set_default_dtype(torch.float32)
    x, y = grouped()
    guide = guided(Plated(TwoLayers(x)), x, y)
    value = ELBO()(guide.model, guide)(x, y)
    value.backward()
    assert value.dtype == torch.float32 and torch.isfinite(value)


@pytest.mark.parametrize("make", [OneLayer, TwoSites])
def test_predictions_have_the_groups_in_front_and_are_those_of_each_group(make):
    x, y = grouped()
    guide = guided(Plated(make()), x, y, MonteCarlo(1))
    new = torch.linspace(-2, 2, 7)[:, None]
    targets = torch.randn(GROUPS, 7)
    prediction = predict(guide, new, num_samples=4000, batch_size=3)
    parts = [predict(part, new, num_samples=4000) for part in parts_of(guide, make, x, y)]
    tolerance = {} if make is OneLayer else {"rtol": 0.1, "atol": 0.1}  # two sites: a layer of samples
    assert prediction.batch_shape == (GROUPS, 7) and repr(prediction) == "Prediction(rows=7, groups=(3,))"
    for figure in (
        lambda p, i: p.mean if i is None else p.mean[i],
        lambda p, i: p.variance if i is None else p.variance[i],
        lambda p, i: p.quantile([0.1, 0.9]) if i is None else p.quantile([0.1, 0.9])[:, i],
    ):
        for group, part in enumerate(parts):
            torch.testing.assert_close(figure(prediction, group), figure(part, None), **tolerance)
    for group, part in enumerate(parts):
        torch.testing.assert_close(prediction.log_prob(targets)[group], part.log_prob(targets[group]), **tolerance)
    assert prediction.sample((5,)).shape == (5, GROUPS, 7)
    with pytest.raises(ValueError, match="targets have shape .7,., the prediction .3, 7.: pass one target"):
        prediction.log_prob(targets[0])


def test_predictions_of_classes_and_of_two_layers_have_groups():
    x, y = grouped()
    guide = guided(Plated(OneLayer(likelihood=Bernoulli())), x, (y > 0).double())
    assert predict(guide, x).probs.shape == (GROUPS, ROWS, 2)
    deep = guided(Plated(TwoLayers(x)), x, y)
    assert predict(deep, x).mean.shape == (GROUPS, ROWS)
    first = predict(deep, x, site="h", num_samples=20)
    alone = [predict(part, x, site="h", num_samples=20) for part in parts_of(deep, lambda: TwoLayers(x), x, y)]
    torch.testing.assert_close(first.mean, torch.stack([part.mean for part in alone]))
    noisy = guided(Plated(OneLayer(outputs=2)), x, torch.stack([y, -y], -1))
    inside = predict(noisy, x, site="y/f")
    torch.testing.assert_close(inside.variance + noisy.model.inner.likelihood.variance, predict(noisy, x).variance)
    with pytest.raises(
        ValueError, match=r"functions under the likelihood are those of one data set, .*groups of shape \(3,\)"
    ):
        inside.functions()


class CountedGroups(PyroModule):
    """Effects of groups, whose number is counted from an argument or given."""

    def __init__(self, count):
        super().__init__()
        self.gp, self.count = GaussianProcess(RBF()).requires_grad_(False), count

    def forward(self, x, y=None, place=None):
        with pyro.plate("places", self.count(place)):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + effect[..., place], 0.3).to_event(1), obs=y)


@pytest.mark.parametrize("places", [[0, 0, 1, 0, 1, 1, 2], [2, 0, 1, 0, 1, 1, 0], [0, 0, 1, 2, 1, 1, 0]])
def test_a_number_of_groups_that_is_counted_from_the_rows_is_refused_whatever_their_order(places):
    x, y, place = torch.linspace(-1, 1, 7)[:, None], torch.randn(7), torch.tensor(places)
    for count in (lambda place: int(place.max()) + 1, lambda place: len(place.unique())):
        guide = Variational(CountedGroups(count), InducingPoints(4), MonteCarlo(3))
        with pytest.raises(ValueError, match=r"the latent site 'effect' of shape \(3,\) is smaller where some rows"):
            guide.initialize(x, y, place=place)
        draws = PosteriorDraws(
            guide.model, {"effect": torch.zeros(2, 3), "f": torch.zeros(2, 7, 1)}, (x, y), kwargs={"place": place}
        )
        with pytest.raises(ValueError, match=r"Give it as a fixed number, as in pyro.plate\('groups', 3\)"):
            predict(draws, x, place=place)
    guide = Variational(CountedGroups(lambda place: 3), InducingPoints(4), MonteCarlo(3))
    guide.initialize(x, y, place=place)
    assert not guide.structure.local and not guide.structure.data_plates


def test_observations_of_a_part_of_the_rows_hold_rows_whatever_their_order():
    class Censored(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF()).requires_grad_(False)

        def forward(self, x, y, seen):
            f = pyro.sample("f", self.gp(x))[..., 0]
            normal = dist.Normal(f[..., seen], 0.3)
            pyro.sample("y", normal.to_event(1), obs=y[seen])
            above = dist.Normal(f[..., ~seen], 0.3).cdf(y[~seen])
            return pyro.sample("above", dist.Bernoulli(1 - above).to_event(1), obs=torch.ones(int((~seen).sum())))

    x, y = torch.linspace(-1, 1, 6)[:, None], torch.zeros(6)
    found = []
    for last in (True, False):
        seen = torch.tensor([True, True, False, True, False, last])
        guide = Variational(Censored(), InducingPoints(4), MonteCarlo(3))
        guide.initialize(x, y, seen)
        found.append(guide.structure.without_rows)
    assert found == [frozenset(), frozenset()]
