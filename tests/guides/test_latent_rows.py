"""Latent sites with a value for each row, of which the guide holds those of the training rows."""

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer.autoguide.effect import AutoHierarchicalNormalMessenger, AutoNormalMessenger
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    GaussianProcess,
    InducingPoints,
    NumpyStream,
    Variational,
    fit,
    fit_stream,
    module_local_parameters,
    predict,
)

ROWS = 12
pytestmark = pytest.mark.usefixtures("local")


class Effects(PyroModule):
    """An effect of each row besides a function, in a plate that takes some rows."""

    def __init__(self, some=None, event=False):
        super().__init__()
        self.gp, self.some, self.event = GaussianProcess(RBF()), some, event

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        if self.event:
            effect = pyro.sample("effect", dist.Normal(torch.zeros(len(x)), 0.5).to_event(1))
            return pyro.sample("y", dist.Normal(f + effect, 0.3).to_event(1), obs=y)
        with pyro.plate("data", len(x), subsample_size=self.some) as rows:
            effect = pyro.sample("effect", dist.Normal(0.0, 0.5))
            return pyro.sample("y", dist.Normal(f[..., rows] + effect, 0.3), obs=None if y is None else y[rows])


class Known(PyroModule):
    """A known scale of the noise of each training row."""

    def __init__(self, scale):
        super().__init__()
        self.gp = GaussianProcess(RBF())
        self.register_buffer("scale", scale)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f, self.scale).to_event(1), obs=y)


def data(rows=ROWS):
    x = torch.linspace(-1, 1, rows)[:, None]
    return x, torch.sin(3 * x[:, 0])


def guided(model, rows=ROWS, **options):
    guide = Variational(model, InducingPoints(5), **options)
    guide.initialize(*data(rows))
    return guide


@pytest.mark.parametrize("latents", [None, AutoNormalMessenger])
def test_a_plate_that_takes_some_rows_has_the_loss_of_all_on_average(latents):
    model = Effects(some=4)
    guide = guided(model) if latents is None else guided(model, latents=latents(model))
    with module_local_parameters(guide, model):
        guide.latents.locs.effect, guide.latents.scales.effect = 0.3 * torch.randn(ROWS), 0.2 + 0.2 * torch.rand(ROWS)
    losses = {}
    for some in (4, None):
        model.some = some
        losses[some] = torch.tensor([ELBO(ROWS).loss(model, guide, *data()) for _ in range(400)])
    error = sum(each.var() / len(each) for each in losses.values()).sqrt()
    assert float((losses[4].mean() - losses[None].mean()).abs()) < 3.5 * float(error) < 0.1 * float(losses[4].mean())
    model.some = 4
    assert len(fit(ELBO(ROWS)(model, guide), *data(), steps=2).losses) == 2


def test_a_guide_that_cannot_be_made_in_such_a_plate_is_refused():
    model = Effects(some=4)
    with pytest.raises(
        ValueError, match="latent site 'effect' cannot be made in a plate that takes some of its elements"
    ):
        guided(model, latents=AutoHierarchicalNormalMessenger(model))


@pytest.mark.parametrize("event", [False, True])
def test_another_number_of_rows_begins_with_values_of_its_own(event):
    guide = guided(Effects(event=event))
    fit(ELBO(ROWS)(guide.model, guide), *data(), steps=2)
    trained = guide.latents.locs.effect.detach().clone()
    guide.initialize(*data())
    torch.testing.assert_close(guide.latents.locs.effect.detach(), trained)  # the same rows have the same values
    guide.initialize(*data(8))
    assert guide.latents.locs.effect.shape == (8,)
    assert len(fit(ELBO(8)(guide.model, guide), *data(8), steps=2).losses) == 2
    assert predict(guide, data(3)[0], site="f").mean.shape == (3,)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            Effects,
            "the guide holds a value of the latent site 'effect' for each training row, .*networks={'effect': network}",
        ),
        (lambda: Effects(event=True), "the guide holds a value of the latent site 'effect' for each training row"),
        (
            lambda: Known(torch.ones(ROWS)),
            "the model holds 'scale' with an entry for each of the 12 rows, .*: read the rows into memory",
        ),
    ],
)
def test_a_stream_is_refused_where_rows_in_another_order_are_other_data(made, said, tmp_path):
    for name, values in zip("xy", data(), strict=True):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    model = made()
    guide = guided(model)
    with pytest.raises(ValueError, match=said):
        fit_stream(ELBO(ROWS)(model, guide), stream, steps=2)
    assert len(fit(ELBO(ROWS)(model, guide), *data(), steps=2).losses) == 2


class Served(AutoNormalMessenger):
    """A messenger guide with a network of its own, which serves one site."""

    def __init__(self, model):
        super().__init__(model)
        self.net = torch.nn.Linear(1, 2).double()

    def get_posterior(self, name, prior):
        if name != "weight":
            return super().get_posterior(name, prior)
        location, scale = self.net(torch.ones(1, dtype=torch.float64))
        return dist.Normal(location, scale.exp()).expand(prior.batch_shape)


class Weighted(PyroModule):
    """A latent number of one row, and one in a plate of one."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(1), 1.0).to_event(0))
        with pyro.plate("one", 1):
            offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + weight + offset, 0.3).to_event(1), obs=y)


@pytest.mark.parametrize("latents", [None, AutoNormalMessenger, AutoHierarchicalNormalMessenger, Served])
def test_trained_numbers_that_belong_to_no_row_are_kept(latents):
    model = Weighted()
    guide = guided(model) if latents is None else guided(model, latents=latents(model))
    with torch.no_grad():
        for parameter in guide.latents.parameters():
            parameter.fill_(0.37)
    guide.initialize(*data(8))
    assert all(each.detach().eq(0.37).all() for each in guide.latents.parameters())


@pytest.mark.parametrize("rows", [1, 2])
def test_a_guide_that_was_initialised_on_few_rows_takes_a_stream(rows, tmp_path):
    for name, values in zip("xy", data(), strict=True):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")

    class Normed(PyroModule):
        """Inputs that a layer standardises, which one row alone cannot be."""

        def __init__(self):
            super().__init__()
            self.norm, self.gp = torch.nn.BatchNorm1d(1).double(), GaussianProcess(RBF())

        def forward(self, x, y=None):
            inputs = self.norm(x) if len(x) > 1 else self.norm.eval()(x)
            f = pyro.sample("f", self.gp(inputs))[..., 0]
            return pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)

    guide = Variational(Normed(), InducingPoints(1))
    guide.initialize(*data(rows))
    assert len(fit_stream(ELBO(ROWS)(guide.model, guide), stream, steps=2).losses) == 2
