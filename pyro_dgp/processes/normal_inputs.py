"""Moments of q(f) at normal inputs, in closed form: a layer of moment matching."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.basis import SMALLEST_VARIANCE
from pyro_dgp.processes.inducing_points import InducingPointBasis
from pyro_dgp.processes.process_in_pass import ProcessInPass
from pyro_dgp.processes.psi_statistics import NormalInputs, PsiStatistics
from pyro_dgp.processes.rbf_terms import RBFTerm, rbf_term, require_no_batches
from pyro_dgp.processes.whitened import WhitenedProcess


def moments_at_normal_inputs(
    process: ProcessInPass, prior: FunctionPrior, inputs: NormalInputs, *, mean: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of q(f_d(x_n)) over f and x, both ``(N, D_out)``, and the regulariser of the process.

    ``E f = m + psi_1 a`` and ``Var f = psi_0 + |g|^2 + 2 psi_4 a + tr(B psi_2) - (psi_1 a)^2``, ``a = L^-T mean`` and
    ``B = L^-T (S + mean mean' - I) L^-1``, with psi_4 about the mean function at the centre ([Ashman 2020] 3.19 to 3.21; the printed 3.20 lacks
    the factor 2 of psi_4, and has one too many in the line above). Computed in double precision.

    :param prior: the Gaussian process; its inputs do not matter.
    :param mean: the prior's mean at the centres, ``(N, D_out)``, and ``slopes`` its changes along the directions, ``(W, N, D_out)``.
    :raises ValueError: for a process other than inducing points, and a kernel other than :class:`~pyro_dgp.RBF`.
    """
    basis, term = _basis(process, prior), rbf_term(prior.covariance, prior.name)
    require_no_batches(term, prior.name)
    q, regularizer = process.coefficients(prior)
    root = basis.root(prior).double()
    inverse = linalg.solve_triangular(root, linalg.identity(root), upper=False)
    psi = PsiStatistics.of(_double(term), _double_inputs(inputs), basis.points(prior).double())
    v, g = q.mean.double(), slopes.double()
    weights = (inverse.mT @ v.unsqueeze(-1)).squeeze(-1)  # a (D_out, M)
    spread = q.spread(torch.eye(v.shape[-1]).to(q.mean).unsqueeze(0)).double()
    inner = spread + v.unsqueeze(-1) * v.unsqueeze(-2) - linalg.identity(spread)
    b = inverse.mT @ inner @ inverse  # (D_out, M, M)

    weighted = psi.first * weights.unsqueeze(-2)  # (D_out, N, M)
    loc = weighted.sum(-1)
    tilt = (psi.tilted @ weighted.unsqueeze(-1)).squeeze(-1)  # (D_out, N, W)
    along = g.movedim(-1, 0).movedim(1, -1)  # (D_out, N, W)
    variance = (term.variance + term.white).double().unsqueeze(-1) + psi.quadratic(b) - loc.square()
    variance = variance + along.square().sum(-1) + 2 * (along * tilt).sum(-1)
    return mean + loc.mT.to(mean), variance.clamp_min(SMALLEST_VARIANCE).mT.to(mean), regularizer


def _basis(process: ProcessInPass, prior: FunctionPrior) -> InducingPointBasis:
    """Return the basis of a process; raise for one that closed forms do not serve."""
    own = process.process
    basis = own.basis if isinstance(own, WhitenedProcess) else None
    if not isinstance(basis, InducingPointBasis) or own.groups:
        kind = type(own if basis is None else basis).__name__
        what = "of groups of functions" if own.groups else kind
        raise ValueError(
            f"moment matching has closed forms for inducing points of one function, and the process of {prior.name!r} is {what}: take "
            "InducingPoints, or carry hidden layers by MonteCarlo(10)"
        )
    return basis


def _double(term: RBFTerm) -> RBFTerm:
    return RBFTerm(term.reciprocal.double(), term.variance.double())


def _double_inputs(inputs: NormalInputs) -> NormalInputs:
    return NormalInputs(inputs.centre.double(), inputs.directions.double())
