"""The prior of the weights of single layers: their numbers of inputs, and weights that are computed from other parameters."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn
from torch.nn.utils import parametrizations, prune

from pyro_dgp import ELBO, RBF, Gaussian, GaussianProcess, InducingPoints, Variational
from pyro_dgp.training.weight_prior import AdamWithWeightPrior, _inputs, _with_prior
from tests.examples import regression

pytestmark = pytest.mark.usefixtures("local")
PRECISION, ROWS = 6.0, 30


class WithNetwork(PyroModule):
    def __init__(self, network):
        super().__init__()
        self.network, self.gp, self.likelihood = network, GaussianProcess(RBF(ard=2)), Gaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(self.network(x))), obs=y)


def decays(network):
    """Weight decays by the names of the parameters of a network."""
    torch.manual_seed(0)
    x, y = regression(ROWS, inputs=3)
    guide = Variational(WithNetwork(network), InducingPoints(5))
    guide.initialize(x, y)
    optimizer = AdamWithWeightPrior(PRECISION)(ELBO(ROWS)(guide.model, guide), 0.02)
    found = {id(each): group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    return {name: found[id(each)] for name, each in network.named_parameters()}


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_prior_of_a_weight_of_scale_and_direction_is_that_of_the_scale(norm, axis):
    layer = norm(nn.Linear(3, 2), dim=axis)
    found = decays(layer)
    parameters = dict(layer.named_parameters())
    layer(torch.zeros(1, 3))  # by which the older of the two computes its weight
    prior = dist.Normal(0.0, (2 / (PRECISION * 3)) ** 0.5).log_prob(layer.weight).sum()
    prior = prior + dist.Normal(0.0, PRECISION**-0.5).log_prob(layer.bias).sum()
    gradients = torch.autograd.grad(prior, list(parameters.values()))
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        torch.testing.assert_close(found[name] * parameter, -gradient / ROWS, msg=name)


@pytest.mark.parametrize(
    "form",
    [
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        nn.utils.spectral_norm,
        lambda layer: parametrizations.spectral_norm(parametrizations.weight_norm(layer)),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_no_decay_gives_its_prior_is_refused(form):
    network = nn.Sequential(nn.Linear(3, 3), form(nn.Linear(3, 2)))
    sentence = r"the weight of the layer '.*network\.1' is computed from other parameters.*adam_for_networks"
    with pytest.raises(ValueError, match=sentence):
        decays(network)
    for parameter in network[1].parameters():
        parameter.requires_grad_(False)  # what stays as it is needs no prior
    assert decays(network)["0.weight"] == pytest.approx(PRECISION * 3 / 2 / ROWS)


def test_a_pruned_weight_has_its_prior_and_one_that_is_not_trained_needs_none():
    pruned = prune.random_unstructured(nn.Linear(3, 2), "weight", amount=1)
    assert decays(pruned)["weight_orig"] == pytest.approx(PRECISION * 3 / 2 / ROWS)
    fixed = parametrizations.orthogonal(nn.Linear(3, 2))
    fixed.parametrizations.weight.original.requires_grad_(False)
    assert decays(fixed)["bias"] == pytest.approx(PRECISION / ROWS)


def test_weights_that_pyro_reads_have_the_prior_or_one_of_their_own():
    layer = PyroModule[nn.Linear](3, 2)
    layer.weight = PyroParam(torch.randn(2, 3))
    found = {id(each): share for each, share in _with_prior(layer)}
    assert found == {id(layer.weight_unconstrained): 1.5, id(layer.bias): 1.0}
    layer.bias = PyroSample(dist.Normal(0.0, torch.ones(2)).to_event(1))
    assert [share for _, share in _with_prior(layer)] == [1.5]
    layer.weight = PyroParam(torch.ones(2, 3), constraint=dist.constraints.positive)
    with pytest.raises(ValueError, match="the weight of the layer .* is computed"):
        list(_with_prior(layer))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 2), (5,)),
        (nn.Conv1d(4, 6, 3, groups=2), (4, 40)),
        (nn.Conv2d(2, 3, (3, 5), stride=2), (2, 20, 20)),
        (nn.ConvTranspose1d(8, 2, 3), (8, 40)),
        (nn.ConvTranspose1d(8, 4, 3, groups=2), (8, 40)),
        (nn.ConvTranspose1d(3, 2, 5, stride=2), (3, 60)),
        (nn.ConvTranspose2d(3, 5, (3, 4), stride=(1, 2)), (3, 20, 20)),
    ],
)
def test_the_inputs_of_a_layer_are_those_that_a_value_of_its_output_is_a_sum_of(layer, shape):
    nn.init.ones_(layer.double().weight)
    nn.init.zeros_(layer.bias)
    sums = layer(torch.ones(1, *shape))[0].detach()
    for axis in range(1, sums.dim()):
        sums = sums.narrow(axis, 4, 8) if sums.shape[axis] > 12 else sums
    assert _inputs(layer) == pytest.approx(float(sums.mean()))
    assert dict(_with_prior(layer))[layer.weight] == pytest.approx(_inputs(layer) / 2)
