"""Initial inducing points: k-means centres of the inputs."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor


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
