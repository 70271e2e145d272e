"""dgpsi (stochastic imputation: elliptical slices within stochastic EM) as an inference, so that it is run and scored as named methods are.

It needs an environment with ``pip install dgpsi``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from pyro import distributions as dist
from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.settings import Settings

ITERATIONS, IMPUTATIONS = 100, 10


@dataclass(frozen=True)
class ByDgpsi(Inference):
    """Fits dgpsi's own model of the same shape; the model of this library is ignored.

    :param neighbors: neighbours of its Vecchia approximation; ``None`` for the exact prior.
    """

    neighbors: int | None = None

    def _approximation(self) -> dict[str, object]:
        return {} if self.neighbors is None else {"vecchia": True, "m": self.neighbors}

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """Train dgpsi on the rows and return its predictions."""
        from dgpsi import combine, dgp, emulator, kernel  # type: ignore[import-not-found]
        from dgpsi.utils import nb_seed  # type: ignore[import-not-found]

        nb_seed(settings.seed)
        np.random.seed(settings.seed)
        start, inputs = time.perf_counter(), x.shape[-1]
        first = [kernel(length=np.ones(inputs), name="matern2.5") for _ in range(settings.width)]
        top = [kernel(length=np.ones(settings.width), name="matern2.5", scale_est=True, nugget=0.01, nugget_est=True)]
        trainer = dgp(x.double().numpy(), y.double().numpy()[:, None], combine(first, top), **self._approximation())
        trainer.train(N=ITERATIONS, disable=True)
        fitted = emulator(trainer.estimate(), N=IMPUTATIONS)

        def predict(new: Tensor) -> Prediction:
            means, variances = fitted.predict(new.double().numpy(), aggregation=False)
            mean, variance = (torch.as_tensor(np.stack(part)[..., 0]).to(x) for part in (means, variances))
            weights = torch.full((len(mean),), -np.log(len(mean))).to(x)

            def evaluate(rows: slice) -> Mixture:
                return Mixture(dist.Normal(mean[:, rows], variance[:, rows].sqrt()), weights)

            return Prediction(evaluate, len(new))

        return Fitted(predict, len(x), ITERATIONS, seconds=time.perf_counter() - start)
