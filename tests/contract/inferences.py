"""Every way to fit a model, as a user would run it. A new process, propagation, loss or sampler joins this list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, SVI, TraceMeanField_ELBO

from pyro_dgp import (
    ELBO,
    AmortizedInducingPoints,
    ApproximateEP,
    EllipticalSlice,
    GammaDivergence,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    Orthogonal,
    PosteriorDraws,
    PredictiveLogLikelihood,
    SigmaPoints,
    StochasticGradientHMC,
    Variational,
    WhitenedNUTS,
    draw_functions,
    fit,
    inducing_inputs,
    module_local_parameters,
    predict,
    whitened,
)
from tests.contract.case import Case
from tests.contract.known import Known, distance, distance_of_classes, distance_of_means
from tests.examples import Recorded

STEPS, RATE = 300, 0.05
#: Draws of a prediction, and the share of the draws of a chain that are made. The tests have less of both.
DRAWS, SHARE = 500, 1.0
#: Test rows between rows of training.
BETWEEN = slice(0, 2)


@dataclass(frozen=True)
class Result:
    """What an inference found.

    :ivar distance: from the exact answer at the worst test row, nats.
    :ivar bound: a lower bound of the log evidence, nats in total, if the inference has one.
    """

    distance: float
    bound: float | None = None


def compared(
    case: Case,
    posterior: Any,
    bound: float | None = None,
    *,
    site: str | None = None,
    measure: Callable[..., float] = distance,
    rows: slice = slice(None),
) -> Result:
    """Compare predictions from a fit with the exact answer.

    :param measure: distance of moments; :func:`distance_of_means` where an inference does not aim at the spread of the posterior.
    :param rows: the test rows that are compared.
    """
    torch.manual_seed(1)
    site = site or case.site
    prediction = predict(posterior, case.new[0], DRAWS, site=site, **case.new_kwargs)
    known = case.answers.by_site[site]
    if case.has_classes:
        return Result(distance_of_classes(known, prediction.probs), bound)
    mean, variance = prediction.mean.detach(), prediction.variance.detach()
    assert mean.shape == known.mean.shape, f"predicted {tuple(mean.shape)} where {tuple(known.mean.shape)} is right"
    if not case.has_outputs:
        known = Known(known.mean[..., rows], known.variance[..., rows])
        mean, variance = mean[..., rows], variance[..., rows]
    return Result(measure(known, mean, variance), bound)


def guide_of(case: Case, family: Any = None, propagation: Any = None) -> Variational:
    """Make a guide of the model, initialised on its data."""
    guide = Variational(case.model(), family or InducingPoints(case.points), propagation or MonteCarlo(10))
    guide.initialize(*case.args, **case.kwargs)
    return guide


def stepped(case: Case, guide: Variational, loss: Any) -> float:
    """Train by Pyro's own loop and return the mean of the last losses."""
    optimizer = pyro.optim.ClippedAdam({"lr": RATE, "lrd": 0.02 ** (1 / STEPS)})
    svi = SVI(guide.model, guide, optimizer, loss)
    losses = [svi.step(*case.args, **case.kwargs) for _ in range(STEPS)]
    return sum(losses[-50:]) / 50


def by_svi(case: Case) -> Result:
    """Pyro's ``SVI`` with this library's ELBO, in the global parameter store."""
    guide = guide_of(case)
    return compared(case, guide, -stepped(case, guide, ELBO()))


def by_stock_loss(case: Case) -> Result:
    """Pyro's ``SVI`` with Pyro's ``TraceMeanField_ELBO``."""
    guide = guide_of(case, propagation=MonteCarlo(1))
    return compared(case, guide, -stepped(case, guide, TraceMeanField_ELBO()))


def trained(case: Case, loss: Callable[..., Any], **parts: Any) -> Variational:
    """Train by ``fit`` on all rows at a time."""
    guide = guide_of(case, **parts)
    x, y = case.args
    fit(loss()(guide.model, guide), x, y, steps=STEPS, batch_size=x.shape[-2], learning_rate=RATE, **case.kwargs)
    return guide


def by_fit(case: Case) -> Result:
    """``fit`` with the ELBO."""
    return compared(case, trained(case, ELBO))


def by_functions(case: Case) -> Result:
    """Whole functions drawn from a guide that ``fit`` trained."""
    guide = trained(case, ELBO)
    with torch.no_grad():
        values = draw_functions(guide, DRAWS, site=case.function, seed=0)(case.new[0], **case.new_kwargs)
    known = case.answers.by_site["f"]
    values = values[:, : len(known.mean)]  # a model may add rows of its own behind them
    values = values.reshape(DRAWS, *known.mean.shape)
    return Result(distance(known, values.mean(0), values.var(0)))


def by_quadrature(case: Case) -> Result:
    """Gauss-Hermite points in the place of samples, with the ELBO."""
    return compared(case, trained(case, ELBO, propagation=SigmaPoints("gauss-hermite", 6)))


def by_predictive_loss(case: Case) -> Result:
    """A deep sigma point process: learned points and the predictive loss, which is made for targets alone."""
    guide = trained(case, PredictiveLogLikelihood, propagation=SigmaPoints("qr3", 8))
    site = "y" if "y" in case.answers.by_site else None
    return compared(case, guide, site=site, measure=distance_of_means)


def by_gamma_divergence(case: Case) -> Result:
    """The robust loss at a gamma near 1, where it is close to the ELBO."""
    return compared(case, trained(case, lambda: GammaDivergence(gamma=1.05)))


def by_expectation_propagation(case: Case) -> Result:
    """The energy of approximate expectation propagation at a power of one half."""
    rows = case.args[0].shape[-2]
    return compared(case, trained(case, lambda: ApproximateEP(rows, 0.5)))


def by_amortization(case: Case) -> Result:
    """Inducing points that a network gives for each row: beyond the data they do not return to the prior, and five rows hold few networks."""
    guide = trained(case, ELBO, family=AmortizedInducingPoints(case.points))
    return compared(case, guide, measure=distance_of_means, rows=BETWEEN)


def by_orthogonal_points(case: Case) -> Result:
    """Inducing points in two sets whose coefficients are independent under q: the mean is that of all points, the covariance has two blocks."""
    half = max(1, case.points // 2)
    family = Orthogonal(InducingPoints(case.points - half), InducingPoints(half))
    return compared(case, trained(case, ELBO, family=family))


def exactly(case: Case) -> Result:
    """The marginal likelihood and the exact posterior of one layer with Gaussian noise."""
    model = case.model()
    objective = MarginalLikelihood(model)
    with module_local_parameters(objective):
        loss = objective(*case.args, **case.kwargs)
    posterior = PosteriorDraws(model, {}, case.args, kwargs=case.kwargs)
    return compared(case, posterior, -float(loss))


def sampled(case: Case, model: Any, kernel: Any, *, count: int, warmup: int) -> Result:
    """Run one chain and predict from its draws."""
    mcmc = MCMC(kernel, num_samples=round(SHARE * count), warmup_steps=warmup, disable_progbar=True)
    mcmc.run(*case.args, **case.kwargs)
    return compared(case, PosteriorDraws(model, mcmc.get_samples(), case.args, kwargs=case.kwargs))


def by_nuts(case: Case) -> Result:
    """The No-U-Turn sampler on whitened function values."""
    model = case.model()
    with module_local_parameters():
        return sampled(case, model, WhitenedNUTS(model, max_tree_depth=4, density=Recorded), count=150, warmup=80)


def by_elliptical_slices(case: Case) -> Result:
    """Elliptical slice sampling."""
    model = case.model()
    with module_local_parameters():
        return sampled(case, model, EllipticalSlice(model, density=Recorded), count=400, warmup=50)


def by_sparse_nuts(case: Case) -> Result:
    """The No-U-Turn sampler on inducing variables, with inducing inputs at the rows."""
    model = case.model()
    with module_local_parameters():
        sparse = whitened(model, inducing_inputs(model, *case.args, num_inducing=case.points, **case.kwargs))
        return sampled(case, sparse, WhitenedNUTS(sparse, max_tree_depth=3, density=Recorded), count=100, warmup=60)


def by_sghmc(case: Case) -> Result:
    """Stochastic-gradient Hamiltonian Monte Carlo over inducing variables."""
    guide = guide_of(case, InducingPoints(case.points, covariance="delta"), MonteCarlo(1))
    x, y = case.args
    rate = 0.01 if guide.global_latents else 0.0  # the posterior of other latent sites is trained
    sampler = StochasticGradientHMC(burn_in=500 if rate else 300, thin=4, learning_rate=rate)
    draws = sampler.run(guide, x, y, num_samples=round(SHARE * 150), batch_size=x.shape[-2], **case.kwargs)
    return compared(case, draws)


@dataclass(frozen=True)
class Inference:
    """One way to fit.

    :ivar run: fits a case and compares its predictions with the exact answer.
    :ivar within: largest distance from the exact answer, nats, that its approximation accounts for on most models.
    :ivar bounds: how far the bound of the log evidence may lie above and below, nats in total; ``None`` where there is none.
    """

    run: Callable[[Case], Result]
    within: float
    bounds: tuple[float, float] | None = None


INFERENCES = {
    "SVI": Inference(by_svi, 0.05, (0.4, 3.0)),
    "fit": Inference(by_fit, 0.05),
    "stock loss": Inference(by_stock_loss, 0.05, (0.6, 3.0)),
    "quadrature": Inference(by_quadrature, 0.05),
    "predictive": Inference(by_predictive_loss, 0.8),
    "gamma": Inference(by_gamma_divergence, 0.05),
    "EP": Inference(by_expectation_propagation, 0.05),
    "amortised": Inference(by_amortization, 0.5),
    "orthogonal": Inference(by_orthogonal_points, 0.1),
    "exact": Inference(exactly, 0.005, (0.02, 0.02)),
    "NUTS": Inference(by_nuts, 0.12),
    "slices": Inference(by_elliptical_slices, 0.15),
    "sparse NUTS": Inference(by_sparse_nuts, 0.15),
    "SGHMC": Inference(by_sghmc, 0.2),
    "functions": Inference(by_functions, 0.08),
}
