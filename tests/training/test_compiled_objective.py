"""Compiled training steps: the oracle is the objective as it is, from the same parameters and the same state of the generators."""

import copy
import itertools
import logging
import pickle
import re
import time
import weakref
from typing import Any, cast

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    CompiledObjective,
    DeepKernel,
    FeatureExtractor,
    FromFunction,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    HyperparameterPrior,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    SigmaPoints,
    Validation,
    Variational,
    WithMean,
    WithPrior,
    fit,
    fit_stream,
    fit_validated,
)
from pyro_dgp.internal import compiler, linalg
from pyro_dgp.internal.compiled_function import CHECKS
from pyro_dgp.internal.parameters import keep_parameters_local
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.priors import with_priors
from pyro_dgp.training.optimising import adam_for_networks
from tests.examples import OneLayer, TwoLayers, TwoSites, as_recorded, regression

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def real():
    """The graph goes through the compiler."""


@pytest.fixture(autouse=True)
def _as_recorded(request, monkeypatch):
    """The graph runs as it was recorded, in half the time, in all tests but those of the compiler."""
    if "real" not in request.fixturenames:
        monkeypatch.setattr(compiler, "compiled", as_recorded)


class Recorded(CompiledObjective):
    """Recorded, and run as it was recorded: nothing to wait for."""

    backend = "eager"


def objective_of(model, x, y, processes=None, propagation=None, loss=ELBO, **options):
    guide = Variational(model, processes or InducingPoints(6), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    return loss(len(x), **options)(model, guide)


def plain(x, y):
    return objective_of(OneLayer(), x, y)


def sampled(x, y):
    return objective_of(TwoLayers(x), x, y, propagation=MonteCarlo(10))


def three_layers(x, y):
    return objective_of(DeepGP(x, 3, 2), x, y)


def per_output(x, y):
    return objective_of(DeepGP(x, 2, 2, per_output=True), x, y, InducingPoints(6, "diagonal", per_output=True))


def sigma_points(x, y):
    processes = InducingPoints(6, "diagonal", hidden_scale=1.0)
    return objective_of(TwoLayers(x), x, y, processes, SigmaPoints("qr3", 4), PredictiveLogLikelihood)


def robust(x, y):
    return objective_of(OneLayer(), x, y, loss=GammaDivergence)


def amortized(x, y):
    return objective_of(TwoLayers(x), x, y, AmortizedInducingPoints(3), WithMean(SigmaPoints("qr3", 4)))


def priors(x, y):
    return objective_of(with_priors(DeepGP(x, 2, 2)), x, y)


def features(x, y):
    extractor = FeatureExtractor(x, 2)
    return objective_of(DeepKernel(extractor, TwoLayers(extractor(x).detach())), x, y)


def probit(x, y):
    return objective_of(TwoLayers(x, likelihood=Bernoulli()), x, y)


def logit(x, y):
    return objective_of(OneLayer(likelihood=Bernoulli("logit")), x, y)


def own_functions(x, y):
    model = TwoLayers(x)
    model.top.kernel = 2 * FromFunction(lambda x, z: (1 + x @ z.mT) ** 2) + RBF() + 0.5  # type: ignore[assignment]
    model.top.mean = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))  # type: ignore[assignment]
    return objective_of(model, x, y)


def exact(x, y):
    return MarginalLikelihood(OneLayer())


OBJECTIVES = [
    plain, sampled, three_layers, per_output, sigma_points, robust, amortized, priors, features, probit, logit, own_functions,
    exact,
]  # fmt: skip


def data(build, rows=20):
    x, y = regression(rows, 2)
    return x, (y > 0).to(y) if build in (probit, logit) else y


def outcome(objective, own, *args, seed=0):
    """Loss, gradients, and the generator's state afterwards."""
    torch.manual_seed(seed)
    loss = objective(*args)
    own.zero_grad()
    (3 * loss).backward()
    return [loss.detach(), torch.get_rng_state().double(), *(parameter.grad for parameter in own.parameters())]


def compare(compiled, x, y, seed=0, tolerance=1e-9):
    own = compiled.objective
    found, expected = outcome(compiled, own, x, y, seed=seed), outcome(own, own, x, y, seed=seed)
    assert [value is None for value in found] == [value is None for value in expected]
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def counted(objective):
    """How often the objective itself has run."""
    calls = []
    objective.register_forward_hook(lambda *_: calls.append(1))
    return calls


def programs(compiled):
    return [program for program, _ in compiled._programs.values() if program._compiled is not None]


def moved(objective, step=0.05):
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(step * torch.randn_like(parameter))


@pytest.mark.parametrize("build", OBJECTIVES, ids=lambda build: build.__name__)
def test_steps_are_those_of_the_objective(build, real):
    x, y = data(build)
    compiled = Recorded(build(x, y))
    for step in range(2 + CHECKS):
        compare(compiled, x, y, step, 1e-7 if build in (probit, logit) else 1e-9)  # integrals by other nodes
        moved(compiled.objective)
    calls = counted(compiled.objective)
    compiled(x, y)
    assert not calls and len(programs(compiled)) == 1


@pytest.mark.parametrize("build", [sampled, sigma_points, amortized, probit])
def test_steps_of_single_precision(build):
    torch.set_default_dtype(torch.float32)
    x, y = data(build)
    compiled = Recorded(build(x, y))
    for step in range(2 + CHECKS):
        compare(compiled, x, y, step, 1e-4)
        moved(compiled.objective, 0.01)
    assert len(programs(compiled)) == 1


def test_the_compiler_s_program_draws_the_same_numbers(real):
    """Once through the real compiler: two layers that are drawn, so that the order of draws counts too."""
    x, y = regression(12)
    compiled = CompiledObjective(objective_of(DeepGP(x, 3, 1), x, y, InducingPoints(4), MonteCarlo(10)))
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step, 1e-8)
        moved(compiled.objective)
    assert len(programs(compiled)) == 1


@pytest.fixture
def ready():
    """A program in use, its checks behind it, with data and the count of the objective's own runs from now on."""
    x, y = regression(20)
    compiled = Recorded(sampled(x, y))
    for _ in range(2 + CHECKS):
        compiled(x, y)
    return compiled, x, y, counted(compiled.objective)


def test_a_program_is_made_when_a_signature_comes_twice_in_a_row():
    x, y = regression(20)
    compiled = Recorded(plain(x, y))
    for rows in (20, 12, 20, 12, 20):
        compiled(x[:rows], y[:rows])
    assert not compiled._programs
    compiled(x, y)
    compiled(x[:12], y[:12])
    assert len(compiled._programs) == 1
    for _ in range(CHECKS):
        compiled(x, y)
    calls = counted(compiled.objective)
    compiled(x[:12], y[:12])
    compiled(x, y)
    assert len(calls) == 1


def test_another_batch_shape_another_state_and_other_values(ready):
    compiled, x, y, calls = ready
    for rows in (12, 12, 12, 20):
        compare(compiled, x[:rows], y[:rows])
    assert len(programs(compiled)) == 2
    other = sampled(x, y)
    moved(other, 0.3)
    compiled.objective.load_state_dict(other.state_dict())
    calls.clear()
    compare(compiled, x + 0.1, y - 0.1)
    assert len(calls) == 1  # the oracle


def test_keywords_are_arguments_too(ready):
    compiled, x, y, _ = ready
    for shift in (0.0, 1.0, 2.0):
        torch.manual_seed(0)
        found = compiled(x, y=y + shift)
        torch.manual_seed(0)
        torch.testing.assert_close(found, compiled.objective(x, y + shift))
    assert len(programs(compiled)) == 2


def test_parameters_that_are_replaced_or_resized(ready):
    compiled, x, y, _ = ready
    kernel = compiled.objective.model.hidden.kernel
    kernel.lengthscale_unconstrained = torch.nn.Parameter(kernel.lengthscale_unconstrained.detach() + 0.5)
    compare(compiled, x, y)
    guide = compiled.objective.guide
    guide._families = InducingPoints(3)
    guide.initialize(x, y)
    for step in range(3):
        compare(compiled, x, y, step)
        moved(compiled.objective)
    assert len(programs(compiled)) == 2


def test_modules_that_are_replaced():
    x, y = data(probit)
    compiled = Recorded(probit(x, y))
    for link in ("probit", "logit"):
        compiled.objective.model.likelihood = Bernoulli(link)
        for _ in range(3):
            compare(compiled, x, y, tolerance=1e-7)  # integrals by other nodes
    assert len(programs(compiled)) == 2


def test_frozen_parameters_get_no_gradient(ready):
    compiled, x, y, _ = ready
    model = compiled.objective.model.requires_grad_(False)
    for step in range(3):
        compare(compiled, x, y, step)
        moved(compiled.objective)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(programs(compiled)) == 2
    model.requires_grad_(True)
    compare(compiled, x, y)


def test_parameters_that_the_loss_does_not_use_get_no_gradient():
    x, y = regression(20)
    objective = plain(x, y)
    objective.model.spare = torch.nn.Parameter(torch.zeros(2))
    compiled = Recorded(objective)
    for _ in range(3):
        compare(compiled, x, y)
    assert objective.model.spare.grad is None and len(programs(compiled)) == 1


class Keeping(OneLayer):
    """Shifts by one buffer and counts in two others, in place and anew."""

    total: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x, y=None):
        self.count += 1
        self.total = self.total + x.sum()
        return super().forward(x + self.shift, y)


def test_buffers_may_change_outside_and_inside():
    x, y = regression(20)
    compiled = Recorded(objective_of(Keeping(), x, y))
    model = compiled.objective.model
    before, total = int(model.count), float(model.total)
    for step in range(3 + CHECKS):
        model.shift.fill_(0.3 * step)
        compare(compiled, x, y)
    assert int(model.count) == before + 2 * (3 + CHECKS)
    assert float(model.total) == pytest.approx(total + 2 * (3 + CHECKS) * float(x.sum()))
    assert len(programs(compiled)) == 1


class Scaled(OneLayer):
    """Divides by the largest input so far, in place or anew."""

    largest: torch.Tensor

    def __init__(self, anew):
        super().__init__()
        self.anew = anew
        self.register_buffer("largest", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x, y=None):
        seen = torch.maximum(self.largest, x.abs().max())
        if self.anew:
            self.largest = seen
        else:
            self.largest.copy_(seen)
        return super().forward(x / self.largest, y)


@pytest.mark.parametrize("anew", [False, True])
def test_a_buffer_that_keeps_its_value_at_first_may_change_later(anew):
    x, y = regression(20)
    compiled = Recorded(objective_of(Scaled(anew), x, y))
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step)
    assert compiled.objective.model.largest == 2
    compiled(5 * x, y)
    assert compiled.objective.model.largest == 5 * x.abs().max() > 2
    assert len(programs(compiled)) == 1


class Normed(OneLayer):
    """A network of spectral norm one."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(1, 2))

    def forward(self, x, y=None):
        return super().forward(self.net(x), y)


def test_a_power_iteration_that_has_converged_goes_on_in_a_program():
    x, y = regression(20)
    kept = []
    for wrap in (lambda objective: objective, Recorded):
        torch.manual_seed(0)
        normed = Normed()
        objective = wrap(objective_of(normed, x, y))
        fit(objective, x, y, steps=60, learning_rate=0.05)
        kept.append(float(torch.linalg.svdvals(normed.eval().net.weight.detach())[0]))
    assert kept == pytest.approx([1.0, 1.0], abs=1e-3)


class Dropping(OneLayer):
    def forward(self, x, y=None):
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training), y)


class Penalised(torch.nn.Module):
    """A user's own module around an objective."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return self.inner(*args) + 0.25


def test_training_and_evaluation_are_two_programs():
    x, y = regression(20)
    compiled = Recorded(objective_of(Dropping(), x, y))
    for training in (True, False, True):
        compiled.train(training)
        for step in range(3):
            compare(compiled, x, y, step)
    assert len(programs(compiled)) == 2


def alone(objective):
    return objective


def with_prior(objective):
    return WithPrior(objective, HyperparameterPrior(objective.model))


@pytest.mark.parametrize("wrapped", [alone, with_prior, Penalised])
def test_a_loss_whose_numbers_change(wrapped):
    """With a prior beside the loss, the program went on with the old numbers."""
    x, y = regression(20)
    compiled = Recorded(wrapped(sigma_points(x, y)))
    for beta in (0.05, 1.0):
        compiled.elbo.beta = beta
        for _ in range(3):
            compare(compiled, x, y)
    compiled.elbo.num_data = 200
    compare(compiled, x, y)
    assert len(programs(compiled)) == 2


def test_where_a_factor_needs_more_jitter_the_step_runs_as_it_is(monkeypatch):
    monkeypatch.setitem(linalg.DEFAULT_JITTER, torch.float64, 1e-17)
    x, y = regression(20)
    compiled = Recorded(sampled(x, y))
    for _ in range(2 + CHECKS):
        compiled(x, y)
    calls, points = (
        counted(compiled.objective),
        compiled.objective.guide.processes.h.basis.inducing_points_unconstrained,
    )
    spread = points.detach().clone()
    for together, its_own_runs in ((False, 0), (True, 1), (False, 0)):
        points.data = spread[:1].expand_as(spread).clone() if together else spread.clone()
        calls.clear()
        compiled(x, y)
        assert len(calls) == its_own_runs
        compare(compiled, x, y)


def test_without_gradients_and_inside_handlers_it_is_evaluated(ready):
    compiled, x, y, calls = ready
    torch.manual_seed(0)
    with torch.no_grad():
        loss = compiled(x, y)
    torch.manual_seed(0)
    assert not loss.requires_grad and len(calls) == 1
    torch.testing.assert_close(loss, compiled(x, y).detach())
    compiled = Recorded(objective_of(TwoSites(), x, y))
    loss = compiled(x, y).detach()
    torch.manual_seed(0)
    with poutine.scale(scale=2.0):
        scaled = compiled(x, y)
    torch.manual_seed(0)
    with poutine.scale(scale=2.0):
        torch.testing.assert_close(scaled, compiled.objective(x, y))
    assert float(scaled.detach()) != pytest.approx(float(loss))


def test_targets_that_the_likelihood_refuses_are_refused():
    x, y = data(probit)
    compiled = Recorded(probit(x, y))
    for _ in range(2 + CHECKS):
        compiled(x, y)
    y[3] = 2.0
    with pytest.raises(ValueError, match="values other than 0 and 1"):
        compiled(x, y)


def test_gradients_have_no_gradients(ready):
    compiled, x, y, _ = ready
    parameter = next(compiled.parameters())
    (gradient,) = torch.autograd.grad(compiled(x, y).square(), parameter, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_nothing_reaches_the_global_store():
    x, y = regression(20)
    objective = plain(x, y)
    pyro.settings.set(module_local_params=False)
    compiled = Recorded(objective)
    for _ in range(3):
        compiled(x, y)
    assert len(programs(compiled)) == 1 and len(pyro.get_param_store()) == 0


# -- where there is no program --------------------------------------------------------------------------------------


def said(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


class LooksAtNumbers(OneLayer):
    def forward(self, x, y=None):
        return super().forward(2 * x if self.gp.kernel.lengthscale > 1 else x, y)


class Freezes(OneLayer):
    def forward(self, x, y=None):
        return super().forward(x * float(self.likelihood.variance.detach().numpy()), y)


class Grows(OneLayer):
    seen: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x, y=None):
        self.seen = torch.cat([self.seen, x.sum().reshape(1)])
        return super().forward(x, y)


def no_compiler(graph, inputs):
    raise RuntimeError("there is no compiler\nnor anything else")


def wrong(graph, inputs):
    return lambda *values: tuple(r + 1 if r.is_floating_point() else r for r in graph(*values))


def other_draws(graph, inputs):
    def run(*values):
        torch.rand(1)
        return graph(*values)

    return run


@pytest.mark.parametrize(
    "model, backend, why",
    [
        (LooksAtNumbers, "eager", "get value out of a tracing tensor"),
        (Freezes, "eager", "a part of it gives values to Python or NumPy"),
        (OneLayer, staticmethod(no_compiler), "there is no compiler"),
        (OneLayer, staticmethod(wrong), "the program gives other numbers"),
        (OneLayer, staticmethod(other_draws), "the program gives other numbers"),
    ],
)
def test_what_has_no_program_runs_as_it_is_and_a_word_is_said(caplog, model, backend, why):
    x, y = regression(20)
    compiled = type("Of", (CompiledObjective,), {"backend": backend})(objective_of(model(), x, y))
    caplog.clear()
    for step in range(4):
        compare(compiled, x, y, step)
        moved(compiled.objective)
    (message,) = said(caplog)
    assert message.startswith("the loss is not compiled, the model runs as it is: ") and why in message
    assert "\n" not in message and not programs(compiled)


class Waits(OneLayer):
    """A model that takes so many seconds."""

    seconds = 0.0

    def forward(self, x, y=None):
        time.sleep(self.seconds)
        return super().forward(x, y)


@pytest.mark.usefixtures("timed_programs")
@pytest.mark.parametrize("wait_of_model, wait_of_program, kept", [(0.2, 0.0, True), (0.0, 0.2, False)])
def test_a_program_that_takes_longer_is_set_aside(caplog, monkeypatch, wait_of_model, wait_of_program, kept):
    def slowed(graph, points, backend):
        def program(*points):
            time.sleep(wait_of_program)
            return graph(*points)

        return program

    monkeypatch.setattr(compiler, "compiled", slowed)
    monkeypatch.setattr(Waits, "seconds", wait_of_model)
    x, y = regression(20)
    compiled = CompiledObjective(objective_of(Waits(), x, y))
    caplog.clear()
    for step in range(CHECKS + 3):
        compare(compiled, x, y, step)
        assert step in (0, CHECKS, CHECKS + 1, CHECKS + 2) or programs(compiled)
    assert bool(programs(compiled)) == kept
    assert kept or re.search(r"the program takes 2\d\d\.\d ms, and the model as it is \d+\.\d$", *said(caplog))


def test_buffers_that_change_their_shape_are_left_to_the_model(caplog):
    x, y = regression(20)
    compiled = Recorded(objective_of(Grows(), x, y))
    for _ in range(3):
        compiled.objective.model.seen = torch.zeros(0)
        compiled(x, y)
        assert len(compiled.objective.model.seen) == 1
    assert said(caplog)[0].endswith("the buffer 'model.seen' changes its shape or dtype")


class Optional(OneLayer):
    def forward(self, x, y=None, how=None):
        return super().forward(x, y)


def test_other_arguments_go_by_value(caplog):
    x, y = regression(20)
    compiled = Recorded(objective_of(Optional(), x, y))
    for how in ("a", "a", "b", 1, 1, True, (2, None), (2, None)):
        compiled(x, y, how)
    assert len(programs(compiled)) == 3 and not said(caplog)
    for _ in range(3):
        compiled(x, y, object())
    assert said(caplog) == [
        "the loss is not compiled, the model runs as it is: the call holds a object (2), and only values such as numbers and "
        "strings can be compared"
    ]


def test_gradients_of_arguments_are_those_of_the_objective(caplog, ready):
    compiled, x, y, _ = ready
    x = x.clone().requires_grad_()
    compiled(x, y).backward()
    assert x.grad is not None
    assert said(caplog) == ["the loss is not compiled, the model runs as it is: an argument wants gradients"]


def test_parameters_of_modules_that_are_not_its_own_get_their_gradients(caplog):
    x, y = regression(20)
    hidden = OneLayer()
    named = weakref.ref(hidden)  # a module that nothing names
    keep_parameters_local(hidden)
    guide = Variational(lambda x, y=None: cast(OneLayer, named())(x, y), InducingPoints(5), MonteCarlo(1))
    with pytest.warns(UserWarning, match="or has it where it is not found"):
        guide.initialize(x, y)
    compiled = Recorded(ELBO(20)(guide.model, guide))
    for _ in range(3):
        hidden.zero_grad()
        compiled(x, y).backward()
        assert all(parameter.grad is not None for parameter in hidden.parameters())
    (message,) = said(caplog)
    assert message.endswith("it uses parameters that are none of its own modules'")


def test_a_loss_is_no_objective():
    with pytest.raises(TypeError, match="not ELBO: call the loss on both"):
        CompiledObjective(ELBO(10))


def test_it_is_copied_and_pickled_without_its_programs(ready):
    compiled, x, y, _ = ready
    compiled.objective._forward_hooks.clear()
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert compiled._programs and not other._programs
        for _ in range(3):
            compare(other, x, y)
        assert len(programs(other)) == 1


# -- training -------------------------------------------------------------------------------------------------------


def states(objective):
    return [parameter.detach().clone() for parameter in objective.parameters()]


@pytest.mark.parametrize("build", [sampled, features, exact])
def test_training_takes_the_same_course(build):
    x, y = data(build, 30)
    objective = build(x, y)
    twin = copy.deepcopy(objective)
    batch = 30 if build is exact else 10
    results = []
    for one in (Recorded(objective), twin):
        torch.manual_seed(0)
        results.append(fit(one, x, y, steps=20, batch_size=batch, optimizer=adam_for_networks))
    np.testing.assert_allclose(results[0].losses, results[1].losses, rtol=1e-9)
    torch.testing.assert_close(states(objective), states(twin), rtol=1e-7, atol=1e-9)


def test_training_on_a_stream_takes_the_same_course(tmp_path):
    x, y = regression(40)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", 10)
    objective = plain(x, y)
    compiled = Recorded(copy.deepcopy(objective))
    first, second = (fit_stream(one, stream, steps=10, batch_size=10) for one in (compiled, objective))
    np.testing.assert_allclose(first.losses, second.losses, rtol=1e-9)
    assert len(programs(compiled)) == 1


def test_batches_of_another_number_of_rows_are_refused_as_ever():
    x, y = regression(30)
    with pytest.raises(ValueError, match="the loss has num_data=30 and there are 20 rows"):
        fit(Recorded(plain(x, y)), x[:20], y[:20], steps=1)


def test_validated_training_takes_a_compiled_objective():
    x, y = regression(40)
    made = []

    def loss(beta, rows):
        def objective(model, guide):
            made.append(Recorded(PredictiveLogLikelihood(rows, beta)(model, guide)))
            return made[-1]

        return objective

    results = []
    for kind in (loss, lambda beta, rows: PredictiveLogLikelihood(rows, beta)):
        torch.manual_seed(0)
        guide = Variational(OneLayer(), InducingPoints(5, "diagonal"), MonteCarlo(1))
        validation = Validation(betas=(0.05, 1.0), checks=2, folds=1)
        results.append(fit_validated(guide, kind, x, y, steps=12, validation=validation))
    assert results[0].beta == results[1].beta
    assert results[0].validation_nll == pytest.approx(results[1].validation_nll, rel=1e-8)
    assert len(made) == 3 and all(len(programs(one)) == 1 for one in made)


class Normalised(OneLayer):
    """Batch statistics are buffers that change without a word."""

    def __init__(self):
        super().__init__()
        self.normalise = PyroModule[torch.nn.BatchNorm1d](1)

    def forward(self, x, y=None):
        return super().forward(self.normalise(x), y)


def test_batch_statistics_are_kept():
    x, y = regression(40)
    x = 3 + 5 * x
    kept = []
    for wrap in (lambda objective: objective, Recorded):
        torch.manual_seed(0)
        objective = wrap(objective_of(Normalised(), x, y))
        fit(objective, x, y, steps=30, batch_size=10)
        model = (objective.objective if wrap is Recorded else objective).model
        kept.append((model.normalise.running_mean, model.normalise.running_var, model.normalise.num_batches_tracked))
    torch.testing.assert_close(kept[0], kept[1])
    assert abs(float(kept[0][0]) - float(x.mean())) < 1


class Counts(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Poisson(f[..., 0].exp()), obs=y)


def test_targets_outside_the_support_of_the_user_s_own_distribution_are_refused_by_a_program_too():
    x, y = regression(20)
    y = y.abs().round()
    compiled = Recorded(objective_of(Counts(), x, y))
    for _ in range(3 + CHECKS):
        compiled(x, y)
    assert len(programs(compiled)) == 1
    with pytest.raises(ValueError, match="support"):
        compiled(x, y - 3.5)


def test_numbers_of_modules_are_part_of_the_signature():
    x, y = regression(20)
    compiled = Recorded(objective_of(OneLayer(), x, y))
    for jitter in (None, 1e-2, None):
        compiled.objective.model.gp.jitter = jitter
        for step in range(3):
            compare(compiled, x, y, step)
    assert len(programs(compiled)) == 2


class Holding(OneLayer):
    """A layer whose inputs are moved by numbers that are neither parameters nor buffers."""

    def __init__(self):
        super().__init__()
        self.shift, self.factors, self.options = torch.tensor(0.5), (1.0,), {"power": [1.0]}
        self.array, self.number = np.array([0.25]), np.float64(0.5)
        self.writes, self.last, self.numbers = False, None, itertools.count()

    def forward(self, x, y=None):
        moved = self.factors[0] * x * self.options["power"][0] + self.shift + torch.as_tensor(self.array) + self.number
        if self.writes:
            self.last = torch.tensor(float(next(self.numbers)))
        return super().forward(moved, y)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "shift", torch.tensor(2.0)),
        lambda model: model.shift.fill_(0.1),
        lambda model: setattr(model, "factors", (3.0,)),
        lambda model: model.options["power"].__setitem__(0, -1.0),
        lambda model: model.array.__setitem__(0, 2.0),
        lambda model: setattr(model, "number", np.float64(2.0)),
    ],
    ids=["assigned", "in place", "tuple", "list in a dictionary", "array", "number of NumPy"],
)
def test_what_modules_hold_is_part_of_the_signature(change):
    x, y = regression(20)
    compiled = Recorded(objective_of(Holding(), x, y))
    moved(compiled.objective)
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step)
    before = float(compiled(x, y).detach())
    change(compiled.objective.model)
    for step in range(3):
        compare(compiled, x, y, step)
    assert float(compiled(x, y).detach()) != pytest.approx(before, rel=1e-3)
    assert len(programs(compiled)) == 2


def test_a_model_that_assigns_a_tensor_in_every_call_runs_uncompiled_and_says_so(caplog):
    x, y = regression(20)
    model = Holding()
    model.writes = True
    compiled = Recorded(objective_of(model, x, y))
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step)
    assert not programs(compiled)
    (said,) = [record.getMessage() for record in caplog.records if "another value" in record.getMessage()]
    assert "'last' of Holding is another value in each call" in said


class Computed(OneLayer):
    """Weights that a module holds in a list beside its parameters, or computes from them; and numbers of other kinds."""

    def __init__(self, kind):
        super().__init__()
        self.line, self.kind = torch.nn.Linear(1, 1).double(), kind
        self.held: Any = None
        if kind == "list":
            self.held = [self.line.weight, self.line.bias]
        elif kind == "normed":
            torch.nn.utils.parametrizations.weight_norm(self.line)
        elif kind == "recursive":
            self.held = {}
            self.held["itself"] = [self.held]
        elif kind == "nan":
            self.held = [np.float64("nan"), float("nan")]
        elif kind == "data":
            self.held = torch.ones(1)

    def forward(self, x, y=None):
        moved = self.line(x)
        return super().forward(moved * self.held if self.kind == "data" else moved, y)


@pytest.mark.parametrize("kind", ["list", "normed", "recursive", "nan"])
def test_what_is_computed_from_parameters_and_what_cannot_be_compared_does_not_keep_a_model_from_its_program(kind):
    x, y = regression(20)
    compiled = Recorded(objective_of(Computed(kind), x, y))
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step)
        moved(compiled.objective)
    assert len(programs(compiled)) == 1


def test_a_change_past_autograd_is_seen():
    x, y = regression(20)
    compiled = Recorded(objective_of(Computed("data"), x, y))
    moved(compiled.objective)
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step, tolerance=1e-7)
    compiled.objective.model.held.data.fill_(3.0)
    for step in range(3):
        compare(compiled, x, y, step, tolerance=1e-7)
    assert len(programs(compiled)) == 2


class Seen(OneLayer):
    """As many rows as are finite: sizes that follow values."""

    def forward(self, x, y=None):
        keep = torch.isfinite(x[:, 0] / (x[:, 0] > -3))
        return super().forward(x[keep], None if y is None else y[keep])


def test_sizes_that_follow_values_set_the_program_aside(caplog):
    x, y = regression(20)
    compiled = Recorded(objective_of(Seen(), x, y))
    for step in range(3 + CHECKS):
        compare(compiled, x, y, step)
    other = x.clone()
    other[:5] = -9.0
    compare(compiled, other, y)
    compare(compiled, x, y)
    assert "is not compiled" in caplog.text


class OfOneKernel(PyroModule):
    """Two outputs whose functions share a kernel, which has two names."""

    def __init__(self):
        super().__init__()
        kernel = RBF()
        self.first, self.second = GaussianProcess(kernel), GaussianProcess(kernel)
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        for number, gp in enumerate((self.first, self.second)):
            pyro.sample(f"y{number}", self.likelihood(gp(x)), obs=None if y is None else y[:, number])


class OfTiedWeights(OneLayer):
    """A model with two networks of one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(1, 1).double(), torch.nn.Linear(1, 1).double()
        self.other.weight = self.one.weight
        self.normed = torch.nn.BatchNorm1d(1).double()
        self.twice = torch.nn.Sequential(self.normed, torch.nn.Tanh(), self.normed)

    def forward(self, x, y=None):
        return super().forward(self.twice(self.one(x)) + self.other(x), y)


@pytest.mark.parametrize("build", [OfOneKernel, OfTiedWeights])
def test_modules_with_two_names_and_tied_weights_are_trained(build):
    x, y = regression(20)
    losses, found = [], []
    for wrap in (lambda objective: objective, Recorded):
        torch.manual_seed(0)
        model = build()
        own = list(model.parameters())
        objective = MarginalLikelihood(model)
        targets = torch.stack([y, -y], -1) if build is OfOneKernel else y
        losses.append(fit(wrap(objective), x, targets, steps=8, learning_rate=0.05).losses)
        assert all(one is other for one, other in zip(own, model.parameters(), strict=True))
        found.append([value.clone() for value in model.state_dict().values()])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
