"""Base of families whose processes join a basis with a Gaussian over its coefficients."""

from __future__ import annotations

from abc import abstractmethod

from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.coefficients import GaussianCoefficients
from pyro_dgp.processes.families import ProcessFamily, require_scales, saved
from pyro_dgp.processes.pseudo_targets import PseudoTargets
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.processes.whitened_gaussian import KINDS


class BasisFamily(ProcessFamily):
    """Base of families that are a recipe for a basis: the q(v) over its coefficients is the same for all of them.

    :ivar covariance: form of the covariance of q(v) for each output, one of ``full``, ``diagonal``, ``delta`` and ``prior``.
    :ivar scale: initial standard deviation of v in the top layer, and ``hidden_scale`` that in layers below.
    """

    covariance: str
    scale: float
    hidden_scale: float

    @abstractmethod
    def basis(self, prior: FunctionPrior, beside: Basis | None = None) -> Basis:
        """Return a basis for the prior, initialised at its inputs ``(*groups, N, D)``.

        The guide has carried these inputs through the means of the layers below.

        :param beside: another basis of the same prior, which this one shall add to.
        """

    @abstractmethod
    def restored_basis(self, state: dict[str, Tensor]) -> Basis:
        """Return a basis in the shapes of its state dict, which is loaded into it."""

    def require_sound(self) -> None:
        """Raise where the covariance or the scales of the family are none."""
        if self.covariance not in KINDS:
            *others, last = (repr(kind) for kind in KINDS)
            raise ValueError(f"covariance is {', '.join(others)} or {last}, not {self.covariance!r}")
        require_scales(self.scale, self.hidden_scale)

    def create(self, prior: FunctionPrior, hidden: bool) -> WhitenedProcess:
        """Create a process, initialised at the prior's inputs."""
        basis = self.basis(prior)
        return WhitenedProcess(basis, self.coefficients(prior, basis, hidden))

    def coefficients(self, prior: FunctionPrior, basis: Basis, hidden: bool) -> GaussianCoefficients:
        """Return q(v) over the coefficients of a basis, at its start."""
        shape = Size((*prior.batch_shape, prior.num_outputs, basis.size))
        scale = self.hidden_scale if hidden else self.scale
        return GaussianCoefficients(prior.x.detach(), shape, self.covariance, scale)

    def restore(self, state: dict[str, Tensor]) -> WhitenedProcess:
        """Create a process in the shapes of a state dict."""
        basis = self.restored_basis(
            {name.removeprefix("basis."): v for name, v in state.items() if name.startswith("basis.")}
        )
        if "q.targets" in state:
            weights = state["q.latent_weights"]
            self._require_size(weights.shape[-2], basis)
            return WhitenedProcess(basis, PseudoTargets(weights, weights.shape[:-1], weights.shape[-1], 1.0, 1.0))
        (mean,) = saved(state, "q.mean")
        self._require_size(mean.shape[-1], basis)
        q = GaussianCoefficients(mean, mean.shape, self.covariance, 1.0)
        if (moves := state.get("q.latent_weights")) is not None:
            q.couple(moves.shape[-1])
        return WhitenedProcess(basis, q)

    def _require_size(self, features: int, basis: Basis) -> None:
        if features != basis.size:
            raise ValueError(
                f"the state has {features} features and {type(self).__name__} of this guide makes {basis.size}: give it the numbers that it "
                "was saved with"
            )

    def coupled(self, process: Process, prior: FunctionPrior, *, hidden: bool, deviations: int) -> Process:
        """See :class:`~pyro_dgp.processes.families.ProcessFamily`: pseudo-targets for a full covariance, else a mean that moves."""
        assert isinstance(process, WhitenedProcess) and isinstance(process.q, GaussianCoefficients)
        if self.covariance != "full":
            process.q.couple(deviations)
            return process
        scale, variance = self.hidden_scale if hidden else self.scale, float(prior.variance.mean())
        return WhitenedProcess(
            process.basis, PseudoTargets(prior.x.detach(), process.q.shape, deviations, scale, variance)
        )
