"""p(y | f) with its parameter values, and its integrals over normal function values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.internal.quadrature import NODES, finer_nodes, gauss_hermite_product, normal_nodes
from pyro_dgp.internal.recording import failed
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.far_values import far, formed
from pyro_dgp.likelihoods.gamma_score import log_gamma_score
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.placed_mixture import FunctionMixture
from pyro_dgp.likelihoods.refinement import LogTerm, checked
from pyro_dgp.likelihoods.supports import cdf_within
from pyro_dgp.likelihoods.targets import check_target
from pyro_dgp.likelihoods.units import NO_UNITS, Units

#: Standard deviations of f from its mean beyond which the centre of an integrand is far.
_FAR = 2.5
#: The largest number of functions whose product of nodes is taken.
MOST_FUNCTIONS = 2


class RowObservation(dist.Independent):  # type: ignore[misc]
    """p(y | f) over the rows of a data set. The rows are an event dimension; ``base_dist`` has the log density of each.

    The event is scored as a whole. A data plate around it would count it once for each of its rows, so a plate raises.
    A likelihood of one's own returns one from ``given``: a distribution of batch shape ``(..., N)`` and 1, or of
    ``(..., N, D_out)`` and 2.

    >>> import torch
    >>> from pyro import distributions as dist
    >>> from pyro_dgp import RowObservation
    >>> RowObservation(dist.Poisson(torch.ones(5)), 1).event_shape
    torch.Size([5])
    """

    #: The likelihood's check of targets, which raises for those that it cannot have produced.
    _check: Callable[[Tensor], None] | None = None

    #: Whether p(y | f) is a step function of f, see :attr:`Conditional.is_flat`.
    is_flat: bool = False

    def of(self, conditional: Conditional) -> RowObservation:
        """Return the same observation with its likelihood's check of targets, and with what the likelihood says of its slope."""
        made = RowObservation(self.base_dist, self.reinterpreted_batch_ndims)
        made._check, made.is_flat = conditional.check, conditional.is_flat
        return made

    def require(self, value: Tensor) -> None:
        """Raise for targets of another shape, or such as the likelihood cannot have produced."""
        check_target(value, self.event_shape, value)
        if self._check is not None:
            self._check(value)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> RowObservation:
        """Return this observation over more batches, such as particles."""
        shape = Size(batch_shape)
        refuse_data_plate(self.event_shape[0], f"an observation of {self.event_shape[0]} rows")
        expanded = RowObservation(self.base_dist.expand(shape + self.event_shape), self.reinterpreted_batch_ndims)
        expanded._check, expanded.is_flat = self._check, self.is_flat
        return expanded

    def log_prob(self, value: Any) -> Tensor:
        """log p(y | f), nats in total over rows and outputs; shape of the batch."""
        self.require(value)
        log_prob: Tensor = super().log_prob(value)
        return log_prob


class Conditional(ABC):
    """A likelihood with its parameter values: p(y | f), and its integrals over normal function values.

    ``y`` is ``(..., N)`` for one output and ``(..., N, D_out)`` for several; moments of f are ``(..., N, F)`` for F functions.
    A likelihood is complete with :meth:`given`. Its integrals are then sums over :meth:`nodes`; a closed form overrides them. Integrals of p(y | f), and of
    its mean and variance, are compared with those of a finer rule, and rows where the two differ have nodes of their own, where p(y | f) and N(f) have
    their mass. The integral of ``log p(y | f)`` has no other nodes: it is right where ``log p(y | f)`` is smooth on the scale of N(f).

    >>> from pyro_dgp import Bernoulli, Conditional, Gaussian
    >>> [isinstance(each.conditional(), Conditional) for each in (Bernoulli("logit"), Gaussian())]
    [True, True]
    >>> Bernoulli("logit").conditional().integration
    'Gauss-Hermite, 20 nodes for each function'
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise for a subclass that overrides ``given`` and inherits closed forms of another p(y | f)."""
        super().__init_subclass__(**kwargs)
        inherited = {name for base in cls.__mro__[1:-1] if base is not Conditional for name in vars(base)}
        integrals = {"expected_log_prob", "predictive_log_prob", "components"}
        if "given" in vars(cls) and "given" in inherited and integrals & inherited - vars(cls).keys():
            closed = ", ".join(sorted(integrals & inherited - vars(cls).keys()))
            raise TypeError(
                f"{cls.__name__} overrides given and inherits {closed} of {cls.__mro__[1].__name__}, which are closed forms of another p(y | f): override these too, or "
                "inherit from Conditional, whose integrals are sums over nodes"
            )

    #: How the last layer is integrated: for the expected and for the predictive log density.
    integration: str = "Gauss-Hermite, 20 nodes for each function"

    #: Width in f of the narrowest p(y | f) that there is, as the standard deviation of a bump, where it is known. The number of nodes for one function then
    #: follows from it, and a sum over nodes is compared with a finer one only where p(y | f) draws it far from the mean of f.
    width: float | None = None

    #: What targets are standardised by before p(y | f) sees them; functions, and the noise variance, are in the units of the result.
    units: Units = NO_UNITS

    #: Whether targets are numbers of classes or counts, which may come as integers.
    takes_integers: bool = False

    #: Whether p(y | f) is a step function of f, which has no gradient to sample by.
    is_flat: bool = False

    #: Whether NaN among the targets is an output that was not observed.
    takes_missing: bool = False

    @abstractmethod
    def given(self, f: Tensor) -> RowObservation:
        """p(y | f) for function values ``(..., N, F)``."""

    def nodes(self, f: Moments) -> tuple[Tensor, Tensor]:
        """Function values ``(K, ..., N, F)`` and log weights ``(K,)`` whose sum is the expectation over ``N(f)``.

        They are the product of Gauss-Hermite rules, with 20 nodes for each function. A single function that is wider than these
        serve has as many equidistant nodes as it needs, for p(y | f) no narrower in f than a bump of :attr:`width`, one where it is not known.

        :raises ValueError: for more than :data:`MOST_FUNCTIONS` functions.
        """
        count = f.mean.shape[-1]
        if count > MOST_FUNCTIONS:
            raise ValueError(
                f"{type(self).__name__} has {count} functions, and Gauss-Hermite nodes serve {MOST_FUNCTIONS} at most: give it nodes of its own, or "
                "write two sites, f = pyro.sample('f', gp(x)) and y given f"
            )
        scale = f.variance.sqrt()
        if count == 1:
            nodes, log_weights = (values.to(f.mean) for values in normal_nodes(scale / (self.width or 1.0)))
            at = nodes.unsqueeze(-1)
        else:
            at, log_weights = (values.to(f.mean) for values in gauss_hermite_product(NODES, count))
        return _around(f, at), log_weights

    def row_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """``log p(y_n | f_n)``, nats for each row, summed over the outputs of y: ``(..., N)``."""
        rows = formed(self.given, f)
        log_prob: Tensor = rows.base_dist.log_prob(y)
        return log_prob.sum(-1) if rows.reinterpreted_batch_ndims == 2 else log_prob

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``E_N(f) log p(y_n | f_n)``, nats for each row: ``(..., N)``."""
        at, log_weights = self.nodes(f)
        return _weighted(log_weights.exp(), self.row_log_prob(y, at))

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y_n | f_n) N(f_n) df_n``, nats for each row: ``(..., N)``."""
        return self.log_expected_power(y, f, 1.0)

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """``log int p(y_n | f_n)^power N(f_n) df_n``: ``(..., N)``."""
        return self._log_expectation(lambda at: power * self.row_log_prob(y, at), f)

    def _log_expectation(self, log_term: LogTerm, f: Moments) -> Tensor:
        """``log E_N(f) exp(log_term(f))``, ``(..., N)``: the sum over :meth:`nodes`, once it is checked."""
        at, log_weights = self.nodes(f)
        terms = log_term(at)
        found = _log_mean(log_weights, terms)
        if not self.is_checked(f) and not self._is_far(at, log_weights, terms=terms, f=f):
            return found
        finer, log_finer = (values.to(f.mean) for values in finer_nodes(f.variance.sqrt()))
        return checked(found, far(log_term), f, (_around(f, finer), log_finer))

    @torch.no_grad()
    def _is_far(self, at: Tensor, log_weights: Tensor, *, terms: Tensor, f: Moments) -> bool:
        """Whether the integrand of some row lies far from the mean of f, so that nodes may not reach it, for a density of known width."""
        if self.width is None or f.mean.shape[-1] > 1:
            return False
        scale = f.variance.clamp_min(torch.finfo(f.mean.dtype).tiny).sqrt()
        shares = (log_weights.reshape(-1, *[1] * (terms.dim() - 1)) + terms).softmax(0)
        return failed((shares * ((at - f.mean) / scale).squeeze(-1)).sum(0).abs() > _FAR)

    def is_checked(self, f: Moments) -> bool:
        """Whether a sum over nodes is compared with that of a finer rule."""
        return self.width is None and f.mean.shape[-1] <= MOST_FUNCTIONS

    def components(self, f: Moments) -> Distribution:
        """``int p(y_n | f_n) N(f_n) df_n``: elementwise, of the batch shape of ``y``, or over the correlated outputs of a row,
        of event shape ``(D_out,)``."""
        at, log_weights = self.nodes(f)
        given = self.given(at)
        over_nodes = Integrated(given.base_dist, log_weights)
        has_outputs = given.reinterpreted_batch_ndims == 2  # which may read the same functions
        return FunctionMixture(self, f, over_nodes) if has_outputs or self.is_checked(f) else over_nodes

    def element_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y | f) N(f) df`` of each element of y, or of each event, of :meth:`components`."""
        return self._by_element(lambda rows: rows.log_prob(y), f)

    def element_cdf(self, y: Tensor, f: Moments) -> Tensor:
        """``int P(y' <= y | f) N(f) df`` of each element of y."""
        # The relative accuracy of E (1 + F) is the absolute one of F.
        return torch.expm1(self._by_element(lambda rows: torch.log1p(cdf_within(rows, y)), f)).clamp(0.0, 1.0)

    def _by_element(self, log_figure: Callable[[Any], Tensor], f: Moments) -> Tensor:
        """``log E exp(log_figure)`` for a figure of p(y | f), one output after another where outputs are independent given f."""
        figures = log_figure(self.given(f.mean).base_dist)
        if figures.dim() < f.mean.dim():
            return self._log_expectation(lambda at: log_figure(formed(self.given, at).base_dist), f)

        def of_output(output: int) -> Tensor:
            return self._log_expectation(lambda at: log_figure(formed(self.given, at).base_dist)[..., output], f)

        return torch.stack([of_output(output) for output in range(figures.shape[-1])], -1)

    def log_power_integral(self, f: Moments, power: float) -> Tensor | None:
        """``log int p(y_n | f_n)^power dy_n``, ``(..., N)`` or ``(..., 1)``, where it does not depend on f; otherwise nothing."""
        return None

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """``log E_N(f) [p(y_n | f_n)^c / I(f_n)^(c / gamma)]``, ``c = gamma - 1``, ``I = int p(y | f_n)^gamma dy``: ``(..., N)``."""
        log_integral = self.log_power_integral(f, gamma)
        if log_integral is not None:
            return self.log_expected_power(y, f, gamma - 1) - (gamma - 1) / gamma * log_integral

        def log_score(at: Tensor) -> Tensor:
            rows = formed(self.given, at)
            score = log_gamma_score(rows.base_dist, y, gamma)
            return score.sum(-1) if rows.reinterpreted_batch_ndims == 2 else score

        return self._log_expectation(log_score, f)

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """``log int p(y | f) p(f) df`` under the GP prior, nats in total. Raises where there is no closed form."""
        raise ValueError(
            f"{type(self).__name__} has no closed form for log p(y) under a Gaussian process: run MCMC on "
            "pyro_dgp.whitened(model), which makes the function values a site, or give a guide"
        )

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """The likelihood of some outputs with the others integrated out, and the numbers of the functions that it reads.

        :raises ValueError: for a likelihood that does not say.
        """
        raise ValueError(
            f"{type(self).__name__} has no likelihood of outputs {list(chosen)} alone, which rows with missing outputs need: give it of_outputs, "
            "or leave such rows out"
        )

    def check(self, y: Tensor) -> None:
        """Raise for targets that the likelihood cannot have produced."""

    def location(self, f: Tensor) -> Tensor | None:
        """Values that the noise of y is put around, in its units, ``(..., N, D_out)``, from function values ``(..., N, F)``; nothing for targets that are
        no function with noise, such as classes and counts."""
        return None

    def noise_variance(self) -> Tensor | None:
        """``(F,)`` if p(y | f) is normal around f with this variance, in the units of f, else nothing."""
        return None


def _around(f: Moments, z: Tensor) -> Tensor:
    """Function values ``(K, ..., N, F)`` at standard ones ``(K, F)``."""
    return f.mean + f.variance.sqrt() * z.reshape(-1, *[1] * (f.mean.dim() - 1), z.shape[-1])


def _weighted(weights: Tensor, terms: Tensor) -> Tensor:
    """``sum_k w_k terms_k`` over the first axis."""
    return torch.einsum("k,k...->...", weights, terms)


def _log_mean(log_weights: Tensor, log_terms: Tensor) -> Tensor:
    """``log sum_k w_k exp(terms_k)`` over the first axis."""
    return torch.logsumexp(log_weights.reshape(-1, *[1] * (log_terms.dim() - 1)) + log_terms, 0)


def one_output(f: Tensor, site: str = "the likelihood") -> Tensor:
    """Values ``(..., N)`` of a single output ``(..., N, 1)``."""
    if f.shape[-1] != 1:
        raise ValueError(f"{site} takes one function, got {f.shape[-1]}: give the top layer num_outputs=1")
    return f.squeeze(-1)
