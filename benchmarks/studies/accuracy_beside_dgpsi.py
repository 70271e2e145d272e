"""Accuracy of ``ess`` and ``dsvi`` beside dgpsi (stochastic imputation: elliptical slices within stochastic EM) on small data, same splits.

``python -m benchmarks.studies.accuracy_beside_dgpsi small --data FOLDER [--out FILE] [--table]``

Needs an environment with ``pip install dgpsi``. Makes the runs that FILE (one JSON line a run) lacks and prints the table. Two layers of width 3,
Matern 5/2 with a lengthscale for each input, learned noise, all rows. dgpsi takes 100 iterations and 10 imputations, its defaults elsewhere,
and is scored as the mixture of its imputations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pyro import distributions as dist
from torch import Tensor, nn

from benchmarks.common.experiments import Experiment, main
from pyro_dgp.internal.progress import Progress
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.methods import DEEP, METHODS, Method
from pyro_dgp.zoo.settings import Settings

ITERATIONS, IMPUTATIONS = 100, 10


@dataclass(frozen=True)
class ByDgpsi(Inference):
    """Fits dgpsi's own model of the same shape; the model of this library is ignored."""

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """Train dgpsi on the rows and return its predictions."""
        from dgpsi import combine, dgp, emulator, kernel  # type: ignore[import-not-found]
        from dgpsi.utils import nb_seed  # type: ignore[import-not-found]

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

        return Fitted(predict, len(x), ITERATIONS, seconds=time.perf_counter() - start)


SETTINGS = Settings(width=3, mcmc_points=10**6, mcmc_samples=200, warmup=200)
RECIPES = {name: METHODS[name] for name in ("dsvi", "ess")} | {
    "dgpsi": Method("dgpsi", "stochastic imputation", "Ming, Williamson, Guillas 2023", DEEP, ByDgpsi())
}
EXPERIMENTS = {
    "small": Experiment(dict.fromkeys(RECIPES, SETTINGS), {"yacht": 3, "boston": 3}, recipes=RECIPES),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__ or "", Path("results/accuracy_beside_dgpsi.jsonl"))
