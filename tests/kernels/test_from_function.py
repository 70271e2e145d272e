"""Functions k(x, z) as kernels: against the same formula in the library, and what is no covariance function is refused."""

import numpy as np
import pytest
import torch

from pyro_dgp import RBF, FromFunction, GaussianProcess, InducingPoints, MarginalLikelihood, fit
from tests.examples import OneLayer, regression


def squared_exponential(x, z):
    return torch.exp(-0.5 * (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1))


class Weighted(torch.nn.Module):
    """k(x, z) = x W W' z."""

    def __init__(self, inputs, features=2):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs, features))

    def forward(self, x, z):
        return (x @ self.weight) @ (z @ self.weight).mT


def test_a_formula_is_the_kernel_of_that_formula():
    ours, theirs = FromFunction(squared_exponential)(), RBF()()
    x, z = torch.randn(4, 1, 6, 2), torch.randn(1, 5, 2)
    torch.testing.assert_close(ours.matrix(x), theirs.matrix(x))
    torch.testing.assert_close(ours.matrix(x, z), theirs.matrix(x, z))
    torch.testing.assert_close(ours.matrix(z, x), theirs.matrix(z, x))
    torch.testing.assert_close(ours.diagonal(x), theirs.diagonal(x))


def test_a_process_over_it_has_the_marginal_of_the_formula():
    x = torch.randn(20, 2)
    found, expected = [], []
    for kernel, into in ((FromFunction(squared_exponential), found), (RBF(), expected)):
        prior = GaussianProcess(kernel, num_outputs=2)(x)
        torch.manual_seed(0)
        q = InducingPoints(7).create(prior, hidden=False)(prior)
        into.extend([q.mean, q.variance, q.regularizer])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_network_trains_and_travels(local):
    x, y = regression(20, inputs=2)
    model = OneLayer(FromFunction(Weighted(2)) + RBF())
    start = model.gp.kernel.parts[0].function.weight.detach().clone()
    fit(MarginalLikelihood(model), x, y, steps=3)
    assert not torch.equal(model.gp.kernel.parts[0].function.weight, start)
    other = OneLayer(FromFunction(Weighted(2)) + RBF())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.gp(x).covariance_matrix, model.gp(x).covariance_matrix)


def test_float32_inputs_work():
    x = torch.randn(50, 2, dtype=torch.float32)
    assert FromFunction(squared_exponential)().matrix(x[None]).dtype == torch.float32


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x, z: x @ (z + 1).mT, "is not symmetric on the first 5 rows, so it is no covariance function: write"),
        (lambda x, z: -squared_exponential(x, z), "has a negative eigenvalue on the first 5 rows"),
        (lambda x, z: torch.cdist(x, z), "has a negative eigenvalue on the first 5 rows"),
        (lambda x, z: (x[:, None] - z[None]).square().sum(-1), "is no covariance function|into"),
        (
            lambda x, z: squared_exponential(x, z) + torch.eye(len(x)),
            "gives a row another variance|ignores leading axes|into",
        ),
        (
            lambda x, z: (x * z).sum(-1),
            r"turned x \(5, 2\) and z \(5, 2\) into \(5,\), not into \(..., 5, 5\): write k",
        ),
        (lambda x, z: squared_exponential(x, z).numpy(), "returned ndarray, not a tensor"),
        (
            lambda x, z: squared_exponential(x - x.mean(-2, keepdim=True), z - z.mean(-2, keepdim=True)),
            "gives two rows another covariance by themselves than among other rows: let k of two rows depend on these alone",
        ),
        (
            lambda x, z: squared_exponential(x, z) / (1 + 0.1 * (z.shape[-2] - x.shape[-2]) ** 2),
            "gives two rows another covariance by themselves than among other rows",
        ),
    ],
    ids=["asymmetric", "negative", "distance", "no batches", "white", "one row each", "array", "centred", "counted"],
)
def test_what_is_no_covariance_function_is_refused_at_the_first_use(function, sentence):
    kernel = FromFunction(function)
    for use in (lambda: kernel().matrix(torch.randn(1, 8, 2)), lambda: kernel().diagonal(torch.randn(1, 8, 2))):
        with pytest.raises((ValueError, TypeError), match=f"the function of FromFunction .*({sentence})"):
            use()


def test_it_is_tried_once_on_a_few_rows_and_again_after_it_changed():
    seen = []

    def counted(x, z):
        seen.append(tuple(x.shape))
        return squared_exponential(x, z)

    kernel = FromFunction(counted)
    kernel().matrix(torch.randn(1, 1, 2))  # one row shows little: the next use is the first that counts
    seen.clear()
    for _ in range(2):
        kernel().matrix(torch.randn(1, 100, 2))
    assert seen == [(5, 2), (5, 1, 2), (1, 2), (1, 100, 2), (1, 100, 2)]
    kernel.function = lambda x, z: -counted(x, z)
    with pytest.raises(ValueError, match="has a negative eigenvalue"):
        kernel().matrix(torch.randn(1, 100, 2))


def test_every_call_is_checked_for_its_shape():
    kernel = FromFunction(lambda x, z: squared_exponential(x, z) if z.shape[-2] != 4 else x.sum(-1))
    with pytest.raises(
        ValueError, match=r"turned x \(1, 3, 2\) and z \(1, 4, 2\) into \(1, 3\), not into \(..., 3, 4\)"
    ):
        kernel().matrix(torch.randn(1, 3, 2), torch.randn(1, 4, 2))


@pytest.mark.parametrize("value", [3, "rbf", RBF, RBF(), np.ones(2)], ids=lambda value: type(value).__name__)
def test_what_cannot_be_called_on_two_sets_is_refused_at_once(value):
    kernel = FromFunction(squared_exponential)
    with pytest.raises(
        TypeError,
        match=r"FromFunction takes a function k\(x, z\) or a network, not (int|str|the class RBF|RBF|ndarray): give",
    ):
        kernel.function = value


def test_a_function_that_hides_a_network_is_refused():
    network, scale = Weighted(2), torch.ones((), requires_grad=True)
    with pytest.raises(ValueError, match="the covariance function uses a Weighted, whose values would not be trained"):
        FromFunction(lambda x, z: network(x, z))
    with pytest.raises(ValueError, match="uses a Weighted and a tensor that requires a gradient, whose"):
        FromFunction(lambda x, z: scale * network(x, z))
    with pytest.raises(ValueError, match="uses a Weighted"):
        FromFunction(network.forward)
