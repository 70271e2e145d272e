"""One program for several points, against the function at each."""

import pytest
import torch
from torch._dynamo.eval_frame import TorchPatcher

from pyro_dgp.internal.compiled_batch import CompiledBatch
from pyro_dgp.internal.compiled_function import CompiledFunction
from pyro_dgp.internal.linalg import cholesky
from pyro_dgp.internal.recording import failed


def energy_and_gradient(vector):
    """Half a log determinant of a matrix that has a factor while the number is above -1."""
    with torch.enable_grad():
        leaf = vector.detach().requires_grad_()
        matrix = torch.eye(3, dtype=vector.dtype) + leaf[0] * torch.eye(3, dtype=vector.dtype) + 0.1 * leaf[1] ** 2
        energy = cholesky(matrix, 1e-6, "f").diagonal().log().sum() + leaf.square().sum()
        return energy.detach(), torch.autograd.grad(energy, leaf)[0]


def answer(batch, points):
    found = batch.at(points)
    assert found is not None
    return found


def test_results_are_those_of_the_function(caplog):
    batch = CompiledBatch("a function", energy_and_gradient, "eager")
    for seed in range(5):
        points = torch.rand(4, 2, generator=torch.Generator().manual_seed(seed))
        (energies, gradients), serves = answer(batch, points)
        assert serves.tolist() == [True] * 4
        for point, energy, gradient in zip(points, energies, gradients, strict=True):
            expected = energy_and_gradient(point)
            torch.testing.assert_close(energy, expected[0])
            torch.testing.assert_close(gradient, expected[1])
    assert batch.is_checked and "not compiled" not in caplog.text


def test_points_without_a_factor_are_told_apart():
    batch = CompiledBatch("a function", energy_and_gradient, "eager")
    batch.at(torch.rand(3, 2))
    points = torch.tensor([[0.5, 0.1], [-2.0, 0.1], [0.2, float("nan")]])
    (energies, _), serves = answer(batch, points)
    assert serves.tolist() == [True, False, False]
    torch.testing.assert_close(energies[0], energy_and_gradient(points[0])[0])


def test_a_program_of_other_numbers_is_set_aside(caplog):
    class Wrong(CompiledBatch):
        def expected(self, points):
            energies, gradients = super().expected(points)
            return energies + 1, gradients

    batch = Wrong("a function", energy_and_gradient, "eager")
    assert batch.at(torch.rand(3, 2)) is None
    assert "a function is not compiled, the model runs as it is: the program gives other numbers" in caplog.text
    assert batch.at(torch.rand(3, 2)) is None


def doubled(graph, arguments):
    """A compiler whose programs give twice what they should at points of few units."""

    def program(*given):
        energies, gradients, serves = graph(*given)
        return torch.where(given[0][:, 0].abs() < 10, energies + 1, energies), gradients, serves

    return program


@pytest.mark.parametrize("other", [-2.0, 1e9])
def test_each_point_is_compared_on_its_own_scale_whatever_the_others_do(other, caplog):
    """One has no factor, or an energy beside which the error of the first is small."""
    batch = CompiledBatch("a function", energy_and_gradient, doubled)
    assert batch.at(torch.tensor([[0.5, 0.1], [other, 0.1]])) is None
    assert "the program gives other numbers" in caplog.text


def test_a_point_that_fails_with_a_finite_number_does_not_serve():
    def checked(vector):
        failed((vector > 1).any())
        return vector.sum(), vector

    batch = CompiledBatch("a function", checked, "eager")
    _, serves = answer(batch, torch.tensor([[0.5, 0.1], [2.0, 0.1]]))
    assert serves.tolist() == [True, False]


@pytest.mark.parametrize("function", [lambda v: (v[v > 0.5].sum(), v), lambda v: (v.sum() + torch.rand(()), v)])
def test_a_function_that_cannot_be_vectorised_has_no_program(function, caplog):
    batch = CompiledBatch("a function", function, "eager")
    state = torch.get_rng_state()
    assert batch.at(torch.rand(3, 2, generator=torch.Generator())) is None
    assert "a function is not compiled" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)


def test_distributions_are_validated_as_before_a_program_is_made():
    """The compiler of torch ends the validation of all distributions in the process, once."""
    TorchPatcher.patch.cache_clear()
    assert torch.distributions.Distribution._validate_args
    program = CompiledFunction("the sine", lambda x: (x.sin(),), "eager")
    assert program(torch.tensor([1.0]))[0] == torch.tensor(1.0).sin()
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(0.0, -1.0)
