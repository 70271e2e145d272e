"""Accuracy of ``ess`` and ``dsvi`` beside dgpsi (stochastic imputation: elliptical slices within stochastic EM) on small data, same splits.

``python -m benchmarks.studies.accuracy_beside_dgpsi small --data FOLDER [--out FILE] [--table]``

Needs an environment with ``pip install dgpsi``. Makes the runs that FILE (one JSON line a run) lacks and prints the table. Two layers of width 3,
Matern 5/2 with a lengthscale for each input, learned noise, all rows. dgpsi takes 100 iterations and 10 imputations, its defaults elsewhere,
and is scored as the mixture of its imputations.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.dgpsi_model import ByDgpsi
from benchmarks.common.experiments import Experiment, main
from pyro_dgp.zoo.method import DEEP, Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

SETTINGS = Settings(width=3, mcmc_points=10**6, mcmc_samples=200, warmup=200)
RECIPES = {name: METHODS[name] for name in ("dsvi", "ess")} | {
    "dgpsi": Method("dgpsi", "stochastic imputation", "Ming, Williamson, Guillas 2023", DEEP, ByDgpsi())
}
EXPERIMENTS = {
    "small": Experiment(dict.fromkeys(RECIPES, SETTINGS), {"yacht": 3, "boston": 3}, recipes=RECIPES),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__ or "", Path("results/accuracy_beside_dgpsi.jsonl"))
