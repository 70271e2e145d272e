import contextlib
import copy
import pickle

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    ConstantMean,
    FunctionMean,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    MarginalLikelihood,
    MonteCarlo,
    Projection,
    Variational,
    Zero,
    concatenate_inputs,
    module_local_parameters,
    predict,
)
from tests.examples import OneLayer, regression


def test_zero_and_constant_and_linear():
    x = torch.randn(2, 5, 3)
    assert (Zero()()(x) == 0).all()
    constant = ConstantMean(2)
    constant.constant = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(constant()(x).expand(2, 5, 2), torch.tensor([1.0, -2.0]).expand(2, 5, 2))
    linear = LinearMean(3, 2)
    linear.bias = torch.tensor([0.5, 1.5])
    expected = torch.stack([x @ linear.weight[:, 0] + 0.5, x @ linear.weight[:, 1] + 1.5], -1)
    torch.testing.assert_close(linear()(x), expected)


def test_projection_is_identity_pca_or_padding():
    x = torch.randn(50, 4) @ torch.diag(torch.tensor([5.0, 0.1, 2.0, 0.5]))
    torch.testing.assert_close(Projection.fit(x, 4)()(x), x)
    padded = Projection.fit(x, 6)()(x)
    torch.testing.assert_close(padded[:, :4], x)
    assert (padded[:, 4:] == 0).all()
    two = Projection.fit(x, 2)()(x)
    # Principal scores: uncorrelated, with the two largest eigenvalues of the covariance as variances.
    covariance = torch.cov((two - two.mean(0)).T)
    largest = torch.linalg.eigvalsh(torch.cov(x.T)).flip(0)[:2]
    torch.testing.assert_close(covariance, torch.diag(largest), atol=1e-9, rtol=1e-9)


def test_projection_does_not_depend_on_the_sign_that_the_decomposition_chose():
    x = torch.randn(40, 5)
    weight = Projection.fit(x, 2).weight
    assert (weight.gather(0, weight.abs().argmax(0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("rows", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", [Projection, LinearMean])
def test_fewer_rows_than_directions_are_refused(rows, kind):
    """A weight of too few columns would fail later; that of one column would be taken for all outputs."""
    with pytest.raises(
        ValueError,
        match=f"{rows} rows of 9 inputs span {max(rows - 1, 0)} principal directions .* width is 4: give more",
    ):
        kind.fit(torch.randn(rows, 9), 4)
    assert kind.fit(torch.randn(5, 9), 4).weight.shape == (9, 4)
    assert kind.fit(torch.randn(rows, 9), 9).weight.shape == (9, 9)


def test_what_has_no_directions_is_one_sentence():
    with pytest.raises(ValueError, match="inputs hold NaN or infinity"):
        Projection.fit(torch.tensor([[0.0, 1.0, 2.0], [0.0, torch.nan, 3.0], [1.0, 2.0, 0.0]]), 2)
    with pytest.raises(ValueError, match="got a width of 0"):
        Projection.fit(torch.randn(5, 3), 0)


@pytest.mark.parametrize("mean", [LinearMean(3, 2), Projection(torch.eye(3, 2))])
def test_inputs_of_another_width_are_refused(mean):
    with pytest.raises(ValueError, match=f"{type(mean).__name__} was made for inputs of 3 dimensions and got 4: call"):
        mean()(torch.randn(2, 5, 4))


def test_inputs_are_concatenated_over_particles():
    h, x = torch.randn(7, 5, 2), torch.randn(5, 3)
    joined = concatenate_inputs(h, x)
    assert joined.shape == (7, 5, 5)
    torch.testing.assert_close(joined[3, :, 2:], x)
    with pytest.raises(ValueError, match="5 rows of function values and 4 rows of inputs"):
        concatenate_inputs(h, torch.randn(4, 3))


def test_a_mean_of_another_number_of_outputs_is_named():
    gp = GaussianProcess(RBF(), Projection.fit(torch.randn(6, 3), 2))
    with pytest.raises(ValueError, match="has 2 outputs and the Gaussian process num_outputs=1"):
        _ = gp(torch.randn(6, 3)).mean


def test_a_projection_of_trained_features_does_not_hold_on_to_their_graph():
    assert not Projection.fit(torch.randn(6, 3, requires_grad=True), 2).weight.requires_grad


def network(inputs=1, outputs=1):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs))


def with_mean(mean):
    model = OneLayer()
    model.gp.mean = mean
    return model


def test_a_constant_starts_where_it_is_told():
    assert ConstantMean(2, value=0.5)()(torch.ones(3, 1)).tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sum(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True).expand(*x.shape[:-1], 2)),
        (torch.sin, torch.sin),
        (torch.nn.Linear(2, 2, dtype=torch.float64), lambda x: x @ WEIGHT.mT + BIAS),
    ],
    ids=["lambda", "torch.sin", "linear"],
)
def test_a_function_or_network_is_the_mean(function, expected):
    if isinstance(function, torch.nn.Module):
        function.load_state_dict({"weight": WEIGHT, "bias": BIAS})
    gp = GaussianProcess(RBF(), mean=function, num_outputs=2)
    assert isinstance(gp.mean, FunctionMean)
    for shape in ((5, 2), (3, 5, 2)):
        x = torch.randn(shape)
        prior = gp(x)
        torch.testing.assert_close(prior.mean, expected(x))
        torch.testing.assert_close(prior.unwhiten(torch.zeros(shape)), expected(x))


WEIGHT: torch.Tensor = torch.tensor([[1.0, -2.0], [0.5, 3.0]]).double()
BIAS: torch.Tensor = torch.tensor([0.1, 0.2]).double()


@pytest.mark.parametrize("scope", ["module", "store"])
def test_a_network_trains_under_stock_svi_and_travels(scope):
    x, y = regression(20)
    with module_local_parameters() if scope == "module" else contextlib.nullcontext():
        model = with_mean(network())
        guide = Variational(model, InducingPoints(5), MonteCarlo(2))
        guide.initialize(x, y)
        names = [name for name, _ in model.named_parameters() if "mean" in name]
        assert names == [f"gp.mean.function.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
        before = copy.deepcopy(model.state_dict())
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO(num_data=20))
        for _ in range(3):
            svi.step(x, y)
        assert all(not torch.equal(model.state_dict()[name], before[name]) for name in names)
        stored = set(pyro.get_param_store().keys())
        assert set(names) <= stored if scope == "store" else not stored
        prediction = predict(guide, x).mean
    with module_local_parameters():
        other = with_mean(network())
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other.gp(x).mean, model.gp.mean()(x))
        assert torch.isfinite(prediction).all()


def test_gradients_of_the_network_are_those_of_the_closed_form(local):
    x, y = regression(8)
    model = with_mean(torch.nn.Linear(1, 1))
    MarginalLikelihood(model)(x, y).backward()
    prior = model.gp(x)
    covariance = prior.covariance_matrix[0] + model.likelihood.variance * torch.eye(8)
    residual = torch.linalg.solve(covariance, y - prior.mean[:, 0]).detach()
    torch.testing.assert_close(model.gp.mean.function.weight.grad[0], -(residual @ x))
    torch.testing.assert_close(model.gp.mean.function.bias.grad, -residual.sum()[None])


def test_a_prior_on_a_weight_is_drawn_once_a_call(local):
    gp = GaussianProcess(RBF(), mean=torch.nn.Linear(1, 1))
    gp.mean.function.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 1]).to_event(2))
    x = torch.randn(5, 1)
    with pyro.poutine.trace() as trace:
        prior = gp(x)
    weight = trace.trace.nodes["mean.function.weight"]["value"]
    expected = x @ weight.mT + gp.mean.function.bias
    for _ in range(2):
        torch.testing.assert_close(prior.mean, expected)


def test_parameters_are_those_of_the_call():
    gp = GaussianProcess(RBF(), mean=torch.nn.Linear(1, 1))
    gp.mean.function.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 1]).to_event(2))
    first, second = gp(torch.ones(1, 1)), gp(torch.ones(1, 1))
    assert not torch.equal(first.mean, second.mean)


def test_a_model_with_a_network_is_copied_and_pickled(local):
    model = with_mean(network())
    x = torch.randn(4, 1)
    expected = model.gp(x).mean
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other.gp(x).mean, expected)


def test_float32_works_and_a_network_of_another_dtype_is_named():
    x = torch.randn(4, 2, dtype=torch.float32)
    gp = GaussianProcess(RBF(), mean=torch.nn.Linear(2, 1)).to(torch.float32)
    assert gp(x).mean.dtype == torch.float32
    gp = GaussianProcess(RBF(), mean=torch.nn.Linear(2, 1, dtype=torch.float32))
    with pytest.raises(
        TypeError, match="the network .*Linear has parameters of float32 and inputs of float64: convert it"
    ):
        _ = gp(torch.randn(4, 2)).mean


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda x: x.sum(-1), (6,)), (lambda x: x[:4], (4, 3)), (lambda x: torch.zeros(1), (1,)), (lambda x: x.sum(), ())],
    ids=["rows alone", "other rows", "one number", "no shape"],
)
@pytest.mark.parametrize("rows", [6, 3])
def test_a_mean_of_the_wrong_shape_is_refused_with_both(function, shape, rows):
    """Where there are as many rows as outputs, too, which would have been taken for one value for each output."""
    gp = GaussianProcess(RBF(), mean=function, num_outputs=3)
    if shape == (6,):
        shape = (rows,)
    elif rows == 3 and shape == (4, 3):
        return
    with pytest.raises(ValueError) as error:
        _ = gp(torch.randn(rows, 3)).mean
    assert f"of 'gp' turned inputs of shape ({rows}, 3) into {shape}, which is neither (..., N, 1)" in str(error.value)
    assert "for (..., N) return values.unsqueeze(-1)" in str(error.value)


def test_a_mean_that_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"of 'gp' returned float, not a tensor \(..., N, 1\) or \(..., N, D_out\)"):
        _ = GaussianProcess(RBF(), mean=lambda x: 0.5)(torch.randn(6, 3)).mean


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (0.5, r"not a number: write ConstantMean\(value=...\) for a learned constant, or a function for a fixed one"),
        (torch.zeros(2), "not a number: write"),
        ("zero", r"not str: give one, such as ConstantMean\(\)"),
        (np.ones(2), "not ndarray: give one"),
        (RBF(), "not RBF: give one"),
        (ConstantMean, r"not the class ConstantMean: make one, ConstantMean\(...\)"),
    ],
    ids=["number", "tensor", "text", "array", "kernel", "class"],
)
def test_what_is_no_mean_is_refused_at_once(value, sentence):
    for use in (
        lambda: GaussianProcess(RBF(), mean=value),
        lambda: setattr(GaussianProcess(RBF()), "mean", value),
        lambda: FunctionMean(value),
    ):
        with pytest.raises(
            TypeError, match=f"a mean is a Mean of pyro_dgp, a function or a torch.nn.Module, {sentence}"
        ):
            use()


def test_a_function_that_hides_what_should_train_is_refused():
    net, weight = network(), torch.ones(1, requires_grad=True)
    for function in (lambda x: net(x), net.forward):
        with pytest.raises(
            ValueError, match="the mean function uses a (PyroS|S)equential, whose values would not be trained or"
        ):
            GaussianProcess(RBF(), mean=function)
    with pytest.raises(ValueError, match="the mean function uses a tensor that requires a gradient, whose values"):
        GaussianProcess(RBF(), mean=lambda x: weight * x)
    fixed, activation = torch.ones(1), torch.nn.Tanh()
    assert GaussianProcess(RBF(), mean=lambda x: activation(fixed * x))(torch.zeros(3, 1)).mean.shape == (3, 1)


@pytest.mark.parametrize("layer", [torch.nn.Dropout(), torch.nn.BatchNorm1d(4)])
def test_a_network_that_mixes_rows_or_draws_is_refused(layer):
    with pytest.raises(
        ValueError, match=f"a mean function with {type(layer).__name__} is no function of single rows: take"
    ):
        GaussianProcess(RBF(), mean=torch.nn.Sequential(torch.nn.Linear(1, 4), layer, torch.nn.Linear(4, 1)))


def constant_of_a_prior():
    mean = ConstantMean()
    mean.constant = PyroSample(dist.Normal(0.0, 2.0).expand([1]).to_event(1))
    return mean


def line_of_priors():
    mean = LinearMean(2)
    mean.weight = PyroSample(dist.Normal(0.0, 2.0).expand([2, 1]).to_event(2))
    mean.bias = PyroSample(dist.Normal(0.0, 2.0).expand([1]).to_event(1))
    return mean


class ByGroup(PyroModule):
    """A function of each group, whose mean has priors."""

    def __init__(self, mean):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=2), mean=mean), Gaussian()

    def forward(self, x, y=None):
        with pyro.plate("groups", len(x)) if x.dim() == 3 else contextlib.nullcontext():
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("mean", [constant_of_a_prior, line_of_priors])
@pytest.mark.parametrize("groups", [2, 3])
def test_priors_of_a_mean_in_a_plate_are_those_of_each_group(mean, groups):
    """Also where there are as many groups as inputs: each function has a mean of its own."""
    x, y = torch.randn(groups, 8, 2), torch.randn(groups, 8)
    trace = pyro.poutine.trace(ByGroup(mean())).get_trace(x, y)
    values = {name.rpartition(".")[2]: site["value"] for name, site in trace.nodes.items() if ".mean." in name}
    found = trace.nodes["y"]["fn"].log_prob(y)
    for group in range(groups):
        center = torch.zeros(8)
        if "weight" in values:
            center = center + (x[group] @ values["weight"][group] + values["bias"][group])[:, 0]
        else:
            center = center + values["constant"][group]
        cov = torch.exp(-0.5 * torch.cdist(x[group], x[group]).square()) + 0.1 * torch.eye(8)
        wanted = torch.distributions.MultivariateNormal(center, cov).log_prob(y[group])
        torch.testing.assert_close(found[group], wanted, rtol=1e-3, atol=1e-3)
    guide = Variational(ByGroup(mean()), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    assert predict(guide, x).mean.shape == (groups, 8)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("mean", [constant_of_a_prior, line_of_priors])
@pytest.mark.parametrize("draws", [1, 2, 5, 8])
def test_priors_of_a_mean_are_drawn_at_once(mean, draws):
    samples = Predictive(ByGroup(mean()), num_samples=draws, parallel=True)(torch.randn(8, 2))
    assert samples["y"].shape == (draws, 8)


@pytest.mark.usefixtures("unannotated")
def test_a_value_in_the_place_of_outputs_is_refused():
    with pytest.raises(
        ValueError, match="outputs of a ConstantMean is a whole number of 1 or more, got 6.2: its value is"
    ):
        ConstantMean(6.2)
