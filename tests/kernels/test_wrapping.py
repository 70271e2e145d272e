"""The input dimensions that ActiveDims takes: whole numbers of columns that are there."""

import numpy as np
import pytest
import torch

from pyro_dgp import RBF, ActiveDims, FourierFeatures, GaussianProcess, Matern32, Variational
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("unannotated")


@pytest.mark.parametrize(
    "dims", [1, slice(0, 1), [], None, [0.0], "01", [[0, 1]], [False, False], [None], [0, True, 0.5]], ids=repr
)
def test_dims_that_are_no_columns_are_refused_at_once(dims):
    kernel = ActiveDims(RBF(), [0])
    for use in (lambda: ActiveDims(RBF(), dims), lambda: setattr(kernel, "dims", dims)):
        with pytest.raises(
            ValueError,
            match=r"ActiveDims takes dims, the numbers of one column or more, .* got .*: give a list such as \[0, 2\]",
        ):
            use()


@pytest.mark.parametrize("dims", [[5], [0, -3], (2,), [True, False, True]], ids=repr)
def test_columns_that_the_inputs_do_not_have_are_refused_in_use(dims):
    x, covariance = torch.randn(1, 4, 2), ActiveDims(RBF(), dims)()
    for use in (lambda: covariance.matrix(x), lambda: covariance.matrix(x, x), lambda: covariance.diagonal(x)):
        with pytest.raises(ValueError, match=r"ActiveDims has dims=\[.*\].*and its inputs have 2 columns: give"):
            use()
    with pytest.raises(ValueError, match="ActiveDims has dims="):
        GaussianProcess(ActiveDims(RBF(), dims))(x[0]).covariance_matrix  # noqa: B018


@pytest.mark.parametrize(
    "dims",
    [
        [0, 2],
        (0, 2),
        range(0, 3, 2),
        [0, -1],
        [-3, 2],
        torch.tensor([0, 2]),
        np.array([0, 2]),
        [torch.tensor(0), 2],
        [True, False, True],
        torch.tensor([True, False, True]),
        np.array([True, False, True]),
    ],
    ids=repr,
)
def test_columns_by_number_from_the_end_and_by_mask_are_taken(dims):
    x, z = torch.randn(1, 4, 3), torch.randn(1, 5, 3)
    found, expected = ActiveDims(RBF(), dims)(), RBF()()
    torch.testing.assert_close(found.matrix(x, z), expected.matrix(x[..., [0, 2]], z[..., [0, 2]]))
    torch.testing.assert_close(found.diagonal(x), expected.diagonal(x[..., [0, 2]]))


def test_a_mask_and_a_number_from_the_end_have_the_features_of_the_column(local):
    x, y = regression(12, inputs=2)
    kl = []
    for dims in ([0], [True, False], [-2]):
        torch.manual_seed(0)
        guide = Variational(OneLayer(ActiveDims(Matern32(), dims)), FourierFeatures(4))
        guide.initialize(x, y)
        kl.append(guide.components(x, y).trace.nodes["y"]["fn"].moments.variance)
    for other in kl[1:]:
        torch.testing.assert_close(other, kl[0])
    with pytest.raises(ValueError, match="ActiveDims has dims="):
        Variational(OneLayer(ActiveDims(Matern32(), [5])), FourierFeatures(4)).initialize(x, y)
