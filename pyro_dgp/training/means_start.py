"""A start of a deep model as the one layer that it is where its hidden functions are their means."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.losses import CollapsedELBO
from pyro_dgp.processes import ProcessFamily
from pyro_dgp.training.collapsed_fit import fit_collapsed

#: Rows that the one layer is trained on at most.
MOST_ROWS = 5000
#: Share of their variance that hidden functions keep.
SHARE = 1e-3


class _Means(SiteHandler, Messenger):
    """Puts the mean of each hidden Gaussian process in the place of its values, and takes its site out."""

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Give the mean."""
        if not msg["is_observed"]:
            msg["value"], msg["done"], msg["stop"] = prior.mean, True, True


class AtMeans(nn.Module):
    """A model whose hidden functions are their means.

    :param model: the model, whose parameters these are.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with _Means():
            return self.model(*args, **kwargs)


def start_at_means(
    guide: Variational, family: ProcessFamily, x: Tensor, y: Tensor, *, steps: int = 200, seed: int = 0
) -> bool:
    """Start a deep model and its guide as the one layer that they are where hidden functions are their means, and tell whether it was done.

    That layer, a sparse GP on learned features of the inputs, is trained by :func:`~pyro_dgp.fit_collapsed`. Hidden functions keep a thousandth of
    their variance, so that the deep model begins next to it.

    :param guide: the guide of the deep model, initialised.
    :param family: the family of its top layer.
    :param x: training inputs ``(N, D)``.
    :param y: their targets.
    :param steps: steps of the one layer at most.
    :param seed: of the choice of rows.
    """
    model = guide.model
    if not isinstance(model, nn.Module) or not guide.hidden:
        return False
    one = Variational(AtMeans(model), family)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = torch.randperm(len(x))[:MOST_ROWS] if len(x) > MOST_ROWS else torch.arange(len(x))
        try:
            one.initialize(x, y)
            fit_collapsed(one, (x[rows], y[rows]), steps=steps)
        except NotPositiveDefiniteError:
            return False
    CollapsedELBO(one).settle(x, y)
    ((key, process),) = one.processes.named_children()
    getattr(guide.processes, key).load_state_dict(process.state_dict())
    return True


def shrink_hidden(hidden: list[GaussianProcess], share: float = SHARE) -> None:
    """Multiply the variances of kernels."""
    for gp in hidden:
        for part in gp.kernel.modules():
            if "variance_unconstrained" in dict(part.named_parameters(recurse=False)):
                kernel: Any = part
                kernel.variance = share * kernel.variance.detach()
