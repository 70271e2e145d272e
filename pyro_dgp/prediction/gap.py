"""The inference gap: distances between a posterior and a sampled one, in function values and in predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction

#: Points of each one-dimensional integral: ``NODES`` equidistant ones, and ``OWN`` around each of ``COMPONENTS`` components of
#: either mixture.
NODES, COMPONENTS, OWN = 400, 30, 13


@dataclass(frozen=True, kw_only=True)
class InferenceGap:
    """Distances of a prediction from a reference at each input, ``(N,)``, averaged over the outputs of f.

    :ivar mean: absolute difference of the posterior means of f, in posterior standard deviations of the reference.
    :ivar sd: log of the ratio of posterior standard deviations of f; 0 if equal, negative where the reference is wider.
    :ivar wasserstein: 1-Wasserstein distance between the posteriors of f, ``int |F(t) - F_ref(t)| dt``, in posterior
        standard deviations of the reference.
    :ivar kl: KL of the predictive densities of y, ``KL(reference || prediction)``, nats.

    >>> import torch
    >>> from pyro_dgp import InferenceGap
    >>> gap = InferenceGap(mean=torch.ones(4), sd=-torch.ones(4), wasserstein=torch.ones(4), kl=torch.zeros(4))
    >>> gap.figures()
    {'gap_mean': 1.0, 'gap_sd': 1.0, 'gap_wasserstein': 1.0, 'gap_kl': 0.0}
    """

    mean: Tensor
    sd: Tensor
    wasserstein: Tensor
    kl: Tensor

    def figures(self) -> dict[str, float]:
        """Return the averages over inputs, for a table; for ``sd`` the average of the absolute value."""
        return {
            "gap_mean": float(self.mean.mean()),
            "gap_sd": float(self.sd.abs().mean()),
            "gap_wasserstein": float(self.wasserstein.mean()),
            "gap_kl": float(self.kl.mean()),
        }


def inference_gap(prediction: Prediction, reference: Prediction) -> InferenceGap:
    """Measure the distances of a method from a sampler's result, both given as predictions at the same inputs.

    Both predictions are mixtures, of components of a guide or of draws. Integrals over f and y are trapezoidal sums over
    the range where either mixture has mass, with 400 equidistant points and 13 around each of 30 components of either.
    Integrals over a discrete y are sums over its values.

    Two runs of a sampler have a gap too, of about ``1 / sqrt(effective draws)`` in ``mean`` and ``wasserstein``: measure
    it first. A method that is trained by a predictive loss (``dspp``, ``ppgpr``, ``avdgp-ar2pp``) does not approximate
    the posterior: its gap says how different it is, not how wrong.

    :raises ValueError: for y of several outputs, or predictions at different numbers of inputs.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational, inference_gap, predict
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(20), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> prediction = predict(guide, x)
    >>> inference_gap(prediction, reference=prediction).figures()["gap_wasserstein"]
    0.0
    """
    if prediction.event_shape or reference.event_shape:
        raise ValueError("the inference gap compares predictions of one output: give it predictions of a single target")
    if prediction.batch_shape != reference.batch_shape:
        raise ValueError(
            f"the predictions are at {prediction.batch_shape[0]} and {reference.batch_shape[0]} inputs: predict both at the same inputs"
        )
    ours, theirs = prediction.functions(), reference.functions()
    sd, reference_sd = ours.variance().sqrt(), theirs.variance().sqrt()
    grid = _grid(ours, theirs)
    apart = torch.stack([(ours.cdf(t) - theirs.cdf(t)).abs() for t in grid])
    return InferenceGap(
        mean=((ours.mean() - theirs.mean()).abs() / reference_sd).mean(-1),
        sd=(sd / reference_sd).log().mean(-1),
        wasserstein=(torch.trapezoid(apart, grid, dim=0) / reference_sd).mean(-1),
        kl=_divergence(reference, prediction),
    )


def _grid(first: Mixture, second: Mixture) -> Tensor:
    """Return points that cover the range of two mixtures, in order, ``(points, N, ...)``."""
    low, high, points = [], [], []
    for mixture in (first, second):
        mean, scale = mixture.components.mean, mixture.components.variance.sqrt()
        low.append((mean - 8 * scale).amin(0))
        high.append((mean + 8 * scale).amax(0))
        some = torch.linspace(0, len(mean) - 1, min(COMPONENTS, len(mean))).long()
        for z in torch.linspace(-4.5, 4.5, OWN).tolist():
            points.append(mean[some] + z * scale[some])
    bottom, top = torch.minimum(*low), torch.maximum(*high)
    steps = torch.linspace(0, 1, NODES, dtype=bottom.dtype, device=bottom.device)
    points.append(bottom + steps.reshape(-1, *[1] * bottom.dim()) * (top - bottom))
    return torch.cat(points).sort(0).values


def _divergence(p: Prediction, q: Prediction) -> Tensor:
    """Return ``KL(p || q)`` of the predictive densities at each input, nats."""
    first, second = p.mixture(), q.mixture()
    components: Any = first.components
    if components.has_enumerate_support:
        values = components.enumerate_support(expand=False).reshape(-1, 1).expand(-1, first.components.batch_shape[1])
        logs = [(first.log_prob(y), second.log_prob(y)) for y in values]
        return torch.stack([a.exp() * (a - b) for a, b in logs]).sum(0)
    grid = _grid(first, second)
    logs = [(first.log_prob(y), second.log_prob(y)) for y in grid]
    return torch.trapezoid(torch.stack([a.exp() * (a - b) for a, b in logs]), grid, dim=0)
