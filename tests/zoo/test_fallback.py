"""A predictive method whose fallback is chosen: it is that inference, is said so, and is restored from its files."""

from dataclasses import replace

import pytest
import torch

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Settings, Validation, compare, load_fit
from pyro_dgp.zoo.by_guide import ByGuide, ByValidatedGuide
from pyro_dgp.zoo.methods import METHODS

pytestmark = pytest.mark.usefixtures("local")

SETTINGS = Settings(width=1, epochs=100, batch_size=100, learning_rate=0.05)
OVERFITTING = ByValidatedGuide(
    InducingPoints(40, "diagonal"),
    MonteCarlo(1),
    lambda settings, rows: PredictiveLogLikelihood(rows, settings.beta or 1e-4),
    validation=Validation(betas=(1e-4, 1e-3), folds=2, search=0.5, checks=1),
    fallback=ByGuide(InducingPoints(6), MonteCarlo(2), ELBO),
)


@pytest.mark.parametrize("beta", [None, 1e-4])
def test_the_fallback_is_fitted_predicts_and_is_restored(beta, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(90, 2)
    y = torch.randn(90)  # noise
    settings = replace(SETTINGS, beta=beta)
    result = compare(
        None, x, y, methods=[("own", OVERFITTING)], settings=settings, output=tmp_path / "out", say=lambda line: None
    )
    (row,) = result.rows
    assert row["beta"] == beta
    points = 40 if beta else 6
    assert row["inducing"] == points
    new = torch.randn(5, 2)
    again = load_fit(tmp_path / "out", "own", inference=OVERFITTING)
    for found in (result["own"], again):
        assert getattr(found.guide.processes, "y/f").basis.inducing_points.shape[-2] == points
    assert torch.equal(result["own"].predict(new).mean, again.predict(new).mean)


def test_a_fallback_that_is_validated_stops_at_its_best_check():
    """The ELBO with a network in front of the GP overfits few rows."""
    x = torch.randn(20, 2)
    for name, stops in (("dspp", False), ("ppgpr", False), ("dkl-dspp", True), ("dkl-ppgpr", True)):
        method = METHODS[name]
        assert isinstance(method.inference, ByValidatedGuide) and method.inference.fallback is not None
        model = method.architecture.build(x, SETTINGS)
        assert method.inference.fallback.as_fallback(model, x, SETTINGS).stops is stops
