"""Test rows that are copies of training rows."""

import numpy as np
import pytest

from pyro_dgp import Settings, compare
from pyro_dgp.comparison.copies import on_copies
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import held_out_rows


@pytest.mark.parametrize("outputs", [0, 2])
def test_they_are_counted(outputs):
    x = np.arange(60.0).reshape(30, 2)
    y = np.arange(30.0) if not outputs else np.arange(60.0).reshape(30, 2)
    mask = np.arange(30) < 10
    assert on_copies(Dataset("d", x, y), [mask]) == []
    x[[0, 3]], y[[0, 3]] = x[[20, 21]], y[[20, 21]]
    x[4] = x[22]  # the same inputs with another target
    x[5], y[5] = x[6], y[6]  # a copy among the test rows
    (said,) = on_copies(Dataset("d", x, y), [mask])
    assert said.startswith("2 of 10 test rows are copies of training rows, in inputs and target: ")
    (said,) = on_copies(Dataset("d", x, y), [mask, np.arange(30) >= 20])
    assert said.startswith("4 of 20 test rows")


def test_compare_says_so():
    x = np.repeat(np.random.RandomState(0).randn(20, 1), 3, 0)
    said: list[str] = []
    compare(None, x, np.sin(x[:, 0]), methods=["exact-gp"], settings=Settings(steps=2), say=said.append, threads=1)
    tested = int(held_out_rows(Dataset("d", x, x[:, 0]), 0).sum())
    assert any(line.startswith(f"{tested} of {tested} test rows are copies") for line in said)
