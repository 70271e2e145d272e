"""Sentences that name what is to be done, and not what has been done already."""

import sys

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.data.categories import encoded_as
from pyro_dgp.data.tasks import task_of
from tests.comparison.test_own_model import data


def test_folds_are_no_remedy_where_there_are_folds():
    row = {"method": "svgp", "n_test": 10, "nll": 1.0, "rmse": 1.0, "crps": 1.0}
    assert "10 test rows rank little: folds=5 (--folds 5) tests every row" in str(ComparisonResult([row], {}, "d"))
    assert "10 test rows rank little: folds test every row already" in str(
        ComparisonResult([row | {"folds": 5}], {}, "d")
    )


@pytest.mark.parametrize(("low", "high"), [(1, 2), (-1, 1)])
def test_two_classes_of_other_numbers_have_a_remedy(low, high):
    with pytest.raises(ValueError, match=f"2 values from {low} to {high}: write 0 for {low} and 1 for {high}$"):
        task_of("binary", np.array([low, high, low], dtype=float), "d")


def test_an_empty_cell_of_words_is_empty():
    rows = pd.DataFrame({"sex": ["m", None, "f"]})
    with pytest.raises(
        ValueError, match="column 'sex' of the new rows is empty in row 1 counted from 0: drop or fill such rows, 1"
    ):
        encoded_as(rows, ["sex=m, not f"])


def test_a_kept_model_that_needs_a_neighbour_names_the_option(tmp_path, capsys):
    x, y = data()
    pd.DataFrame({"a": x[:, 0], "y": y}).to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "lonely_neighbour.py").write_text("from pyro_dgp import DeepGP\n")
    (tmp_path / "needs.py").write_text(
        "from lonely_neighbour import DeepGP\n\n\ndef make(x):\n    return DeepGP(x, 1)\n"
    )
    asked = f"compare --data {tmp_path}/d.csv --model {tmp_path}/needs.py:make --methods svgp --epochs 1 --inducing 5 --output {tmp_path}/out"
    assert main(asked.split()) == 0
    del sys.modules["lonely_neighbour"]
    for name in [name for name in sys.modules if name.startswith(("needs_", "model_"))]:
        del sys.modules[name]
    predicted = f"predict --fit {tmp_path}/out --method svgp --data {tmp_path}/d.csv --output {tmp_path}/p.csv"
    assert main(predicted.split()) == 2
    assert "give it where they are, --model FILE.py:NAME or model=" in capsys.readouterr().err
    assert main([*predicted.split(), "--model", f"{tmp_path}/needs.py:make"]) == 0
