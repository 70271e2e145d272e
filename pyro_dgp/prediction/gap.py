"""The inference gap: distances between a posterior and a sampled one, in function values and in predictions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.prediction.distribution_functions import DistributionFunction
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.panels import REACH, Panels, ends, widths
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.target_kinds import is_discrete, moment


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

    Both predictions are mixtures, of components of a guide or of draws. Integrals over f and y are sums over panels that
    are narrow near narrow components, so that their relative error is below 1e-3 however narrow these are. Integrals over a discrete y are sums over its values.

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
    sd, reference_sd = ours.variance.sqrt(), theirs.variance.sqrt()
    return InferenceGap(
        mean=((ours.mean - theirs.mean).abs() / reference_sd).mean(-1),
        sd=(sd / reference_sd).log().mean(-1),
        wasserstein=(_distance(ours, theirs) / reference_sd).mean(-1),
        kl=_divergence(reference, prediction),
    )


def _distance(first: Mixture, second: Mixture) -> Tensor:
    """Return ``int |F(t) - G(t)| dt`` of mixtures of normals with distribution functions F and G, ``(N, F)``."""
    normals: list[Any] = [mixture.components for mixture in (first, second)]
    mean, scale = (
        torch.cat([getattr(each, name).double().flatten(1) for each in normals]) for name in ("loc", "scale")
    )
    low, high = (mean - REACH * scale).amin(0), (mean + REACH * scale).amax(0)
    weights = [mixture.log_weights.double().softmax(0) for mixture in (first, second)]

    def difference(t: Tensor) -> Tensor:
        at = t.reshape(len(t), 1, *first.components.batch_shape[1:])
        ours, theirs = (
            torch.einsum("s,ps...->p...", weight, each.cdf(at).double())
            for weight, each in zip(weights, normals, strict=True)
        )
        return (ours - theirs).flatten(1)

    panels = Panels.between(low, high, mean, scale).cut_at_zeros(difference, len(mean))
    total = panels.integral(lambda t: difference(t).abs(), len(mean))
    return total.reshape(first.components.batch_shape[1:]).to(first.log_weights)


def _divergence(p: Prediction, q: Prediction) -> Tensor:
    """Return ``KL(p || q)`` of the predictive densities at each input, nats."""
    first, second = p.mixture(), q.mixture()
    components: Any = first.components
    if components.has_enumerate_support:
        values = components.enumerate_support(expand=False).reshape(-1, 1).expand(-1, first.components.batch_shape[1])
        logs = [(first.log_prob(y), second.log_prob(y)) for y in values]
        return torch.stack([a.exp() * (a - b) for a, b in logs]).sum(0)

    def term(y: Tensor) -> Tensor:
        ours, theirs = _log_density(first, y), _log_density(second, y)
        return torch.where(ours > -torch.inf, ours.exp() * (ours - theirs), 0.0)

    if is_discrete(components):
        return DistributionFunction(components, first.log_weights).summed(term)
    mean = torch.cat([moment(each.components, "mean").double() for each in (first, second)])
    width = torch.cat([widths(each.components) for each in (first, second)])
    low, high = ends(first.components, partial(_log_density, first))
    return Panels.between(low, high, mean, width).integral(term, len(mean)).to(first.log_weights)


def _log_density(mixture: Mixture, y: Tensor) -> Tensor:
    """Return log densities at points ``(P, N)``, in double precision."""
    log_prob = mixture.components.log_prob(y.unsqueeze(1)).double()
    return torch.logsumexp(mixture.log_weights.double().unsqueeze(-1) + log_prob, 1)
