"""A start from one layer: hidden means, lengthscales or noise of a deep model from a sparse GP that is trained on the same rows first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.model_sites import ModelSites, sites_of
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.internal.spreads import scale_along
from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.likelihoods import Gaussian, MissingOutputs, Observation
from pyro_dgp.losses import ELBO
from pyro_dgp.means import LinearMean, Projection
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.processes import InducingPoints
from pyro_dgp.propagation import MonteCarlo
from pyro_dgp.training.loop import check_data
from pyro_dgp.training.optimising import Callback
from pyro_dgp.training.second_start import fit_with_second_start


@dataclass(frozen=True)
class OneLayerStart:
    """Outcome of a start from one layer: the sites that it has set, and the noise that one layer leaves in the targets.

    :ivar sites: names of the hidden sites that begin at what one layer learned.
    :ivar noise: variance of the noise that one layer learned, ``()`` or a value for each target, squared units of y; ``None`` where nothing was
        learned.

    >>> import torch
    >>> from pyro_dgp import DeepGP, LinearMean, start_from_one_layer
    >>> x = torch.randn(100, 3)
    >>> y = torch.sin(2 * x[:, 1]) + 0.3 * torch.randn(100)
    >>> model = DeepGP(x, width=2, mean=LinearMean.fit)
    >>> start_from_one_layer(model, x, y, steps=200, num_inducing=20).set_noise(model, x, y)
    True
    """

    sites: list[str] = field(default_factory=list)
    noise: Tensor | None = None

    def __bool__(self) -> bool:
        """Whether any site was started."""
        return bool(self.sites)

    def set_noise(self, model: Any, x: Tensor, y: Tensor, **arguments: Any) -> bool:
        """Start the noise of a Gaussian likelihood at that of one layer, and tell whether it was done.

        A guide that overfits, and is stopped early for it, needs that: its noise has no time to rise from a small start. It is done where the model
        observes y as it is by a :class:`~pyro_dgp.Gaussian` of one output, in units or without, whose variance is a parameter that training may change. It
        is not done where one layer learned less noise than that likelihood can have.

        :param model: the model, called as ``model(x, y)``.
        :param x: the training inputs.
        :param y: their targets.
        :param arguments: further arguments of the model.
        """
        modules = modules_of(model)
        free = [part for module in modules for part in module.modules() if _has_free_noise(part)]
        if self.noise is None or self.noise.dim() or len(free) != 1:
            return False
        likelihood: Any = free[0]
        before = likelihood.variance.detach().clone()
        known = _noise_of(sites_of(model, modules, (x, y), arguments), y)
        if known is None or before.dim():
            return False
        try:
            likelihood.variance = (before * self.noise / known).to(before)
        except ValueError:  # below the floor of the likelihood
            return False
        found = _noise_of(sites_of(model, modules, (x, y), arguments), y)
        if found is None or not torch.allclose(found, self.noise.to(found), rtol=1e-3):
            likelihood.variance = before
            return False
        return True


def _has_free_noise(part: nn.Module) -> bool:
    return isinstance(part, Gaussian) and _is_free(part, "variance")


def _noise_of(sites: ModelSites, y: Tensor) -> Tensor | None:
    """Return the variance of the Gaussian noise of the site that observes y, squared units of y; nothing where there is no such site."""
    found = [
        fn.conditional for value, fn in sites.observed.values() if _is_same(value, y) and isinstance(fn, Observation)
    ]
    variance = found[0].noise_variance() if len(found) == 1 else None
    if variance is None or variance.numel() != 1:
        return None
    scale: Tensor = torch.as_tensor(found[0].units.scale)
    return variance.detach().reshape(()).double() * scale.square().reshape(()).to(variance.device)


def _is_same(value: Any, y: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.shape == y.shape
        and bool(((value == y) | (value.isnan() & y.isnan())).all())
    )


def start_from_one_layer(
    model: Any,
    x: Tensor,
    y: Tensor,
    *,
    numbers: Tensor | None = None,
    steps: int = 1000,
    num_inducing: int = 128,
    batch_size: int = 500,
    learning_rate: float = 0.05,
    seed: int = 0,
    second: bool = True,
    callback: Callback | None = None,
    **arguments: Any,
) -> OneLayerStart:
    """Start the hidden layers of a model at what one layer learns of the same rows, and return their sites and the noise of the one layer.

    A deep GP that starts at the principal directions of its inputs may never find the few inputs that matter. One layer finds them
    quickly: its lengthscales l_1, ..., l_D say how far the function varies along each input. So a sparse GP with a Matern 5/2 kernel is
    trained first. Let s_d = x_d / l_d be its scaled inputs and v their total variance. Each hidden Gaussian process that takes the
    inputs of the data then begins

    - at the mean ``x W`` of unit variance in the mean over outputs, where W are the principal directions of s, if it has a
      :class:`~pyro_dgp.LinearMean` that is learned; its kernel stays as it is,
    - otherwise at the lengthscales l_d sqrt(v), if its kernel has one for each input, so that the total variance of its scaled inputs is one.

    The lengthscales are not set beside a mean. An input that one layer needs little of may matter together with others, and a kernel that
    starts blind to it seldom finds it.

    All other parameters stay as they are. So does the whole model where ``x`` has groups, and where ``y`` are integers. Call it before :meth:`Variational.initialize`: inducing points of upper layers begin at
    the means below.

    :param model: the model, called as ``model(x, y)``.
    :param x: training inputs ``(N, D)``.
    :param y: their targets, ``(N,)`` or ``(N, D_out)``, in any units; NaN is an output that was not observed, where the model takes missing outputs.
    :param numbers: what the one layer fits in the place of y, ``(N, K)``: for classes, a column of 0 and 1 for each.
    :param steps: training steps of the one layer.
    :param num_inducing: its number of inducing points.
    :param batch_size: rows in a step.
    :param learning_rate: that of its first steps.
    :param seed: seed of its training.
    :param second: whether there may be a second start where the one layer explains nothing, which takes more steps.
    :param callback: function of step and loss, called after each step by the ELBO.
    :param arguments: further arguments of the model.

    >>> import torch
    >>> from pyro_dgp import DeepGP, LinearMean, start_from_one_layer
    >>> x = torch.randn(100, 3)
    >>> y = torch.sin(2 * x[:, 1])
    >>> model = DeepGP(x, width=2, mean=LinearMean.fit)
    >>> start_from_one_layer(model, x, y, steps=200, num_inducing=20).sites
    ['h1']
    >>> int(model.hidden[0].mean.weight.abs().sum(1).argmax())  # the input that matters
    1
    """
    require_tensor(x, "training inputs are")
    require_tensor(y, "targets are", "y")
    fitted = y if numbers is None else numbers
    if x.dim() != 2 or not fitted.is_floating_point():
        return OneLayerStart()
    modules = modules_of(model)
    gps = {id(gp): gp for part in modules for gp in part.modules() if isinstance(gp, GaussianProcess)}
    hidden = _first_hidden(sites_of(model, modules, (x, y), arguments), len(x))
    began = {
        name: gps[prior.source]
        for name, prior in hidden
        if prior.source in gps and _can_begin(gps[prior.source], prior.x)
    }
    if not began:
        return OneLayerStart()
    check_data(x, fitted, modules)
    inputs = hidden[0][1].x.detach()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options: dict[str, Any] = {"batch_size": batch_size, "learning_rate": learning_rate, "second": second}
        options["callback"] = callback
        learned = _relevant(inputs, fitted, num_inducing, steps=steps, **options)
    if learned is None:
        return OneLayerStart()
    lengthscales, noise = learned
    for gp in began.values():
        _begin(gp, inputs, lengthscales)
    varies = bool((fitted != fitted[:1]).any()) and bool(noise.isfinite().all())
    return OneLayerStart(list(began), noise if varies else None)


def _first_hidden(sites: ModelSites, rows: int) -> list[tuple[str, FunctionPrior]]:
    """Return the hidden Gaussian processes that take the same inputs ``(N, D)`` as the first one."""
    hidden = [(name, sites.functions[name]) for name in sites.hidden]
    if not hidden or hidden[0][1].x.dim() != 2 or len(hidden[0][1].x) != rows:
        return []
    first = hidden[0][1].x
    return [(name, prior) for name, prior in hidden if prior.x.shape == first.shape and torch.equal(prior.x, first)]


def _relevant(x: Tensor, y: Tensor, num_inducing: int, *, steps: int, **options: Any) -> tuple[Tensor, Tensor] | None:
    """Return the lengthscales ``(D,)`` of one layer that is trained, and its noise variance; nothing if it cannot be factorised."""
    spread, scale, outputs = scale_along(x, 0)[0], scale_along(y, 0)[0], 1 if y.dim() == 1 else y.shape[-1]
    x, y = (x - x.mean(0)) / spread, (y - y.nanmean(0)) / scale
    noisy = Gaussian(outputs)
    model = DeepGP(x, 1, outputs=outputs, likelihood=MissingOutputs(noisy) if y.isnan().any() else noisy).to(x)
    guide = Variational(model, InducingPoints(min(num_inducing, len(x))), MonteCarlo(1))
    try:
        guide.initialize(x, y)
        fit_with_second_start(guide, ELBO(len(x))(model, guide), x, y, steps=steps, **options)
    except NotPositiveDefiniteError:
        return None
    lengthscales: Tensor = model.top.kernel.lengthscale.detach().reshape(-1)
    noise: Tensor = noisy.variance.detach() * scale.square()
    return lengthscales * spread, noise


def _can_begin(gp: GaussianProcess, x: Tensor) -> bool:
    """Tell whether there is a mean or a kernel to be set."""
    return _linear_mean(gp, x) is not None or bool(_kernels(gp, x))


@torch.no_grad()
def _begin(gp: GaussianProcess, x: Tensor, lengthscales: Tensor) -> None:
    """Set a linear mean that is learned, or else lengthscales."""
    scaled = (x - x.mean(0)) / lengthscales
    total = scaled.square().mean(0).sum()
    mean = _linear_mean(gp, x)
    if mean is not None:
        mean.weight = _directions(scaled, total, mean.weight.shape[1]) / lengthscales[:, None]
        return
    for part in _kernels(gp, x):
        part.lengthscale = (lengthscales * total.sqrt()).expand_as(part.lengthscale).clone()


def _linear_mean(gp: GaussianProcess, x: Tensor) -> LinearMean | None:
    """Return the linear mean of a process, if it is learned."""
    mean = gp.mean
    is_one = isinstance(mean, LinearMean) and _is_free(mean, "weight") and mean.weight.shape[0] == x.shape[-1]
    return mean if is_one else None


def _kernels(gp: GaussianProcess, x: Tensor) -> list[Any]:
    """Return the parts of its kernel with a lengthscale for each input that is learned."""
    free = [part for part in gp.kernel.modules() if _is_free(part, "lengthscale")]
    return [part for part in free if part.lengthscale.dim() > 0 and part.lengthscale.shape[-1] == x.shape[-1] > 1]


def _directions(scaled: Tensor, total: Tensor, width: int) -> Tensor:
    """Return weights ``(D, width)`` of the scaled inputs that give outputs of unit variance in the mean: an identity where there is room."""
    inputs = scaled.shape[-1]
    directions = Projection.fit(scaled, width).weight
    return directions * (min(width, inputs) / total).sqrt()


def _is_free(module: nn.Module, name: str) -> bool:
    """Tell whether a module has a parameter of that name which training may change."""
    parameter = dict(module.named_parameters(recurse=False)).get(f"{name}_unconstrained")
    return parameter is not None and parameter.requires_grad
