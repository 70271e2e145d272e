import numpy as np
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS

from pyro_dgp import Mixture, Prediction, to_arviz, whitened
from pyro_dgp.to_arviz import from_groups, import_arviz
from tests.examples import TwoSites, regression

az = import_arviz()


def prediction(outputs=None):
    shape = (3, 5) if outputs is None else (3, 5, outputs)
    components = dist.Normal(torch.randn(shape), 1.0)
    event = torch.Size() if outputs is None else torch.Size([outputs])
    return Prediction(lambda rows: Mixture(components, torch.full((3,), 1 / 3).log()), 5, event)


@pytest.mark.parametrize("outputs", [None, 2])
def test_groups_and_dimensions(outputs):
    y = torch.randn(5) if outputs is None else torch.randn(5, outputs)
    p = prediction(outputs)
    data = to_arviz.to_arviz(p, torch.randn(5, 2), y, num_samples=11)
    assert data.log_likelihood["y"].shape == (1, 3, 5)
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], p.component_log_prob(y))
    assert data.posterior_predictive["y"].shape == (1, 11, *y.shape)
    assert data.constant_data["x"].dims == ("row", "input")
    assert data.observed_data["y"].dims[0] == "row"


def test_it_agrees_with_from_pyro_where_that_exists(local):
    if not hasattr(az, "from_pyro"):
        assert int(az.__version__.split(".")[0]) >= 1
        return
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    mcmc = MCMC(NUTS(whitened(model), max_tree_depth=3), num_samples=10, warmup_steps=5, disable_progbar=True)
    mcmc.run(x, y)
    theirs = az.from_pyro(mcmc, log_likelihood=False)
    ours = from_groups({"posterior": {k: v[None].numpy() for k, v in mcmc.get_samples().items()}})
    np.testing.assert_allclose(ours.posterior["f_whitened"].values, theirs.posterior["f_whitened"].values)


def test_it_saves_and_loads(tmp_path):
    y = torch.randn(5)
    data = to_arviz.to_arviz(
        prediction(), torch.randn(5, 2), y, {"a": torch.randn(2, 7)}, {"diverging": np.zeros((2, 7), bool)}
    )
    data.to_netcdf(str(tmp_path / "a.nc"))
    loaded = az.from_netcdf(str(tmp_path / "a.nc"))
    np.testing.assert_allclose(loaded.posterior["a"].values, data.posterior["a"].values)
    assert loaded.sample_stats["diverging"].shape == (2, 7)


def test_log_likelihoods_stand_for_the_mixture_even_if_its_weights_differ():
    """Equal averages of them are the density of the mixture, as LOO and WAIC take them; a component of weight 0 is not there."""
    components = dist.Normal(torch.randn(3, 5), 0.5)
    weights = torch.tensor([0.75, 0.0, 0.25])
    p = Prediction(lambda rows: Mixture(components, weights.log()), 5)
    y = torch.randn(5)
    log_likelihood = to_arviz.to_arviz(p, torch.randn(5, 2), y).log_likelihood["y"].values[0]
    assert len(log_likelihood) >= 1000
    np.testing.assert_allclose(np.exp(log_likelihood).mean(0), p.log_prob(y).exp(), rtol=1e-6)
    each = p.component_log_prob(y).numpy()
    assert {int(np.abs(each[:, 0] - value).argmin()) for value in log_likelihood[:, 0]} == {0, 2}
