"""Sigma points: hidden layers placed at fixed or learned distances from their means, in standard deviations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from pyro.nn import PyroModule, PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.quadrature import gauss_hermite
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.propagation.base import Propagation

RULES = ("gauss-hermite", "qr1", "qr2", "qr3")
#: Largest number of Gauss-Hermite nodes; with more of them the weights underflow.
MOST_NODES = 200


class SigmaPoint(FunctionMarginal):
    """q(f) at inputs whose every draw is ``mean + points * sd``.

    It is a Dirac mass; its ``mean`` and ``variance`` are the moments of the marginal that placed it.
    """

    def __init__(self, marginal: FunctionMarginal, points: Tensor) -> None:
        super().__init__(marginal.mean, marginal.variance, marginal.regularizer, marginal._joint)
        self.points = points

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> SigmaPoint:
        """Return the distribution over a larger batch, at the same points."""
        return SigmaPoint(super().expand(batch_shape), self.points)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return the point, repeated: ``(*sample_shape, ..., N, D_out)``."""
        value = self.mean + self.points * self.variance.sqrt()
        return value.expand(self._extended_shape(Size(sample_shape)))


class SigmaDraw(FunctionMarginal):
    """q(f) at inputs whose draw puts each batch (particle) at one component.

    The component is drawn by weight. All layers use the same one, which ``memory`` passes on.
    """

    def __init__(self, marginal: FunctionMarginal, points: Tensor, weights: Tensor, memory: dict[str, Any]) -> None:
        super().__init__(marginal.mean, marginal.variance, marginal.regularizer, marginal._joint)
        self.points, self.weights, self.memory = points, weights, memory

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> SigmaDraw:
        """Return the distribution over a larger batch, each with a component of its own."""
        return SigmaDraw(super().expand(batch_shape), self.points, self.weights, self.memory)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return ``mean + points[component] * sd``, ``(*sample_shape, ..., N, D_out)``."""
        batch = Size(sample_shape) + self.batch_shape
        if "component" not in self.memory:
            drawn = torch.multinomial(self.weights.detach(), max(batch.numel(), 1), replacement=True)
            self.memory["component"] = drawn.reshape(batch)
        index = self.memory["component"].expand(batch)
        return self.mean + self.points[index].unsqueeze(-2) * self.variance.sqrt()


class SigmaPoints(Propagation):
    """Propagation by a deterministic, weighted grid or list of points in the place of samples ([DSPP] 3.2).

    Component s puts output w of a hidden layer at ``mean_w + xi_w^(s) sd_w``; all rows of data share points and weights.
    The mixture over components is the model's predictive density ([DSPP] 20 to 23). It approximates an integral over a
    normal hidden layer only if the rule is Gauss-Hermite.

    | rule | components | points | weights |
    |---|---|---|---|
    | ``gauss-hermite`` | grid, ``S^W`` ([DSPP] 18) | fixed | fixed |
    | ``qr1`` | grid, ``S^W`` ([DSPP] 22) | learned, ``(S, W)`` | learned, one for each of the ``S^W`` |
    | ``qr2`` | grid, ``S^W`` | learned, symmetric: ``xi^(s) = -xi^(S+1-s)`` | learned, one for each of the ``S^W`` |
    | ``qr3`` | list, ``S`` ([DSPP] 23) | learned, ``(S, W)`` for each hidden layer | learned, shared by the layers |

    The grids serve one hidden layer of width W; ``qr3`` serves any number of hidden layers. ([DSPP] 19 prints the third
    point of three as -sqrt 3, a misprint: it is +sqrt 3.)

    Where a model writes f and y given f as two plain sites, f is one more layer of points. Its points are not learned, since no KL would
    hold them: those of a grid stay at the Gauss-Hermite nodes, and those of ``qr3`` at the quantiles of a normal in random order, one list for each output. If there is
    no hidden layer, the weights stay fixed too, and the rule is a quadrature of the normal f.

    ``guide(*args)`` draws a component by weight. A stock Pyro loss therefore trains the points and leaves the weights at
    their start; the losses of this library train both.

    :param rule: one of the four rules.
    :param num_points: S: the points of each dimension of a grid, for ``qr3`` the components in all.
    :param max_components: most components of a grid; a larger grid is refused.

    >>> from pyro_dgp import DeepGP, InducingPoints, SigmaPoints, Variational
    >>> import torch
    >>> x, y = torch.randn(20, 1), torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=2), InducingPoints(20), SigmaPoints("gauss-hermite", 3))
    >>> guide.initialize(x, y)
    >>> guide.propagation.num_components  # a grid of 3 points in each of 2 dimensions
    9
    """

    def __init__(self, rule: str = "qr3", num_points: int = 10, max_components: int = 1024) -> None:
        super().__init__()
        if rule not in RULES:
            raise ValueError(f"there is no quadrature rule {rule!r}: choose from {', '.join(RULES)}")
        if not isinstance(num_points, int) or num_points < 1:
            raise ValueError(f"num_points of SigmaPoints is a whole number, at least 1, got {num_points}")
        if rule != "qr3" and num_points > MOST_NODES:
            raise ValueError(
                f"a grid has at most {MOST_NODES} points in a dimension, got {num_points}: take fewer, or rule 'qr3'"
            )
        self.rule, self.num_points, self.max_components = rule, num_points, max_components
        self.points = PyroModule()
        self._widths: dict[str, int] = {}
        self._learned: frozenset[str] = frozenset()

    @property
    def num_components(self) -> int:  # type: ignore[override]
        """Number of components: S for ``qr3``, ``S^W`` for the grids, 1 for a model without hidden layers."""
        if not self._widths:
            return 1
        return self.num_points if self.rule == "qr3" else self.num_points ** sum(self._widths.values())

    def initialize(self, latent: Mapping[str, FunctionPrior], reads: Mapping[str, Collection[str]]) -> None:
        """Create points and weights for the latent GP sites of a model.

        Learned ones start at those of Gauss-Hermite for the grids, and at standardised normal draws of equal weight for ``qr3``.
        """
        widths = {site: prior.num_outputs for site, prior in latent.items()}
        like = next((prior.x for prior in latent.values()), torch.empty(())).detach()
        self._create(widths, frozenset(site for sites in reads.values() for site in sites), like)
        if self.rule == "qr3":
            for site, width in widths.items():
                drawn = (
                    torch.randn(self.num_points, width) if site in self._learned else _quantiles(self.num_points, width)
                )
                self._set_points(site, _standardised(drawn.to(like)))

    def _create(self, widths: dict[str, int], below: frozenset[str], like: Tensor) -> None:
        self._require_size(widths)
        self._widths, self.points = dict(widths), PyroModule()
        self._learned = below & widths.keys() if self.rule != "gauss-hermite" else frozenset()
        if not widths or self.rule == "gauss-hermite":
            return
        nodes, log_weights = torch.zeros(self.num_points).to(like), like
        if self.rule != "qr3":
            nodes, log_weights = (values.to(like) for values in gauss_hermite(self.num_points))
        for site, width in widths.items():
            start = nodes[:, None].repeat(1, width)
            self._set_points(site, start[(self.num_points + 1) // 2 :] if self.rule == "qr2" else start)
        logits = like.new_zeros(self.num_points) if self.rule == "qr3" else self._grid_log_weights(log_weights)
        if self._learned:
            self.weight_logits = PyroParam(logits, event_dim=1)
        else:
            self.register_buffer("weight_logits", logits)

    def _set_points(self, site: str, points: Tensor) -> None:
        """Set the points of a layer: a parameter for a hidden layer, a constant for function values under a plain observation."""
        if site in self._learned:
            setattr(self.points, site, PyroParam(points, event_dim=2))
        else:
            self.points.register_buffer(site, points)

    def _require_size(self, widths: dict[str, int]) -> None:
        if self.rule == "qr3":
            return
        if len(widths) > 1:
            raise ValueError(
                f"rule {self.rule!r} is a grid over the outputs of one hidden layer, and the model has {list(widths)}: "
                "use 'qr3' (the top layer counts where the model samples its values: write pyro.sample('y', likelihood(gp(h))))"
            )
        width = sum(widths.values())
        if self.num_points**width > self.max_components:
            raise ValueError(
                f"rule {self.rule!r} with {self.num_points} points in each of {width} dimensions has "
                f"{self.num_points**width} components, more than max_components={self.max_components}: "
                "take fewer points, a narrower layer, or rule 'qr3'"
            )

    def _grid_log_weights(self, log_weights: Tensor) -> Tensor:
        return log_weights[self._grid(log_weights.device)].sum(-1)

    def _grid(self, device: torch.device) -> Tensor:
        """Return the number of the point that each component has in each dimension, ``(S^W, W)``."""
        axes = [torch.arange(self.num_points, device=device)] * sum(self._widths.values())
        return torch.cartesian_prod(*axes).reshape(-1, len(axes))

    def _like(self, like: Tensor | None) -> Tensor:
        return next(self.parameters(), torch.empty(())) if like is None else like

    def log_weights(self, like: Tensor | None = None) -> Tensor:
        """Return the normalised logarithms of the weights, ``(S,)``; ``like`` is that of :meth:`positions`."""
        like = self._like(like)
        if not self._widths:
            return like.new_zeros(1)
        if self.rule == "gauss-hermite":
            return self._grid_log_weights(gauss_hermite(self.num_points)[1].to(like))
        logits: Tensor = self.weight_logits
        return torch.log_softmax(logits, 0)

    def positions(self, site: str, like: Tensor | None = None) -> Float[Tensor, "s w"]:
        """Return xi, the position of each component in each output of a layer, in standard deviations.

        :param site: name of the layer's site.
        :param like: any tensor that has the dtype and device for points that are not learned. If not given, a learned
            parameter serves, or torch's default where nothing is learned.
        """
        like = self._like(like)
        if site not in self._widths:
            raise ValueError(
                f"there are no sigma points for {site!r}: guide.initialize met {list(self._widths)}, call it on this model"
            )
        if self.rule == "qr3":
            listed: Tensor = getattr(self.points, site)
            return listed
        width = self._widths[site]
        if self.rule == "gauss-hermite":
            points = gauss_hermite(self.num_points)[0].to(like)[:, None].expand(-1, width)
        else:
            points = getattr(self.points, site)
        if self.rule == "qr2":
            middle = points.new_zeros(self.num_points % 2, width)
            points = torch.cat([-points.flip(0), middle, points])
        return points.gather(0, self._grid(points.device))

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> SigmaPoint:
        """Return the distribution that puts every component at its point."""
        points = self.positions(site, marginal.mean)
        if not carried:
            marginal = marginal.expand((len(points), *marginal.batch_shape))
        between = [1] * (marginal.mean.dim() - 2)
        return SigmaPoint(marginal, points.reshape(len(points), *between, points.shape[-1]))

    def draw(self, site: str, marginal: FunctionMarginal, memory: dict[str, Any]) -> SigmaDraw:
        """Return the distribution of one component, drawn by weight and shared by all layers and rows."""
        weights = self.log_weights(marginal.mean).exp()
        return SigmaDraw(marginal, self.positions(site, marginal.mean), weights, memory)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the rule, S, the widths of the layers and which of them are learned, which the state dict holds."""
        learned = sorted(self._learned)
        return {"rule": self.rule, "num_points": self.num_points, "widths": self._widths, "learned": learned}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Do nothing: loading a state dict has created the parameters from the extra state already."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}_extra_state", self.get_extra_state())
        if (saved["rule"], saved["num_points"]) != (self.rule, self.num_points):
            raise ValueError(
                f"the state is that of SigmaPoints({saved['rule']!r}, {saved['num_points']}) and is loaded into "
                f"SigmaPoints({self.rule!r}, {self.num_points}): build the guide with the saved rule and points"
            )
        widths = saved["widths"]
        if widths != self._widths:
            values = (v for k, v in state_dict.items() if k.startswith(prefix) and isinstance(v, Tensor))
            self._create(widths, frozenset(saved["learned"]), next(values, torch.empty(())))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _quantiles(count: int, width: int) -> Tensor:
    """Return the quantiles of a standard normal at ``(i + 1/2) / count``, in random order in each column: ``(count, width)``."""
    levels = (torch.arange(count) + 0.5) / count
    values = torch.distributions.Normal(0.0, 1.0).icdf(levels)
    return torch.stack([values[torch.randperm(count)] for _ in range(width)], -1)


def _standardised(points: Tensor) -> Tensor:
    """Return points of zero mean and unit variance in each dimension, so that training starts from matched moments."""
    if len(points) == 1:
        return torch.zeros_like(points)
    return (points - points.mean(0)) / points.std(0, correction=0)
