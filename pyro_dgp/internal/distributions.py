"""What distributions of torch are made of."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import SineBivariateVonMises, SineSkewed, TorchDistribution
from pyro.distributions.torch_distribution import MaskedDistribution
from torch import Size, Tensor
from torch.distributions import Distribution, TransformedDistribution, constraints

#: Support of a mixture: that of its parts. Older versions of torch give the support of the parts itself.
_OF_MIXTURE: Any = getattr(constraints, "MixtureSameFamilyConstraint", ())


#: Distributions of angles, whose density repeats itself along the line that they give as their support.
ANGLES = (torch.distributions.VonMises, SineBivariateVonMises, SineSkewed)


def elementwise(distribution: Any) -> Any:
    """The distribution of single elements.

    Every ``Independent`` around it, which turns batch axes into event axes, is taken off, and so is every mask and every
    :class:`ObservedPart`, which leave elements out of a log density.

    >>> elementwise(torch.distributions.Independent(torch.distributions.Normal(torch.zeros(5), 1.0), 1)).batch_shape
    torch.Size([5])
    """
    while isinstance(distribution, torch.distributions.Independent | MaskedDistribution | ObservedPart):
        distribution = distribution.base_dist
    return distribution


def filled(values: Tensor) -> Tensor:
    """Values with NaN replaced by the first one that is a number; there is one."""
    missing = values.isnan()
    return torch.where(missing, values[~missing][0], values)


class _OrMissing(constraints.Constraint):
    """A constraint that NaN satisfies too."""

    def __init__(self, base: Any) -> None:
        self.base_constraint, self.is_discrete = base, base.is_discrete

    def check(self, value: Tensor) -> Tensor:
        """Return, for each element, whether it is NaN or satisfies the constraint."""
        missing = value.isnan()
        valid: Tensor = self.base_constraint.check(filled(value)) if not bool(missing.all()) else missing
        return valid | missing


class ObservedPart(TorchDistribution):  # type: ignore[misc]
    """A distribution of elements whose log density is zero at NaN, an element that was not observed. Draws are complete.

    :ivar base_dist: the distribution of elements, without an event axis.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, base_dist: Any) -> None:
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, base_dist.event_shape, validate_args=False)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether draws have gradients."""
        return bool(self.base_dist.has_rsample)

    @property
    def support(self) -> constraints.Constraint:
        """NaN, and the support of the distribution."""
        return _OrMissing(self.base_dist.support)

    @property
    def mean(self) -> Tensor:
        """Mean of each element."""
        return self.base_dist.mean  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        """Variance of each element."""
        return self.base_dist.variance  # type: ignore[no-any-return]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> ObservedPart:
        """Return the same distribution over more batches."""
        return ObservedPart(self.base_dist.expand(Size(batch_shape)))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw complete values, with gradients."""
        return self.base_dist.rsample(Size(sample_shape))  # type: ignore[no-any-return]

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw complete values."""
        return self.base_dist.sample(Size(sample_shape))  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each element, zero at NaN."""
        missing = value.isnan()
        if not bool(missing.any()):
            return self.base_dist.log_prob(value)  # type: ignore[no-any-return]
        if self.event_shape:
            raise ValueError(
                f"the outputs of a row are one {type(self.base_dist).__name__}, of which NaN leaves a part out: integrate the function values out, as in "
                "pyro.sample('y', likelihood(gp(x)), obs=y), or leave rows with NaN out"
            )
        at = filled(value) if not bool(missing.all()) else self.base_dist.sample()
        return torch.where(missing, 0.0, self.base_dist.log_prob(at))


def cdf_of(distribution: Any, value: Any) -> Tensor:
    """Return the distribution function at values: the distribution's own, and that of a Poisson distribution, which has none in PyTorch.

    For Poisson ``P(y <= k)`` is the upper regularised incomplete gamma function ``Q(k + 1, rate)``, taken in double precision.

    :raises NotImplementedError: for other distributions without one.

    >>> cdf_of(torch.distributions.Poisson(1.0), torch.tensor([-1.0, 0.0, 2.5])).round(decimals=3)
    tensor([0.0000, 0.3680, 0.9200])
    """
    if getattr(type(distribution), "cdf", None) is torch.distributions.Normal.cdf:  # which rounds the lower tail away
        below: Tensor = 0.5 * torch.special.erfc((distribution.loc - value) / (math.sqrt(2) * distribution.scale))
        return below
    if not isinstance(distribution, torch.distributions.Poisson):
        asked = (
            _with_base_unchecked(distribution, value)
            if isinstance(distribution, TransformedDistribution)
            else distribution
        )
        result: Tensor = asked.cdf(value)
        return result
    inside = torch.where(value.isinf(), 0.0, value).floor().clamp_min(0.0)
    reached = torch.special.gammaincc(inside.double() + 1, distribution.rate.double()).to(distribution.rate)
    return torch.where(value < 0, 0.0, torch.where(value == torch.inf, 1.0, reached))


def _with_base_unchecked(distribution: TransformedDistribution, value: Tensor) -> TransformedDistribution:
    """Return a transformed distribution whose base takes values as they are; raise for values outside its own support.

    The base of some has an end that values far out fall beyond, such as the least uniform number.
    """
    if distribution._validate_args:
        distribution._validate_sample(value)
    made, base = copy.copy(distribution), copy.copy(distribution.base_dist)
    made._validate_args = base._validate_args = False
    made.base_dist = base
    return made


def is_real(fn: Any) -> bool:
    """Tell whether a distribution is over all real numbers; one that does not say is taken for real."""
    return _is_real(fn, constraints.independent, _OF_MIXTURE)


def is_real_where_observed(fn: Any) -> bool:
    """Tell whether a distribution is over all real numbers, or over these and NaN for those that were not observed."""
    return _is_real(fn, constraints.independent, _OF_MIXTURE, _OrMissing)


def _is_real(fn: Any, *wrappers: Any) -> bool:
    try:
        support = fn.support
    except (AttributeError, NotImplementedError):
        return True
    while isinstance(support, wrappers):
        support = support.base_constraint
    return support is constraints.real


def parameters_of(components: Distribution) -> dict[str, Tensor] | None:
    """Return the parameters that a distribution was constructed by, each with the whole batch in front.

    ``None`` stands for a distribution that might be another if it was made of its parameters again: a user's, and one whose
    constructor takes more than its ``arg_constraints`` name, such as the number of trials of a multinomial.
    """
    kind = type(components)
    signature = inspect.signature(kind.__init__).parameters
    arguments = signature.keys() - {"self", "validate_args"}
    is_known = kind.__module__.split(".")[0] in ("torch", "pyro", "pyro_dgp")
    if not is_known or not arguments or not arguments <= components.arg_constraints.keys():
        return None
    names = [name for name in components.arg_constraints if name in components.__dict__]
    if not names:
        names = list(components.arg_constraints)  # as of LogNormal or Beta, which keep theirs in a distribution inside
    # A distribution keeps some derived parameters after their first use, beside those of its constructor.
    for first, kept in (("scale_tril", ("covariance_matrix", "precision_matrix")), ("logits", ("probs",))):
        names = [name for name in names if first not in names or name not in kept]
    required = {name for name in arguments if signature[name].default is inspect.Parameter.empty}
    if not required <= set(names):
        return None
    parameters = {}
    for name in names:
        value, constraint = getattr(components, name), components.arg_constraints[name]
        if not isinstance(value, Tensor):
            return None
        event = value.shape[value.dim() - constraint.event_dim :]  # type: ignore[attr-defined]
        parameters[name] = value.expand(components.batch_shape + event)
    return parameters


def made_of(components: Distribution, arguments: dict[str, Tensor]) -> Distribution:
    """Construct a distribution of the same kind by other parameters."""
    kind: Any = type(components)
    made: Distribution = kind(**arguments, validate_args=False)
    return made
