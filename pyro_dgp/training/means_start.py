"""A start of a deep model as the one layer that it is where its hidden functions are their means."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.model_sites import sites_of
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.attributes import restore, snapshot
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.losses import CollapsedELBO
from pyro_dgp.processes import GaussianCoefficients, ProcessFamily
from pyro_dgp.training.collapsed_fit import fit_collapsed
from pyro_dgp.training.remarks import explains_nothing

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
    """A model whose hidden functions are their means: one layer on what the means make of the inputs.

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
    guide: Variational, x: Tensor, y: Tensor, *, family: ProcessFamily, steps: int = 200, seed: int = 0
) -> bool:
    """Start a deep model and its guide as the one layer that they are where hidden functions are their means, and tell whether it was done.

    Stochastic steps are slow to train a deep GP of a smooth function to its end. That one layer, a sparse GP whose inputs are the means, such as
    learned linear ones, is trained to its end by :func:`~pyro_dgp.fit_collapsed`, with all parameters of the means. The deep model then begins next to it: kernel, noise, inducing
    points and q(v) of the top layer are those of the one layer, hidden functions keep a thousandth of their variance, and their q(v) is the prior,
    which costs no KL.

    Nothing is changed where there is no such start: for a likelihood that is not Gaussian or a model with other latent sites, hidden means that do not
    vary, processes of the guide without a q(v) of full covariance, and where the one layer explains nothing of the targets.

    It is worth most for smooth functions with little noise. With few and noisy rows the learned means can overfit: compare it with a start without it
    on held-out rows.

    :param guide: the guide of the deep model, initialised.
    :param x: training inputs ``(N, D)``; a random 5,000 rows serve to train the one layer where there are more.
    :param y: their targets.
    :param family: the family of the top layer of the guide.
    :param steps: steps of the one layer at most.
    :param seed: seed of the choice of rows.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, LinearMean, Variational, start_at_means
    >>> x = torch.rand(100, 2)
    >>> y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(100)
    >>> points = InducingPoints(10)
    >>> guide = Variational(DeepGP(x, width=2, mean=LinearMean.fit), points)
    >>> guide.initialize(x, y)
    >>> start_at_means(guide, x, y, family=points, steps=30)
    True
    """
    model = guide.model
    hidden = _hidden(guide, x, y)
    if not isinstance(model, nn.Module) or not hidden:
        return False
    before = snapshot(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            one = Variational(AtMeans(model), family)
            one.initialize(x, y)
            rows = torch.randperm(len(x))[:MOST_ROWS] if len(x) > MOST_ROWS else torch.arange(len(x))
            fit_collapsed(one, (x[rows], y[rows]), steps=steps)
            CollapsedELBO(one).settle(x, y)
            ((key, process),) = one.processes.named_children()
            top = getattr(guide.processes, key)
            is_done = _shapes(top) == _shapes(process) and not explains_nothing(one, x, y)
        except (ValueError, NotPositiveDefiniteError):
            is_done = False
    if not is_done:
        restore(model, before)
        return False
    top.load_state_dict(process.state_dict())
    for name, gp in hidden.items():
        _begin_small(gp, getattr(guide.processes, name).q)
    return True


def _shapes(process: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in process.named_parameters()}


def _hidden(guide: Variational, x: Tensor, y: Tensor) -> dict[str, GaussianProcess]:
    """Return the hidden Gaussian processes by name of their process, where each can begin small next to a mean that varies; none otherwise."""
    modules = guide.model_modules
    gps = {id(gp): gp for part in modules for gp in part.modules() if isinstance(gp, GaussianProcess)}
    sites = sites_of(guide.model, modules, (x, y), {})
    found = {}
    for name in sites.hidden:
        prior = sites.functions[name]
        gp = gps.get(prior.source) if prior.source is not None else None
        q = getattr(getattr(guide.processes, name, None), "q", None)
        if gp is None or not _parts(gp) or not isinstance(q, GaussianCoefficients) or q.kind != "full":
            return {}
        if not bool((prior.mean.std(-2) > 0).any()):
            return {}
        found[name] = gp
    return found


def _parts(gp: GaussianProcess) -> list[Any]:
    """Return the parts of a kernel with a variance of their own, if training may change all of them."""
    named = [(part, dict(part.named_parameters(recurse=False))) for part in gp.kernel.modules()]
    with_variance = [(part, own["variance_unconstrained"]) for part, own in named if "variance_unconstrained" in own]
    is_free = all(parameter.requires_grad for _, parameter in with_variance)
    return [part for part, _ in with_variance] if is_free else []


@torch.no_grad()
def _begin_small(gp: GaussianProcess, q: Any) -> None:
    """Leave a share of the variance, and set q(v) to the prior."""
    for part in _parts(gp):
        part.variance = SHARE * part.variance
    q.mean = torch.zeros_like(q.mean)
    q.scale = torch.eye(q.scale.shape[-1]).to(q.scale).expand_as(q.scale).clone()
