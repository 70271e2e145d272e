"""Modules beside Pyro's global store of parameters."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.contrib.gp import kernels as stock_kernels
from pyro.contrib.gp.models import GPRegression
from pyro.distributions import constraints
from pyro.infer import NUTS, SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    DeepGP,
    DeepKernel,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    Variational,
    draw_functions,
    fit,
    module_local_parameters,
    predict,
    run_chains,
    whitened,
)

X = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
Y = torch.sin(3 * X[:, 0])


def model(variance):
    made = DeepGP(X, layers=1).to(X)
    made.likelihood.variance = variance
    return made


def number(value):
    return float(value.detach())


def test_in_plain_calls_each_object_has_its_own_values():
    first, second = RBF(), RBF()
    second.lengthscale = 0.1
    first(), second(), first()
    louder, fresh = model(0.5), model(0.1)
    louder(X), fresh(X), copy.deepcopy(louder)(X)
    assert [number(kernel.lengthscale) for kernel in (first, second)] == pytest.approx([1.0, 0.1])
    assert [number(each.likelihood.variance) for each in (louder, fresh)] == pytest.approx([0.5, 0.1])
    assert number(pyro.param("likelihood.variance")) == pytest.approx(0.5)  # the first stands in the store, as in Pyro


def test_the_values_of_a_plain_call_beside_another_object_carry_gradients():
    RBF()()
    second = RBF()
    second.lengthscale = 0.1
    second().matrix(X.float()[None]).sum().backward()
    assert float(second.lengthscale_unconstrained.grad.abs()) > 0


def test_what_another_object_put_into_the_store_is_refused_also_after_that_object_is_gone():
    louder, fresh = model(0.5), model(0.1)
    poutine.trace(louder).get_trace(X)
    assert "likelihood.variance" in pyro.get_param_store()
    del louder
    gc.collect()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"holds another object's '.*', whose values .*: call pyro.clear_param_store\(\) first"
        ):
            poutine.trace(fresh).get_trace(X)
        assert number(fresh.likelihood.variance) == pytest.approx(0.1)
    with module_local_parameters(fresh):
        fresh(X)
    pyro.clear_param_store()
    poutine.trace(fresh).get_trace(X)
    assert number(pyro.param("likelihood.variance")) == pytest.approx(0.1)


class Parts(PyroModule):
    """Kernels by name; the call reads those that it is asked for."""

    def __init__(self):
        super().__init__()
        self.a, self.b = RBF(), RBF()

    def forward(self, names):
        return [getattr(self, name)() for name in names]


def test_a_refused_call_leaves_nothing_in_the_store():
    first, second = Parts(), Parts()
    poutine.trace(first).get_trace("a")
    with pytest.raises(ValueError, match="another object's 'a."):
        poutine.trace(second).get_trace("ba")
    assert {name.partition(".")[0] for name in pyro.get_param_store()} == {"a"}
    poutine.trace(first).get_trace("b")


def test_a_network_beside_another_of_its_names_is_refused():
    """Stock SVI would train the other one's weights in its place."""
    extractor = torch.nn.Linear(1, 1).double()
    made = [DeepKernel(copy.deepcopy(extractor), DeepGP(X, layers=1).to(X)) for _ in range(2)]
    poutine.trace(made[0]).get_trace(X)
    with pytest.raises(ValueError, match="holds another object's 'extractor"):
        poutine.trace(made[1]).get_trace(X)


def test_parts_of_a_stock_module_are_refused_too():
    class Stock(PyroModule):
        def __init__(self):
            super().__init__()
            self.kernel = RBF()

        def forward(self):
            return self.kernel()

    first, second = Stock(), Stock()
    second.kernel.variance = 3.0
    assert [number(stock().diagonal(X.float()[None]).max()) for stock in (first, second)] == pytest.approx([1.0, 3.0])
    with pytest.raises(
        ValueError, match="holds another object's 'kernel.variance'|holds another object's 'kernel.lengthscale'"
    ):
        poutine.trace(second).get_trace()


def test_values_that_were_loaded_into_the_store_are_taken_over_by_the_first_object(tmp_path):
    poutine.trace(model(0.5)).get_trace(X)
    for run in (lambda each: each(X), lambda each: poutine.trace(each).get_trace(X)):
        pyro.get_param_store().save(str(tmp_path / "store"))
        pyro.clear_param_store()
        pyro.get_param_store().load(str(tmp_path / "store"))
        first, second = model(0.1), model(0.1)
        for _ in range(2):
            run(first)
        assert number(first.likelihood.variance) == pytest.approx(0.5)
        second(X)
        assert number(second.likelihood.variance) == pytest.approx(0.1)
        with pytest.raises(ValueError, match="another object's"):
            poutine.trace(second).get_trace(X)


def fitted(steps):
    """A guide, and SVI that has trained it and its model in the store."""
    guide = Variational(DeepGP(X, width=1), InducingPoints(4), MonteCarlo(2))
    guide.initialize(X, Y)
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.05}), ELBO(num_data=len(X)))
    for _ in range(steps):
        svi.step(X, Y)
    return guide, svi


def at_seed(run):
    """What a function returns with the random numbers of a seed."""
    pyro.set_rng_seed(1)
    return run()


def stored(path, steps=30):
    """What a trained fit predicts and its loss; its store is written to a file."""
    pyro.set_rng_seed(0)
    guide, svi = fitted(steps)
    expected, loss = at_seed(lambda: predict(guide, X).mean), at_seed(lambda: svi.evaluate_loss(X, Y))
    pyro.get_param_store().save(str(path))
    pyro.clear_param_store()
    return expected, loss


@pytest.mark.parametrize("is_loaded_first", [True, False])
@pytest.mark.parametrize("use", ["guide", "loss"])
def test_a_fit_that_was_loaded_into_the_store_is_itself(use, is_loaded_first, tmp_path):
    expected, loss = stored(tmp_path / "store")
    if is_loaded_first:
        pyro.get_param_store().load(str(tmp_path / "store"))
    again, svi = fitted(0)
    if not is_loaded_first:
        pyro.get_param_store().load(str(tmp_path / "store"))
    for run in (
        lambda: predict(again, X).mean,
        lambda: fit(ELBO(num_data=len(X))(again.model, again), X, Y, steps=1),
        lambda: draw_functions(again, 1)(X),
    ):
        with pytest.raises(
            ValueError, match=r"holds other values of all parameters here, such as .*: to take them, call guide\(x, y\)"
        ):
            run()
    if use == "guide":
        again(X, Y)
        poutine.trace(again.model).get_trace(X)
    else:
        assert at_seed(lambda: svi.evaluate_loss(X, Y)) == pytest.approx(loss)
    torch.testing.assert_close(at_seed(lambda: predict(again, X).mean), expected, rtol=1e-4, atol=1e-6)
    fit(ELBO(num_data=len(X))(again.model, again), X, Y, steps=5, learning_rate=0.5)
    trained = at_seed(lambda: predict(again, X).mean)
    assert not torch.allclose(trained, expected, atol=0.01)
    other, _ = fitted(0)
    assert not torch.allclose(predict(other, X).mean, trained, atol=0.01)  # its values are its own
    with pytest.raises(ValueError, match="holds another object's"):
        other(X, Y)
    torch.testing.assert_close(at_seed(lambda: predict(again, X).mean), trained)


def test_a_model_that_was_loaded_is_refused_by_samplers_until_it_has_taken_its_values(tmp_path):

    def sampled(variance):
        made = model(variance)
        made.top.kernel.lengthscale = PyroSample(dist.LogNormal(torch.zeros(1).to(X), 1.0).to_event(1))
        return made

    poutine.trace(sampled(0.5)).get_trace(X)
    pyro.get_param_store().save(str(tmp_path / "store"))
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "store"))
    for kernel in (lambda each: EllipticalSlice(each), lambda each: NUTS(whitened(each))):
        with pytest.raises(ValueError, match=r"or model\(x\) where there is no guide"):
            run_chains(kernel(sampled(0.1)), (X, Y), num_samples=1, warmup_steps=1, num_chains=1)
    taking = sampled(0.1)
    taking(X)
    run_chains(EllipticalSlice(taking), (X, Y), num_samples=1, warmup_steps=1, num_chains=1)
    assert number(taking.likelihood.variance) == pytest.approx(0.5)


def test_a_store_that_was_loaded_for_another_model_changes_nothing(tmp_path):
    """Nobody's values are overwritten, and nothing is refused, where some names or shapes are others."""
    stored(tmp_path / "store", steps=1)
    pyro.get_param_store().load(str(tmp_path / "store"))
    guide = Variational(DeepGP(X, width=1), InducingPoints(5), MonteCarlo(2))
    guide.initialize(X, Y)
    before = {name: each.detach().clone() for name, each in guide.named_parameters()}
    pyro.set_rng_seed(0)
    predict(guide, X)
    for name, each in guide.named_parameters():
        assert torch.equal(each, before[name])


def test_live_values_of_others_are_not_taken():
    """A stock model of Pyro, and a ``pyro.param``, have such names too."""

    def function(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    gp, likelihood = GaussianProcess(RBF()), Gaussian(variance=0.03)
    guide = Variational(function, InducingPoints(4))
    guide.initialize(X, Y)
    before = at_seed(lambda: predict(guide, X).variance)
    stock = GPRegression(X, Y, stock_kernels.RBF(1, variance=torch.tensor(7.0)))
    SVI(stock.model, stock.guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step()
    pyro.param("variance", torch.tensor(7.0), constraint=constraints.positive)
    pyro.param("lengthscale", torch.tensor(7.0), constraint=constraints.interval(0.0, 10.0))
    torch.testing.assert_close(at_seed(lambda: predict(guide, X).variance), before)
    first, second = RBF(), RBF()
    second.lengthscale = 0.3
    with module_local_parameters(first, second):
        assert [number(each.lengthscale) for each in (first, second)] == pytest.approx([1.0, 0.3])


def test_values_that_a_module_of_the_user_has_put_into_the_store_stay_there():
    """Pyro's rules hold for these: outside the store each object has its own."""

    class Own(PyroModule):
        def __init__(self, start):
            super().__init__()
            self.gp, self.factor = GaussianProcess(RBF()), PyroParam(torch.tensor(start))

        def forward(self, x, y=None):
            return pyro.sample("y", Gaussian()(self.gp(x * self.factor)), obs=y)

    first, second = Own(2.0), Own(3.0)
    poutine.trace(first).get_trace(X)
    with module_local_parameters(second):
        assert number(second.factor) == 3.0


def test_a_plain_call_leaves_parameters_of_others_as_they_are():
    other = pyro.param("loc", torch.zeros(1))
    RBF()(), RBF()()
    assert other.unconstrained() is pyro.get_param_store()._params["loc"]
    pyro.get_param_store()["lengthscale"] = torch.tensor(2.0)
    kernel = RBF()
    pyro.clear_param_store()
    poutine.trace(kernel).get_trace()
    pyro.get_param_store()["lengthscale"] = torch.tensor(2.0)
    kernel()
    before = number(kernel.lengthscale)
    optimiser = torch.optim.SGD(kernel.parameters(), lr=0.1)
    poutine.trace(kernel).get_trace().nodes["lengthscale"]["value"].sum().backward()
    optimiser.step()
    assert before == pytest.approx(2.0) and number(kernel.lengthscale) < 2.0


def test_threads_may_call_kernels_of_their_own_while_the_store_is_written():
    def call(_):
        for _ in range(30):
            RBF()()
        return True

    with ThreadPoolExecutor(3) as pool:
        done = pool.map(call, range(3))
        names = [f"p{i}" for i in range(200)]
        for name in names:
            pyro.param(name, torch.zeros(1))
        assert all(done)
    assert set(names) <= set(pyro.get_param_store())


def test_a_parameter_that_is_assigned_anew_takes_its_place():
    kernel = RBF()
    poutine.trace(kernel).get_trace()
    kernel.variance = PyroParam(torch.tensor(3.0), constraint=torch.distributions.constraints.positive)
    kernel.lengthscale = 0.2
    poutine.trace(kernel).get_trace()
    assert number(kernel.variance) == pytest.approx(3.0) and number(kernel.lengthscale) == pytest.approx(0.2)
