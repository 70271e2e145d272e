"""GPyTorch's sparse and deep GP on the settings of this library's zoo: same kernel, means, M, width, S, noise floor."""

from __future__ import annotations

import math

import gpytorch
import torch
from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
from gpytorch.variational import CholeskyVariationalDistribution, MeanFieldVariationalDistribution, VariationalStrategy
from torch import Tensor

from pyro_dgp import Projection
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.processes.initial_points import initial_points
from pyro_dgp.training.loop import batches
from pyro_dgp.training.optimising import decay


class _FixedMean(gpytorch.means.Mean):
    """Linear mean with fixed weights, or zero."""

    def __init__(self, weight: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x.new_zeros(x.shape[:-1])
        if x.dim() > 2:  # (..., outputs, N, D): inputs repeated over the outputs
            return (x[..., 0, :, :] @ self.weight).mT
        return (x @ self.weight).mT


class _Parts:
    """Kernel and mean of a layer."""

    variational_strategy: VariationalStrategy

    def _build(self, points: Tensor, batch: torch.Size, *, mean: Tensor | None, per_output: bool) -> None:
        self.variational_strategy.variational_params_initialized.fill_(1)
        kernel_batch = batch if per_output else torch.Size([])
        d = points.shape[-1]
        base = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=d, batch_shape=kernel_batch)
        base.lengthscale = math.sqrt(d)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=kernel_batch)
        self.covar_module.outputscale = 1.0
        self.mean_module = _FixedMean(mean)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Return the prior at ``x``."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class PeerGP(_Parts, gpytorch.models.ApproximateGP):
    """GPyTorch's sparse variational GP, for ``svgp`` and ``ppgpr``."""

    def __init__(self, x: Tensor, inducing: int, strategy: type[VariationalStrategy] = VariationalStrategy) -> None:
        points = initial_points(x, inducing, "peer")
        q = CholeskyVariationalDistribution(len(points))
        super().__init__(strategy(self, points, q, learn_inducing_locations=True))
        self._build(points, torch.Size([]), mean=None, per_output=False)
        self.likelihood = _noise()


class Layer(_Parts, DeepGPLayer):
    """One layer of :class:`PeerDeepGP`."""

    def __init__(
        self,
        points: Tensor,
        outputs: int | None,
        mean: Tensor | None,
        *,
        per_output: bool,
        strategy: type[VariationalStrategy],
    ) -> None:
        batch = torch.Size([]) if outputs is None else torch.Size([outputs])
        q = CholeskyVariationalDistribution(points.shape[0], batch_shape=batch)
        super().__init__(strategy(self, points, q, learn_inducing_locations=True), points.shape[-1], outputs)
        if outputs is not None:  # hidden: small initial variance, as in this library
            with torch.no_grad():
                q.chol_variational_covar.mul_(1e-2)
        self._build(points, batch, mean=mean, per_output=per_output)


class SigmaLayer(_Parts, DSPPLayer):
    """One layer of :class:`PeerDSPP`."""

    def __init__(
        self, points: Tensor, outputs: int | None, mean: Tensor | None, *, per_output: bool, sigma_points: int
    ) -> None:
        batch = torch.Size([]) if outputs is None else torch.Size([outputs])
        q = MeanFieldVariationalDistribution(points.shape[0], batch_shape=batch)
        strategy = VariationalStrategy(self, points, q, learn_inducing_locations=True)
        super().__init__(strategy, points.shape[-1], outputs, sigma_points)
        self._build(points, batch, mean=mean, per_output=per_output)


def _stack(x: Tensor, *, layers: int, width: int, inducing: int) -> list[tuple[Tensor, int | None, Tensor | None]]:
    """Return inducing points, number of outputs and weights of the mean of each layer."""
    parts: list[tuple[Tensor, int | None, Tensor | None]] = []
    inputs = x
    for _ in range(layers - 1):
        weight = Projection.fit(inputs, width).weight
        parts.append((initial_points(inputs, inducing, "peer"), width, weight))
        inputs = inputs @ weight
    return [*parts, (initial_points(inputs, inducing, "peer"), None, None)]


def _noise() -> gpytorch.likelihoods.GaussianLikelihood:
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(NOISE_FLOOR))
    likelihood.noise = 0.1
    return likelihood


class PeerDeepGP(DeepGP):
    """GPyTorch's DSVI model with ``layers`` layers, of which all but the last have ``width`` outputs."""

    def __init__(
        self,
        x: Tensor,
        *,
        layers: int,
        width: int,
        inducing: int,
        per_output: bool = False,
        strategy: type[VariationalStrategy] = VariationalStrategy,
    ) -> None:
        super().__init__()
        stack = _stack(x, layers=layers, width=width, inducing=inducing)
        self.parts = torch.nn.ModuleList([Layer(*part, per_output=per_output, strategy=strategy) for part in stack])
        self.likelihood = _noise()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Pass the inputs through all layers."""
        for part in self.parts:
            x = part(x)
        return x


class PeerDSPP(DSPP):
    """GPyTorch's deep sigma point process with ``sigma_points`` components; QR3 is the only rule that it has."""

    def __init__(
        self, x: Tensor, *, layers: int, width: int, inducing: int, sigma_points: int, per_output: bool = False
    ) -> None:
        super().__init__(sigma_points)
        stack = _stack(x, layers=layers, width=width, inducing=inducing)
        self.parts = torch.nn.ModuleList(
            [SigmaLayer(*part, per_output=per_output, sigma_points=sigma_points) for part in stack]
        )
        self.likelihood = _noise()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Pass the inputs through all layers."""
        for part in self.parts:
            x = part(x)
        return x


class Trainer:
    """Training loop of a GPyTorch model, with Adam and the schedule of :func:`pyro_dgp.fit`."""

    def __init__(
        self,
        model: PeerDeepGP,
        x: Tensor,
        y: Tensor,
        *,
        steps: int,
        batch_size: int,
        samples: int,
        rate: float = 0.02,
    ) -> None:
        self.model, self.x, self.y, self.samples = model, x, y, samples
        self.mll = DeepApproximateMLL(VariationalELBO(model.likelihood, model, len(x)))
        self.rows = batches(len(x), batch_size, 0)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: decay(step / steps))
        model.train()

    def step(self) -> float:
        """Make one step on the next batch and return the loss, nats a row."""
        index = next(self.rows)
        with gpytorch.settings.num_likelihood_samples(self.samples):
            self.optimizer.zero_grad()
            loss = -self.mll(self.model(self.x[index]), self.y[index])
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        return float(loss.detach())


@torch.no_grad()
def mixture(model: PeerDeepGP, x: Tensor, samples: int = 100) -> tuple[Tensor, Tensor]:
    """Return means and variances ``(S, N)`` of y in each component of the predictive mixture."""
    model.eval()
    means, variances = [], []
    with gpytorch.settings.num_likelihood_samples(samples):
        for part in x.split(500):
            out = model.likelihood(model(part))
            shape = (-1, len(part))
            means.append(out.mean.reshape(shape))
            variances.append(out.variance.reshape(shape))
    return torch.cat(means, -1), torch.cat(variances, -1)
