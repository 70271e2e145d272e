"""Initial inducing points: k-means centres of the inputs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.processes.basis import Basis


def initial_points_of_groups(x: Float[Tensor, "*g n d"], size: int, name: str) -> Float[Tensor, "*g m d"]:
    """Return the initial points of each group, as many for each; see :func:`initial_points`."""
    if x.dim() == 2:
        return initial_points(x, size, name)
    parts = list(x.reshape(-1, *x.shape[-2:]))
    if all(torch.equal(part, parts[0]) for part in parts[1:]):
        return initial_points(parts[0], size, name).repeat(*x.shape[:-2], 1, 1)
    points = [initial_points(part, size, name) for part in parts]
    least = min(len(each) for each in points)
    points = [
        each if len(each) == least else initial_points(part, least, name)
        for each, part in zip(points, parts, strict=True)
    ]
    return torch.stack(points).reshape(*x.shape[:-2], least, x.shape[-1])


#: Rows among which points beside another basis are looked for.
_MOST_ROWS = 2000


@torch.no_grad()
def points_beside(basis: Basis, prior: FunctionPrior, size: int) -> Float[Tensor, "*g m d"]:
    """Return rows of the prior's inputs, one after another where most of its variance is left by a basis and the rows before.

    These are the pivots of a Cholesky factor of the residual covariance (Burt et al. 2020, Convergence of sparse variational inference, 4.2).
    Kernels of several outputs count together.
    """
    x = prior.x.detach()
    rows = x.shape[-2]
    if rows > _MOST_ROWS:
        x = x[..., torch.randperm(rows, device=x.device)[:_MOST_ROWS], :]
    at = prior.at(x)
    a = basis.columns(at)
    covariance = at.covariance.matrix(x.unsqueeze(-3)) - a.mT @ a
    groups = x.shape[:-2]
    covariance = covariance.sum(-3).expand(*groups, *covariance.shape[-2:]).reshape(-1, *covariance.shape[-2:])
    size = min(size, x.shape[-2])
    chosen = torch.stack([_pivots(each, size) for each in covariance]).reshape(*groups, size, 1)
    return x.gather(-2, chosen.expand(*groups, size, x.shape[-1]))


def _pivots(covariance: Float[Tensor, "n n"], size: int) -> Tensor:
    """Return the rows of the first pivots."""
    left, columns, chosen = covariance.diagonal().clone(), covariance.new_zeros(0, len(covariance)), []
    for _ in range(size):
        row = int(left.argmax())
        chosen.append(row)
        column = covariance[row] - columns.mT @ columns[:, row]
        column = column / column[row].clamp_min(torch.finfo(column.dtype).eps).sqrt()
        columns = torch.cat([columns, column[None]])
        left = left - column.square()
        left[row] = -torch.inf
    return torch.tensor(chosen, device=covariance.device)


def initial_points(x: Float[Tensor, "n d"], size: int, name: str) -> Float[Tensor, "m d"]:
    """Return at most ``size`` k-means centres of the rows of ``x``, with a seed drawn by torch's generator."""
    distinct = torch.unique(x, dim=0)
    if len(distinct) == 1 and len(x) > 1:
        # A layer below with zero mean maps every input to one point: start from standard normal points around it.
        return distinct + torch.randn(min(size, len(x)), x.shape[-1], dtype=x.dtype, device=x.device)
    if size >= len(distinct):
        if size > len(distinct):
            warn_user(
                f"{size} inducing points are wanted at {name!r}, which has {len(distinct)} distinct training inputs: "
                f"reduced to {len(distinct)}"
            )
        return distinct
    from sklearn.cluster import KMeans, MiniBatchKMeans

    seed = int(torch.randint(2**31 - 1, ()))
    estimator = MiniBatchKMeans if len(x) > 20_000 else KMeans
    centres = estimator(size, n_init=1, max_iter=50, random_state=seed).fit(x.cpu().double().numpy()).cluster_centers_
    return torch.as_tensor(centres, dtype=x.dtype, device=x.device)
