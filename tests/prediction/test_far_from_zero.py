"""Figures of mixtures far from zero, of levels near 0 and 1, and of tails beyond any bracket: the same as near zero, and those of scipy."""

import math

import pytest
import scipy
import torch
from pyro import distributions as dist

from pyro_dgp import Mixture, Prediction
from pyro_dgp.prediction.mixture import stack_mixtures


def stacked(offset, dtype, *, parts=30):
    """A mixture of draws of hyperparameters, as chains have it, around an offset."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(parts, 4, 1, 5, generator=generator, dtype=torch.float64)
    zero = torch.full((4,), 0.25, dtype=dtype).log()
    return stack_mixtures(
        [
            Mixture(dist.Normal((offset + mean[:, 0]).to(dtype), torch.full((4, 5), 0.5, dtype=dtype)), zero)
            for mean in means
        ]
    )


def one(component):
    return Prediction(lambda rows: Mixture(component, torch.zeros(1, dtype=component.loc.dtype)), rows=1)


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize("offset", [1e3, 1e8])
def test_moments_of_stacked_mixtures_move_with_their_offset(offset):
    """Weights that miss a sum of one by 5e-8, as float32 ones do, move the mean by 5e-8 of the offset."""
    near, far = stacked(0.0, torch.float64), stacked(offset, torch.float64)
    assert far.log_weights.exp().sum() == pytest.approx(1, abs=1e-14)
    assert torch.allclose(far.mean - offset, near.mean, atol=1e-6, rtol=0)
    assert torch.allclose(far.variance, near.variance, rtol=1e-6)


@pytest.mark.usefixtures("single")
def test_weights_that_miss_a_sum_of_one_do_not_scale_the_mean():
    component = dist.Normal(torch.full((3, 2), 1e6) + torch.tensor([[0.0], [1.0], [2.0]]), torch.ones(3, 2))
    mixture = Mixture(component, torch.full((3,), 1 / 3).log() + 1e-4)
    assert mixture.mean.tolist() == [1e6 + 1.0] * 2
    assert torch.allclose(mixture.variance, torch.tensor(1 + 2 / 3))
    outputs = dist.MultivariateNormal(component.loc.unsqueeze(-1), torch.eye(1))
    assert torch.allclose(Mixture(outputs, mixture.log_weights).covariance, torch.tensor(1 + 2 / 3))


@pytest.mark.parametrize(("dtype", "far", "log_weight"), [(torch.float64, 1e20, -80.0), (torch.float32, 1e9, -40.0)])
@pytest.mark.parametrize("first", [True, False])
def test_a_far_component_without_weight_does_not_take_the_mean_with_it(dtype, far, log_weight, first):
    order = slice(None, None, 1 if first else -1)
    means = torch.tensor([far, 1.0], dtype=dtype)[[0, 1][order]].unsqueeze(1)
    weights = torch.tensor([log_weight, 0.0], dtype=dtype)[[0, 1][order]]
    assert Mixture(dist.Normal(means, torch.ones_like(means)), weights).mean.item() == pytest.approx(1, abs=1e-5)


def test_weights_have_the_gradient_of_the_mean_of_weights_that_sum_to_one():
    logits, means = torch.tensor([0.3, -0.2, 0.5], requires_grad=True), torch.tensor([[1.0], [5.0], [2.0]])
    mean = Mixture(dist.Normal(means, torch.ones(3, 1)), logits.log_softmax(0)).mean
    (found,) = torch.autograd.grad(mean.sum(), logits)
    (wanted,) = torch.autograd.grad((logits.softmax(0) * means.squeeze(1)).sum(), logits)
    assert torch.allclose(found, wanted)


def test_quantiles_where_the_distribution_function_is_no_number_are_none():
    component = dist.Normal(torch.tensor([[0.0, torch.nan]]), torch.ones(1, 2), validate_args=False)
    found = Prediction(lambda rows: Mixture(component, torch.zeros(1)), rows=2).quantile([0.1, 0.9])
    assert found[:, 1].isnan().all() and found[:, 0].tolist() == pytest.approx([-1.28155, 1.28155], abs=1e-4)


def test_the_mean_keeps_its_gradient_and_infinite_means_stay():
    means = torch.tensor([[1.0], [3.0]], requires_grad=True)
    weights = torch.tensor([0.25, 0.75])
    mean = Mixture(dist.Normal(means, torch.ones(2, 1)), weights.log()).mean
    assert mean.item() == pytest.approx(2.5)
    mean.sum().backward()
    assert means.grad.squeeze(1).tolist() == pytest.approx([0.25, 0.75])
    heavy = dist.Pareto(torch.ones(2, 1), torch.tensor([[0.5], [2.0]]))
    assert Mixture(heavy, weights.log()).mean.tolist() == [torch.inf]


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize("level", [1e-8, 1e-6, 1 - 1e-6, 1 - 1e-8])
def test_levels_have_the_precision_of_the_model_and_not_of_the_default(level):
    prediction = one(dist.Normal(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)))
    wanted = pytest.approx(scipy.stats.norm.ppf(level), abs=1e-8)
    assert prediction.quantile(level).item() == wanted
    assert prediction.quantile(torch.tensor([level], dtype=torch.float64))[0].item() == wanted


@pytest.mark.usefixtures("single")
def test_levels_that_single_precision_cannot_tell_from_one_are_refused():
    prediction = one(dist.Normal(torch.zeros(1, 1), torch.ones(1, 1)))
    for level, rounded in ((1 - 1e-8, 1), (1e-46, 0)):
        with pytest.raises(
            ValueError, match=rf"the quantile level {level} is {rounded} in torch.float32: take one that"
        ):
            prediction.quantile([0.5, level])
    with pytest.raises(ValueError, match=r"levels are one number or a list of numbers, got shape \(2, 2\)"):
        prediction.quantile(torch.full((2, 2), 0.5))
    assert prediction.quantile(1 - 1e-6).item() == pytest.approx(scipy.stats.norm.ppf(1 - 1e-6), rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [0.01, 0.5, 0.9])
@pytest.mark.parametrize(
    ("name", "parameters", "of_scipy"),
    [
        ("Pareto", (1e9, 1.5), lambda level: scipy.stats.pareto.ppf(level, 1.5, scale=1e9)),
        ("LogNormal", (50.0, 1.0), lambda level: math.exp(50.0) * scipy.stats.lognorm.ppf(level, 1.0)),
        ("Cauchy", (0.0, 1e20), lambda level: scipy.stats.cauchy.ppf(level, scale=1e20)),
        ("Normal", (0.0, 1e20), lambda level: scipy.stats.norm.ppf(level, scale=1e20)),
        ("Normal", (3e9, 1e6), lambda level: scipy.stats.norm.ppf(level, 3e9, 1e6)),
    ],
)
def test_quantiles_beyond_the_first_bracket_are_those_of_scipy(name, parameters, of_scipy, level, dtype):
    component = getattr(dist, name)(*(torch.full((1, 1), value, dtype=dtype) for value in parameters))
    mixture = Mixture(component, torch.zeros(1, dtype=dtype))
    found = Prediction(lambda rows: mixture, rows=1).quantile(level)
    wanted = of_scipy(level)
    assert found.item() == pytest.approx(wanted, rel=1e-9 if dtype == torch.float64 else 1e-4, abs=1e-4 * parameters[1])
