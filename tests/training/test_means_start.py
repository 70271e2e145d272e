"""A deep model that starts as the one layer that it is at the means of its hidden functions."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    Bernoulli,
    CollapsedELBO,
    DeepGP,
    FourierFeatures,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    Matern52,
    MonteCarlo,
    Variational,
    fit,
    module_local_parameters,
    predict,
)
from pyro_dgp.processes import ProcessFamily
from pyro_dgp.training import means_start
from pyro_dgp.training.means_start import AtMeans, start_at_means
from tests.examples import OneLayer

pytestmark = pytest.mark.usefixtures("local")
TOP = InducingPoints(12, per_output=True)


def data(rows=80):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, 3, generator=generator)
    y = torch.sin(6 * x[:, 0] - 3 * x[:, 1]) + 0.1 * torch.randn(rows, generator=generator)
    return x, (y - y.mean()) / y.std()


def deep(x, y, layers=2, family=TOP, **options):
    torch.manual_seed(0)
    guide = Variational(DeepGP(x, layers, 2, mean=LinearMean.fit, per_output=True, **options), family, MonteCarlo(1))
    guide.initialize(x, y)
    return guide


@pytest.mark.parametrize("layers", [2, 3])
def test_the_deep_model_begins_next_to_the_one_layer(layers, monkeypatch):
    x, y = data()
    guides = {}
    for share in (1e-3, 1e-9):
        monkeypatch.setattr(means_start, "SHARE", share)
        guide = guides[share] = deep(x, y, layers)
        assert start_at_means(guide, x, y, family=TOP, steps=60)
    model = guide.model
    assert all(float(gp.kernel.variance.detach().max()) < 1.1e-9 for gp in model.hidden)
    one = Variational(AtMeans(model), TOP, MonteCarlo(1))
    one.initialize(x, y)
    ((key, process),) = one.processes.named_children()
    assert key == "y/f"
    process.load_state_dict(guide.processes.get_submodule("y/f").state_dict())
    with torch.no_grad(), module_local_parameters(guide, model):
        bound = CollapsedELBO(one)(x, y)
        torch.testing.assert_close(ELBO(80)(model, guide)(x, y), bound, rtol=1e-3, atol=0.01)
    torch.testing.assert_close(predict(guide, x).mean, predict(one, x).mean, atol=1e-3, rtol=0)
    near = predict(guides[1e-3], x)
    assert float((near.mean - y).square().mean()) < 0.03  # a third of the noise is left of what the one layer explains


def test_training_goes_on_from_there_and_is_ahead_of_the_other_start():
    x, y = data()
    ends = []
    for begins in (True, False):
        guide = deep(x, y)
        assert not begins or start_at_means(guide, x, y, family=TOP)
        ends.append(fit(ELBO(80)(guide.model, guide), x, y, steps=150, batch_size=80).losses[-1])
    assert ends[0] < ends[1] - 0.3


def test_the_means_are_trained_and_random_numbers_stay_as_they_are():
    x, y = data()
    guide = deep(x, y)
    before = guide.model.hidden[0].mean.weight.detach().clone()
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    assert start_at_means(guide, x, y, family=TOP, steps=20)
    assert torch.equal(torch.rand(2), wanted)
    assert not torch.allclose(guide.model.hidden[0].mean.weight, before, atol=1e-3)


def test_some_rows_train_the_one_layer_and_all_of_them_set_its_q(monkeypatch):
    x, y = data(200)
    monkeypatch.setattr(means_start, "MOST_ROWS", 40)
    seen = []
    fitted = means_start.fit_collapsed

    def counted(guide, rows, **options):
        seen.append(len(rows[0]))
        return fitted(guide, rows, **options)

    monkeypatch.setattr(means_start, "fit_collapsed", counted)
    guide = deep(x, y)
    assert start_at_means(guide, x, y, family=TOP, steps=20)
    assert seen == [40]
    one = Variational(AtMeans(guide.model), TOP, MonteCarlo(1))
    one.initialize(x, y)
    process = one.processes.get_submodule("y/f")
    process.load_state_dict(guide.processes.get_submodule("y/f").state_dict())
    with torch.no_grad(), module_local_parameters(guide, guide.model):
        torch.testing.assert_close(one_elbo(one, x, y), CollapsedELBO(one)(x, y))


def one_elbo(one, x, y):
    return ELBO(len(x))(one.model, one)(x, y)


class Skip(PyroModule):
    """A hidden function whose mean is zero, beside the inputs."""

    def __init__(self, latent=False):
        super().__init__()
        self.hidden, self.rest, self.latent = GaussianProcess(Matern52(3)), OneLayer(Matern52(4)), latent

    def forward(self, x, y=None):
        if self.latent:
            pyro.sample("z", dist.Normal(x.new_zeros(()), 1.0))
        h = pyro.sample("h", self.hidden(x))
        return self.rest(torch.cat([x, h], -1), y)


@pytest.mark.parametrize(
    "case",
    ["one layer", "classes", "mean of zero", "noise", "diagonal", "features", "frozen", "another latent site"],
)
def test_nothing_changes_where_there_is_no_such_start(case, monkeypatch):
    x, y = data(40)
    family: ProcessFamily = TOP
    if case == "one layer":
        model = DeepGP(x, 1)
    elif case in ("mean of zero", "another latent site"):
        model = Skip(case == "another latent site")
    else:
        options = {"likelihood": Bernoulli()} if case == "classes" else {}
        kernel = "matern32-additive" if case == "features" else "matern52"
        model = DeepGP(x, 2, 2, mean=LinearMean.fit, kernel=kernel, **options)
    if case == "classes":
        y = (y > 0).double()
    if case == "noise":
        monkeypatch.setattr(means_start, "explains_nothing", lambda *args: True)
    if case == "diagonal":
        family = InducingPoints(5, "diagonal")
    if case == "features":
        family = FourierFeatures(3)
    if case == "frozen":
        for parameter in model.hidden.parameters():
            parameter.requires_grad_(False)
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(x, y)
    before = {name: value.detach().clone() for name, value in torch.nn.ModuleList([guide, model]).named_parameters()}
    assert not start_at_means(guide, x, y, family=TOP, steps=20)
    after = dict(torch.nn.ModuleList([guide, model]).named_parameters())
    assert before.keys() == after.keys() and all(torch.equal(value, after[name]) for name, value in before.items())
