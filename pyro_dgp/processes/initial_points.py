"""Initial inducing points: k-means centres of the inputs."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor


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


def initial_points(x: Float[Tensor, "n d"], size: int, name: str) -> Float[Tensor, "m d"]:
    """Return at most ``size`` k-means centres of the rows of ``x``, with a seed drawn by torch's generator."""
    distinct = torch.unique(x, dim=0)
    if len(distinct) == 1 and len(x) > 1:
        # A layer below with zero mean maps every input to one point: start from standard normal points around it.
        return distinct + torch.randn(min(size, len(x)), x.shape[-1], dtype=x.dtype, device=x.device)
    if size >= len(distinct):
        if size > len(distinct):
            warnings.warn(
                f"{size} inducing points are wanted at {name!r}, which has {len(distinct)} distinct training inputs: "
                f"reduced to {len(distinct)}",
                stacklevel=2,
            )
        return distinct
    from sklearn.cluster import KMeans, MiniBatchKMeans

    seed = int(torch.randint(2**31 - 1, ()))
    estimator = MiniBatchKMeans if len(x) > 20_000 else KMeans
    centres = estimator(size, n_init=1, max_iter=50, random_state=seed).fit(x.cpu().double().numpy()).cluster_centers_
    return torch.as_tensor(centres, dtype=x.dtype, device=x.device)
