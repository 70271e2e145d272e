"""Covariance functions of a user's own classes: those that contradict themselves are refused at the first use, sound ones pass."""

from dataclasses import dataclass
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam, PyroSample

from pyro_dgp import (
    RBF,
    ActiveDims,
    Covariance,
    GaussianProcess,
    InducingPoints,
    Kernel,
    Linear,
    MarginalLikelihood,
    Scaled,
    Variational,
    White,
    fit,
    predict,
)
from tests.examples import OneLayer, regression


@dataclass(frozen=True)
class OwnCovariance(Covariance):
    """The squared exponential by functions that a test replaces."""

    of_matrix: Any
    of_diagonal: Any
    variance: Any = 1.0

    def matrix(self, x, z=None):
        return self.of_matrix(self.variance, x, z)

    def diagonal(self, x):
        return self.of_diagonal(self.variance, x)


def matrix(variance, x, z=None):
    z = x if z is None else z
    return variance * torch.exp(-0.5 * (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1))


def diagonal(variance, x):
    return variance * x.new_ones(x.shape[:-1])


class Own(Kernel):
    def __init__(self, of_matrix=matrix, of_diagonal=diagonal, variance=1.0):
        super().__init__()
        self.functions, self.calls = (of_matrix, of_diagonal), 0
        self.variance = PyroParam(torch.as_tensor(variance), constraint=constraints.positive)

    def forward(self):
        return OwnCovariance(*self.functions, self.variance)


def centred(variance, x, z=None):
    z = x if z is None else z
    return matrix(variance, x - x.mean(-2, keepdim=True), z - z.mean(-2, keepdim=True))


def counted(variance, x, z=None):
    return matrix(variance, x, z) * x.shape[-2] / 10


def slanted(variance, x, z=None):
    return matrix(variance, x, x if z is None else 2 * z)


WRONG = {
    "variance": (
        (matrix, lambda variance, x: 3 * diagonal(variance, x)),
        r"a variance of OwnCovariance.diagonal\(x\) is 3, and 1 on the",
    ),
    "centred": (
        (centred,),
        r"OwnCovariance gives two rows another covariance in matrix\(x, z\) than among more rows in matrix\(x\): let",
    ),
    "counted": (
        (counted, lambda variance, x: diagonal(variance, x) * x.shape[-2] / 10),
        r"OwnCovariance.matrix\(x, z\) is not the transpose of|another covariance in matrix\(x, z\)",
    ),
    "asymmetric": (
        (slanted,),
        r"OwnCovariance.matrix\(x, z\) is not the transpose of OwnCovariance.matrix\(z, x\): write",
    ),
    "transposed": (
        (lambda variance, x, z=None: matrix(variance, x, z).mT,),
        r"OwnCovariance.matrix\(x, z\) has shape \(1, 4, 2\) where \(1, 2, 4\) is wanted: keep .* a matrix of the rows of x by",
    ),
    "axis of a matrix": (
        (lambda *args: matrix(*args).unsqueeze(-1),),
        r"OwnCovariance.matrix\(x\) has shape \(1, 6, 6, 1\) where \(1, 6, 6\) is wanted",
    ),
    "axis of variances": (
        (matrix, lambda *args: diagonal(*args).unsqueeze(-1)),
        r"OwnCovariance.diagonal\(x\) has shape \(1, 6, 1\) where \(1, 6\) is wanted: .* one variance a row",
    ),
    "no axis of outputs": (
        (lambda *args: matrix(*args).squeeze(-3),),
        r"OwnCovariance.matrix\(x\) has shape \(6, 6\) where \(1, 6, 6\) is wanted",
    ),
    "a number": (
        (matrix, lambda variance, x: 1.0),
        r"OwnCovariance.diagonal\(x\) is a float: return a tensor of shape \(1, 6\)",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "around", [lambda own: own, lambda own: 2 * (RBF() + own) * Linear(), lambda own: ActiveDims(own, [1])]
)
@pytest.mark.parametrize("kind", WRONG)
def test_a_class_that_contradicts_itself_is_refused_at_its_first_use(kind, around, dtype, local):
    functions, sentence = WRONG[kind]
    x = torch.randn(20, 2, dtype=dtype)
    gp = GaussianProcess(around(Own(*functions))).to(dtype)
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=sentence):
            gp(x)


class Nugget(Own):
    """Noise on the diagonal of one set, in the three ways that one writes it."""

    def __init__(self, noisy):
        super().__init__(noisy, lambda variance, x: diagonal(variance, x) * 1.5)


def by_none(variance, x, z=None):
    return matrix(variance, x, z) + (0.5 * torch.eye(x.shape[-2]).to(x) if z is None else 0.0)


def by_equal_sets(variance, x, z=None):
    same = z is None or (z.shape == x.shape and torch.equal(x, z))
    return matrix(variance, x, z) + (0.5 * torch.eye(x.shape[-2]).to(x) if same else 0.0)


def by_equal_rows(variance, x, z=None):
    z = x if z is None else z
    return matrix(variance, x, z) + 0.5 * (x.unsqueeze(-2) == z.unsqueeze(-3)).all(-1)


def jittered(variance, x, z=None):
    return matrix(variance, x, z) + (1e-4 * torch.eye(x.shape[-2]).to(x) if z is None or z is x else 0.0)


def by_products(variance, x, z=None):
    z = x if z is None else z
    squared = x.square().sum(-1, keepdim=True) + z.square().sum(-1).unsqueeze(-2) - 2 * x @ z.mT
    return variance * torch.exp(-0.5 * squared.clamp_min(0))


def for_one_set(variance, x, z=None):
    if z is not None:
        raise NotImplementedError
    return matrix(variance, x)


def without_graph(variance, x, z=None):
    assert not torch.is_grad_enabled() or not x.requires_grad
    return matrix(variance, x, z)


SOUND = {
    "plain": lambda: Own(),
    "noise of one set": lambda: Nugget(by_none),
    "noise of equal sets": lambda: Nugget(by_equal_sets),
    "noise of equal rows": lambda: Nugget(by_equal_rows),
    "jitter": lambda: Own(jittered),
    "products": lambda: Own(by_products),
    "one set": lambda: Own(for_one_set),
    "beside the library's": lambda: Scaled(Own() * RBF() + White(), variance=3.0),
    "constant": lambda: Own(
        lambda variance, x, z=None: variance * x.new_ones(*x.shape[:-1], (x if z is None else z).shape[-2])
    ),
    "linear": lambda: Own(lambda v, x, z=None: v * x @ (x if z is None else z).mT, lambda v, x: v * x.square().sum(-1)),
    "large": lambda: Own(variance=1e6),
    "small": lambda: Own(variance=1e-8),
    "a variance an output": lambda: Own(
        variance=torch.tensor([[[1.0]], [[2.0]]]), of_diagonal=lambda v, x: v[..., 0] * x.new_ones(x.shape[:-1])
    ),
    "groups": lambda: Own(
        variance=torch.ones(3, 1, 1, 1), of_diagonal=lambda v, x: v[..., 0] * x.new_ones(x.shape[:-1])
    ),
}
POINTS = {
    "random": torch.randn(20, 2),
    "equal": torch.zeros(20, 2),
    "raw": 50 + 10 * torch.randn(20, 2),
    "few": torch.randn(3, 2),
    "two": torch.zeros(2, 2),
    "one": torch.zeros(1, 2),
    "none": torch.zeros(0, 2),
    "sets": torch.randn(3, 20, 2),
    "unknown": torch.full((20, 2), torch.nan),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", SOUND)
def test_sound_classes_pass(kind, dtype, local):
    for x in POINTS.values():
        prior = GaussianProcess(SOUND[kind](), num_outputs=2).to(dtype)(x.to(dtype))
        assert prior.x.shape == x.shape and prior.x.dtype == dtype


def test_it_is_tried_once_without_gradients_and_random_numbers(local):
    calls = []

    def watched(variance, x, z=None):
        calls.append((tuple(x.shape), torch.is_grad_enabled()))
        torch.rand(1)
        return matrix(variance, x, z)

    gp = GaussianProcess(Own(watched))
    gp(torch.randn(1, 2))
    assert calls == [((1, 1, 2), False)] * 2  # twice, to know a kernel with random numbers of its own
    calls.clear()
    state = torch.get_rng_state()
    for _ in range(3):
        gp(torch.zeros(50, 2, requires_grad=True))
    assert torch.equal(state, torch.get_rng_state())
    assert calls == [((1, rows, 2), False) for rows in (6, 6, 2, 4)]
    gp(torch.zeros(3, 2))
    assert len(calls) == 4
    gp.kernel = Own(lambda *args: matrix(*args).unsqueeze(0)[0].unsqueeze(-1))
    with pytest.raises(ValueError, match="has shape"):
        gp(torch.zeros(50, 2))


def test_a_class_trains_predicts_and_takes_a_prior(local):
    x, y = regression(12)
    model = OneLayer(Own())
    assert len(fit(MarginalLikelihood(model), x, y, steps=2).losses) == 2
    model = OneLayer(Own() + Linear())
    model.gp.kernel.parts[0].variance = PyroSample(dist.LogNormal(0.0, 0.1))
    guide = Variational(model, InducingPoints(4))
    guide.initialize(x, y)
    assert predict(guide, x).mean.shape == (12,)
    with pyro.plate("draws", 5, dim=-3):
        model.gp.kernel.parts[0].variance = PyroSample(dist.LogNormal(torch.zeros(1, 1), 0.1))
        model.gp(x)


class Deep(Own):
    """The squared exponential of a network's features."""

    def __init__(self, *layers):
        super().__init__()
        self.network = torch.nn.Sequential(*layers)

    def forward(self):
        def of_features(variance, x, z=None):
            return matrix(variance, *(None if each is None else self._features(each) for each in (x, z)))

        return OwnCovariance(of_features, diagonal, self.variance)

    def _features(self, x):
        return self.network(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class Dropping(torch.nn.Module):
    """Dropout in evaluation mode too."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), Dropping()])
def test_a_kernel_with_dropout_is_sound(layer, local):
    kernel = Deep(torch.nn.Linear(1, 8), layer)
    GaussianProcess(kernel)(torch.randn(9, 1))
    assert all(module.training for module in kernel.modules())


def test_batch_statistics_of_a_kernel_stay_as_they_are(local):
    kernel = Deep(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4))
    GaussianProcess(kernel)(torch.randn(9, 1))
    assert int(kernel.network[1].num_batches_tracked) == 0


def test_a_class_whose_matrix_takes_one_set_is_left_alone(local):
    class OfOneSet(OwnCovariance):
        def matrix(self, x):
            return matrix(self.variance, x)

    class Kind(Own):
        def forward(self):
            return OfOneSet(matrix, diagonal, self.variance)

    prior = GaussianProcess(Kind())(torch.randn(9, 1))
    assert prior.covariance_matrix.shape[-2:] == (9, 9)
