"""The prior of function values by a Vecchia approximation: a distribution that takes the place of the exact one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Size, Tensor

from pyro_dgp.approximations.correlation_length import correlation_lengths
from pyro_dgp.approximations.local_factors import LocalFactors, local_factors, require_shapes
from pyro_dgp.approximations.neighbors import Neighbors, NeighborSearch
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.linalg import Fault, NotPositiveDefiniteError
from pyro_dgp.kernels.factor_faults import explained


class VecchiaPrior(FunctionPrior):
    """Distribution of GP function values in which each row depends on its nearest earlier rows alone (Vecchia 1988).

    ``p(f) = prod_i N(f_i | m_i + k_ic K_cc^-1 (f_c - m_c), k_ii - k_ic K_cc^-1 k_ci)``, with c the neighbours of row i. It is exact where every
    row has all earlier rows as neighbours. Time and memory are linear in the rows: ``O(N m^3)`` and ``O(N m^2)``.

    The properties ``mean`` and ``variance`` are those of the exact prior; the variances of draws are close to these. ``log p(y)`` is that
    of a Vecchia approximation of the noisy values: the variance of the noise is added to ``K_cc`` and ``k_ii``.

    >>> import torch
    >>> from pyro_dgp import RBF, GaussianProcess, NeighborSearch
    >>> x = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)[:, None]
    >>> exact = GaussianProcess(RBF().double())(x)
    >>> prior = VecchiaPrior(exact, NeighborSearch(num_neighbors=4))
    >>> f = exact.rsample()
    >>> torch.allclose(prior.log_prob(f), exact.log_prob(f), rtol=1e-3)
    True

    :param exact: the exact prior at inputs ``(N, D)``.
    :param search: finds the neighbours, when they are first needed.
    :param terms: places of the rows whose terms the density of values is estimated from; all if not given, and it is exact.
    """

    is_dense = False

    def __init__(self, exact: FunctionPrior, search: NeighborSearch, *, terms: Tensor | None = None) -> None:
        if exact.batch_shape:
            raise ValueError(
                f"a Vecchia approximation takes one function of N rows, and {exact.name!r} has a batch {tuple(exact.batch_shape)} of them: samplers "
                "take it for a single data set, and guides take the model without it"
            )
        super().__init__(
            exact.x,
            exact.covariance,
            exact.mean_function,
            num_outputs=exact.num_outputs,
            jitter=exact.jitter,
            name=exact.name,
            source=exact.source,
        )
        self.search, self.terms = search, terms

    def some_terms(self, count: int) -> VecchiaPrior:
        """Return the prior with an estimate of the density of observed values, from so many of its terms: N / count times their sum.

        They are drawn at random, without repetition, so that the mean of the estimate over draws is the density itself, where no covariance of a row and its
        neighbours needs jitter. The result has a density and no draws.
        """
        rows = self.event_shape[0]
        if count >= rows:
            return self
        return VecchiaPrior(self, self.search, terms=torch.randperm(rows, device=self.x.device)[:count])

    @cached_property
    def neighbors(self) -> Neighbors:
        """The neighbours of the rows.

        :raises NotPositiveDefiniteError: for inputs that are not finite, as a factor of their covariance does, so that samplers reject the proposal.
        """
        if not bool(torch.isfinite(self.x).all()):
            fault = Fault(self.x.new_full((1, 1), math.nan), self.name, 0.0, is_given=False)
            raise explained(NotPositiveDefiniteError(self.name, fault), self.covariance, self.x, "inputs")
        return self.search(self.x, self.lengths)

    @cached_property
    def lengths(self) -> Tensor:
        """Lengths that inputs are divided by before distances are taken, ``(D,)``; see :func:`correlation_lengths`."""
        return correlation_lengths(self.covariance, self.x)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FunctionPrior:
        """See :class:`FunctionPrior`; raises for a batch."""
        return VecchiaPrior(super().expand(batch_shape), self.search) if Size(batch_shape) else self

    @property
    def factor(self) -> Tensor:
        """Regressions of all rows on their neighbours, ``(N, m + 1, E)``, kept after the first use; see :class:`LocalFactors`."""
        if self.terms is not None:
            raise ValueError(
                f"the Vecchia approximation of {self.name!r} has {len(self.terms)} terms of its density here, and nothing else: take vecchia(model) without terms"
            )
        if self._factor is None:
            self._factor = self._regressed(None).tensor()
        return self._factor

    @factor.setter
    def factor(self, known: Tensor | None) -> None:
        self._factor = known

    @property
    def _local(self) -> LocalFactors:
        return LocalFactors.of_tensor(self.neighbors, self.factor)

    @property
    def scale_tril(self) -> NoReturn:
        """Raise: there is no dense factor."""
        raise ValueError(self._is_sparse())

    @property
    def covariance_matrix(self) -> NoReturn:
        """Raise: there is no dense covariance."""
        raise ValueError(self._is_sparse())

    def _is_sparse(self) -> str:
        return f"the Vecchia approximation of {self.name!r} has no dense covariance: sample whitened(vecchia(model)), or use the model without it"

    def unwhiten(self, noise: Tensor) -> Tensor:
        """``m(x)`` plus residuals that have the whitened values ``noise``, ``(..., N, D_out)``."""
        return self._in_rows(self._local.unwhiten(self._in_order(noise))) + self.mean

    def whiten(self, values: Tensor) -> Tensor:
        """``(f_i - E[f_i | f_c]) / sd[f_i | f_c]``, ``(..., N, D_out)``: the inverse of :meth:`unwhiten`."""
        self.require_values(values)
        return self._in_rows(self._local.whiten(self._in_order(values - self.mean)))

    def half_log_determinant(self) -> Tensor:
        """``sum_d sum_i log sd[f_id | f_cd]``, ``()``."""
        return self._local.half_log_determinant(self.num_outputs)

    def noisy_log_prob(self, values: Tensor, variance: Tensor) -> Tensor:
        """``sum_d sum_i log N(y_id | y_cd)``, nats in total, with noise of variance ``(D_out,)`` in every value."""
        return self._sum_of_terms(values, variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """See :class:`FunctionPrior`."""
        return super().log_prob(value) if self.terms is None else self._sum_of_terms(value, None)

    def _sum_of_terms(self, values: Tensor, variance: Tensor | None) -> Tensor:
        factor = self._regressed(variance)
        white = factor.whiten(self._in_order(values - self.mean))
        half_log_determinant = factor.half_log_determinant(self.num_outputs)
        total = -0.5 * white.square().sum((0, -1)) - half_log_determinant
        share = len(white) / self.event_shape[0]
        return total / share - 0.5 * self.event_shape.numel() * math.log(2 * math.pi)

    def _regressed(self, noise_variance: Tensor | None) -> LocalFactors:
        require_shapes(self.covariance, self.x, self.num_outputs, self.name, noise_variance)
        try:
            return local_factors(
                self.covariance,
                self.x,
                self.neighbors,
                jitter=self.jitter,
                name=self.name,
                noise_variance=noise_variance,
                terms=self.terms,
            )
        except NotPositiveDefiniteError as error:
            raise explained(error, self.covariance, self.x, "inputs") from error

    def _in_order(self, values: Tensor) -> Tensor:
        """Values ``(..., N, D_out)`` as ``(N, ..., D_out)`` in the order of the neighbours."""
        return values.movedim(-2, 0)[self.neighbors.order]

    def _in_rows(self, values: Tensor) -> Tensor:
        """Return values to the order of the data: the inverse of :meth:`_in_order`."""
        return values[self.neighbors.order.argsort()].movedim(0, -2)
