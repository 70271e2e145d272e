"""Propagation that carries the mean of the mixture beside its components, for amortised processes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.parameters import keep_parameters_local
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.processes.process_in_pass import ProcessInPass
from pyro_dgp.propagation.base import Propagation


class _AndMean(FunctionMarginal):
    """Distribution of S drawn components, followed by the mean, which is not random."""

    def __init__(self, drawn: TorchDistribution, mean: Tensor) -> None:
        TorchDistribution.__init__(self, (len(drawn.mean) + 1, *mean.shape[:-2]), mean.shape[-2:], validate_args=False)
        self.regularizer, self._joint = mean.new_zeros(()), _no_joint
        self.drawn, self.last = drawn, mean

    @property
    def mean(self) -> Tensor:
        """Means of the components, followed by the mean of the mixture."""
        return torch.cat([self.drawn.mean, self.last.unsqueeze(0)])

    @property
    def variance(self) -> Tensor:
        """Variances of the components, followed by 0."""
        return torch.cat([self.drawn.variance, torch.zeros_like(self.last).unsqueeze(0)])

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> _AndMean:
        """Return the distribution over a larger batch behind the axis of components."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        return _AndMean(self.drawn.expand((shape[0] - 1, *shape[1:])), self.last.expand(*shape[1:], *self.event_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return a draw of the components, followed by the mean: ``(*sample_shape, S + 1, ..., N, D_out)``."""
        drawn = self.drawn.rsample(Size(sample_shape))
        last = self.last.expand(*sample_shape, *self.last.shape).unsqueeze(len(sample_shape))
        return torch.cat([drawn, last], len(sample_shape))


def _no_joint() -> Tensor:
    raise ValueError("a mixture of components has no joint covariance over rows: use its mean and variance")


class WithMean(Propagation):
    """Propagation that adds one component to those of another: the mean of the mixture at each layer.

    After each layer the last component is set to the weighted mean of the components' means, not of their draws
    ([AVDGP] 4.9). It passes through all that the model does to hidden values (scaling, selecting, joining with the
    inputs). Losses and predictions leave it out.

    Amortised processes look at this component alone: rule AR2 over Monte Carlo samples, AR2P over sigma points. With
    another propagation they look at each component by itself, rule AR1. Processes that do not amortise are carried
    unchanged.

    A latent site of another kind between two layers is drawn in the last component as in the others. A layer above such
    a site looks at a draw in the place of a mean.

    A draw of the guide, ``guide(*args)``, first makes a weighted pass for the means. This doubles the cost, and latent
    sites besides the GPs have one draw for all particles of a vectorised loss.

    :param propagation: how the components themselves are carried.

    >>> from pyro_dgp import AmortizedInducingPoints, DeepGP, SigmaPoints, Variational, WithMean
    >>> import torch
    >>> x, y = torch.randn(20, 1), torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=2), AmortizedInducingPoints(4), WithMean(SigmaPoints("qr3", 10)))
    >>> guide.initialize(x, y)
    >>> guide.components(x, y).trace.nodes["h1"]["value"].shape  # 10 sigma points, and the mean
    torch.Size([11, 20, 2])
    """

    looks_at_mean = True

    def __init__(self, propagation: Propagation) -> None:
        super().__init__()
        if not isinstance(propagation, Propagation) or isinstance(propagation, WithMean):
            raise TypeError(f"WithMean takes another propagation, such as MonteCarlo(10), not {propagation!r}")
        own = copy.deepcopy(propagation)
        keep_parameters_local(own)
        self.propagation = own

    @property
    def carries_values(self) -> bool:  # type: ignore[override]
        """Whether the inner propagation does."""
        return self.propagation.carries_values

    @property
    def num_components(self) -> int:  # type: ignore[override]
        """Number of components S, without the mean."""
        return self.propagation.num_components

    def initialize(self, latent: Mapping[str, FunctionPrior], reads: Mapping[str, Collection[str]]) -> None:
        """See :class:`Propagation`."""
        self.propagation.initialize(latent, reads)

    def for_prediction(self, num_samples: int) -> WithMean:
        """Return the inner propagation for predictions, with the mean."""
        inner = self.propagation.for_prediction(num_samples)
        return self if inner is self.propagation else WithMean(inner)

    def log_weights(self, like: Tensor) -> Tensor:
        """Return the log weights of the components, ``(S,)``; the mean has no weight."""
        return self.propagation.log_weights(like)

    def marginal(self, process: ProcessInPass, prior: FunctionPrior, carried: bool) -> FunctionMarginal:
        """Return q(f) of all components; inference functions look at the last one, the mean, ``(1, ..., N, D)``."""
        return process(prior, prior.x[-1:] if carried else prior.x)

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """Return the distribution of the S components of the inner propagation, followed by the mean."""
        mean = marginal.mean
        if carried:
            weights = self.propagation.log_weights(mean).exp()
            drawn = marginal.mean[:-1]
            mean = torch.tensordot(weights, drawn, 1)
            marginal = FunctionMarginal(drawn, marginal.variance[:-1], marginal.regularizer, marginal._joint)
        return _AndMean(self.propagation.propagate(site, marginal, carried), mean)

    def draw(self, site: str, marginal: FunctionMarginal, memory: dict[str, Any]) -> FunctionMarginal:
        """Return the distribution of one ancestral draw of the inner propagation."""
        return self.propagation.draw(site, marginal, memory)
