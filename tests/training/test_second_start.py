"""A fit that explains nothing gets a second start, and the better of both is kept."""

import pytest
import torch

from pyro_dgp import ELBO, DeepGP, InducingPoints, MonteCarlo, Settings, Variational
from pyro_dgp.training import second_start
from pyro_dgp.training.optimising import FitResult
from pyro_dgp.training.second_start import fit_with_second_start
from pyro_dgp.zoo.methods import METHODS

pytestmark = pytest.mark.usefixtures("local")


def start(x, y):
    torch.manual_seed(0)
    guide = Variational(DeepGP(x, 1), InducingPoints(10), MonteCarlo(1))
    guide.initialize(x, y)
    return guide, ELBO(len(x))(guide.model, guide)


@pytest.fixture
def runs(monkeypatch):
    """The losses and steps of all fits, with the values that each began at; forty steps tell something."""
    found, fitted = [], second_start.fit

    def spied(objective, *args, **options):
        values = {name: value.detach().clone() for name, value in objective.named_parameters()}
        found.append((type(objective.elbo).__name__, options["steps"], values))
        return fitted(objective, *args, **options)

    monkeypatch.setattr(second_start, "fit", spied)
    monkeypatch.setattr(second_start, "FEWEST", 40)
    return found


@pytest.mark.parametrize("is_better", [True, False])
def test_the_second_start_has_what_the_predictive_loss_found_and_all_else_anew(monkeypatch, runs, is_better):
    x, y = torch.randn(100, 3), torch.randn(100)
    ends = iter([0.0, 1.0] if is_better else [1.0, 0.0])
    monkeypatch.setattr(second_start, "_end", lambda result: next(ends))
    guide, objective = start(x, y)
    result, is_second = fit_with_second_start(guide, objective, x, y, steps=40, learning_rate=0.05)
    assert [run[:2] for run in runs] == [("ELBO", 40), ("PredictiveLogLikelihood", 10), ("ELBO", 40)]
    first, predictive, second = (run[2] for run in runs)
    assert all(torch.equal(value, predictive[name]) for name, value in first.items())
    moved = {name.split(".")[-1] for name, value in first.items() if not torch.equal(value, second[name])}
    assert moved == {"lengthscale_unconstrained", "variance_unconstrained", "inducing_points_unconstrained"}
    assert not any("likelihood" in n for n, v in first.items() if not torch.equal(v, second[n]))
    assert is_second == is_better and len(result.losses) == 40
    kept = {name: value.detach().clone() for name, value in objective.named_parameters()}
    plain, objective = start(x, y)
    second_start.fit(objective, x, y, steps=40, learning_rate=0.05)
    same = all(torch.equal(value, kept[name]) for name, value in objective.named_parameters())
    assert same == (not is_better)  # the first fit is left as it was, where it is kept


def test_sound_and_short_fits_get_none(runs):
    x = torch.linspace(-2, 2, 100)[:, None]
    y = torch.sin(3 * x[:, 0])
    guide, objective = start(x, y)
    assert not fit_with_second_start(guide, objective, x, y, steps=100, learning_rate=0.05)[1]
    noise = torch.randn(100)
    guide, objective = start(x, noise)
    assert not fit_with_second_start(guide, objective, x, noise, steps=39)[1]
    assert not fit_with_second_start(guide, objective, x, noise, steps=40, second=False)[1]
    assert len(runs) == 3


def test_a_second_start_that_breaks_down_leaves_the_first(monkeypatch, runs):
    x, y = torch.randn(100, 3), torch.randn(100)

    def broken(*args):
        raise ValueError("no predictive loss for this likelihood")

    monkeypatch.setattr(second_start, "PredictiveLogLikelihood", broken)
    guide, objective = start(x, y)
    assert not fit_with_second_start(guide, objective, x, y, steps=40)[1]
    kept = [value.detach().clone() for value in objective.parameters()]
    _, objective = start(x, y)
    second_start.fit(objective, x, y, steps=40)
    for one, two in zip(kept, objective.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_named_method_says_that_it_was_started_anew(monkeypatch, runs):
    x, y = torch.randn(100, 3), torch.randn(100)
    ends = iter([0.0, 1.0])
    monkeypatch.setattr(second_start, "_end", lambda result: next(ends))
    settings = Settings(inducing=10, samples=2, epochs=40)
    model = METHODS["svgp"].architecture.build(x, settings)
    fitted = METHODS["svgp"].inference.run(model, x, y, settings=settings, progress=lambda *_: None)
    assert fitted.remarks[0].startswith("its first fit explained nothing of the targets, so that a second one")


def test_a_run_without_steps_has_no_second_start():
    x, y = torch.randn(100, 3), torch.randn(100)
    guide, _ = start(x, y)
    found, is_second = second_start.train_with_second_start(guide, FitResult, x, y, predictive_steps=3)
    assert found.losses == [] and not is_second
