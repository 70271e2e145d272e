"""dgpsi (stochastic imputation: elliptical slices within stochastic EM) as an inference, so that it is run and scored as named methods are.

It needs an environment with ``pip install dgpsi``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro import distributions as dist
from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.settings import Settings

IMPUTATIONS = 10
Layers = list[list[Any]]


def layers_of_zoo(inputs: int, settings: Settings) -> Layers:
    """Return the layers of the models of this library: a Matern 5/2 kernel with a lengthscale for each input, the width of the settings."""
    from dgpsi import combine, kernel  # type: ignore[import-not-found]

    first = [kernel(length=np.ones(inputs), name="matern2.5") for _ in range(settings.width)]
    top = [kernel(length=np.ones(settings.width), name="matern2.5", scale_est=True, nugget=0.01, nugget_est=True)]
    found: Layers = combine(first, top)
    return found


def layers_of_dgpsi(inputs: int, settings: Settings) -> Layers:
    """Return the layers that dgpsi builds where none are given, with noise that is learned: a squared exponential kernel of one lengthscale, as wide as the inputs, which the top layer sees too."""
    from dgpsi import combine, kernel

    first = [kernel(length=np.ones(1)) for _ in range(inputs)]
    seen = {"connect": np.arange(inputs)}
    found: Layers = combine(first, [kernel(length=np.ones(1), scale_est=True, nugget=0.01, nugget_est=True, **seen)])
    return found


@dataclass(frozen=True)
class ByDgpsi(Inference):
    """Fits dgpsi's own model of two layers; the model of this library is ignored.

    :param neighbors: neighbours of its Vecchia approximation; ``None`` for the exact prior.
    :param layers: makes the layers from the number of inputs and the settings.
    :param iterations: steps of stochastic expectation maximisation; dgpsi makes 500 where none are given.
    """

    neighbors: int | None = None
    layers: Callable[[int, Settings], Layers] = layers_of_zoo
    iterations: int = 100

    def _approximation(self) -> dict[str, object]:
        return {} if self.neighbors is None else {"vecchia": True, "m": self.neighbors}

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """Train dgpsi on the rows and return its predictions."""
        from dgpsi import dgp, emulator
        from dgpsi.utils import nb_seed  # type: ignore[import-not-found]

        nb_seed(settings.seed)
        np.random.seed(settings.seed)
        start, layers = time.perf_counter(), self.layers(x.shape[-1], settings)
        trainer = dgp(x.double().numpy(), y.double().numpy()[:, None], layers, **self._approximation())
        trainer.train(N=self.iterations, disable=True)
        fitted = emulator(trainer.estimate(), N=IMPUTATIONS)

        def predict(new: Tensor) -> Prediction:
            means, variances = fitted.predict(new.double().numpy(), aggregation=False)
            mean, variance = (torch.as_tensor(np.stack(part)[..., 0]).to(x) for part in (means, variances))
            weights = torch.full((len(mean),), -np.log(len(mean))).to(x)

            def evaluate(rows: slice) -> Mixture:
                return Mixture(dist.Normal(mean[:, rows], variance[:, rows].sqrt()), weights)

            return Prediction(evaluate, len(new))

        return Fitted(predict, len(x), self.iterations, seconds=time.perf_counter() - start)
