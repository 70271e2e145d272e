"""``dsvi`` and ``nuts`` fit the step function at toy size, and the distance between them is a Wasserstein distance."""

import torch
from pyro import distributions as dist

from benchmarks.studies import step_function_agreement
from pyro_dgp import ELBO, InducingPoints, Mixture, MonteCarlo, Prediction, Variational, predict
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.training.loop import fit


def test_step_function_runs_and_its_figure_is_drawn(tmp_path, monkeypatch):
    few = {"num_samples": 20, "num_hyperparameter_draws": 4}
    less = lambda fit, x, **options: predict(fit, x, **{name: few[name] for name in options})
    monkeypatch.setattr(step_function_agreement, "predict", less)
    outcome = step_function_agreement.run(draws=8, warmup=4, steps=5, depth=2)
    step_function_agreement.draw(outcome, tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert outcome["figures"]["wasserstein_mean"] > 0


def test_wasserstein_of_two_shifted_normals_is_the_shift():
    def normal(loc):
        return Prediction(lambda rows: Mixture(dist.Normal(torch.full((1, 3), loc), 1.0), torch.zeros(1)), 3)

    torch.testing.assert_close(step_function_agreement.wasserstein(normal(0.0), normal(0.7)), torch.full((3,), 0.7))


def test_dsvi_fits_the_step_function_out_of_the_box():
    x, y = step_function_agreement.data()
    model = DeepGP(x, 2, 1)
    guide = Variational(model, InducingPoints(40), MonteCarlo(10))
    guide.initialize(x, y)
    fit(ELBO(num_data=40)(model, guide), x, y, steps=800)
    grid = torch.linspace(-1, 1, 101)[:, None]
    away = grid[:, 0].abs() > 0.1
    error = (predict(guide, grid).mean - step_function_agreement.step(grid))[away]
    assert error.square().mean().sqrt() < 0.15
    assert error.abs().max() < 0.5
