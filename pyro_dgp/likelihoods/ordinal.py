"""Ordered classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.normal_cdf import log_ndtr
from pyro_dgp.internal.parameters import require_shape
from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.classes import ClassConditional, require_whole_classes
from pyro_dgp.likelihoods.conditional import RowObservation, one_output
from pyro_dgp.likelihoods.moments import Moments


@dataclass(frozen=True)
class OrdinalConditional(ClassConditional):
    """``p(y <= c | f) = Phi(cutpoints_c - f)``; ``cutpoints`` ``(C - 1,)``, increasing."""

    cutpoints: Tensor
    width = 1.0  # of the narrowest class, whose probability is a normal density in f
    integration = "closed form for predictions, Gauss-Hermite (20 nodes) for the expected log density"

    def count(self) -> int:
        """Number of classes C."""
        return self.cutpoints.shape[-1] + 1

    def _log_probs(self, f: Tensor, scale: Tensor) -> Tensor:
        """``log [Phi((b_c - f) / scale) - Phi((b_{c-1} - f) / scale)]`` of all classes, ``(..., N, C)``, accurate in both tails."""
        z = (self.cutpoints.unsqueeze(-2) - f.unsqueeze(-1)) / scale.unsqueeze(-1)
        end = torch.full_like(z[..., :1], torch.inf)
        low, high = torch.cat([-end, z], -1), torch.cat([z, end], -1)
        flipped = low > 0  # both ends in the upper tail: use Phi(b) - Phi(a) = Phi(-a) - Phi(-b)
        low, high = torch.where(flipped, -high, low), torch.where(flipped, -low, high)
        return _log_difference(low, high)

    def given(self, f: Tensor) -> RowObservation:
        """Categorical distributions over the classes."""
        values = one_output(f, "Ordinal")
        logits = self._log_probs(values, torch.ones_like(values))
        return RowObservation(dist.Categorical(logits=logits, validate_args=False), 1)

    def components(self, f: Moments) -> Distribution:
        """Categorical distributions of ``p(y <= c) = Phi((cutpoints_c - mean) / sqrt(1 + variance))``."""
        logits = self._log_probs(one_output(f.mean), (1 + one_output(f.variance)).sqrt())
        return dist.Categorical(logits=logits, validate_args=False)


def _log_difference(low: Tensor, high: Tensor) -> Tensor:
    """``log [Phi(high) - Phi(low)]`` for ``low < high``; gradients stay finite at infinite ends."""
    top = log_ndtr(high.clamp(max=40.0))
    below = log_ndtr(low.clamp(min=-1e4))
    share = -torch.expm1((below - top).clamp(max=0.0))
    return top + share.clamp_min(torch.finfo(top.dtype).tiny).log()


class Ordinal(Likelihood):
    """Ordered classes 0, ..., C - 1 of one function: ``p(y <= c | f) = Phi(cutpoints_c - f)`` (Chu and Ghahramani 2005, Eq. 4).

    ``cutpoints`` train. They increase, and a prior of them is one of ordered vectors. The noise has unit scale; that of the function is the kernel's
    variance.

    >>> import torch
    >>> from pyro_dgp import Ordinal
    >>> Ordinal(3).given(torch.tensor([[-9.0], [0.0], [9.0]])).base_dist.probs.round(decimals=2).tolist()
    [[1.0, 0.0, 0.0], [0.27, 0.46, 0.27], [0.0, 0.0, 1.0]]

    :param classes: C, 2 or more.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        require_whole_classes("an ordinal likelihood", classes, "give their number, which stands for 0, 1, ..., C - 1")
        self.classes = classes
        start = 2**0.5 * torch.special.ndtri(
            torch.arange(1, classes) / classes
        )  # classes are equally likely if f ~ N(0, 1)
        self.cutpoints: Any = PyroParam(start, constraint=constraints.ordered_vector, event_dim=1)

    def conditional(self) -> OrdinalConditional:
        """The likelihood with ``cutpoints`` read now."""
        cutpoints = self.cutpoints
        require_shape(cutpoints, (self.classes - 1,), "Ordinal.cutpoints")
        falls = cutpoints[..., 1:] < cutpoints[..., :-1]  # of NaN no: the message of the loss names its cause
        require_all(
            ~falls,
            "Ordinal.cutpoints do not increase: give values in ascending order, or as a prior a distribution of ordered vectors, such as "
            "dist.TransformedDistribution(normal, dist.transforms.OrderedTransform()) for a normal of event_dim 1",
        )
        return OrdinalConditional(cutpoints)
