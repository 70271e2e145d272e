"""The tests check the package's annotations: types, and shapes of arrays against one another."""

import dataclasses

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from pyro_dgp import MonteCarlo, concatenate_inputs
from tests.annotations import CHECKED

checked = jaxtyping.jaxtyped(typechecker=beartype)


@checked
def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"], *, of: str = "both") -> Float[Tensor, "n m"]:
    if a.shape[0] > 1:
        product(a[:1], b)  # a call within a call has axes of its own
    return a @ b if of == "both" else b


@checked
@dataclasses.dataclass
class Named:
    name: str
    of: "Missing | None" = None  # type: ignore[name-defined]  # noqa: F821  # a name that is not there is not checked


@checked
class Counter:
    @checked
    def __init__(self, start: int):
        self.start = start

    @property
    @checked
    def next(self) -> int:
        return self.start + 1 if self.start else "none"


def test_shapes_are_compared_by_the_names_of_axes():
    a, b = torch.zeros(2, 3), torch.zeros(3, 4)
    assert product(a, b).shape == (2, 4)
    for call in (lambda: product(b, b), lambda: product(a, b, of="one"), lambda: product(a.int(), b.int())):
        with pytest.raises(TypeError):
            call()
    assert product(torch.zeros(5, 3), b).shape == (5, 4)


def test_types_are_checked_of_functions_methods_properties_and_data_classes():
    assert Named("a", of=1).of == 1 and Counter(1).next == 2
    for call in (lambda: product(torch.zeros(2, 3), torch.zeros(3, 4), of=1), lambda: Named(1), lambda: Counter("1")):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        _ = Counter(0).next


def test_the_package_is_checked():
    with pytest.raises(TypeError):
        MonteCarlo("many")
    with pytest.raises(TypeError):
        concatenate_inputs(torch.zeros(3), torch.zeros(3, 1))


def test_many_calls_of_a_function_in_one_test_are_checked_at_first_and_seldom_later():
    for _ in range(CHECKED):
        Counter(1)
    numbers = range(CHECKED + 1, 200)
    for number in numbers:
        if number & (number - 1):
            assert Counter("1").start == "1"
        else:
            with pytest.raises(TypeError):
                Counter("1")
    assert {32, 64, 128} < {*numbers}


def test_a_function_within_a_function_is_checked_where_it_is_defined_first():
    def made():
        @checked
        def double(number: int) -> int:
            return 2 * number

        return double

    first, second = made(), made()
    with pytest.raises(TypeError):
        first("1")
    assert second("1") == "11"


def test_nothing_is_checked_where_it_is_switched_off(unannotated):
    assert Named(1).name == 1 and Counter(0).next == "none"
    assert product(torch.zeros(1, 3), torch.zeros(3, 4), of="one").shape == (3, 4)
