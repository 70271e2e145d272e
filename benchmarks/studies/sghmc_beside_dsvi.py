"""Accuracy of stochastic-gradient HMC beside doubly stochastic VI, with the paired differences of NLL.

``python -m benchmarks.studies.sghmc_beside_dsvi same --data FOLDER [--out FILE] [--dtype float32] [--table]``

Both methods have the same deep GP, inducing points, kernel, batch size and learning rate; ``dsvi`` averages 10 samples a step where ``sghmc`` takes
one. Makes the runs that FILE (one JSON line a run) lacks and prints the table. Each row holds the sampler's R-hat and effective draws of the inducing
variables; hidden units can be permuted without changing the model, so these two figures are no gold standard.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.experiments import Experiment, main
from pyro_dgp.zoo.settings import Settings

EXPERIMENTS = {
    "same": Experiment(
        {"dsvi": Settings(), "sghmc": Settings()},
        {"energy": 5, "kin8nm": 3},
        keep_beta=False,
        differences=(("sghmc", "dsvi"),),
    ),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__ or "", Path("results/sghmc_beside_dsvi.jsonl"))
