"""Stochastic-gradient HMC beside doubly stochastic VI: the same deep GP, inducing points, kernel, batch and learning rate.

``python -m benchmarks.sghmc same --data FOLDER --out FILE [--dtype float32]`` runs what FILE (JSON lines) lacks and prints the table with the
paired differences of NLL. ``dsvi`` averages 10 samples a step where ``sghmc`` takes one; each row holds the sampler's
R-hat and effective draws of the inducing variables, which permutations of hidden units make no gold standard.
"""

from __future__ import annotations

from benchmarks.experiments import Experiment, main
from pyro_dgp.inference import Settings

EXPERIMENTS = {
    "same": Experiment(
        {"dsvi": Settings(), "sghmc": Settings()},
        {"energy": 5, "kin8nm": 3},
        keep_beta=False,
        differences=(("sghmc", "dsvi"),),
    ),
}


if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
