"""Products whose sums a GPU takes in parts."""

import pytest
import torch

from pyro_dgp.internal import linalg
from tests.virtual_device import virtual_device


@pytest.mark.parametrize("terms", [1, 7, 20, 50])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_parts_add_up_to_the_product(terms, is_transposed):
    a = torch.randn(3, 4, 50)
    b = torch.randn(3, 5, 50).mT if is_transposed else torch.randn(3, 50, 5)
    torch.testing.assert_close(linalg.product_in_parts(a, b, terms), a @ b)


def test_gradients_are_those_of_the_product():
    a, b = torch.randn(2, 3, 10, requires_grad=True), torch.randn(2, 10, 2, requires_grad=True)
    weights = torch.randn(2, 3, 2)
    found = torch.autograd.grad((linalg.product_in_parts(a, b, 4) * weights).sum(), (a, b))
    expected = torch.autograd.grad(((a @ b) * weights).sum(), (a, b))
    torch.testing.assert_close(found, expected)


def test_only_long_sums_of_another_device_are_taken_in_parts(monkeypatch):
    seen = []

    def recorded(a, b, terms):
        seen.append((a.device.type, a.shape[-1], terms))
        return a @ b

    monkeypatch.setattr(linalg, "product_in_parts", recorded)
    monkeypatch.setattr(linalg, "_MANY_TERMS", 20)
    monkeypatch.setattr(linalg, "_MOST_ENTRIES", 24)
    long, short, wide = (torch.randn(2, *shape) for shape in ((3, 20), (3, 19), (4, 20)))
    with virtual_device(monkeypatch) as device:
        for left in (long, short, wide):
            linalg.product(left.to(device), left.to(device).mT)
    linalg.product(long, long.mT)
    assert [found[1:] for found in seen] == [(20, 2048)]
    assert seen[0][0] != "cpu"
