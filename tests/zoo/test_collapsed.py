"""The method that has the best q(v) in each step: beside svgp on the same model, its second start, and what it says."""

from dataclasses import replace

import pytest
import torch

from pyro_dgp import Settings
from pyro_dgp.training import second_start
from pyro_dgp.training.second_start import SECOND
from pyro_dgp.zoo import by_collapsed_elbo
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.recipes import TWO_KERNELS, shallow

pytestmark = pytest.mark.usefixtures("local")


def quiet(step, total, figures):
    del step, total, figures


def data(rows=120):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, 2, generator=generator)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(rows, generator=generator)
    return x, (y - y.mean()) / y.std()


def fitted(name, x, y, **options):
    settings = Settings(inducing=15, **options)
    model = shallow(x, settings, TWO_KERNELS)
    torch.manual_seed(0)
    return METHODS[name].inference.run(model, x, y, settings=settings, progress=quiet)


def test_it_predicts_at_least_as_well_as_many_steps_of_svi():
    x, y = data(300)
    rows, new = (x[:120], y[:120]), (x[120:], y[120:])
    fits = {"sgpr": fitted("sgpr", *rows), "svgp": fitted("svgp", *rows, epochs=800)}
    nll = {name: -fit.predict(new[0]).log_prob(new[1]).mean() for name, fit in fits.items()}
    assert float(nll["sgpr"]) < float(nll["svgp"]) + 0.01
    assert float(nll["sgpr"]) < 0.15  # by the noise alone it would be 0.03


def test_steps_are_counted_told_and_limited_by_epochs():
    x, y = data(40)
    seen = []
    settings = Settings(inducing=5, epochs=6)
    result = METHODS["sgpr"].inference.run(
        shallow(x, settings), x, y, settings=settings, progress=lambda *told: seen.append(told[:2])
    )
    assert seen == [(step, 6) for step in range(1, 7)] and result.steps == 6 and result.seconds > 0
    assert result.diagnostics == {"inducing": 5}
    (remark,) = result.remarks
    assert "in the last of the 6 steps: allow more steps" in remark


@pytest.mark.parametrize("is_better", [True, False])
def test_a_fit_that_explains_nothing_is_made_again_from_a_predictive_loss(monkeypatch, is_better):
    x, y = data(60)
    monkeypatch.setattr(by_collapsed_elbo, "PREDICTIVE_STEPS", 20)
    monkeypatch.setattr(by_collapsed_elbo, "FEWEST_STEPS", 10)
    once = fitted("sgpr", x, y, epochs=10).predict(x).mean
    monkeypatch.setattr(second_start, "explains_nothing", lambda *args, **options: True)
    ends = iter([0.0, 1.0] if is_better else [1.0, 0.0])
    monkeypatch.setattr(second_start, "_end", lambda result: next(ends))
    result = fitted("sgpr", x, y, epochs=10)
    assert (SECOND in result.remarks) == is_better
    assert torch.equal(result.predict(x).mean, once) == (not is_better)  # q(v) is that of the fit that is kept


def deep_fit(name, x, y, **options):
    settings = Settings(inducing=15, width=2, **options)
    model = METHODS[name].architecture.build(x, settings)
    torch.manual_seed(0)
    seen = []
    result = METHODS[name].inference.run(
        model, x, y, settings=settings, progress=lambda *told: seen.append((told[0], told[1]))
    )
    return model, result, seen


def test_two_layers_need_few_steps_and_stay_near_their_start():
    x, y = data(300)
    rows, new = (x[:120], y[:120]), (x[120:], y[120:])
    model, result, seen = deep_fit("dsvi-collapsed", *rows, epochs=100)
    assert seen == [(step, 100) for step in range(1, 101)] and result.steps == 100
    assert result.diagnostics == {"inducing": 15, "components": 10}
    _, slow, _ = deep_fit("dsvi", *rows, epochs=100)
    quick, slow = (-float(each.predict(new[0]).log_prob(new[1]).mean()) for each in (result, slow))
    assert quick < slow - 0.1
    assert quick < 0.2  # by the noise alone it would be 0.03
    near = model.top.kernel.parts[0].lengthscale.detach()
    zoo = METHODS["dsvi-collapsed"].inference
    assert isinstance(zoo, by_collapsed_elbo.ByCollapsedELBO)
    free = replace(zoo, spread=None)
    settings = Settings(inducing=15, width=2, epochs=100)
    other = METHODS["dsvi-collapsed"].architecture.build(x[:120], settings)
    torch.manual_seed(0)
    free.run(other, *rows, settings=settings, progress=quiet)
    start = METHODS["dsvi-collapsed"].architecture.build(x[:120], settings).top.kernel.parts[0].lengthscale.detach()
    far = other.top.kernel.parts[0].lengthscale.detach()
    assert float((near / start).log().abs().max()) < float((far / start).log().abs().max())


@pytest.mark.parametrize(
    ("rows", "given", "draws"),
    [
        (60, {}, 10),
        (300, {}, 10),
        (301, {}, 10),
        (700, {}, 5),
        (2999, {}, 2),
        (3000, {}, 1),
        (9000, {}, 1),
        (5001, {}, 2),  # two steps of an epoch, of 2,501 and 2,500 rows
        (3001, {"batch_size": 3000}, 2),
        (3000, {"batch_size": 600}, 5),
        (60, {"samples": 2}, 2),
    ],
)
def test_few_rows_have_many_draws(rows, given, draws):
    """q(v) of M coefficients is the best one for its draws, by up to M / (2 S N) nats a row too good."""
    x = torch.zeros(rows, 1)
    method = METHODS["dsvi-collapsed"]
    settings = Settings(inducing=15, width=2, **given)
    guide = method.inference.guide(method.architecture.build(x, settings), x, settings)
    assert guide.propagation.num_components == draws


def test_rows_of_a_step_are_those_of_the_settings():
    x, y = data(60)
    ends = {}
    for rows in (None, 60, 100, 30):
        _, result, _ = deep_fit("dsvi-collapsed", x, y, epochs=5, batch_size=rows, seed=1)
        ends[rows] = result.predict(x).mean
    assert torch.equal(ends[None], ends[60]) and torch.equal(ends[None], ends[100])
    assert not torch.allclose(ends[None], ends[30])


def test_the_time_of_a_fit_follows_rows_and_draws():
    zoo, settings = METHODS["dsvi-collapsed"].inference, Settings()
    work = {
        rows: zoo.cost(settings, rows) * settings.num_steps(rows, settings.rows_of_step)
        for rows in (200, 300, 4000, 5000)
    }
    assert work[300] / work[200] == pytest.approx(1.5) and work[5000] / work[4000] == pytest.approx(1.25)
