"""Expectations over normal function values of moments of p(y | f): compared with those of a finer rule, and refined where the two do not agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from pyro_dgp.internal.quadrature import finer_nodes
from pyro_dgp.internal.recording import failed
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.refinement import NotResolvedError, agreement, log_expectation

#: Standard deviations from which on nodes are the last ones of an equidistant rule for one function, and the end of such a rule.
_OUTER, _END = 6.0, 6.51
#: Log of the largest number times the normal density from which on a moment that overflows counts as none there, and not as infinite.
_NOTHING = math.log(1e-16)


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

        Where one of the two rules meets a moment that is infinite or no number, so is the result.

        :param known: gives the expectation of a row by other means, where there are any.
        :raises NotResolvedError: where neither rule, nor a subdivision, resolves it.
        """
        found, (differs, finer) = self.found, self._compared(f)
        found = torch.where(finer.isfinite() | ~found.isfinite(), found, finer)
        if not failed(differs):
            return found
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.found.requires_grad):
            refined = self._refined(f, finer, differs) if known is None else known()
        return torch.where(differs, refined, found)

    @torch.no_grad()
    def _compared(self, f: Moments) -> tuple[Tensor, Tensor]:
        """Return where the finer rule does not agree, and what it finds."""
        z, log_weights = (values.to(f.mean) for values in finer_nodes(f.variance.sqrt()))
        at = f.mean + f.variance.sqrt() * z.reshape(-1, *[1] * (f.mean.dim() - 1), z.shape[-1])
        terms = self.of(at)
        weights = log_weights.exp().reshape(-1, *[1] * (terms.dim() - 1))
        finer = (weights * terms).sum(0)
        room = self._room(f)
        error = (self.found - finer).abs()
        if z.shape[-1] == 1 and float(z.max()) < _END:  # Two such rules agree on what lies beyond both.
            outer = (z.squeeze(-1).abs() > _OUTER).reshape(weights.shape)
            error = torch.maximum(error, (weights * terms.abs() * outer).sum(0))
        return (error > room) & self.found.isfinite() & finer.isfinite(), finer

    def _room(self, f: Moments) -> Tensor:
        """Differences that count as none: a share of the size, and rounding."""
        rounding = 50 * torch.finfo(f.mean.dtype).eps * (self.size + self.found.abs())
        return agreement(f.mean.shape[-1]) * self.size + rounding

    def _refined(self, f: Moments, finer: Tensor, differs: Tensor) -> Tensor:
        """Return the expectation by a subdivision, one number of a row after another: ``(..., N, *rest)``, right where ``differs``."""
        rows = f.mean.dim() - 1
        size = self.size.detach().where(differs & (self.size > 0), 1.0)
        parts = []
        for centre, scale, wanted, number in zip(
            *(_numbers(each, rows) for each in (finer, size, differs)), count(), strict=False
        ):

            def term(at: Tensor, centre: Tensor = centre, scale: Tensor = scale, number: int = number) -> Tensor:
                return (_numbers(self.of(at), rows + 1)[number] - centre) / scale

            is_refined = bool(wanted.any())
            parts.append(centre + scale * self._signed(term, f, wanted) if is_refined else centre)
        return torch.stack(parts, -1).reshape(finer.shape)

    def _signed(self, term: Callable[[Tensor], Tensor], f: Moments, wanted: Tensor) -> Tensor:
        """Return the expectation of a term of either sign: ``x = (e^a - e^-a) / 2`` with ``a = asinh x`` is a difference of smooth positive numbers."""
        scale = f.variance.detach().clamp_min(torch.finfo(f.mean.dtype).tiny).sqrt()
        largest = math.log(torch.finfo(f.mean.dtype).max)

        def angle(at: Tensor) -> Tensor:
            value = torch.where(wanted, term(at), 0.0).asinh()
            log_normal = -0.5 * ((at.detach() - f.mean.detach()) / scale).square().sum(-1)
            return value.where(~value.isinf() | (log_normal > _NOTHING - largest), 0.0)

        try:
            up, down = log_expectation(angle, f, wanted), log_expectation(lambda at: -angle(at), f, wanted)
        except NotResolvedError as error:
            raise NotResolvedError(
                f"the {self.name} of p(y | f) over f is not resolved in {int(wanted.sum())} rows, by fixed nodes or by a subdivision: take sample, or "
                "give the Conditional components of its own"
            ) from error
        return 0.5 * (up.exp() - down.exp())


def _numbers(values: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Return values of each number of a row, from all of them behind the first axes."""
    return values.reshape(*values.shape[:rows], -1).unbind(-1)
