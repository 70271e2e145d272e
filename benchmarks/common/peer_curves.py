"""GPyTorch's notebooks on deep models, followed while they train: the test score after so many seconds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import gpytorch
import torch
from torch import Tensor
from torch.distributions import Normal

from benchmarks.common.gpytorch_stock import LEARNING_RATE, Stock, StockDeepGP, StockDSPP, components
from benchmarks.common.records import Record
from pyro_dgp import Settings
from pyro_dgp.data.splitting import Split
from pyro_dgp.training.loop import batches

#: Steps between two scores grow by this factor.
GROWTH = 1.2
#: Seconds after which the state is written again.
SAVED_EVERY = 120.0


@dataclass(frozen=True)
class Notebook:
    """A model and its training as a notebook of GPyTorch has them.

    :ivar stock: builds the model and the objective.
    :ivar settings: width, inducing points, samples and rows of a step.
    :ivar milestones: shares of the training after which the learning rate falls to a tenth.
    """

    stock: Stock
    settings: Settings
    milestones: tuple[float, ...] = ()


#: Deep_Gaussian_Processes.ipynb and Deep_Sigma_Point_Processes.ipynb of GPyTorch. The second names epochs 20, 150 and 300 of 400 for its
#: milestones, which are shares here, since small sets have one step an epoch.
NOTEBOOKS = {
    "gpytorch-dgp": Notebook(StockDeepGP(), Settings(width=10, inducing=128, samples=10, batch_size=1024)),
    "gpytorch-dspp": Notebook(
        StockDSPP(), Settings(width=3, inducing=300, samples=8, batch_size=1000), (0.05, 0.375, 0.75)
    ),
}


class Followed:
    """A notebook's model in training, in single precision as there, with the seconds that it took and the scores that it had.

    :param part: training and test rows, standardised.
    :param steps: steps in all.
    :param path: file of its state; a file that is there is gone on with.
    """

    def __init__(self, notebook: Notebook, part: Split, *, steps: int, path: Path) -> None:
        start, processor = time.perf_counter(), time.process_time()
        self.steps, self.path = steps, path
        self.notebook, self.samples = notebook, notebook.settings.num_samples
        torch.manual_seed(notebook.settings.seed)
        self.x, self.y, self.x_test, self.y_test = (
            each.float() for each in (part.x_train, part.y_train, part.x_test, part.y_test)
        )
        self.model, self.objective = notebook.stock.build(self.x, self.y, notebook.settings)
        self.model.to(self.x).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        drops = [round(share * steps) for share in notebook.milestones]
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, drops, gamma=0.1)
        self.rows = batches(len(self.x), min(notebook.settings.rows_of_step, len(self.x)), notebook.settings.seed)
        self.step, self.scores = 0, list[list[float]]()
        self.seconds, self.processor = time.perf_counter() - start, time.process_time() - processor
        if path.exists():
            self._load()

    def run(self) -> Record:
        """Train to the end, or until the model fails, and return the scores: step, seconds, processor seconds and NLL of each."""
        error, due, written = None, self._next(), time.perf_counter()
        while self.step < self.steps and error is None:
            start, processor = time.perf_counter(), time.process_time()
            try:
                self._one_step(next(self.rows))
            except Exception as failure:  # a factorisation that fails, or parameters that are no numbers
                error = f"{type(failure).__name__}: {failure}"
            self.seconds += time.perf_counter() - start
            self.processor += time.process_time() - processor
            self.step += 1
            if error is None and (self.step >= due or self.step == self.steps):
                self.scores.append([self.step, self.seconds, self.processor, self._nll()])
                due = self._next()
            if time.perf_counter() - written > SAVED_EVERY:
                self._save()
                written = time.perf_counter()
        self.path.unlink(missing_ok=True)
        return {"scores": self.scores, "seconds": self.seconds, "processor_seconds": self.processor, "error": error}

    def _next(self) -> int:
        return max(10, math.ceil(self.scores[-1][0] * GROWTH)) if self.scores else 10

    def _one_step(self, index: Tensor) -> None:
        with gpytorch.settings.num_likelihood_samples(self.samples):
            self.optimizer.zero_grad()
            loss = -self.objective(self.model(self.x[index]), self.y[index])
            loss.backward()
        self.optimizer.step()
        self.schedule.step()

    def _nll(self) -> float:
        """Mean negative log density of the test rows under the mixture, nats a row."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            mean, sd, log_weights = components(self.model, self.x_test)
        self.model.train()
        densities = Normal(mean, sd).log_prob(self.y_test) + log_weights[:, None]
        return float(-densities.double().logsumexp(0).mean())

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "counts": (self.step, self.scores, self.seconds, self.processor),
        }
        part = self.path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.path)

    def _load(self) -> None:
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.step, self.scores, self.seconds, self.processor = state["counts"]
        for _ in range(self.step):
            next(self.rows)
