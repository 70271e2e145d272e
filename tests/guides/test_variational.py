import copy
import io
import math
import pickle
import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.infer.autoguide.effect import AutoHierarchicalNormalMessenger
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    ConstantMean,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MissingOutputs,
    MonteCarlo,
    NegativeBinomial,
    Poisson,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WithMean,
    concatenate_inputs,
    module_local_parameters,
    predict,
    whitened,
)
from tests.examples import LatentInputs, OneLayer, TwoLayers, TwoSites, regression


def guided(model, x, y, family=None, samples=4):
    guide = Variational(model, family or InducingPoints(6), MonteCarlo(samples))
    guide.initialize(x, y)
    return guide


class WithPriors(TwoLayers):
    def __init__(self, x):
        super().__init__(x)
        self.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))


def test_one_ancestral_draw_has_the_prior_s_shapes_and_every_latent():
    x, y = regression(10)
    guide = guided(TwoLayers(x), x, y)
    draw = guide(x, y)
    assert draw["h"].shape == (10, 2) and draw["y"].shape == (10,)
    again = guide(x)
    assert again["y"].shape == (10,) and not torch.equal(again["y"], y)


@pytest.mark.slow
def test_without_targets_it_predicts_with_the_noise_and_invents_no_parameters():
    x = torch.randn(400, 1)
    for model in (OneLayer(likelihood=Gaussian(variance=0.09)), TwoSites(Gaussian(variance=0.09))):
        pyro.clear_param_store()
        guide = Variational(model, InducingPoints(3, scale=1e-3), MonteCarlo(4))
        guide.initialize(x)  # no y here either
        before = set(dict(guide.named_parameters()))
        draws = torch.stack([guide(torch.zeros(1, 1) + 0.0)["y"] for _ in range(600)])
        assert set(dict(guide.named_parameters())) == before
        assert all(name.startswith("processes") for name in before)
        variance = predict(guide, torch.zeros(1, 1), num_samples=4000).variance
        torch.testing.assert_close(draws.var(), variance[0], rtol=0.2, atol=0)
        assert variance > 0.09


def test_the_user_s_model_is_run_unmodified_and_its_transformations_count():
    class Skips(PyroModule):
        def __init__(self):
            super().__init__()
            self.hidden = GaussianProcess(RBF(1), num_outputs=2)
            self.top = GaussianProcess(RBF(3))
            self.likelihood = Gaussian()

        def forward(self, x, y=None):
            h = pyro.sample("h", self.hidden(x))
            return pyro.sample("y", self.likelihood(self.top(concatenate_inputs(2 * h, x))), obs=y)

    x, y = regression(12)
    guide = guided(Skips(), x, y)
    components = guide.components(x, y)
    site = components.trace.nodes["y"]
    h = components.trace.nodes["h"]["value"]
    torch.testing.assert_close(site["infer"]["prior"].priors["f"].x[..., :2], 2 * h)
    assert h.shape == (4, 12, 2) and site["fn"].batch_shape == (4,)
    assert guide.processes._modules["y/f"].basis.inducing_points.shape == (6, 3)


def test_two_parallel_layers_each_get_their_particles():
    class Parallel(PyroModule):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.top = (GaussianProcess(RBF(n)) for n in (1, 1, 2))
            self.likelihood = Gaussian()

        def forward(self, x, y=None):
            a, b = pyro.sample("a", self.a(x)), pyro.sample("b", self.b(x))
            return pyro.sample("y", self.likelihood(self.top(torch.cat([a, b], -1))), obs=y)

    x, y = regression(9)
    guide = guided(Parallel(), x, y)
    trace = guide.components(x, y).trace
    assert trace.nodes["a"]["value"].shape == trace.nodes["b"]["value"].shape == (4, 9, 1)
    batched = guide.components(x.expand(3, 9, 1), y.expand(3, 9)).trace
    assert batched.nodes["b"]["value"].shape == (4, 3, 9, 1)


def test_processes_can_differ_by_site():
    x, y = regression(10)
    families = {"h": InducingPoints(3, covariance="diagonal"), "y": InducingPoints(5)}
    guide = guided(TwoLayers(x), x, y, families)
    assert guide.processes._modules["h"].q.scale.shape == (2, 3)
    assert guide.processes._modules["y/f"].q.scale.shape == (1, 5, 5)
    with pytest.raises(ValueError, match="no process family for the GP 'h'"):
        guided(TwoLayers(x), x, y, {"y": InducingPoints(5)})


def test_k_means_is_carried_through_the_means():
    x, y = regression(60)
    guide = guided(TwoLayers(x), x, y)
    lower = guide.processes._modules["h"].basis.inducing_points
    upper = guide.processes._modules["y/f"].basis.inducing_points
    assert upper.shape == (6, 2)
    torch.testing.assert_close(upper[:, 1], torch.zeros(6))  # the zero-padded output of the mean
    assert torch.cdist(lower, upper[:, :1]).min(1).values.max() < 0.5


def test_before_initialisation_it_raises_and_m_does_not_depend_on_a_first_call():
    x, y = regression(10)
    guide = Variational(TwoLayers(x), InducingPoints(6), MonteCarlo(2))
    loss = lambda: ELBO()(guide.model, guide)  # an optimiser would miss the parameters that are still to come
    for call in (lambda: guide(x, y), lambda: guide.components(x, y), lambda: predict(guide, x), loss):
        with pytest.raises(ValueError, match="call guide.initialize"):
            call()
    guide.initialize(x, y)
    guide(x[:2])
    assert guide.processes._modules["h"].basis.inducing_points.shape == (6, 1)
    with pytest.raises(ValueError, match="no Gaussian process site"):
        Variational(lambda x: pyro.sample("a", dist.Normal(0, 1)), InducingPoints(2), MonteCarlo(2)).initialize(x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_named_at_the_start(bad):
    x, y = regression(10)
    guide = Variational(OneLayer(), InducingPoints(4), MonteCarlo(2))
    spoiled_x, spoiled = x.clone(), y.clone()
    spoiled_x[3], spoiled[7] = bad, bad
    for args, kwargs, name in (((spoiled_x, y), {}, "'x'"), ((x, spoiled), {}, "'y'"), ((x,), {"y": spoiled}, "'y'")):
        with pytest.raises(ValueError, match=f"argument {name} of guide.initialize holds NaN or infinity"):
            guide.initialize(*args, **kwargs)
    assert not guide.is_initialized
    guide.initialize(x)  # no y is no bad y


@pytest.mark.parametrize(("dtype", "refused"), [(torch.float32, True), (torch.float64, False)])
def test_an_input_whose_square_overflows_is_named(dtype, refused):
    x, y = regression(10)
    x, y = x.to(dtype), y.to(dtype)
    x[3] = 1e30
    guide = Variational(OneLayer().to(dtype), InducingPoints(2), MonteCarlo(2))
    if refused:
        with pytest.raises(
            ValueError, match=r"an input of 'y/f' is 1e\+30 at \(3, 0\), whose square is too large for float32"
        ):
            guide.initialize(x, y)
    else:
        with pytest.warns(UserWarning, match="input column 0 has a standard deviation of"):
            guide.initialize(x, y)


@pytest.mark.parametrize("family", [InducingPoints(4), AmortizedInducingPoints(4)])
def test_a_model_of_another_precision_than_its_guide_is_said(family):
    x, y = regression(10)
    model = TwoLayers(x)
    guide = Variational(model, family, MonteCarlo(2))
    guide.initialize(x, y)
    other, name = (torch.float64, "float64") if x.dtype == torch.float32 else (torch.float32, "float32")
    model.to(other)
    with pytest.raises(TypeError, match=rf"the guide of '\w+' is float\d+ and the model {name}: convert both"):
        ELBO(10)(model, guide)(x.to(other), y.to(other))
    guide.to(other)
    assert ELBO(10)(model, guide)(x.to(other), y.to(other)).isfinite()


@pytest.mark.parametrize("make", [TwoLayers, WithPriors])
def test_a_state_dict_creates_the_shapes_and_predictions_are_equal(make):
    x, y = regression(15)
    model = make(x)
    guide = guided(model, x, y)
    for parameter in guide.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    buffer = io.BytesIO()
    torch.save({"guide": guide.state_dict(), "model": model.state_dict()}, buffer)
    buffer.seek(0)
    state = torch.load(buffer)
    other_model = make(x)
    other = Variational(other_model, InducingPoints(6), MonteCarlo(4))
    other_model.load_state_dict(state["model"])
    other.load_state_dict(state["guide"])
    torch.manual_seed(3)
    expected = predict(guide, x).log_prob(y)
    torch.manual_seed(3)
    assert torch.equal(predict(other, x).log_prob(y), expected)


def test_the_loss_module_copies_and_pickles_with_guide_and_model_tied():
    x, y = regression(15)
    with module_local_parameters():
        model = TwoLayers(x)
        guide = guided(model, x, y)
        loss = ELBO()(model, guide)
        loss(x, y)
        copied = copy.deepcopy(loss)
        assert copied.guide.model is copied.model
        buffer = io.BytesIO()
        torch.save(loss, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        assert loaded.guide.model is loaded.model
        for other in (copied, loaded):
            torch.manual_seed(1)
            expected = loss(x, y)
            torch.manual_seed(1)
            assert torch.equal(other(x, y), expected)


def test_hyperparameters_with_priors_get_a_normal_shared_by_the_particles():
    x, y = regression(12)
    model = WithPriors(x)
    guide = guided(model, x, y)
    site = guide.components(x, y).trace.nodes["top.kernel.lengthscale"]
    assert site["value"].shape == (2,)
    names = [n for n, _ in guide.named_parameters() if n.startswith("latents")]
    assert len(names) == 3 and all("top.kernel.lengthscale" in name for name in names)
    prediction = predict(guide, x, num_samples=40, num_hyperparameter_draws=8)
    assert prediction.component_log_prob(y).shape == (40, 12)
    split = predict(guide, x, num_samples=40, num_hyperparameter_draws=8, batch_size=5)
    assert split.mean.shape == (12,)


def test_predictions_use_the_same_hyperparameter_draws_in_every_batch():
    x, y = regression(12)

    class Noisy(OneLayer):
        def __init__(self):
            super().__init__()
            self.likelihood.variance = PyroSample(dist.LogNormal(0.0, 1.0))

    guide = guided(Noisy(), x, y)
    prediction = predict(guide, torch.zeros(6, 1), num_hyperparameter_draws=5, batch_size=2)
    torch.testing.assert_close(prediction.variance, prediction.variance[:1].expand(6))


def test_other_latent_sites_can_be_given_their_own_guide():
    x, y = regression(12)
    model = WithPriors(x)
    guide = Variational(model, InducingPoints(6), MonteCarlo(2), latents=AutoHierarchicalNormalMessenger(model))
    guide.initialize(x, y)
    assert any("latents.weights" in name for name, _ in guide.named_parameters())
    assert torch.isfinite(ELBO()(model, guide)(x, y))


def test_latent_inputs_train_and_new_rows_come_from_the_prior():
    x, y = regression(14)
    model = LatentInputs()
    guide = guided(model, x, y)
    locs = guide.latents.locs.w
    assert locs.shape == (14,)
    with torch.no_grad():
        guide.latents.locs.w = torch.full((14,), 50.0)
    assert predict(guide, x[:7]).mean.shape == (7,)
    trace = guide.components(x, new_rows=True).trace  # as many rows as in training, but new ones
    assert trace.nodes["w"]["value"].abs().max() < 10
    assert guide.components(x, y).trace.nodes["w"]["value"].min() > 40
    with pytest.raises(
        ValueError,
        match=r"'w' has a value for each row: the guide holds \(14,\), .* this call has \(5,\). .*batch_size=; .*networks=\{'w'",
    ):
        guide.components(x[:5], y[:5])


def test_a_hyperparameter_as_long_as_the_data_is_not_local():
    x, y = torch.randn(2, 1), torch.randn(2)
    model = WithPriors(x)
    guide = guided(model, x, y, InducingPoints(2))
    guide.components(x, new_rows=True)
    assert guide.global_latents == ["top.kernel.lengthscale"]


def test_stock_losses_say_what_to_do_about_an_integrated_observation():
    x, y = regression(10)
    model = TwoLayers(x)
    guide = guided(model, x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    with pytest.raises(ValueError, match=r"use pyro_dgp.ELBO .* or write the two sites"):
        svi.step(x, y)


def test_stock_predictive_works():
    x, y = regression(10)
    model = TwoLayers(x)
    guide = guided(model, x, y)
    draws = Predictive(model, guide=guide, num_samples=7)(x)
    assert draws["h"].shape[0] == 7 and draws["y"].shape == (7, 10)


def test_order_of_the_rows_changes_nothing_but_noise():
    x, y = regression(20)
    model = TwoLayers(x)
    guide = guided(model, x, y)
    order = torch.randperm(20)
    q, p = (guide.components(v, propagation=MonteCarlo(1)).trace.nodes["h"]["fn"] for v in (x, x[order]))
    torch.testing.assert_close(q.mean[:, order], p.mean)
    one = guided(OneLayer(), x, y)
    torch.testing.assert_close(predict(one, x).mean[order], predict(one, x[order]).mean)
    torch.testing.assert_close(predict(one, x).mean, predict(one, x, batch_size=7).mean)


def test_binary_observations():
    x, y = regression(20)
    model = TwoLayers(x, likelihood=Bernoulli())
    target = (y > 0).double()
    guide = guided(model, x, target)
    assert torch.isfinite(ELBO()(model, guide)(x, target))
    prediction = predict(guide, x)
    assert ((prediction.mean > 0) & (prediction.mean < 1)).all()


def test_mixed_dtypes_raise_before_training():
    x, y = regression(10)
    with pytest.raises(TypeError, match="inputs are float32"):
        guided(TwoLayers(x), x.float(), y.float())
    guide = guided(TwoLayers(x), x, y)
    with pytest.raises(ValueError, match=r"shape \(N, D\) with N at least 1, got \(0, 1\)"):
        predict(guide, x[:0])


@pytest.mark.usefixtures("unannotated")
def test_arrays_and_lists_of_numbers_are_refused_before_the_model_runs():
    x, y = regression(6)
    model = TwoLayers(x)
    for args, kwargs, message in (
        ((x.numpy(), y), {}, r"inputs are a tensor, not ndarray: use torch.as_tensor\(x\)"),
        ((x, y.numpy()), {}, r"targets are a tensor, not ndarray: use torch.as_tensor\(y\)"),
        ((x,), {"y": y.tolist()}, r"targets are a tensor, not list: use torch.as_tensor\(y\)"),
    ):
        with pytest.raises(TypeError, match=message):
            Variational(model, InducingPoints(3)).initialize(*args, **kwargs)
    pair = Variational(
        lambda both, y=None: model(both[0], y), InducingPoints(3)
    )  # a list of tensors is the model's own affair
    pair.initialize([x, x], y)


@pytest.mark.parametrize("propagation", [MonteCarlo(3), SigmaPoints("qr3", 3), WithMean(SigmaPoints("qr3", 3))])
def test_deterministic_sites_are_left_alone(propagation, local):
    class Scaled(TwoLayers):
        def forward(self, x, y=None):
            h = pyro.deterministic("scaled", 2 * pyro.sample("h", self.hidden(x)))
            return pyro.sample("y", self.likelihood(self.top(h)), obs=y)

    x, y = regression(20)
    guide = Variational(Scaled(x), InducingPoints(5), propagation)
    guide.initialize(x, y)
    for loss in (ELBO(40), ELBO(), PredictiveLogLikelihood(40)):
        loss(guide.model, guide)(x, y).backward()
    assert guide.structure.responses == {"y"} and predict(guide, x).mean.shape == (20,)
    trace = guide.components(x, y).trace
    torch.testing.assert_close(trace.nodes["scaled"]["value"], 2 * trace.nodes["h"]["value"])


def test_predictions_say_what_is_wrong_with_a_request(local):
    x, y = regression(12)
    guide = Variational(TwoLayers(x), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    wrong = {
        "test inputs hold NaN": {"x": torch.full((2, 1), torch.nan)},
        "num_samples and num_hyperparameter_draws are 1 or more": {"x": x, "num_hyperparameter_draws": 0},
        "there is no site 'nope': the model has": {"x": x, "site": "nope"},
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            predict(guide, **arguments)


def test_a_model_with_another_name_for_a_layer_is_named(local):
    class Renamed(TwoLayers):
        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.top(pyro.sample("z", self.hidden(x)))), obs=y)

    x, y = regression(12)
    guide = Variational(TwoLayers(x), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    other = Variational(Renamed(x), InducingPoints(4), MonteCarlo(2))
    other.load_state_dict(guide.state_dict())
    with pytest.raises(ValueError, match="no process for the GP 'z', and initialize met"):
        predict(other, x)


def test_raw_units_are_warned_of():
    x, y = regression(20)
    guide = Variational(OneLayer(), InducingPoints(4))
    guide.initialize(x, y)
    with pytest.warns(UserWarning, match="input column 0 has a standard deviation of .*: standardise inputs"):
        guide.initialize(100 * x, y)
    with pytest.warns(UserWarning, match="the target of the site 'y' has mean 1e.03 .*: standardise targets"):
        guide.initialize(x, y + 1000)
    with pytest.warns(
        UserWarning, match="the target of the site 'y' has mean .* and standard deviation 0.00.*: standardise targets"
    ):
        guide.initialize(x, 0.001 * y)
    guide = Variational(OneLayer(likelihood=Bernoulli()), InducingPoints(4))
    guide.initialize(x, (y > 0).double())


def test_targets_that_the_prior_is_made_for_are_not_warned_of():
    x, y = regression(20)
    model = OneLayer(RBF(variance=1e6))
    model.gp.mean = ConstantMean(value=5000.0)
    Variational(model, InducingPoints(4)).initialize(x, 5000 + 1000 * y)
    Variational(OneLayer(RBF(variance=1e-6)), InducingPoints(4)).initialize(x, 0.001 * y)


def test_lengthscales_at_the_scale_of_the_inputs_are_not_warned_of():
    """The warning said to start them there, and came again."""
    x, y = regression(20, 3)
    raw = x * torch.tensor([100.0, 1.0, 0.001])
    for kernel in (RBF(ard=3), RBF(ard=3) + RBF(ard=3, lengthscale=2.0)):
        model = OneLayer(kernel)
        with pytest.warns(
            UserWarning, match="input column 0 .* of 1.*, and its lengthscale starts at 1: standardise inputs"
        ):
            Variational(model, InducingPoints(4)).initialize(raw, y)
        first = next(part for part in kernel.modules() if isinstance(part, RBF))
        first.lengthscale = torch.tensor([100.0, 1.0, 1.0])
        with pytest.warns(
            UserWarning, match="input column 2 .* of 0.001.*, and its lengthscale starts at 1: standardise inputs"
        ):
            Variational(model, InducingPoints(4)).initialize(raw, y)
        first.lengthscale = torch.tensor([100.0, 1.0, 0.001])
        Variational(model, InducingPoints(4)).initialize(raw, y)
    Variational(OneLayer(RBF(lengthscale=0.05)), InducingPoints(4)).initialize(x, y)


def test_a_pixel_that_hardly_varies_is_not_warned_of_under_one_lengthscale():
    x, y = regression(20, 3)
    faint = x * torch.tensor([0.001, 1.0, 1.0])
    Variational(OneLayer(RBF()), InducingPoints(4)).initialize(faint, y)
    with pytest.warns(UserWarning, match="input column 0 has"):
        Variational(OneLayer(RBF()), InducingPoints(4)).initialize(0.001 * x, y)


@pytest.mark.parametrize("likelihood", [Poisson, NegativeBinomial])
@pytest.mark.parametrize(("level", "logarithm"), [(500, "6.2"), (0.02, "-3.9")])
def test_counts_far_from_those_of_the_untrained_model_are_warned_of(likelihood, level, logarithm):
    """Functions that start near zero are counts near one: fits to counts of thousands were far from the data."""
    x, _ = regression(400)
    y = torch.full((400,), float(level)) if level > 1 else (torch.arange(400) % 50 == 0).double()
    guide = Variational(OneLayer(likelihood=likelihood()), InducingPoints(4))
    sentence = rf"the counts of the site 'y' have mean .*mean 1: .* Add {logarithm}.*ConstantMean\(value={logarithm}.*pass exposures"
    with pytest.warns(UserWarning, match=sentence):
        guide.initialize(x, y)
    model = OneLayer(likelihood=likelihood())
    model.gp.mean = ConstantMean(value=math.log(level))
    Variational(model, InducingPoints(4)).initialize(x, y)


class RawCounts(PyroModule):
    """A plain Poisson site whose rate is made of a function, with an exposure."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None, exposure=1.0):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Poisson(exposure * f.exp()).to_event(1), obs=y)


def test_plain_counts_are_warned_of_and_exposures_count():
    x, _ = regression(50)
    y = torch.full((50,), 3000.0)
    with pytest.warns(UserWarning, match="the counts of the site 'y' have mean 3e.03"):
        Variational(RawCounts(), InducingPoints(4)).initialize(x, y)
    Variational(RawCounts(), InducingPoints(4)).initialize(x, y, exposure=1000.0)
    model = OneLayer(likelihood=MissingOutputs(Poisson()))
    y[0] = math.nan
    with pytest.warns(UserWarning, match="the counts of the site 'y' have mean 3e.03"):
        Variational(model, InducingPoints(4)).initialize(x, y)


def test_a_prior_that_nobody_reads_is_warned_of():
    x, y = regression(20)
    model = OneLayer()
    model.likelihood.noise = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.warns(UserWarning, match="the prior on 'likelihood.noise' is read by no forward"):
        Variational(model, InducingPoints(4)).initialize(x, y)


class Repeated(PyroModule):
    """One Gaussian process under two sites."""

    def __init__(self, shift):
        super().__init__()
        self.gp, self.shift = GaussianProcess(RBF()), shift

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x)) - pyro.sample("g", self.gp(x + self.shift))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=y)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_one_gp_at_two_inputs_is_warned_of(shift):
    """Two sites are two functions, where a user may have meant the differences of one."""
    x, y = regression(12)
    for run in (
        lambda: Variational(Repeated(shift), InducingPoints(4)).initialize(x, y),
        lambda: pyro.poutine.trace(whitened(Repeated(shift))).get_trace(x, y),
    ):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run()
        told = [str(each.message) for each in found if "'f' and 'g' sample one GaussianProcess" in str(each.message)]
        assert len(told) == (shift != 0)


def test_models_written_for_one_draw_alone_are_told_of_the_axis_of_components():
    class Cat(TwoLayers):
        def forward(self, x, y=None):
            h = pyro.sample("h", self.hidden(x))
            return pyro.sample("y", self.likelihood(self.wide(torch.cat([h, x], -1))), obs=y)

    class Unsampled(TwoLayers):
        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.top(self.hidden(x))), obs=y)

    x, y = regression(20)
    model = Cat(x)
    model.wide = GaussianProcess(RBF(3))
    guide = Variational(model, InducingPoints(4))
    guide.initialize(x, y)
    with pytest.raises(
        ValueError, match="failed in the guide, where hidden values are .S, N, D.* concatenate_inputs.h, x."
    ):
        ELBO().loss(model, guide, x, y)
    with pytest.raises(TypeError, match="not the distribution over the values of 'hidden': sample that layer first"):
        Variational(Unsampled(x), InducingPoints(4)).initialize(x, y)


def test_copies_are_copied_and_pickled_again():
    x, y = regression(12)
    guide = Variational(OneLayer(), InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    twice = copy.deepcopy(copy.deepcopy(guide))
    read = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(guide))))
    wanted = predict(guide, x).mean
    for other in (twice, read):
        torch.testing.assert_close(predict(other, x).mean, wanted, rtol=0, atol=0)
