"""Data that are no tensors: what is said of them, and that what is said helps."""

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import InducingPoints, Variational
from pyro_dgp.internal.tensors import require_tensor, require_tensors_among
from tests.examples import OneLayer, regression

NUMBERS = [1.0, 2.0, 3.0]
WORDS = ["cat", "dog", "cat"]


@pytest.mark.parametrize(
    "y",
    [
        NUMBERS,
        [NUMBERS],
        np.array(NUMBERS),
        pd.Series(NUMBERS),
        pd.DataFrame({"y": NUMBERS}),
        WORDS,
        np.array(WORDS),
        pd.Series(WORDS),
        pd.Series(WORDS, dtype="category"),
        list(np.array(NUMBERS)),
        list(np.array(WORDS)),
    ],
    ids=lambda y: type(y).__name__,
)
def test_the_remedy_for_data_that_are_no_tensors_works(y):
    for check in (lambda: require_tensors_among((torch.ones(3, 1), y), {}), lambda: require_tensor(y, "they are", "y")):
        with pytest.raises(TypeError, match="a tensor, not") as caught:
            check()
        remedy = str(caught.value).rpartition("torch.")[2]
        found = eval(f"torch.{remedy}", {"torch": torch, "pandas": pd, "y": y})
        is_words = "cat" in np.asarray(y).ravel()
        assert found.flatten().tolist() == ([0, 1, 0] if is_words else NUMBERS)
        assert ("words" in str(caught.value)) == is_words


@pytest.mark.parametrize(
    "value", [None, torch.ones(3), [], [torch.ones(2)], {"a": 1.0}, True, np.float64(0.5), np.array(0.5)]
)
def test_what_else_a_model_takes_is_its_own_affair(value):
    require_tensors_among((value, value), {})
    require_tensors_among((torch.ones(3, 1), value, torch.ones(3)), {})
    with pytest.raises(TypeError, match="training inputs are a tensor, not list"):
        require_tensors_among((NUMBERS, value), {})


@pytest.mark.parametrize("words", [WORDS, np.array(WORDS), pd.Series(WORDS)], ids=["list", "array", "Series"])
def test_words_before_the_targets_are_an_argument_of_the_model(words):
    x, y = torch.ones(3, 1), torch.ones(3)
    require_tensors_among((x, words, y), {})
    require_tensors_among((x, words), {"y": y})
    for args, kwargs in (((x, words), {}), ((x,), {"y": words}), ((words, y, y), {})):
        with pytest.raises(TypeError, match="a tensor, not (words|Series of words)"):
            require_tensors_among(args, kwargs)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": NUMBERS, "b": WORDS}),
        pd.DataFrame({"b": WORDS, "a": NUMBERS}),
        pd.DataFrame({"day": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"])}),
        pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"])),
    ],
    ids=["words last", "words first", "dates", "Series of dates"],
)
def test_words_and_dates_are_made_numbers_first(table):
    message = r"a tensor, not \w+ of words or dates: give each word a number, and dates as days, use torch.tensor\(x.to_numpy\(\)\)"
    with pytest.raises(TypeError, match=message):
        require_tensors_among((table, None), {})


@pytest.mark.usefixtures("unannotated")
def test_a_guide_says_what_to_do_with_a_column():
    x, y = regression(10)
    guide = Variational(OneLayer(), InducingPoints(3))
    with pytest.raises(TypeError, match=r"targets are a tensor, not Series: use torch.tensor\(y.to_numpy\(\)\)"):
        guide.initialize(x, pd.Series(y.numpy()))
