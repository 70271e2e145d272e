"""A program that uses the library as its users do, under ``mypy --strict``: a model, guides, fits, predictions, a sampler, scores."""

from __future__ import annotations

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

import pyro_dgp
from pyro_dgp import (
    ELBO,
    METHODS,
    NOISE_FLOOR,
    RBF,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    PosteriorDraws,
    Prediction,
    PredictiveLogLikelihood,
    Projection,
    Settings,
    SigmaPoints,
    Validation,
    Variational,
    WhitenedNUTS,
    compare,
    coverage,
    fit,
    fit_validated,
    pit,
    predict,
    run_chains,
    scores,
    to_arviz,
    with_priors,
)


class TwoLayer(PyroModule):
    def __init__(self, x: Tensor, width: int = 2) -> None:
        super().__init__()
        self.hidden = GaussianProcess(Matern52(ard=x.shape[-1]), mean=Projection.fit(x, width), num_outputs=width)
        self.top = GaussianProcess(2 * RBF(ard=width) + 0.5, mean=lambda h: h.sum(-1, keepdim=True))
        self.likelihood = Gaussian()
        self.likelihood.variance = 0.05

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = pyro.sample("h", self.hidden(x))
        value: Tensor = pyro.sample("y", self.likelihood(self.top(h)), obs=y)
        return value


def by_variational_inference(x: Tensor, y: Tensor, steps: int) -> Prediction:
    """A guide, a loss, the training loop."""
    guide = Variational(TwoLayer(x), InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, y)
    result = fit(ELBO(num_data=len(x))(guide.model, guide), x, y, steps=steps)
    losses: list[float] = result.losses
    assert len(losses) == steps
    return predict(guide, x, num_samples=4)


def by_a_predictive_loss(x: Tensor, y: Tensor, steps: int) -> Prediction:
    """The same model with held-out rows."""
    guide = Variational(TwoLayer(x), InducingPoints(8, "diagonal", hidden_scale=1.0), SigmaPoints("qr3", 3))
    result = fit_validated(
        guide,
        lambda beta, rows: PredictiveLogLikelihood(rows, beta),
        x,
        y,
        steps=steps,
        validation=Validation(betas=(0.1, 1.0)),
    )
    beta: float | None = result.beta
    assert beta in (0.1, 1.0)
    return predict(guide, x)


def by_sampling(x: Tensor, y: Tensor, draws: int) -> Prediction:
    """The zoo's model with priors, sampled."""
    model = with_priors(DeepGP(x, 2, 1))
    with pyro_dgp.module_local_parameters(model):
        kernel = WhitenedNUTS(model, max_tree_depth=2)
        chains = run_chains(kernel, (x, y), num_samples=draws, warmup_steps=draws, num_chains=1, processes=1)
        prediction = predict(PosteriorDraws(model, chains.flat, (x, y)), x, num_samples=draws)
    to_arviz(prediction, x, y, draws=chains.draws, sample_stats=chains.stats)
    return prediction


def by_comparison(x: Tensor, y: Tensor) -> Prediction:
    """The user's model through a comparison; its fit predicts in the target's units."""
    settings = Settings(inducing=5, samples=2, epochs=1)
    result = compare(TwoLayer, x, y, methods=["dsvi"], settings=settings, say=lambda sentence: None)
    row: dict[str, object] = result.rows[0]
    assert row["method"] == "dsvi" and len(str(result)) > 0
    return result["dsvi"].predict(x).standardised


def judge(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """Scores, calibration, quantiles."""
    low, high = prediction.quantile([0.05, 0.95])
    assert bool((low <= high).all())
    figures: dict[str, float] = scores(prediction, y, target_scale=2.0)
    inside: Tensor = coverage(prediction, y, [0.5, 0.9])
    uniform: Tensor = pit(prediction, y)
    return figures | {"coverage": float(inside[-1]), "pit": float(uniform.mean())}


def main(steps: int = 1000, draws: int = 100) -> list[dict[str, float]]:
    """Fit one model in three ways and judge each."""
    x = torch.linspace(-1, 1, 30)[:, None]
    y = torch.sign(x[:, 0]) + 0.1 * torch.randn(30)
    settings = Settings(layers=2, width=1)
    assert METHODS["dsvi"].layers(settings) == 2 and NOISE_FLOOR > 0
    fits = (
        by_variational_inference(x, y, steps),
        by_a_predictive_loss(x, y, steps),
        by_sampling(x, y, draws),
        by_comparison(x, y),
    )
    return [judge(prediction, y) for prediction in fits]


if __name__ == "__main__":
    for row in main():
        print(row)
