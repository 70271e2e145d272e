import pytest
import torch

from pyro_dgp import RBF, ConstantMean, GaussianProcess, LinearMean, Projection, Zero, concatenate_inputs


def test_zero_and_constant_and_linear():
    x = torch.randn(2, 5, 3)
    assert (Zero()()(x) == 0).all()
    constant = ConstantMean(2)
    constant.constant = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(constant()(x).expand(2, 5, 2), torch.tensor([1.0, -2.0]).expand(2, 5, 2))
    linear = LinearMean(3, 2)
    linear.bias = torch.tensor([0.5, 1.5])
    expected = torch.stack([x @ linear.weight[:, 0] + 0.5, x @ linear.weight[:, 1] + 1.5], -1)
    torch.testing.assert_close(linear()(x), expected)


def test_projection_is_identity_pca_or_padding():
    x = torch.randn(50, 4) @ torch.diag(torch.tensor([5.0, 0.1, 2.0, 0.5]))
    torch.testing.assert_close(Projection.fit(x, 4)()(x), x)
    padded = Projection.fit(x, 6)()(x)
    torch.testing.assert_close(padded[:, :4], x)
    assert (padded[:, 4:] == 0).all()
    two = Projection.fit(x, 2)()(x)
    # Principal scores: uncorrelated, with the two largest eigenvalues of the covariance as variances.
    covariance = torch.cov((two - two.mean(0)).T)
    largest = torch.linalg.eigvalsh(torch.cov(x.T)).flip(0)[:2]
    torch.testing.assert_close(covariance, torch.diag(largest), atol=1e-9, rtol=1e-9)


def test_projection_does_not_depend_on_the_sign_that_the_decomposition_chose():
    x = torch.randn(40, 5)
    weight = Projection.fit(x, 2).weight
    assert (weight.gather(0, weight.abs().argmax(0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("mean", [LinearMean(3, 2), Projection(torch.eye(3, 2))])
def test_inputs_of_another_width_are_refused(mean):
    with pytest.raises(ValueError, match=f"{type(mean).__name__} was made for inputs of 3 dimensions and got 4: call"):
        mean()(torch.randn(2, 5, 4))


def test_inputs_are_concatenated_over_particles():
    h, x = torch.randn(7, 5, 2), torch.randn(5, 3)
    joined = concatenate_inputs(h, x)
    assert joined.shape == (7, 5, 5)
    torch.testing.assert_close(joined[3, :, 2:], x)
    with pytest.raises(ValueError, match="5 rows of function values and 4 rows of inputs"):
        concatenate_inputs(h, torch.randn(4, 3))


def test_a_mean_of_another_number_of_outputs_is_named():
    gp = GaussianProcess(RBF(), Projection.fit(torch.randn(6, 3), 2))
    with pytest.raises(ValueError, match="has 2 outputs and the Gaussian process num_outputs=1"):
        _ = gp(torch.randn(6, 3)).mean


def test_a_projection_of_trained_features_does_not_hold_on_to_their_graph():
    assert not Projection.fit(torch.randn(6, 3, requires_grad=True), 2).weight.requires_grad
