"""GPyTorch as its own examples use it, scored as the zoo's methods are.

Kernels, means, starts and the learning rate are those of its notebooks (SVGP regression, deep Gaussian processes, deep sigma point processes).
The number of steps, the batch size, the number of inducing points, the width and the number of samples are those of the zoo's counterpart. Two things
differ from the notebooks. The one-layer model has a lengthscale for each input, as their deep models have. The learning rate stays at 0.01
throughout, since the milestones of the notebook count epochs of one data set.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import DeepApproximateMLL, DeepPredictiveLogLikelihood, PredictiveLogLikelihood, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
from gpytorch.variational import CholeskyVariationalDistribution, MeanFieldVariationalDistribution, VariationalStrategy
from pyro import distributions as dist
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from pyro_dgp import Fitted, Inference, Mixture, Prediction, Settings
from pyro_dgp.internal.progress import Progress
from pyro_dgp.training.loop import batches

#: Learning rate of the notebooks.
LEARNING_RATE = 0.01
#: Components of Monte Carlo predictions, rows that are predicted at a time.
DRAWS, ROWS = 100, 500


class _OneLayer(gpytorch.models.ApproximateGP):
    """Sparse GP with a constant mean and an RBF kernel."""

    def __init__(self, points: Tensor) -> None:
        q = CholeskyVariationalDistribution(len(points))
        super().__init__(VariationalStrategy(self, points, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=points.shape[-1])
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf)
        self.likelihood = GaussianLikelihood()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _SampledLayer(DeepGPLayer):
    """Layer of ``outputs`` GPs with points of their own, linear mean; one GP with a constant mean where ``outputs`` is ``None``."""

    def __init__(self, inputs: int, outputs: int | None, inducing: int) -> None:
        batch = torch.Size([] if outputs is None else [outputs])
        q = CholeskyVariationalDistribution(inducing, batch_shape=batch)
        points = torch.randn(*batch, inducing, inputs)
        super().__init__(VariationalStrategy(self, points, q, learn_inducing_locations=True), inputs, outputs)
        self.mean_module = (
            gpytorch.means.ConstantMean(batch_shape=batch) if outputs is None else gpytorch.means.LinearMean(inputs)
        )
        rbf = gpytorch.kernels.RBFKernel(batch_shape=batch, ard_num_dims=inputs)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _TwoLayers(DeepGP):
    """Two layers by doubly stochastic inference."""

    def __init__(self, inputs: int, width: int, inducing: int) -> None:
        super().__init__()
        self.hidden, self.top = _SampledLayer(inputs, width, inducing), _SampledLayer(width, None, inducing)
        self.likelihood = GaussianLikelihood()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.top(self.hidden(x))


class _SigmaLayer(DSPPLayer):
    """The same with sigma points, a Matern 5/2 kernel and a diagonal covariance of the inducing variables."""

    def __init__(self, points: Tensor, outputs: int | None, sigma_points: int) -> None:
        batch = torch.Size([] if outputs is None else [outputs])
        inputs = points.shape[-1]
        q = MeanFieldVariationalDistribution(points.shape[-2], batch_shape=batch)
        strategy = VariationalStrategy(self, points, q, learn_inducing_locations=True)
        super().__init__(strategy, inputs, outputs, sigma_points)
        self.mean_module = (
            gpytorch.means.ConstantMean(batch_shape=batch)
            if outputs is None
            else gpytorch.means.LinearMean(inputs, batch_shape=batch)
        )
        matern = gpytorch.kernels.MaternKernel(batch_shape=batch, ard_num_dims=inputs)
        self.covar_module = gpytorch.kernels.ScaleKernel(matern, batch_shape=batch)

    def forward(self, x: Tensor, **_: object) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _TwoSigmaLayers(DSPP):
    """Deep sigma point process of two layers; points of the first layer begin at centres of k-means."""

    def __init__(self, x: Tensor, width: int, inducing: int, sigma_points: int) -> None:
        super().__init__(sigma_points)
        start = x[torch.randperm(len(x))[:inducing]].numpy()
        centres = torch.as_tensor(kmeans2(x.numpy(), start, minit="matrix")[0]).to(x)
        points = centres.expand(width, *centres.shape) + 0.01 * torch.randn(width, *centres.shape)
        self.hidden = _SigmaLayer(points, width, sigma_points)
        self.top = _SigmaLayer(torch.randn(len(centres), width), None, sigma_points)
        self.likelihood = GaussianLikelihood()

    def forward(self, x: Tensor, **_: object) -> gpytorch.distributions.MultivariateNormal:
        return self.top(self.hidden(x))


@dataclass(frozen=True)
class Stock(Inference):
    """A model and an objective of GPyTorch's examples.

    :param batch_size: rows of a step where the settings leave them open, and ``samples`` for each of them: those of the zoo's counterpart.
    """

    _: KW_ONLY
    batch_size: int = 100
    samples: int = 10

    @abstractmethod
    def build(self, x: Tensor, y: Tensor, settings: Settings) -> tuple[nn.Module, nn.Module]:
        """Return the model, with its likelihood, and the objective to maximise."""

    def settled(self, settings: Settings) -> Settings:
        """See :class:`Inference`."""
        return settings.filled(batch_size=self.batch_size, samples=self.samples)

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, settings = time.perf_counter(), self.settled(settings)
        steps = settings.num_steps(len(x), settings.rows_of_step)
        theirs, objective = self.build(x, y, settings)
        theirs.to(x)
        theirs.train()
        optimizer = torch.optim.Adam(theirs.parameters(), lr=LEARNING_RATE)
        rows = batches(len(x), settings.rows_of_step, settings.seed)
        with gpytorch.settings.num_likelihood_samples(settings.num_samples):
            for step in range(steps):
                index = next(rows)
                optimizer.zero_grad()
                loss = -objective(theirs(x[index]), y[index])
                loss.backward()
                optimizer.step()
                progress(step + 1, steps, {"loss": float(loss.detach())})

        def predict(new: Tensor) -> Prediction:
            mean, sd, log_weights = components(theirs, new)
            return Prediction(
                lambda part: Mixture(dist.Normal(mean[:, part], sd[:, part], validate_args=False), log_weights),
                len(new),
            )

        return Fitted(predict, len(x), steps, seconds=time.perf_counter() - start)


@torch.no_grad()
def components(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and standard deviations ``(S, N)`` of y in each component, and their log weights ``(S,)``."""
    model.eval()
    means, variances = [], []
    with gpytorch.settings.num_likelihood_samples(DRAWS):
        for part in x.split(ROWS):
            out = model.likelihood(model(part))
            means.append(out.mean.reshape(-1, len(part)))
            variances.append(out.variance.reshape(-1, len(part)))
    mean, sd = torch.cat(means, -1), torch.cat(variances, -1).sqrt()
    equal = mean.new_zeros(len(mean)) - torch.tensor(float(len(mean))).log()
    log_weights: Tensor = model.quad_weights if isinstance(model, DSPP) else equal
    return mean, sd, log_weights


class StockSVGP(Stock):
    """One layer, evidence lower bound; inducing points begin at the first rows."""

    def build(self, x: Tensor, y: Tensor, settings: Settings) -> tuple[nn.Module, nn.Module]:
        """See :class:`Stock`."""
        model = _OneLayer(x[: settings.inducing].clone())
        return model, VariationalELBO(model.likelihood, model, num_data=len(y))


@dataclass(frozen=True)
class StockPPGPR(Stock):
    """The same model, predictive log-likelihood.

    :param beta: weight of the KL; 1 is the default of GPyTorch, 0.05 that of its notebook on deep sigma point processes.
    """

    beta: float = 1.0

    def build(self, x: Tensor, y: Tensor, settings: Settings) -> tuple[nn.Module, nn.Module]:
        """See :class:`Stock`."""
        model = _OneLayer(x[: settings.inducing].clone())
        return model, PredictiveLogLikelihood(model.likelihood, model, num_data=len(y), beta=self.beta)


class StockDeepGP(Stock):
    """Two layers, doubly stochastic inference; inducing points begin at standard normal draws."""

    def build(self, x: Tensor, y: Tensor, settings: Settings) -> tuple[nn.Module, nn.Module]:
        """See :class:`Stock`."""
        model = _TwoLayers(x.shape[-1], settings.width, settings.inducing)
        return model, DeepApproximateMLL(VariationalELBO(model.likelihood, model, num_data=len(y)))


@dataclass(frozen=True)
class StockDSPP(Stock):
    """Deep sigma point process of two layers.

    :param beta: weight of the KL, 0.05 in the notebook.
    """

    beta: float = 0.05

    def build(self, x: Tensor, y: Tensor, settings: Settings) -> tuple[nn.Module, nn.Module]:
        """See :class:`Stock`."""
        model = _TwoSigmaLayers(x, settings.width, min(settings.inducing, len(x)), settings.num_samples)
        return model, DeepPredictiveLogLikelihood(model.likelihood, model, num_data=len(y), beta=self.beta)


STOCK: dict[str, Inference] = {
    "gpytorch-svgp": StockSVGP(batch_size=500, samples=1),
    "gpytorch-ppgpr": StockPPGPR(),
    "gpytorch-ppgpr-0.05": StockPPGPR(0.05),
    "gpytorch-dsvi": StockDeepGP(batch_size=500, samples=1),
    "gpytorch-dspp": StockDSPP(),
}
