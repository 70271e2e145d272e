"""The mixture's mean, carried beside its components for amortised processes to look at."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.parameters import keep_parameters_local
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.propagation.base import Propagation


class _AndMean(FunctionMarginal):
    """The S components as they are drawn, and after them the mean, which is not drawn."""

    def __init__(self, drawn: TorchDistribution, mean: Tensor) -> None:
        TorchDistribution.__init__(self, (len(drawn.mean) + 1, *mean.shape[:-2]), mean.shape[-2:], validate_args=False)
        self.regularizer, self._joint = mean.new_zeros(()), _no_joint
        self.drawn, self.last = drawn, mean

    @property
    def mean(self) -> Tensor:
        """Of the components, and the mean once more."""
        return torch.cat([self.drawn.mean, self.last.unsqueeze(0)])

    @property
    def variance(self) -> Tensor:
        """Of the components, and 0."""
        return torch.cat([self.drawn.variance, torch.zeros_like(self.last).unsqueeze(0)])

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> _AndMean:
        """More batches behind the axis of components."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        return _AndMean(self.drawn.expand((shape[0] - 1, *shape[1:])), self.last.expand(*shape[1:], *self.event_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample_shape, S + 1, ..., N, D_out)``."""
        drawn = self.drawn.rsample(Size(sample_shape))
        last = self.last.expand(*sample_shape, *self.last.shape).unsqueeze(len(sample_shape))
        return torch.cat([drawn, last], len(sample_shape))


def _no_joint() -> Tensor:
    raise ValueError("a mixture of components has no joint covariance over rows")


class WithMean(Propagation):
    """Another propagation, and one more component that no loss counts: the mean of the mixture at each layer.

    After a layer the last component is set to the weighted mean of the components' means, not of their draws ([AVDGP] 4.9),
    and goes on through whatever the model does to hidden values (scales, selects, joins with the inputs). Amortised
    processes look at it alone: rule AR2 over Monte Carlo samples, AR2P over sigma points. Without this every component is
    looked at by itself, rule AR1. Processes that do not amortise are carried unchanged.

    A latent site of another kind between the layers is drawn in the last component as in the others: what stands above it looks
    at a draw.

    A draw of the guide, ``guide(*args)``, first makes a weighted pass for those means: twice the cost, and latent sites besides the
    GPs have one draw for all particles of a vectorised loss.

    :param propagation: how the components themselves are carried.
    """

    looks_at_mean = True

    def __init__(self, propagation: Propagation) -> None:
        super().__init__()
        if not isinstance(propagation, Propagation) or isinstance(propagation, WithMean):
            raise TypeError(f"WithMean stands around another propagation, such as MonteCarlo(10), not {propagation!r}")
        own = copy.deepcopy(propagation)
        keep_parameters_local(own)
        self.propagation = own

    @property
    def num_components(self) -> int:  # type: ignore[override]
        """S, without the mean."""
        return self.propagation.num_components

    def initialize(self, latent: Mapping[str, FunctionPrior]) -> None:
        """See :class:`Propagation`."""
        self.propagation.initialize(latent)

    def for_prediction(self, num_samples: int) -> WithMean:
        """The inner one's, with the mean."""
        inner = self.propagation.for_prediction(num_samples)
        return self if inner is self.propagation else WithMean(inner)

    def log_weights(self, like: Tensor) -> Tensor:
        """Log weights of the components, ``(S,)``; the mean has none."""
        return self.propagation.log_weights(like)

    def reference(self, x: Tensor, carried: bool) -> Tensor:
        """The last component, ``(1, ..., N, D)``."""
        return x[-1:] if carried else x

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """S components as the inner strategy has them, and the mean."""
        mean = marginal.mean
        if carried:
            weights = self.propagation.log_weights(mean).exp()
            drawn = marginal.mean[:-1]
            mean = torch.tensordot(weights, drawn, 1)
            marginal = FunctionMarginal(drawn, marginal.variance[:-1], marginal.regularizer, marginal._joint)
        return _AndMean(self.propagation.propagate(site, marginal, carried), mean)

    def draw(self, site: str, marginal: FunctionMarginal, memory: dict[str, Any]) -> FunctionMarginal:
        """That of the inner strategy."""
        return self.propagation.draw(site, marginal, memory)
