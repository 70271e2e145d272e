"""``dgpsi`` (stochastic imputation: elliptical slices within stochastic EM) beside ``ess`` and ``dsvi`` on small data, same splits.

``python -m benchmarks.peer_dgpsi small --data FOLDER --out FILE`` in an environment with ``pip install dgpsi`` runs what FILE (JSON lines) lacks
and prints the table. Two layers of width 3, Matern 5/2 with a lengthscale for each input, noise learned, all rows; ``dgpsi``
with 100 iterations and 10 imputations, its own defaults elsewhere, scored as the mixture of its imputations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from pyro import distributions as dist
from torch import Tensor, nn

from benchmarks.experiments import Experiment, main
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.methods import DEEP, METHODS, Method
from pyro_dgp.zoo.settings import Progress, Settings

ITERATIONS, IMPUTATIONS = 100, 10


@dataclass(frozen=True)
class ByDgpsi(Inference):
    """dgpsi's own model of the same shape; ours is not looked at."""

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        from dgpsi import combine, dgp, emulator, kernel
        from dgpsi.utils import nb_seed

        nb_seed(settings.seed)
        np.random.seed(settings.seed)
        start, inputs = time.perf_counter(), x.shape[-1]
        first = [kernel(length=np.ones(inputs), name="matern2.5") for _ in range(settings.width)]
        top = [kernel(length=np.ones(settings.width), name="matern2.5", scale_est=True, nugget=0.01, nugget_est=True)]
        trainer = dgp(x.double().numpy(), y.double().numpy()[:, None], combine(first, top))
        trainer.train(N=ITERATIONS, disable=True)
        fitted = emulator(trainer.estimate(), N=IMPUTATIONS)

        def predict(new: Tensor) -> Prediction:
            means, variances = fitted.predict(new.double().numpy(), aggregation=False)
            mean, variance = (torch.as_tensor(np.stack(part)[..., 0]).to(x) for part in (means, variances))
            weights = torch.full((len(mean),), -np.log(len(mean))).to(x)

            def evaluate(rows: slice) -> Mixture:
                return Mixture(dist.Normal(mean[:, rows], variance[:, rows].sqrt()), weights)

            return Prediction(evaluate, len(new))

        return Fitted(predict, len(x), ITERATIONS, time.perf_counter() - start)


SETTINGS = Settings(width=3, mcmc_points=10**6, mcmc_samples=200, warmup=200)
RECIPES = {name: METHODS[name] for name in ("dsvi", "ess")} | {
    "dgpsi": Method("dgpsi", "stochastic imputation", "Ming, Williamson, Guillas 2023", DEEP, ByDgpsi())
}
EXPERIMENTS = {
    "small": Experiment(dict.fromkeys(RECIPES, SETTINGS), {"yacht": 3, "boston": 3}, recipes=RECIPES),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
