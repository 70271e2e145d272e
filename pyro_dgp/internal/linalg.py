"""Dense linear algebra shared by priors and processes: Cholesky factors with a stated jitter, triangular products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.recording import failed

# Jitter is relative to the mean of the diagonal. A factorisation that fails is tried again with ten times the jitter.
DEFAULT_JITTER = {torch.float64: 1e-8, torch.float32: 1e-6}
LARGEST_JITTER = {torch.float64: 1e-4, torch.float32: 1e-3}


#: Right-hand sides of batched triangular solves at once on a GPU. Beyond 524,280 PyTorch built with CUDA 13.1 or older returns wrong numbers for batches of two and more,
#: without an error (pull request 187717 of pytorch/pytorch).
_MOST_COLUMNS = 2**18

#: Rows up to which the inverse of a batch of matrices is two triangular ones multiplied: beyond, LAPACK's own takes less time.
_SMALL = 64

#: From matrices to their factors and reports that are zero where there is one.
Factorise = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fault:
    """A factorisation that failed.

    :ivar matrix: the covariance matrices, without jitter.
    :ivar name: the Gaussian process.
    :ivar jitter: the largest relative jitter that was tried.
    :ivar is_given: whether it was given, as a number that is used as it is.
    """

    matrix: Tensor
    name: str
    jitter: float
    is_given: bool


class NotPositiveDefiniteError(RuntimeError):
    """A covariance matrix has no Cholesky factor; the message names the Gaussian process and the remedy.

    The words "input is not positive-definite" in it let Pyro's HMC and NUTS reject the proposal instead of stopping.

    :ivar fault: the matrix, if one was factorised, from which callers that know the kernel and its points tell the cause.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


def cholesky(
    matrix: Tensor, jitter: float | None, name: str, *, level: Tensor | None = None, largest: float | None = None
) -> Tensor:
    """Lower Cholesky factor of ``matrix + jitter * level * I``.

    :param matrix: covariance matrices ``(..., N, N)``.
    :param jitter: relative jitter; ``None`` takes :data:`DEFAULT_JITTER` of the matrix's dtype and, where that is not
        enough, ten times more, up to :data:`LARGEST_JITTER`. A number given is used as it is.
    :param name: the site, for the error message.
    :param level: what the jitter is relative to, ``(..., 1)``; ``mean(diag(matrix))`` if not given.
    :param largest: jitter to go up to in the place of :data:`LARGEST_JITTER`.
    :returns: factors ``(..., N, N)``.
    :raises NotPositiveDefiniteError: if there is no factor at the largest jitter, or the matrix holds NaN or infinity.
    """
    return _with_jitter(matrix, jitter, name, torch.linalg.cholesky_ex, level, largest)[0]


def jittered_cholesky(
    matrix: Tensor, jitter: float | None, name: str, *, factorise: Factorise = torch.linalg.cholesky_ex
) -> tuple[Tensor, Tensor]:
    """``matrix + jitter * level * I``, and the factor of it that :func:`cholesky` gives.

    :param factorise: from a matrix to its factor and a report that is zero where there is one.
    """
    factor, _, jittered = _with_jitter(matrix, jitter, name, factorise)
    return jittered, factor


def stacked(*parts: Tensor) -> Tensor:
    """Return matrices ``(..., M_i, N)`` one under another, ``(..., sum M_i, N)``, with axes in front of them broadcast."""
    batch = torch.broadcast_shapes(*[part.shape[:-2] for part in parts])
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], -2)


def inverse_cholesky(matrix: Tensor, jitter: float | None, name: str) -> tuple[Tensor, float]:
    """Inverse of the factor that :func:`cholesky` gives, without gradients, and the relative jitter in it."""
    return _with_jitter(matrix.detach(), jitter, name, _inverse_factor)[:2]


def inverse_of_factorised(factor: Tensor) -> Tensor:
    """Inverse of ``L L'``, from a lower triangular L."""
    if factor.dim() == 2 or factor.shape[-1] > _SMALL:
        return torch.cholesky_inverse(factor)
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape)
    inverse = solve_triangular(factor, identity, upper=False)
    return inverse.mT @ inverse


def through_jitter_(cotangent: Tensor, jitter: float) -> Tensor:
    """Cotangent of a matrix K from that of ``K + jitter mean(diag(K)) I``, in place."""
    diagonal = cotangent.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(diagonal.mean(-1, keepdim=True), alpha=jitter)
    return cotangent


def _with_jitter(
    matrix: Tensor,
    jitter: float | None,
    name: str,
    factorise: Factorise,
    level: Tensor | None = None,
    largest: float | None = None,
) -> tuple[Tensor, float, Tensor]:
    """Return what ``factorise`` makes of the matrix with jitter, the relative jitter, and that matrix."""
    if jitter is None:
        attempt, largest = DEFAULT_JITTER[matrix.dtype], largest or LARGEST_JITTER[matrix.dtype]
    else:
        attempt = largest = jitter
    if level is None:
        level = matrix.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    while True:
        jittered = _add_to_diagonal(matrix, level, attempt)
        result, info = factorise(jittered)
        if not failed(info):
            return result, attempt, jittered
        if attempt * 10 >= largest * 1.0001 or not bool(torch.isfinite(matrix).all()):
            fault = Fault(matrix.detach(), name, attempt, is_given=jitter is not None)
            raise NotPositiveDefiniteError(_explain(fault), fault)
        attempt *= 10


def _add_to_diagonal(matrix: Tensor, level: Tensor, share: float) -> Tensor:
    """``matrix + share * level * I``; in place of a copy where nothing is differentiated, which is faster."""
    if matrix.requires_grad:
        return matrix + torch.diag_embed((share * level).expand(matrix.shape[:-1]))
    jittered = matrix.clone()
    jittered.diagonal(dim1=-2, dim2=-1).add_(level, alpha=share)
    return jittered


def _inverse_factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    factor, info = torch.linalg.cholesky_ex(matrix)
    inverse = torch.zeros_like(matrix)
    inverse.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    # In place: elsewhere a copy of the identity costs as much as the solve.
    solve_triangular(factor, inverse, upper=False, out=inverse)
    return inverse, info


def noisy_cholesky(matrix: Tensor, jitter: float | None, name: str) -> Tensor:
    """Cholesky factor of a covariance that holds observation noise: without jitter where that succeeds, else as :func:`cholesky`."""
    if jitter is None:
        factor, info = torch.linalg.cholesky_ex(matrix)
        if not failed(info):
            return factor
    return cholesky(matrix, jitter, name)


def noisy_jittered_cholesky(
    matrix: Tensor, jitter: float | None, name: str, *, factorise: Factorise = torch.linalg.cholesky_ex
) -> tuple[Tensor, Tensor]:
    """The matrix, with jitter if it needs some, and the factor of it that :func:`noisy_cholesky` gives."""
    if jitter is None:
        factor, info = factorise(matrix)
        if not failed(info):
            return matrix, factor
    return jittered_cholesky(matrix, jitter, name, factorise=factorise)


def _explain(fault: Fault) -> str:
    matrix = fault.matrix
    if not bool(torch.isfinite(matrix).all()):
        return (
            f"the covariance of {fault.name!r} holds NaN or infinity (input is not positive-definite): "
            "build the model and the guide anew and train at a lower learning rate, or look for non-finite inputs"
        )
    values = torch.linalg.eigvalsh(matrix.double())
    condition = float((values[..., -1].abs() / values[..., 0].abs().clamp_min(1e-300)).max())
    remedy = "use float64" if matrix.dtype != torch.float64 else "give GaussianProcess(..., jitter=...) a larger number"
    return (
        f"the covariance of {fault.name!r}, {matrix.shape[-1]} points in {str(matrix.dtype).removeprefix('torch.')}, has no "
        f"Cholesky factor at relative jitter {fault.jitter:.0e}, condition number {condition:.1e} (input is not "
        f"positive-definite): {remedy}"
    )


def solve_triangular(
    factor: Tensor, columns: Tensor, *, upper: bool, left: bool = True, out: Tensor | None = None
) -> Tensor:
    """Solve ``L X = C``, or ``X L = C`` where ``left`` is false: :func:`torch.linalg.solve_triangular`, right for any number of right-hand sides.

    The library calls it in the place of torch's.

    :param factor: triangular matrices ``(..., N, N)``, upper ones where ``upper`` is true.
    :param columns: C, ``(..., N, n)``, or ``(..., n, N)`` where ``left`` is false; batch axes broadcast.
    :param out: where to write the result; it may be C itself.
    :returns: X, in the shape of C with the batch axes of both.
    """
    axis = -1 if left else -2
    if columns.device.type == "cpu" or columns.shape[axis] <= _MOST_COLUMNS:
        return torch.linalg.solve_triangular(factor, columns, upper=upper, left=left, out=out)
    solved = in_pieces(factor, columns, _MOST_COLUMNS, upper=upper, left=left)
    return solved if out is None else out.copy_(solved)


def in_pieces(factor: Tensor, columns: Tensor, most: int, *, upper: bool, left: bool) -> Tensor:
    """Solve as :func:`solve_triangular`, for at most ``most`` right-hand sides at once."""
    axis = -1 if left else -2
    parts = [torch.linalg.solve_triangular(factor, part, upper=upper, left=left) for part in columns.split(most, axis)]
    return torch.cat(parts, axis)


def solve_columns(factor: Tensor, columns: Tensor) -> Tensor:
    """``L^-1 C`` for factors ``(..., M, M)`` and columns ``(..., M, N)``, batch axes broadcast.

    Many columns are multiplied by the inverse: a product runs faster than a solve, forward and backward.
    """
    if columns.shape[-1] > 2 * factor.shape[-1]:
        return solve_triangular(factor, identity(factor).expand_as(factor), upper=False) @ columns
    return solve_triangular(factor, columns, upper=False)


def identity(matrix: Tensor) -> Tensor:
    """The identity matrix ``(N, N)`` that can be added to square matrices ``(..., N, N)``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def add_noise(covariance: Tensor, variance: Tensor) -> Tensor:
    """``K_d + variance_d I`` for covariances ``(..., E, N, N)`` (E kernels, 1 if the outputs share it) and variances ``(..., D_out)``."""
    return covariance + variance[..., None, None] * identity(covariance)


def half_log_determinants(factor: Tensor) -> Tensor:
    """``0.5 * log det(L L')`` of each matrix, for Cholesky factors ``(..., N, N)``."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def half_log_determinant(factor: Tensor, outputs: int) -> Tensor:
    """``0.5 * sum_d log det(L_d L_d')`` over the outputs of a layer.

    :param factor: Cholesky factors ``(..., E, N, N)``; where E is 1, all outputs share the matrix and it counts once for each.
    :param outputs: D_out.
    """
    each = half_log_determinants(factor)
    repeats = outputs if each.shape[-1] == 1 else 1
    return each.sum(-1) * repeats


def fits(small: Tensor, large: Tensor) -> bool:
    """Whether ``small`` broadcasts to the shape of ``large``: ``large * small`` can be had in place, and nothing is repeated."""
    if small.dim() > large.dim():
        return False
    return all(a in (1, b) for a, b in zip(reversed(small.shape), reversed(large.shape), strict=False))


#: Terms of a sum from which a GPU adds it in parts, the terms of each, and entries of the results up to which it does: more of them keep all its processors busy as they are.
_MANY_TERMS, _TERMS_OF_PART, _MOST_ENTRIES = 16_384, 2_048, 2**17


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``; where both have the same single batch axis, without matmul's search for a common shape, and long sums on a GPU in parts."""
    if not (a.dim() == b.dim() == 3 and len(a) == len(b)):
        return a @ b
    terms, entries = a.shape[-1], len(a) * a.shape[-2] * b.shape[-1]
    if a.device.type != "cpu" and terms >= _MANY_TERMS and entries <= _MOST_ENTRIES:
        return product_in_parts(a, b, _TERMS_OF_PART)
    return torch.bmm(a, b)


def product_in_parts(a: Tensor, b: Tensor, terms: int) -> Tensor:
    """Return ``a @ b``, ``(E, r, n)`` and ``(E, n, c)``, as a sum of products of some of the n terms.

    The batched product of a GPU gives each tile of the result to one of its processors: where r and c are small and n is large, most of them
    wait. Parts keep all of them busy.

    :param terms: of each part.
    """
    count = a.shape[-1] // terms
    full = count * terms
    parts = [
        torch.bmm(
            left[:, :full].unflatten(-1, (count, terms)).transpose(0, 1), right[:full].unflatten(0, (count, terms))
        ).sum(0)
        for left, right in zip(a, b, strict=True)
    ]
    return torch.baddbmm(torch.stack(parts), a[..., full:], b[..., full:, :])


def add_product_(c: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    """``c + factor * a @ b``, in place and, where :func:`product` is one call, in one pass."""
    if a.dim() == b.dim() == 3 and len(a) == len(b):
        return c.baddbmm_(a, b, alpha=factor)
    return c.add_(a @ b, alpha=factor)


class _ColumnSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return torch.linalg.vecdot(matrix, matrix, dim=-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (matrix,) = ctx.saved_tensors
        return matrix * (2 * grad).unsqueeze(-2)


def column_squares(matrix: Tensor) -> Tensor:
    """Sums of squares of the columns, ``(..., M, N) -> (..., N)``, in one pass forward and one backward."""
    result: Tensor = _ColumnSquares.apply(matrix)  # type: ignore[no-untyped-call]
    return result


def apply_factor(factor: Tensor, values: Tensor) -> Tensor:
    """``L v`` for factors ``(..., E, N, N)`` (E kernels, 1 if the outputs share it) and values ``(..., N, D_out)``."""
    if factor.shape[-3] == 1:
        return factor.squeeze(-3) @ values
    return (factor @ values.mT.unsqueeze(-1)).squeeze(-1).mT


def solve_factor(factor: Tensor, values: Tensor, upper: bool = False) -> Tensor:
    """``L^-1 v``, the inverse of :func:`apply_factor`; same shapes, for factors that are lower triangular or, transposed, upper."""
    if factor.shape[-3] == 1:
        return solve_broadcast(factor.squeeze(-3), values, upper)
    return solve_broadcast(factor, values.mT.unsqueeze(-1), upper).squeeze(-1).mT


def solve_broadcast(factor: Tensor, columns: Tensor, upper: bool = False) -> Tensor:
    """``L^-1 C`` for factors ``(..., N, N)`` and columns ``(..., N, M)``, whose batch axes are expanded to their common shape."""
    batch = torch.broadcast_shapes(factor.shape[:-2], columns.shape[:-2])
    factor, columns = factor.expand(batch + factor.shape[-2:]), columns.expand(batch + columns.shape[-2:])
    return solve_triangular(factor, columns, upper=upper)
