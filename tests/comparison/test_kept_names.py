"""Resumed comparisons: data whose columns or classes have other names are not taken for the old ones."""

import json

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.comparison.cli import main
from tests.comparison.test_own_model import data

COMPARE = "compare --methods svgp --epochs 1 --inducing 5 --samples 2"


def written(folder, name, columns, kinds=None):
    x, y = data()
    target = y if kinds is None else np.array(kinds)[(y > y.mean()).astype(int)]
    values = [x[:, 0], x[:, 0] ** 2, target]
    table = pd.DataFrame(dict(zip(columns, values, strict=True)))
    (folder / name).mkdir(exist_ok=True)
    table.to_csv(folder / name / "d.csv", index=False)
    return str(folder / name / "d.csv")


def resumed(folder, first, second, *, older=False, without_fit=False):
    out = folder / "out"
    assert main([*COMPARE.split(), "--data", first, "--output", str(out)]) == 0
    rows = json.loads((out / "results.json").read_text())
    rows[0]["config"].pop("names", None)
    if older:
        (out / "results.json").write_text(json.dumps(rows))
    if without_fit:
        for file in (out / "fits").iterdir():
            file.unlink()
    return main([*COMPARE.split(), "--data", second, "--output", str(out), "--resume"])


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ((["a", "b", "y"], None), (["b", "a", "y"], None), "are of other names (the column 'a' in svgp, now 'b')"),
        ((["a", "b", "y"], None), (["a", "b", "z"], None), "are of other names (the target 'y' in svgp, now 'z')"),
        ((["a", "b", "y"], ("k", "l")), (["a", "b", "y"], ("m", "n")), "(the class 'k' in svgp, now 'm')"),
    ],
)
def test_other_names_are_refused(first, second, sentence, older, tmp_path, capsys):
    files = written(tmp_path, "one", *first), written(tmp_path, "two", *second)
    assert resumed(tmp_path, *files, older=older) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("without_fit", [False, True])
def test_the_same_names_go_on_also_in_folders_of_earlier_versions(without_fit, tmp_path, capsys):
    file = written(tmp_path, "one", ["a", "b", "y"])
    assert resumed(tmp_path, file, file, older=True, without_fit=without_fit) == 0
    assert "svgp: finished before, not run again" in capsys.readouterr().err
