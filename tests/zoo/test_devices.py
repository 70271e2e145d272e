"""Every named method fits and predicts on a device beside the processor, alike."""

import pytest
import torch

from pyro_dgp import METHODS, Settings
from pyro_dgp.internal.processor_numbers import ProcessorNumbers
from tests.virtual_device import Elsewhere, virtual_device

SETTINGS = Settings(
    epochs=2,
    inducing=8,
    layers=2,
    width=2,
    frequencies=3,
    row_inducing=4,
    neighbors=5,
    mcmc_points=4,
    mcmc_samples=4,
    warmup=0,
)


def predictions(name, device):
    """Means and deviations at new rows after a short fit, with the random numbers of the processor."""
    with ProcessorNumbers():
        torch.manual_seed(0)
        x = torch.randn(30, 3)
        x, y = x.to(device), torch.sin(x[:, 0]).to(device)
        method = METHODS[name]
        model = method.architecture.build(x, SETTINGS)
        fitted = method.inference.run(model, x, y, settings=SETTINGS, progress=lambda *_, **__: None)
        prediction = fitted.predict(x[:5] + 0.1)
        return prediction.mean, prediction.stddev


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")  # of fits that are too short
def test_a_method_does_the_same_on_another_device(name, monkeypatch):
    expected = predictions(name, "cpu")
    with virtual_device(monkeypatch) as device:
        found = predictions(name, device)
        assert all(isinstance(each, Elsewhere) for each in found)
        found = [each.cpu() for each in found]
    for there, here in zip(found, expected, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-6, atol=1e-8)
