"""Parameters of the distributions q(v) over whitened coefficients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.grouped import Grouped
from pyro_dgp.processes.whitened_gaussian import KINDS, Gaussian, IndependentGaussians, WhitenedGaussian


class Coefficients(Grouped):
    """Base of distributions q(v) over the coefficients of a basis, whose prior is ``N(0, I)``.

    :ivar shape: ``(*groups, D_out, M)``.
    :ivar kind: form of the covariance, one of :data:`~pyro_dgp.processes.whitened_gaussian.KINDS`.
    :ivar num_deviations: number of standardised deviations of hyperparameters with which q(v) moves.
    """

    kind: str
    num_deviations: int = 0

    def __init__(self, shape: Size) -> None:
        super().__init__()
        self.shape, self.groups = shape, Size(shape[:-2])

    def couple(self, deviations: int) -> None:
        """Let q(v) move with as many standardised deviations of hyperparameters, if it can."""

    @abstractmethod
    def read(self, basis: Basis, prior: FunctionPrior, deviations: Tensor | None = None) -> Gaussian:
        """Return q(v), with the parameters read now.

        :param prior: the GP, with its hyperparameters.
        :param deviations: of the hyperparameters, ``(*lead, P)``; 0 if not given.
        """

    def known(self, deviations: Tensor) -> Tensor:
        """Return the deviations that q(v) moves with: those of the hyperparameters that the model reads before its GP."""
        return deviations[..., : self.num_deviations]


class GaussianCoefficients(Coefficients):
    """Gaussian ``q(v_d) = N(mean_d, S_d)`` with parameters of its own.

    | attribute | shape |
    |---|---|
    | ``mean`` | ``(*groups, D_out, M)`` |
    | ``scale`` | full: ``(*groups, D_out, M, M)``, lower triangle used, ``S = T T'``; diagonal: ``(*groups, D_out, M)``, standard deviations |
    | ``latent_weights`` | ``(*groups, D_out, M, P)``, where the model has P numbers of hyperparameters with priors: the mean is ``mean + latent_weights eps`` at their standardised deviations eps |
    """

    def __init__(self, like: Tensor, shape: Size, kind: str, scale: float) -> None:
        """Create q(v) at mean zero.

        :param like: a tensor of the dtype and on the device that are wanted.
        :param shape: ``(*groups, D_out, M)``.
        :param kind: one of :data:`~pyro_dgp.processes.whitened_gaussian.KINDS`.
        :param scale: initial standard deviation.
        """
        super().__init__(shape)
        self.kind = kind
        self.register_buffer("form", torch.tensor(KINDS.index(kind)))
        self.mean = PyroParam(like.new_zeros(shape), event_dim=len(shape))
        if kind == "full":
            tril = scale * torch.eye(shape[-1]).to(like).repeat(*shape[:-1], 1, 1)
            self.scale = PyroParam(tril, event_dim=len(shape) + 1)
        elif kind == "diagonal":
            diagonal = like.new_full(shape, scale)
            self.scale = PyroParam(diagonal, constraint=constraints.positive, event_dim=len(shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(prefix + "form")
        if saved is not None and int(saved) != KINDS.index(self.kind):
            raise ValueError(
                f"the state is that of a q(v) with the covariance {KINDS[int(saved)]!r}, and this guide has {self.kind!r}: load it into a new guide "
                "of the family that was saved"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def couple(self, deviations: int) -> None:
        """Let the mean move with as many standardised deviations of hyperparameters; it does not move at first."""
        mean: Any = self.mean
        self.num_deviations = deviations
        self.latent_weights = PyroParam(mean.detach().new_zeros(*mean.shape, deviations), event_dim=mean.dim() + 1)

    def read(self, basis: Basis, prior: FunctionPrior, deviations: Tensor | None = None) -> WhitenedGaussian:
        """See :class:`Coefficients`."""
        mean: Any = self.of_groups("mean")
        if deviations is not None:
            eps = self.known(deviations).to(mean)[..., None, :, None]  # priors may have another dtype
            mean = mean + (self.of_groups("latent_weights") @ eps).squeeze(-1)
        if self.kind in ("delta", "prior"):
            return WhitenedGaussian(mean, None, self.kind)
        scale: Any = self.of_groups("scale")
        return WhitenedGaussian(mean, scale.tril() if self.kind == "full" else scale, self.kind)


class IndependentCoefficients(Coefficients):
    """Coefficients in independent parts, one behind another, each with a q of its own.

    :ivar parts: the parts, such as :class:`GaussianCoefficients`.
    """

    def __init__(self, *parts: Coefficients) -> None:
        shapes = [part.shape for part in parts]
        super().__init__(Size((*shapes[0][:-1], sum(shape[-1] for shape in shapes))))
        self.kind = parts[0].kind if len({part.kind for part in parts}) == 1 else "independent"
        self.parts = PyroModule[torch.nn.ModuleList](parts)

    @property
    def num_deviations(self) -> int:  # type: ignore[override]
        """The number of the parts."""
        return max(part.num_deviations for part in self.parts)

    def couple(self, deviations: int) -> None:
        """Let the means of all parts move with hyperparameters."""
        for part in self.parts:
            part.couple(deviations)

    def read(self, basis: Basis, prior: FunctionPrior, deviations: Tensor | None = None) -> IndependentGaussians:
        """See :class:`Coefficients`."""
        values = tuple(part.read(basis, prior, deviations) for part in self.parts)
        return IndependentGaussians(values)
