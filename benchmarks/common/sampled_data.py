"""Data and judged quantities of studies on samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp import predict
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split
from pyro_dgp.export.arviz_groups import import_arviz

#: Training inputs and targets, test inputs and targets.
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def step_function(rows: int = 100) -> Data:
    """Draw training and 50 test points of a step of height 2 with noise of 0.1, standardised."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows + 50, 1, generator=generator) * 2 - 1
    y = torch.sign(x[:, 0]) + 0.1 * torch.randn(rows + 50, generator=generator)
    y = (y - y[:rows].mean()) / y[:rows].std()
    return x[:rows], y[:rows], x[rows:], y[rows:]


def yacht(folder: Path, rows: int = 100) -> Data:
    """Read some training rows of split 0, and its test rows."""
    part = split(load(folder / "yacht.npz"), 0, dtype=torch.float64)
    chosen = torch.randperm(len(part.x_train), generator=torch.Generator().manual_seed(0))[:rows]
    return part.x_train[chosen], part.y_train[chosen], part.x_test, part.y_test


def judged(chains: Any, data: Data) -> tuple[np.ndarray, list[float]]:
    """Compute the judged quantities.

    :return: mean log density of the test rows and predictive means of each draw, ``(chains, draws, 1 + N)``; and the NLL of each
        chain's mixture, nats per row.
    """
    _, _, new, target = data
    count, draws = next(iter(chains.draws.values())).shape[:2]
    torch.manual_seed(0)
    mixture = predict(chains, new, num_samples=count * draws).mixture()
    density = mixture.component_log_prob(target)
    by_chain = density.reshape(count, draws, -1).logsumexp(1) - np.log(draws)
    values = torch.cat([density.mean(-1, keepdim=True), mixture.components.mean], 1).reshape(count, draws, -1)
    return values.numpy(), (-by_chain.mean(-1)).tolist()


def effective(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute R-hat and effective draws of judged quantities ``(chains, draws, Q)``, of which the first is the log density."""
    az = import_arviz()
    data = az.convert_to_dataset(values)
    return az.rhat(data)["x"].values, az.ess(data)["x"].values
