"""Expectations over normal function values of moments of p(y | f): compared with those of a finer rule, and refined where the two do not agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from pyro_dgp.internal.quadrature import finer_nodes
from pyro_dgp.internal.recording import failed, recording
from pyro_dgp.likelihoods.far_values import NotFormedError
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.refinement import NotResolvedError, agreement, log_expectation

#: Standard deviations from which on nodes are the last ones of an equidistant rule for one function, and the end of such a rule.
_OUTER, _END = 6.0, 6.51


@dataclass(frozen=True)
class Moment:
    """A moment of p(y | f) whose expectation over ``N(f)`` is taken.

    :ivar name: its name in messages.
    :ivar of: the moment at function values ``(K, ..., N, F)``, of shape ``(K, ..., N, *rest)``.
    :ivar found: its expectation by fixed nodes, ``(..., N, *rest)``.
    :ivar size: the size that errors are held to, positive, of the shape of ``found``.
    """

    name: str
    of: Callable[[Tensor], Tensor]
    found: Tensor
    size: Tensor

    def expectation(self, f: Moments, known: Callable[[], Tensor] | None = None) -> Tensor:
        """Return the expectation; what the nodes found where a finer rule agrees.

        Other rules are evaluated in double precision, in whose range lies what overflows in single precision. Where one of two rules meets a moment that is
        no number, so is the result.

        :param known: gives the expectation of a row by other means, where there are any.
        :raises NotResolvedError: where neither rule, nor a subdivision, resolves it.
        """
        found, wide = self.found, self._wide(f)
        differs, finer = self._compared(wide)
        found = torch.where(found.isfinite() & finer.isnan(), torch.nan, found)
        if not failed(differs):
            return found
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.found.requires_grad):
            refined = self._refined(wide, finer, differs) if known is None else known()
        return torch.where(differs, refined.to(found.dtype), found)

    def _wide(self, f: Moments) -> Moments:
        """Moments of f in double precision; as they are where p(y | f) does not take it, as with a matrix in single precision, or the device has none."""
        if f.mean.dtype == torch.float64 or recording():
            return f
        try:
            wide = Moments(*(values.double() for values in f))
            with torch.no_grad():
                self.of(wide.mean.unsqueeze(0))
        except (TypeError, RuntimeError, NotFormedError):
            return f
        return wide

    @torch.no_grad()
    def _compared(self, f: Moments) -> tuple[Tensor, Tensor]:
        """Return where the finer rule does not agree, and what it finds: a moment that is infinite by one rule alone may be due to overflow."""
        z, log_weights = (values.to(f.mean) for values in finer_nodes(f.variance.sqrt()))
        at = f.mean + f.variance.sqrt() * z.reshape(-1, *[1] * (f.mean.dim() - 1), z.shape[-1])
        terms = self.of(at)
        log_weights = log_weights.reshape(-1, *[1] * (terms.dim() - 1))
        weights, terms = log_weights.exp(), _with_mass(terms, log_weights, self.size)
        finer = (weights * terms).sum(0)
        room = self._room(f)
        error = (self.found - finer).abs()
        if z.shape[-1] == 1 and float(z.max()) < _END:  # Two such rules agree on what lies beyond both.
            outer = (z.squeeze(-1).abs() > _OUTER).reshape(weights.shape)
            error = torch.maximum(error, (weights * terms.abs() * outer).sum(0))
        either, both = self.found.isfinite() | finer.isfinite(), self.found.isfinite() & finer.isfinite()
        is_number = ~self.found.isnan() & ~finer.isnan()
        return torch.where(both, error > room, either & is_number), finer

    def _room(self, f: Moments) -> Tensor:
        """Differences that count as none: a share of the size, and rounding."""
        rounding = 50 * torch.finfo(self.found.dtype).eps * (self.size + self.found.abs())
        return agreement(f.mean.shape[-1]) * self.size + rounding

    def _refined(self, f: Moments, finer: Tensor, differs: Tensor) -> Tensor:
        """Return the expectation by a subdivision, one number of a row after another: ``(..., N, *rest)``, right where ``differs``."""
        rows = f.mean.dim() - 1
        near = torch.where(finer.isfinite(), finer, self.found.detach())
        size = torch.where(self.size.isfinite(), self.size, near.abs()).detach()
        size = size.where(differs & (size > 0), 1.0)
        parts = []
        for centre, scale, wanted, number in zip(
            *(_numbers(each, rows) for each in (near, size, differs)), count(), strict=False
        ):

            def term(at: Tensor, centre: Tensor = centre, scale: Tensor = scale, number: int = number) -> Tensor:
                return (_numbers(self.of(at), rows + 1)[number] - centre) / scale

            is_refined = bool(wanted.any())
            parts.append(centre + scale * self._signed(term, f, wanted, scale) if is_refined else centre)
        refined = torch.stack(parts, -1).reshape(finer.shape)
        if f.mean.dtype != torch.float64:
            self._require_finite(refined, differs)
        return refined

    def _require_finite(self, refined: Tensor, differs: Tensor) -> None:
        """Raise where a moment is infinite that may have overflown."""
        overflown = int((differs & ~refined.isfinite()).sum())
        if overflown:
            raise NotResolvedError(
                f"the {self.name} of p(y | f) over f overflows in single precision in {overflown} rows, and given does not take function values in double "
                "precision: let it, by parameters.to(f), or take sample"
            )

    def _signed(self, term: Callable[[Tensor], Tensor], f: Moments, wanted: Tensor, size: Tensor) -> Tensor:
        """Return the expectation of a term of either sign: ``x = (e^a - e^-a) / 2`` with ``a = asinh x`` is a difference of smooth positive numbers."""
        scale = f.variance.detach().clamp_min(torch.finfo(f.mean.dtype).tiny).sqrt()

        def angle(at: Tensor) -> Tensor:
            value = torch.where(wanted, term(at), 0.0).asinh()
            log_normal = -0.5 * ((at.detach() - f.mean.detach()) / scale).square().sum(-1)
            return _with_mass(value, log_normal, size)

        try:
            up, down = log_expectation(angle, f, wanted), log_expectation(lambda at: -angle(at), f, wanted)
        except NotFormedError:
            raise
        except NotResolvedError as error:
            raise NotResolvedError(
                f"the {self.name} of p(y | f) over f is not resolved in {int(wanted.sum())} rows, by fixed nodes or by a subdivision: take sample, or "
                "give the Conditional components of its own"
            ) from error
        return 0.5 * (up.exp() - down.exp())


def _with_mass(terms: Tensor, log_weights: Tensor, size: Tensor) -> Tensor:
    """Return terms with nothing for those that are not finite where even the largest number, times their weight, is nothing beside the size of the sum."""
    limits = torch.finfo(log_weights.dtype)
    bar = math.log(limits.eps) - math.log(limits.max) + size.log().nan_to_num(0.0, 0.0, 0.0)
    return terms.where(terms.isfinite() | (log_weights > bar), 0.0)


def _numbers(values: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Return values of each number of a row, from all of them behind the first axes."""
    return values.reshape(*values.shape[:rows], -1).unbind(-1)
