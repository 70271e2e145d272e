"""Expectations over normal function values of densities that fixed nodes may miss: boxes are halved where the integrand is not resolved."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.internal.recording import failed
from pyro_dgp.likelihoods.around_mode import FEWER, NODES, AroundMode, LogTerm
from pyro_dgp.likelihoods.moments import Moments

#: Log of the share of the mass, by the nodes of the usual place, that nodes around a mode may leave out; more is a second mode.
_ELSEWHERE = math.log(1e-3)
#: Estimated relative error from which on there is no result.
_TOO_MUCH = 1e-3
#: Log of the share of the mass that a box without influence on the result holds at most.
_NEXT_TO_NOTHING = math.log(1e-9)
#: Share of a box in front of its first node.
_UNSEEN = 0.02
#: Function values at which a density is evaluated together.
_MOST = 4_000_000


class NotResolvedError(ValueError):
    """Refusal of an integral over f whose estimated error stays large."""


class _Rule(NamedTuple):
    """Numbers of a subdivision.

    :ivar nodes: nodes of a box along each axis.
    :ivar boxes: boxes at the start along each axis.
    :ivar halved: boxes that a round halves.
    :ivar rounds: most rounds.
    :ivar ends: boxes cover function values ``mean + sd sinh(t)`` for t up to the first, and up to the second in rows with mass there.
    :ivar enough: estimated relative error at which boxes are halved no more.
    :ivar agreement: difference of two rules, in nats, up to which no boxes are needed.
    """

    nodes: int
    boxes: int
    halved: int
    rounds: int
    ends: tuple[float, float]
    enough: float
    agreement: float


#: Rules by the number of functions. They reach to 8 standard deviations, beyond which densities may be all rounding, and where needed to 200 or 40.
_RULES = {1: _Rule(8, 12, 4, 40, (2.8, 6.0), 1e-6, 1e-5), 2: _Rule(6, 4, 12, 80, (2.8, 4.4), 1e-5, 1e-4)}


def agreement(functions: int) -> float:
    """Return the relative difference of two rules up to which nothing is refined, for a number of functions."""
    return _RULES[functions].agreement


def checked(found: Tensor, log_term: LogTerm, f: Moments, finer: tuple[Tensor, Tensor]) -> Tensor:
    """Return ``log E_N(f) exp(log_term(f))`` as it was found, and other numbers in rows where a finer rule does not agree.

    Such a row has nodes around the mode of its integrand; where two rules of these do not agree either, it has those of :func:`log_expectation`.
    A recorded function cannot choose: it keeps what was found, and reports rows with another number as failures.

    :param found: the sum over the nodes of a rule, ``(..., N)``.
    :param finer: function values and log weights of a finer rule.
    """
    room = agreement(f.mean.shape[-1])
    with torch.no_grad():
        at, log_weights = finer
        terms = log_term(at)
        terms = log_weights.reshape(-1, *[1] * (terms.dim() - 1)) + terms
        other = torch.logsumexp(terms, 0)
        differs = ~_agree(found, other, room) | ((found == -math.inf) & (other == -math.inf))
    if not failed(differs):
        return found
    around = AroundMode.of(log_term, f)
    value, left = found, differs
    if around is not None:
        value = around.log_expectation(log_term, f, NODES)
        with torch.no_grad():
            agrees = _agree(around.log_expectation(log_term, f, FEWER), value, room)
            left = differs & ~(agrees & around.is_alone & (around.outside(at, terms) < value + _ELSEWHERE))
        value = torch.where(differs, value, found)
    return torch.where(left, log_expectation(log_term, f, left), value) if bool(left.any()) else value


def _agree(first: Tensor, second: Tensor, room: float) -> Tensor:
    """Whether two results are equal up to room in nats and to rounding; NaN is taken for equal, so that it stays."""
    rounding = 50 * torch.finfo(second.dtype).eps * (1 + torch.minimum(first.abs(), second.abs()))
    return ~((first - second).abs() > room + rounding)


def log_expectation(log_term: LogTerm, f: Moments, wanted: Tensor) -> Tensor:
    """Return ``log E_N(f) exp(log_term(f))``, ``(..., N)``, differentiable in the moments and in what the term is made of.

    A box of function values has the nodes of a product of Gauss-Legendre rules. In each round the boxes of a row with the largest errors are halved,
    until the errors of all rows are small.

    :param wanted: rows whose result is read, ``(..., N)``.
    :raises NotResolvedError: where an error stays large, and for mass beyond 200 standard deviations, of two functions beyond 40.
    """
    with torch.no_grad():
        scale = f.variance.clamp_min(torch.finfo(f.mean.dtype).tiny).sqrt()
        integrand = _Integrand(log_term, f.mean, scale)
        near, far = integrand.rule.ends
        end = torch.full_like(f.mean[..., 0], near)
        boxes = _subdivided(integrand, end, wanted)
        beyond = boxes.reach(end, integrand.rule) & wanted
        if bool(beyond.any()):
            end = torch.where(beyond, far, end)
            boxes = _subdivided(integrand, end, wanted)
        refused = (boxes.relative_error() > _TOO_MUCH) & (boxes.total > -math.inf) | boxes.reach(end, integrand.rule)
        if bool((refused & wanted).any()):
            raise NotResolvedError(
                f"the integral of p(y | f) over f is not resolved in {int((refused & wanted).sum())} rows, where p(y | f) is too narrow or too irregular: "
                "give the Conditional a log_expected_power of its own, or write two sites, f = pyro.sample('f', gp(x)) and y given f"
            )
        centre, half, kept = boxes.with_influence()
        # Gradients are those of N(f) at fixed f: p(y | f) may have jumps in f.
        at, log_base = integrand.nodes(centre, half)
        log_base = log_base.where(kept.repeat_interleave(len(at) // len(kept), 0), -math.inf)
    if not torch.is_grad_enabled():
        return boxes.total
    variance = f.variance.clamp_min(torch.finfo(at.dtype).tiny)
    log_normal = -0.5 * ((at - f.mean).square() / variance + variance.log()).sum(-1)
    gradient_alone = log_normal - log_normal.detach()  # its value is part of the weights
    return torch.logsumexp(log_base + log_term(at) + gradient_alone, 0)


def _subdivided(integrand: _Integrand, end: Tensor, wanted: Tensor) -> _Boxes:
    """Boxes up to an end for each row ``(..., N)``, halved until the errors of wanted rows are small."""
    boxes, enough = _Boxes.at_start(integrand, end), integrand.rule.enough + 500 * torch.finfo(end.dtype).eps
    for _ in range(integrand.rule.rounds):
        if not bool(((boxes.relative_error() > enough) & wanted).any()):
            break
        boxes = boxes.halved(integrand)
    return boxes


@lru_cache
def _legendre(count: int, functions: int) -> tuple[Tensor, ...]:
    """Nodes ``(K, F)`` and weights ``(K,)`` in a box from -1 to 1; weights ``(count,)`` along an axis, a matrix ``(2, count)`` from values along it to
    the last two Legendre coefficients, and nodes ``(count,)``: float64."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    last = np.polynomial.legendre.legvander(nodes, count - 1)[:, -2:] * weights[:, None]
    rows = torch.as_tensor((last * (np.arange(count - 2, count) + 0.5)).T)
    one, along = torch.as_tensor(nodes), torch.as_tensor(weights)
    at = torch.cartesian_prod(*[one] * functions).reshape(-1, functions)
    return at, torch.cartesian_prod(*[along] * functions).reshape(-1, functions).prod(-1), along, rows, one


class _Integrand:
    """``exp(log_term(f)) N(f)`` as a function of t, with ``f = mean + scale sinh(t)``."""

    def __init__(self, log_term: LogTerm, mean: Tensor, scale: Tensor) -> None:
        self.log_term, self.mean, self.scale, self.functions = log_term, mean, scale, mean.shape[-1]
        self.rule = _RULES[self.functions]
        self._legendre = [each.to(mean) for each in _legendre(self.rule.nodes, self.functions)]

    def nodes(self, centre: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        """Function values ``(B K, ..., N, F)`` at the K nodes of boxes ``(B, ..., N, F)``, and their log weights."""
        at, weights = self._legendre[:2]
        t = centre.unsqueeze(1) + half.unsqueeze(1) * at.reshape(-1, *[1] * (centre.dim() - 2), self.functions)
        z = t.sinh()
        log_weights = (-0.5 * z.square() + t.cosh().log() + half.log().unsqueeze(1)).sum(-1)
        log_weights = log_weights + weights.log().reshape(-1, *[1] * (centre.dim() - 2))
        log_weights = log_weights - 0.5 * self.functions * math.log(2 * math.pi)
        return (self.mean + self.scale * z).flatten(0, 1), log_weights.flatten(0, 1)

    def log_mass(self, centre: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        """Log integral over each of several boxes, ``(B, ..., N)``, and the log of its error by halves along each axis, ``(B, ..., N, F)``."""
        many = max(1, _MOST // max(1, self.rule.nodes**self.functions * centre[0].numel()))
        parts = [self._log_mass(*each) for each in zip(centre.split(many), half.split(many), strict=True)]
        mass, error = (torch.cat(each) for each in zip(*parts, strict=True))
        return mass, error

    def _log_mass(self, centre: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        at, log_weights = self.nodes(centre, half)
        terms = self.log_term(at)
        terms = torch.where(terms.isnan(), -math.inf, terms).to(log_weights)  # no number by overflow, far from all mass
        logs = (log_weights + terms).unflatten(0, (len(centre), -1))
        logs = logs.unflatten(1, [self.rule.nodes] * self.functions)
        log_mass = torch.logsumexp(logs, tuple(range(1, 1 + self.functions)))
        log_errors = [self._log_error(logs.movedim(1 + axis, 1), log_mass) for axis in range(self.functions)]
        return log_mass, torch.stack(log_errors, -1).nan_to_num(-math.inf, math.inf, -math.inf)

    def _log_error(self, logs: Tensor, log_mass: Tensor) -> Tensor:
        """Log error by the nodes along the first of the axes of nodes: from logs of weighted terms ``(B, n, [n,] ..., N)``.

        The last two Legendre coefficients c of the integrand, as shares of the first, make an error of ``c^1.5``: of analytic integrands, and of those
        with a kink. A bump may lie between the nodes, or before the first one: the error has the height that the logs leave room for.
        """
        _, _, along, last, at = self._legendre
        logs = logs.reshape(len(logs), len(at), -1, *log_mass.shape[1:])  # (B, n, lines, ..., N)
        logs = logs - along.log().reshape(-1, *[1] * (logs.dim() - 2))
        top = logs.amax(1, keepdim=True)
        top = torch.where(top == -math.inf, 0.0, top)
        coefficients = torch.einsum("ki,bi...->bk...", last, (logs - top).exp()).abs().sum(1).log() + top.squeeze(1)
        plain, raised = (torch.logsumexp(each, 1) for each in (coefficients, coefficients + _height(logs, at)))
        ratio = (plain - log_mass + math.log(2.0)).clamp_max(0.0)
        return log_mass + 1.5 * ratio + (raised - plain)


def _height(logs: Tensor, at: Tensor) -> Tensor:
    """How far values ``(B, n, ...)`` at nodes leave room for a bump above all of them, in the box from -1 to 1: ``(B, ...)``.

    A bump lies below the lines that go on upwards from the nodes on its left and from those on its right.
    """
    x = at.reshape(-1, *[1] * (logs.dim() - 2))
    width = x.diff(dim=0)
    right = _rise(logs, x)  # beyond nodes 1, 2, ... towards the next
    left = _rise(logs.flip(1), x).flip(1)  # nodes lie symmetrically
    below, above, up, down = logs[:, 1:-2], logs[:, 2:-1], right[:, :-2], left[:, 2:]
    between = (below * down + above * up + up * down * width[1:-1]) / (up + down)
    end = 1 - at[-1]
    ends = [
        logs[:, -2] + right[:, -2] * width[-1],
        logs[:, -1] + right[:, -1] * end,
        logs[:, 1] + left[:, 1] * width[0],
        logs[:, 0] + left[:, 0] * end,
    ]
    highest = torch.cat([between, torch.stack(ends, 1)], 1).nan_to_num(-math.inf, -math.inf, -math.inf).amax(1)
    return (highest - logs.amax(1)).nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


def _rise(logs: Tensor, x: Tensor) -> Tensor:
    """Slopes, zero or more, with which values at nodes would go on to the right of nodes 1, 2, ...: that of the last two nodes, falling as it fell."""
    slopes = (logs.diff(dim=1) / x.diff(dim=0)).clamp_min(0.0)
    middles = (x[1:] + x[:-1]) / 2
    ratio = (slopes[:, 1:] / slopes[:, :-1]).nan_to_num(1.0).clamp(0.0, 1.0)
    step = torch.cat([middles[2:], torch.ones_like(x[:1])]) - middles[1:]
    return torch.cat([slopes[:, :1], slopes[:, 1:] * ratio ** (step / middles.diff(dim=0))], 1)


class _Boxes(NamedTuple):
    """Boxes of t of each row, with the log integral and the log error along each axis."""

    centre: Tensor  # (B, ..., N, F), as half and log_error
    half: Tensor
    log_mass: Tensor  # (B, ..., N)
    log_error: Tensor

    @classmethod
    def at_start(cls, integrand: _Integrand, end: Tensor) -> _Boxes:
        """Equal boxes, up to an end for each row ``(..., N)`` on either side."""
        count, functions = integrand.rule.boxes, integrand.functions
        middles = (2 * torch.arange(count, dtype=end.dtype, device=end.device) + 1) / count - 1
        share = torch.cartesian_prod(*[middles] * functions).reshape(-1, *[1] * end.dim(), functions)
        centre = share * end.unsqueeze(-1)
        half = (end / count).unsqueeze(-1).expand(centre.shape)
        return cls(centre, half, *integrand.log_mass(centre, half))

    @property
    def total(self) -> Tensor:
        """Log integral of each row."""
        return torch.logsumexp(self.log_mass, 0)

    def relative_error(self) -> Tensor:
        """Error of each row, as a share of its integral; one where nothing was found of it."""
        total = self.total
        error = (torch.logsumexp(self.errors().amax(-1), 0) - total).exp()
        return torch.where(total == -math.inf, 1.0, error)

    def errors(self) -> Tensor:
        """Log errors by halves along each axis, ``(B, ..., N, F)``, with those of jumps to zero density."""
        empty = self.log_mass == -math.inf
        if not bool(empty.any()):
            return self.log_error
        error = self.log_error
        if self.centre.shape[-1] == 1:
            error = torch.maximum(error, self._unseen(empty).unsqueeze(-1))
        return torch.where((self.total == -math.inf).unsqueeze(-1), self.half.log(), error)

    def _unseen(self, empty: Tensor) -> Tensor:
        """Log mass, for one function, that a jump between a box and the next one may hide before the first node of either: ``(B, ..., N)``."""
        order = self.centre.squeeze(-1).argsort(0)
        half = self.half.squeeze(-1).log()
        log_density, is_empty = ((self.log_mass - half).gather(0, order), empty.gather(0, order))
        none = torch.full_like(log_density[:1], -math.inf)
        beside = torch.maximum(torch.cat([log_density[1:], none]), torch.cat([none, log_density[:-1]]))
        is_last = torch.cat([is_empty[1:], none > 0]) | torch.cat([none > 0, is_empty[:-1]])
        density = torch.where(is_empty, beside, torch.where(is_last, log_density, -math.inf))
        return torch.empty_like(density).scatter(0, order, density) + half + math.log(_UNSEEN)

    def halved(self, integrand: _Integrand) -> _Boxes:
        """Halve the boxes of each row that have the largest errors, along the axis of the largest; the widest ones where nothing was found."""
        error = self.errors()
        largest, axis = error.max(-1)
        chosen = largest.topk(min(integrand.rule.halved, len(largest)), 0).indices
        wide = chosen.unsqueeze(-1).expand(-1, *self.centre.shape[1:])
        along = torch.nn.functional.one_hot(axis.gather(0, chosen), integrand.functions).to(error)
        step = self.half.gather(0, wide) * along / 2
        half, centre = self.half.gather(0, wide) - step, self.centre.gather(0, wide)
        centre, half = torch.cat([centre - step, centre + step]), torch.cat([half, half])
        joined = []
        for old, new in zip(self, (centre, half, *integrand.log_mass(centre, half)), strict=True):
            first, second = new.chunk(2)
            joined.append(torch.cat([old.scatter(0, wide if old.dim() == wide.dim() else chosen, first), second]))
        return _Boxes(*joined)

    def reach(self, end: Tensor, rule: _Rule) -> Tensor:
        """Whether a row has mass at the end of its range."""
        outermost = ((self.centre.abs() + self.half) > end.unsqueeze(-1) - 1e-3).any(-1)
        mass = torch.logsumexp(self.log_mass.where(outermost, -math.inf), 0)
        return mass > self.total + math.log(rule.enough)

    def with_influence(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return centres and halves of as many boxes as some row needs, largest first, and which ones a row needs; others lie on its first."""
        log_mass, order = self.log_mass.sort(0, descending=True)
        needed = log_mass > self.total + _NEXT_TO_NOTHING
        needed[0] = True
        count = int(needed.sum(0).max()) if needed[0].numel() else 1
        order, needed = order[:count].where(needed[:count], order[:1]), needed[:count]
        wide = order.unsqueeze(-1).expand(-1, *self.centre.shape[1:])
        return self.centre.gather(0, wide), self.half.gather(0, wide), needed
