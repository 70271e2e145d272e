"""The collapsed bound of deep models against the ELBO at its best q(v), of a part of the rows against copies of them, fits, and refusals."""

import copy

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    AmortizedInducingPoints,
    CollapsedELBO,
    CompiledObjective,
    DeepGP,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    HyperparameterPrior,
    InducingPoints,
    LinearMean,
    Matern52,
    MomentMatching,
    MonteCarlo,
    NumpyStream,
    SigmaPoints,
    SufficientStatistics,
    Variational,
    WithMean,
    WithPrior,
    fit,
    fit_collapsed,
    fit_lbfgs,
    fit_stream,
    fit_validated,
    module_local_parameters,
    predict,
)

pytestmark = pytest.mark.usefixtures("local")


def data(rows=30, outputs=1):
    torch.manual_seed(0)
    x = torch.rand(rows, 2)
    f = torch.sin(6 * x[:, 0]) + x[:, 1]
    y = torch.stack([(d + 1) * f + 0.2 * torch.randn(rows) for d in range(outputs)], -1)
    return x, y[:, 0] if outputs == 1 else y


def guided(model, family, x, y, propagation, **arguments):
    guide = Variational(model, family, propagation)
    guide.initialize(x, y, **arguments)
    torch.manual_seed(1)
    with torch.no_grad():
        for process in guide.processes.children():
            if hasattr(process, "q"):
                process.q.mean = process.q.mean + 0.3 * torch.randn_like(process.q.mean)
    return guide


class Skipping(PyroModule):
    """Two hidden functions, of which the second sees the first, under a GP of both and the inputs, with means and an argument of the rows."""

    def __init__(self, outputs=1):
        super().__init__()
        self.first = GaussianProcess(Matern52(2), num_outputs=2, mean=LinearMean(2, 2))
        self.second = GaussianProcess(Matern52(2))
        self.top = GaussianProcess(Matern52(5), num_outputs=outputs, mean=LinearMean(5, outputs))
        self.likelihood = Gaussian(outputs, variance=0.2)

    def forward(self, x, y=None, shift=0.0):
        h = pyro.sample("h", self.first(x + shift))
        g = pyro.sample("g", self.second(h))
        return pyro.sample("y", self.likelihood(self.top(torch.cat([h, g.tanh(), x.expand(*h.shape)], -1))), obs=y)


class InPlate(Skipping):
    """The same for two groups, each with functions of its own."""

    def forward(self, x, y=None):
        with pyro.plate("groups", 2):
            h = pyro.sample("h", self.first(x).expand([2]))
            g = pyro.sample("g", self.second(h))
            return pyro.sample("y", self.likelihood(self.top(torch.cat([h, g.tanh(), x.expand(*h.shape)], -1))), obs=y)


POINTS, EACH = InducingPoints(5), InducingPoints(5, per_output=True)
CASES = [
    (lambda x: DeepGP(x, 2, 2), POINTS, 1),
    (lambda x: DeepGP(x, 3, 2, per_output=True, mean=LinearMean.fit), EACH, 1),
    (lambda x: Skipping(2), {"h": POINTS, "g": InducingPoints(4, "diagonal"), "y": POINTS}, 2),
    (lambda x: Skipping(), {"h": POINTS, "g": AmortizedInducingPoints(3), "y": POINTS}, 1),
]


def check_against_elbo(guide, x, y, **arguments):
    """Value and gradients of the bound are those of the ELBO with the same components at the q(v) that is set, where this has no gradient."""
    objective, elbo = CollapsedELBO(guide), ELBO(len(x))(guide.model, guide)
    torch.manual_seed(5)
    objective.settle(x, y, **arguments)
    top = list(guide.processes.children())[-1]
    of_q = {id(parameter) for parameter in top.q.parameters()}
    others = [parameter for parameter in elbo.parameters() if id(parameter) not in of_q]
    with module_local_parameters(objective):
        torch.manual_seed(5)
        bound = objective(x, y, **arguments)
        torch.manual_seed(5)
        wanted = elbo(x, y, **arguments)
        torch.testing.assert_close(bound, wanted, rtol=1e-9, atol=0)
        for gradient in torch.autograd.grad(wanted, list(top.q.parameters()), retain_graph=True):
            assert float(gradient.abs().max()) < 1e-5
        found, expected = (torch.autograd.grad(value, others, allow_unused=True) for value in (bound, wanted))
    assert sum(one is not None and float(one.abs().max()) > 1e-4 for one in found) > 8
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("propagation", [MonteCarlo(10), SigmaPoints("qr3", 4)], ids=["draws", "sigma points"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_bound_and_gradients_are_those_of_the_elbo_at_the_best_q(case, propagation):
    build, family, outputs = CASES[case]
    x, y = data(outputs=outputs)
    model = build(x)
    if case == 3:
        propagation = WithMean(propagation)
    arguments = {"shift": 0.3} if isinstance(model, Skipping) else {}
    check_against_elbo(guided(model, family, x, y, propagation, **arguments), x, y, **arguments)


@pytest.mark.parametrize("propagation", [MonteCarlo(10), SigmaPoints("qr3", 4)], ids=["draws", "sigma points"])
def test_groups_have_bounds_of_their_own(propagation):
    x, y = data(20)
    both = torch.stack([y, 2 * y - 1])
    check_against_elbo(guided(InPlate(), POINTS, x, both, propagation), x, both)


@pytest.mark.parametrize("layers", [1, 2])
def test_rows_of_a_step_stand_for_all(layers):
    x, y = data(20)
    guide = guided(DeepGP(x, layers, 2), POINTS, x, y, SigmaPoints("qr3", 4))
    three = torch.cat([x] * 3), torch.cat([y] * 3)
    with torch.no_grad(), module_local_parameters(guide.model, guide):
        bound = CollapsedELBO(guide, num_data=60)(x, y)
        torch.testing.assert_close(bound, CollapsedELBO(guide)(*three), rtol=1e-10, atol=0)
        assert float((bound - CollapsedELBO(guide)(x, y)).abs()) > 1
    CollapsedELBO(guide, num_data=60).settle(*three)  # with all rows
    with torch.no_grad(), module_local_parameters(guide.model, guide):
        torch.testing.assert_close(ELBO(60)(guide.model, guide)(*three), bound, rtol=1e-9, atol=0)
    for number in (0, 2.5, "3"):
        with pytest.raises((ValueError, TypeError), match="num_data"):
            CollapsedELBO(guide, num_data=number)
    with pytest.raises(ValueError, match="a step has 9 of 60 rows, and the best q.v. of 5 coefficients"):
        CollapsedELBO(guide, num_data=60)(x[:9], y[:9])
    with pytest.raises(ValueError, match=r"the loss has num_data=60 and there are 20 rows"):
        fit(CollapsedELBO(guide, num_data=60), x, y, steps=1)


def test_few_steps_do_what_many_of_the_elbo_do():
    x, y = data(150)
    ends = []
    for quick in (True, False):
        torch.manual_seed(0)
        guide = Variational(DeepGP(x, 2, 2), InducingPoints(20), MonteCarlo(1))
        guide.initialize(x, y)
        if quick:
            result = fit_collapsed(guide, (x, y), steps=80)
            assert len(result.losses) == 80 and result.losses[-1] < result.losses[0]
        else:
            fit(ELBO(150)(guide.model, guide), x, y, steps=160, batch_size=150, learning_rate=0.05)
        guide.propagation = MonteCarlo(30)
        with torch.no_grad(), module_local_parameters(guide.model, guide):
            ends.append(float(ELBO(150)(guide.model, guide)(x, y)) / 150)
    assert ends[0] < ends[1] - 0.03
    new = torch.rand(200, 2)
    found = []
    for rows in (None, 60):
        torch.manual_seed(0)
        guide = Variational(DeepGP(x, 2, 2), InducingPoints(20), MonteCarlo(1))
        guide.initialize(x, y)
        fit_collapsed(guide, (x, y), steps=60, batch_size=rows)
        truth = torch.sin(6 * new[:, 0]) + new[:, 1]
        found.append(float((predict(guide, new).mean - truth).square().mean().sqrt()))
    assert max(found) < 0.15 and found[0] != found[1]


def test_runs_repeat_and_single_precision_works():
    x, y = data(60)
    ends = []
    for dtype in (torch.float64, torch.float64, torch.float32):
        pyro.set_rng_seed(0)
        guide = Variational(DeepGP(x, 2, 2).to(dtype), InducingPoints(8), MonteCarlo(2))
        guide.initialize(x.to(dtype), y.to(dtype))
        result = fit_collapsed(guide, (x.to(dtype), y.to(dtype)), steps=20, seed=3)
        ends.append(result.losses[-1])
        again = copy.deepcopy(guide)
        assert predict(again, x.to(dtype)).mean.dtype == dtype
    assert ends[0] == ends[1]
    assert ends[2] == pytest.approx(ends[0], abs=0.2)


class WithLatent(Skipping):
    def forward(self, x, y=None):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()), torch.ones(())))
        return super().forward(x, y, shift)


class ObservedTwice(Skipping):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.first(x))
        pyro.sample("z", dist.Normal(h, 1.0).to_event(2), obs=torch.zeros_like(h))
        return (
            super(Skipping, self).forward(x, y)
            if y is None
            else pyro.sample("y", self.likelihood(self.top(torch.cat([h, h[..., :1], x.expand(*h.shape)], -1))), obs=y)
        )


class Tempered(Skipping):
    def forward(self, x, y=None):
        with pyro.poutine.scale(scale=0.5):
            return super().forward(x, y)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (WithLatent, "the sites 'shift', 'h', 'g', 'y': train by ELBO"),
        (ObservedTwice, "the sites 'h', 'z', 'y': train by ELBO"),
        (Tempered, "scale"),
    ],
)
def test_other_sites_and_scales_are_refused(model, match):
    x, y = data(20)
    guide = Variational(model(), POINTS, MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=match):
        fit_collapsed(guide, (x, y))


def test_draws_are_no_objective_of_lbfgs_and_hidden_layers_none_of_sums():
    x, y = data(20)
    guide = guided(DeepGP(x, 2, 2), POINTS, x, y, MonteCarlo(1))
    with pytest.raises(ValueError, match="draws random numbers"):
        fit_lbfgs(CollapsedELBO(guide), x, y)
    deep = guided(DeepGP(x, 2, 2, kernel="matern52-additive"), FourierFeatures(3), x, y, MonteCarlo(1))
    with pytest.raises(ValueError, match="the hidden layers h1: take CollapsedELBO"):
        SufficientStatistics.of(deep, [(x, y)])
    fit_collapsed(deep, (x, y), steps=2)
    with pytest.raises(ValueError, match="full covariance"):
        fit_collapsed(guided(DeepGP(x, 2, 2), InducingPoints(5, "diagonal"), x, y, MonteCarlo(1)), (x, y))


def test_moments_in_the_place_of_values_are_refused():
    x, y = data(20)
    guide = guided(DeepGP(x, 2, 2, kernel="rbf"), POINTS, x, y, MomentMatching())
    with pytest.raises(ValueError, match="MomentMatching carries moments: give the guide"):
        fit_collapsed(guide, (x, y))
    one = guided(DeepGP(x, 1, kernel="rbf"), POINTS, x, y, MomentMatching())
    assert fit_collapsed(one, (x, y), steps=4).losses


def test_one_row_more_than_a_step_has_does_not_make_a_step_of_its_own(monkeypatch):
    x, y = data(101)
    seen = []
    forward = CollapsedELBO.forward

    def counting(self, x, y, **arguments):
        seen.append(len(x))
        return forward(self, x, y, **arguments)

    monkeypatch.setattr(CollapsedELBO, "forward", counting)
    guide = guided(DeepGP(x, 2, 2), POINTS, x, y, MonteCarlo(1))
    fit_collapsed(guide, (x, y), steps=4, batch_size=50)
    assert len(seen) == 4 and set(seen) == {33, 34}
    for rows in (0, 2.5):
        with pytest.raises((ValueError, TypeError), match="batch_size"):
            fit_collapsed(guide, (x, y), batch_size=rows)


class Centred(PyroModule):
    """A hidden function that is summed over the rows."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(Matern52(2), num_outputs=2), GaussianProcess(Matern52(2))
        self.likelihood = Gaussian(variance=0.2)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h.cumsum(-2))), obs=y)


def test_models_that_join_rows_have_all_of_them_in_a_step(tmp_path):
    x, y = data(20)
    guide = guided(Centred(), POINTS, x, y, MonteCarlo(1))
    with pytest.raises(ValueError, match="num_data=20 cannot weight the 10 rows of a step"):
        CollapsedELBO(guide, num_data=20)(x[:10], y[:10])
    assert len(fit_collapsed(guide, (x, y), steps=2, batch_size=10).losses) == 2


class Recorded(CompiledObjective):
    """Recorded, and run as it was recorded: nothing to wait for."""

    backend = "eager"


def test_training_that_would_leave_q_unset_is_refused(tmp_path):
    x, y = data(40)
    guide = guided(DeepGP(x, 2, 2), POINTS, x, y, MonteCarlo(1))
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match="CollapsedELBO sets q.v. by all rows at the end"):
        fit_stream(CollapsedELBO(guide, num_data=40), stream, steps=2, batch_size=20)
    with pytest.raises(ValueError, match="held-out rows are scored on the way"):
        fit_validated(guide, lambda beta, rows: lambda model, guide: CollapsedELBO(guide, rows), x, y, steps=4)
    q = guide.processes.get_submodule("y/f").q
    before = q.mean.detach().clone()
    objective = Recorded(WithPrior(CollapsedELBO(guide), HyperparameterPrior(guide.model)))
    fit(objective, x, y, steps=2)
    assert not torch.equal(q.mean.detach(), before)
    kinds = {type(each) for part in guide.model.modules() for each in part._parameters.values()}
    assert kinds == {torch.nn.Parameter}  # a parameter under two names would be left as what stood for it
    with pytest.raises(ValueError, match="the loss has num_data=999"):
        fit(WithPrior(ELBO(999)(guide.model, guide), HyperparameterPrior(guide.model)), x, y, steps=1)
