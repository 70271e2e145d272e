"""Named methods of other features: their models, their bases, and that they learn, in both precisions and with more features than rows."""

import math

import pytest
import torch

from pyro_dgp import Settings, Spherical, compare, load_fit
from pyro_dgp.kernels.named import KERNELS, additive_form, zonal_form
from pyro_dgp.processes import (
    ActivationBasis,
    FourierBasis,
    HarmonicBasis,
    InducingPointBasis,
    OrthogonalBasis,
    WhitenedProcess,
)
from pyro_dgp.zoo.feature_methods import FEATURE_METHODS
from pyro_dgp.zoo.methods import METHODS

pytestmark = pytest.mark.usefixtures("local")

BASES = {
    "vff": FourierBasis,
    "vff-collapsed": FourierBasis,
    "id-dgp": FourierBasis,
    "vish": HarmonicBasis,
    "vish-dgp": HarmonicBasis,
    "activated-svgp": ActivationBasis,
    "activated-dgp": ActivationBasis,
}
FIRST = {"solve": InducingPointBasis, "od": InducingPointBasis, "activated": ActivationBasis}


def regression(rows, columns, dtype):
    x = 2 * torch.rand(rows, columns, dtype=dtype) - 1
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(rows, dtype=dtype)
    return x, (y - y.mean()) / y.std()


@pytest.mark.parametrize("name", [method.name for method in FEATURE_METHODS])
def test_it_learns_and_is_restored_from_its_files(name, tmp_path):
    torch.manual_seed(0)
    x, y = regression(80, 2, torch.float64)
    settings = Settings(inducing=12, orthogonal=5, frequencies=4, width=2, epochs=200)
    result = compare(None, x, y, methods=[name], settings=settings, output=tmp_path / "out", say=lambda line: None)
    (row,) = result.rows
    assert row["nll"] < 0.8 and row["rmse"] < 0.6  # the mean alone has 1.4 and 1
    guide, (kernel, _) = result[name].guide, (result[name].model.top.kernel, 0)
    processes = list(guide.processes.children())
    assert len(processes) == (2 if name.endswith("dgp") else 1)
    for process in processes:
        assert isinstance(process, WhitenedProcess)
        if name in BASES:
            assert isinstance(process.basis, BASES[name])
        else:
            assert isinstance(process.basis, OrthogonalBasis)
            assert isinstance(process.basis.first, FIRST[name.split("-")[0]])
            assert process.basis.second.size == 5
            assert process.q.parts[1].kind == ("prior" if name.startswith("od") else "full")
    assert row["inducing"] == processes[0].basis.size
    if name in ("vff", "vff-collapsed", "id-dgp"):
        assert row["inducing"] == 2 * 9 and len(kernel.parts) == 2
    elif "vish" in name or "activated" in name:
        assert isinstance(kernel, Spherical)
    new = torch.randn(5, 2)
    assert torch.equal(result[name].predict(new).mean, load_fit(tmp_path / "out", name).predict(new).mean)


@pytest.mark.parametrize("name", [method.name for method in FEATURE_METHODS])
@pytest.mark.parametrize("columns", [1, 2])
def test_more_features_than_rows_in_single_precision(name, columns, single):
    torch.manual_seed(0)
    x, y = regression(20, columns, torch.float32)
    x, y = torch.cat([x, x[:3]]), torch.cat([y, y[:3]])
    settings = Settings(inducing=20, orthogonal=20, width=2, epochs=20)
    model = METHODS[name].architecture.build(x, settings)
    fitted = METHODS[name].inference.run(model, x, y, settings=settings, progress=lambda *_: None)
    prediction = fitted.predict(x)
    assert prediction.mean.dtype == torch.float32 and math.isfinite(float(prediction.log_prob(y).sum()))


def test_noise_between_layers_is_that_of_the_inter_domain_deep_gp_and_is_learned():
    x = torch.rand(30, 2)
    settings = Settings(width=3, frequencies=2, epochs=30)
    model = METHODS["id-dgp"].architecture.build(x, settings)
    white = model.hidden[0].kernel.parts[-1]
    torch.testing.assert_close(white.variance, torch.full((3,), 1e-5))
    METHODS["id-dgp"].inference.run(model, x, x.sum(1), settings=settings, progress=lambda *_: None)
    assert (white.variance - 1e-5).abs().min() > 1e-7
    at = torch.rand(4, 2)
    whole, rest = (
        model.hidden[0](at).covariance_matrix,
        model.hidden[0](at).covariance.parts[0].matrix(at.unsqueeze(-3)),
    )
    torch.testing.assert_close(whole - rest, torch.diag_embed(white.variance[:, None].expand(3, 4)))


def test_forms_of_kernels_by_name():
    assert additive_form("matern32") == additive_form("matern32-isotropic") == "matern32-additive"
    assert additive_form("matern12-additive") == "matern12-additive"
    assert zonal_form("rbf") == "rbf-spherical" and zonal_form("arc-cosine") == "arc-cosine"
    with pytest.raises(
        ValueError,
        match=r"additive Matern kernels, and kernel 'rbf' has no such form: choose from matern12, matern32, matern52$",
    ):
        additive_form("rbf")
    x = torch.randn(5, 3)
    for name in ("matern32-additive", "matern52-spherical"):
        assert 0.5 < float(KERNELS[name](3, None)().diagonal(x[None]).detach().mean()) < 2


@pytest.mark.parametrize(("name", "kernel"), [("vff", "rbf"), ("vish", "linear")])
def test_a_kernel_without_the_form_is_refused_before_anything_runs(name, kernel):
    x, y = regression(20, 2, torch.float64)
    with pytest.raises(ValueError, match="has no such form: choose from"):
        compare(None, x, y, methods=[name], settings=Settings(kernel=kernel), say=lambda line: None)
