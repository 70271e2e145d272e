"""The energy of approximate expectation propagation: dense algebra, its limit, and what it refuses."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    ApproximateEP,
    Bernoulli,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MissingOutputs,
    MomentMatching,
    MonteCarlo,
    RobustMax,
    Softmax,
    Variational,
    fit,
    predict,
)
from tests.examples import OneLayer, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


def guided(model, x, y, family=None, propagation=None):
    guide = Variational(model, family or InducingPoints(5), propagation or MomentMatching())
    guide.initialize(x, y)
    for name, parameter in guide.named_parameters():
        if "q.mean" in name or "q.scale" in name:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return guide


def energy(guide, x, y, alpha):
    return -ApproximateEP(len(x), alpha).differentiable_loss(guide.model, guide, x, y)


def brute_force(guide, x, y, alpha):
    """The energy of one layer with Gaussian noise in the coordinates u, by normalisers of natural parameters."""
    model, process = guide.model, getattr(guide.processes, "y/f")
    prior = model.gp(x)
    root = process.basis.root(prior)[0]
    q = process.q.read(process.basis, prior)
    k_uu, s = root @ root.mT, root @ q.scale[0] @ q.scale[0].mT @ root.mT
    m = root @ q.mean[0]
    k_fu = root @ process.basis.columns(prior)[0]
    projection = torch.linalg.solve(k_uu, k_fu).mT
    left = prior.variance[:, 0] - (projection * k_fu.mT).sum(-1)  # what the points leave
    count, noise = len(x), model.likelihood.variance
    precision, shift = s.inverse(), torch.linalg.solve(s, m)
    own, its_shift = (precision - k_uu.inverse()) / count, shift / count  # natural parameters of one factor
    cavity = (precision - alpha * own).inverse()
    centre = cavity @ (shift - alpha * its_shift)

    def normalizer(covariance, mean):
        return 0.5 * (torch.logdet(covariance) + mean @ torch.linalg.solve(covariance, mean))

    f = dist.Normal(projection @ centre, (left + (projection @ cavity * projection).sum(-1)).sqrt())
    # N(y; f, v)^a = N(y; f, v / a) (2 pi v)^((1 - a) / 2) / sqrt(a)
    wide = dist.Normal(f.loc, (f.variance + noise / alpha).sqrt()).log_prob(y)
    log_z = wide + 0.5 * (1 - alpha) * (2 * math.pi * noise).log() - 0.5 * math.log(alpha)
    change = normalizer(cavity, centre) - normalizer(s, m)
    return normalizer(s, m) - normalizer(k_uu, torch.zeros_like(m)) + (log_z + change).sum() / alpha


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_one_layer_has_the_energy_of_dense_algebra(alpha):
    x, y = regression(20)
    guide = guided(OneLayer(), x, y)
    torch.testing.assert_close(energy(guide, x, y, alpha), brute_force(guide, x, y, alpha).squeeze())


@pytest.mark.parametrize("layers", [1, 2])
def test_a_small_power_gives_the_evidence_lower_bound(layers):
    x, y = regression(20)
    guide = guided(DeepGP(x, layers=layers, width=2, kernel="rbf"), x, y)
    bound = -ELBO(20).differentiable_loss(guide.model, guide, x, y)
    torch.testing.assert_close(energy(guide, x, y, 1e-7), bound, atol=1e-3, rtol=0)
    assert abs(energy(guide, x, y, 1.0) - bound) > 0.1


def test_a_small_power_ends_at_the_collapsed_bound():
    x, y = regression(20)
    model = OneLayer()
    guide = guided(model, x, y)
    for name, parameter in guide.named_parameters():
        parameter.requires_grad_("q." in name)
    objective = ApproximateEP(20, 1e-4)(model, guide)
    optimizer = torch.optim.LBFGS(
        [p for p in guide.parameters() if p.requires_grad], max_iter=300, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = objective(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    prior, process = model.gp(x), getattr(guide.processes, "y/f")
    columns = process.basis.columns(prior)[0]
    nystrom, noise = columns.mT @ columns, model.likelihood.variance
    exact = dist.MultivariateNormal(torch.zeros(20), nystrom + noise * torch.eye(20)).log_prob(y)
    collapsed = exact - 0.5 * (prior.variance[:, 0] - nystrom.diagonal()).sum() / noise  # Titsias 2009, Eq. 9
    assert abs(objective(x, y) + collapsed) < 5e-3


def test_it_may_exceed_the_log_evidence():
    x, y = regression(20)
    guide = guided(OneLayer(), x, y, InducingPoints(20))
    objective = ApproximateEP(20, 1.0)(guide.model, guide)
    for parameter in guide.model.parameters():
        parameter.requires_grad_(False)
    fit(objective, x, y, steps=800, learning_rate=0.02)
    evidence = guide.model.likelihood(guide.model.gp(x)).log_prob(y)
    assert -objective(x, y) > evidence + 0.5


def test_batches_are_weighted_as_the_whole():
    x, y = regression(20)
    guide = guided(DeepGP(x, width=1, kernel="rbf"), x, y)
    loss = ApproximateEP(20)
    whole = loss.differentiable_loss(guide.model, guide, x, y)
    parts = [loss.differentiable_loss(guide.model, guide, x[rows], y[rows]) for rows in (slice(0, 10), slice(10, 20))]
    torch.testing.assert_close(sum(parts) / 2, whole)


def test_samples_carry_the_cavity_too():
    x, y = regression(20)
    guide = guided(DeepGP(x, width=1, kernel="rbf"), x, y, propagation=MonteCarlo(4000))
    by_samples = energy(guide, x, y, 0.5)
    guide.propagation = MomentMatching()
    assert abs(by_samples - energy(guide, x, y, 0.5)) < 0.3


def test_function_values_at_a_plain_site_have_power_terms():
    x, y = regression(10)
    guide = guided(TwoSites(), x, y, propagation=MonteCarlo(200_000))
    plain = energy(guide, x, y, 0.5)
    joined = guided(OneLayer(), x, y)
    joined.load_state_dict(
        {k.replace("processes.f.", "processes.y/f."): v for k, v in guide.state_dict().items() if "processes" in k},
        strict=False,
    )
    assert abs(plain - energy(joined, x, y, 0.5)) < 0.05


@pytest.mark.parametrize(
    ("likelihood", "outputs", "target"),
    [
        (lambda: Bernoulli("probit"), 1, lambda x: (x[:, 0] > 0.3).to(x.dtype)),
        (lambda: RobustMax(3), 3, lambda x: (x[:, 0] > 0.3).long() + (x[:, 0] > 1.0).long()),
    ],
)
def test_classes_are_learned(likelihood, outputs, target):
    x, _ = regression(60)
    y = target(x)
    guide = guided(DeepGP(x, width=1, kernel="rbf", likelihood=likelihood(), outputs=outputs), x, y)
    result = fit(ApproximateEP(60)(guide.model, guide), x, y, steps=150, learning_rate=0.03)
    assert result.losses[-1] < 0.6 * result.losses[0]
    prediction = predict(guide, x)
    classes = prediction.probs.argmax(-1) if outputs > 1 else (prediction.mean > 0.5).to(y.dtype)
    assert (classes == y).double().mean() > 0.85


def test_the_softmax_has_no_powers():
    x, _ = regression(20)
    y = (x[:, 0] > 0).long()
    guide = guided(OneLayer(likelihood=Softmax(2), outputs=2), x, y)
    assert torch.isfinite(energy(guide, x, y, 1.0))
    with pytest.raises(ValueError, match="take RobustMax"):
        energy(guide, x, y, 0.5)


class TwoResponses(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.other, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        pyro.sample("y", self.likelihood(self.gp(x)), obs=y)
        pyro.sample("z", self.likelihood(self.other(x)), obs=y)


def test_what_has_no_energy_is_refused():
    x, y = regression(20)
    guide = guided(TwoResponses(), x, y)
    with pytest.raises(ValueError, match="one factor for each row, and the model observes 2 sites"):
        energy(guide, x, y, 1.0)
    guide = guided(OneLayer(), x, y, AmortizedInducingPoints(4))
    with pytest.raises(ValueError, match="has no cavity"):
        energy(guide, x, y, 1.0)
    guide = guided(OneLayer(), x, y, InducingPoints(4, "delta"))
    with pytest.raises(ValueError, match="point estimate"):
        energy(guide, x, y, 1.0)


def test_several_observations_of_a_row_are_one_factor():
    class Replicates(PyroModule):
        def __init__(self, in_plates):
            super().__init__()
            self.in_plates, self.gp = in_plates, GaussianProcess(RBF())

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            f = f.expand(*f.shape[:-1], 3)
            if not self.in_plates:
                return pyro.sample("y", dist.Normal(f, 0.1).to_event(2), obs=y)
            with pyro.plate("data", len(x), dim=-2), pyro.plate("replicates", 3, dim=-1):
                return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    x, y = regression(12)
    energies = []
    for in_plates in (True, False):
        torch.manual_seed(0)
        guide = guided(Replicates(in_plates), x, y.unsqueeze(-1).expand(-1, 3), propagation=MonteCarlo(2))
        torch.manual_seed(0)
        energies.append(float(energy(guide, x, y.unsqueeze(-1).expand(-1, 3), 0.5).detach()))
    assert energies[0] == pytest.approx(energies[1])


@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_without_any_target_are_refused(outputs):
    """They would be factors of one, and the shares of the others smaller: the energy would change with them."""
    x, y = torch.linspace(-1, 1, 8)[:, None], torch.randn(8, outputs).squeeze(-1)
    guide = guided(OneLayer(likelihood=MissingOutputs(Gaussian(outputs)), outputs=outputs), x, y)
    if outputs == 2:
        y[0, 0] = torch.nan  # the other output of the row has a target
        assert math.isfinite(float(energy(guide, x, y, 1.0).detach()))
    y[3] = torch.nan
    said = "2 rows of the site 'y' have no target: leave these rows out of x, y and num_data, or use ELBO"
    y[5] = torch.nan
    with pytest.raises(ValueError, match=said):
        energy(guide, x, y, 1.0)
    drawn = guided(TwoSites(MissingOutputs(Gaussian(outputs)), outputs), x, y, propagation=MonteCarlo(2))
    with pytest.raises(ValueError, match=said):
        energy(drawn, x, y, 1.0)


def test_the_power_may_be_changed_afterwards():
    x, y = regression(12)
    guide = guided(OneLayer(), x, y)
    changed = ApproximateEP(12, alpha=0.5)
    changed.alpha, changed.num_data = 1.0, 24
    found, wanted = (loss.differentiable_loss(guide.model, guide, x, y) for loss in (changed, ApproximateEP(24, 1.0)))
    torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize("alpha", [0.0, 1.5, "0.5"])
def test_the_power_lies_above_zero_and_is_at_most_one(alpha):
    with pytest.raises(ValueError, match=f"alpha is above 0 and at most 1, got {alpha!r}"):
        ApproximateEP(20, alpha)
