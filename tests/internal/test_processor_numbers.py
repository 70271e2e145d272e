"""Random numbers that are the same on every device."""

import pytest
import torch

from pyro_dgp.internal.processor_numbers import ProcessorNumbers
from tests.virtual_device import virtual_device

DRAWS = {
    "randn": lambda device: torch.randn(4, device=device),
    "randint": lambda device: torch.randint(1000, (4,), device=device),
    "randn_like": lambda device: torch.randn_like(torch.ones(4, device=device)),
    "normal": lambda device: torch.normal(torch.zeros(4, device=device), torch.ones(4, device=device)),
    "normal_": lambda device: torch.empty(4, device=device).normal_(),
    "classes": lambda device: torch.multinomial(torch.ones(4, 50, device=device), 3),
    "counts": lambda device: torch.poisson(torch.full((4,), 100.0, device=device)),
    "gamma": lambda device: torch.distributions.Gamma(torch.ones(4, device=device), 1.0).sample(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_another_device_draws_what_the_processor_draws(draw, monkeypatch):
    torch.manual_seed(3)
    expected = draw("cpu")
    with virtual_device(monkeypatch) as device:
        torch.manual_seed(3)
        other = draw(device).cpu()
        with ProcessorNumbers():
            torch.manual_seed(3)
            found = draw(device)
            assert found.device == device
            found = found.cpu()
    assert torch.equal(found, expected)
    assert not torch.equal(other, expected)
