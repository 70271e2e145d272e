"""Words that look like numbers, in training and in new rows."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from pyro_dgp import Settings, compare
from pyro_dgp.comparison.predict_command import predicted, read_rows
from pyro_dgp.comparison.target_remarks import on_words
from pyro_dgp.data.arrays import of_arrays
from pyro_dgp.data.categories import encoded_as, words_of_training
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split

VERSIONS = ("v=3.1", "v=3.10", "v=dev")


def test_text_of_kinds_stays_text_in_new_rows(tmp_path):
    """A file with the words 3.10 alone looks like one of numbers."""
    path = tmp_path / "n.csv"
    path.write_text("v ,x\n 3.10,0\n3.10,1\n")
    for table in (read_rows(path, {"v"}), pd.DataFrame({"v": ["3.10", "3.10"]})):
        made = encoded_as(table, VERSIONS)
        assert made[list(VERSIONS)].to_numpy().tolist() == [[0.0, 1.0, 0.0]] * 2
    assert read_rows(path)["v"].tolist() == [3.1, 3.1]
    path.write_text("v,x\n3.100,0\n")
    with pytest.raises(
        ValueError, match=r"'v' of the new rows holds '3.100', which training had not: it had 3.1, 3.10, dev"
    ):
        encoded_as(read_rows(path, {"v"}), VERSIONS)


def test_text_of_parquet_stays_text_too(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"v": ["3.10", "3.10"], "x": ["1", "2"]}).to_parquet(tmp_path / "n.parquet")
    table = read_rows(tmp_path / "n.parquet", {"v"})
    assert table["v"].tolist() == ["3.10", "3.10"] and table["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "known", "meant"),
    [
        ([1, 2.0], ["0.5", "1.0", "2.0"], ["1.0", "2.0"]),
        (np.array([0.1], dtype=np.float16), ["0.1", "0.2"], ["0.1"]),
        (pd.array([0.1, 0.2], dtype="Float32"), ["0.1", "0.2"], ["0.1", "0.2"]),
        (pd.array([True, False], dtype="boolean"), ["False", "True"], ["True", "False"]),
        (pd.Series([1.0, "x"], dtype=object), ["1", "2", "x"], ["1", "x"]),
        ([2**60, 2**60 + 1], [str(2**60), str(2**60 + 1), "3"], [str(2**60), str(2**60 + 1)]),
        (pd.Categorical([1, 10]), ["1", "10"], ["1", "10"]),
        ([1, 10], ["01", "10", "X"], ["01", "10"]),
        ([True, False], ["FALSE", "TRUE", "maybe"], ["TRUE", "FALSE"]),
        ([1.5], ["1.5", "dev"], ["1.5"]),
        (np.array([0.1], dtype=np.float32), ["0.1", "0.2"], ["0.1"]),
    ],
)
def test_a_number_is_the_word_that_has_its_value(column, known, meant):
    assert words_of_training(pd.Series(column), known, "it").tolist() == meant


@pytest.mark.parametrize(
    ("column", "known", "sentence"),
    [
        (
            [3.1],
            ["3.1", "3.10", "dev"],
            "it holds the number 3.1, which stands for 3.1 and 3.10: give the column as text",
        ),
        ([1], ["1", "01", "X"], "it holds the number 1, which stands for 1 and 01"),
        (["3.10"], ["3.1", "3.2"], "it holds '3.10', which training had not: it had 3.1, 3.2"),
        (["02"], ["1.0", "2.0"], "it holds '02', which training had not"),
        ([2**60 + 4], [str(2**60), "3"], "which training had not"),
        (["a", None], ["a", "b"], "it is empty in row 1 counted from 0: drop or fill such rows, 1 in all"),
        (["1"], ["01", "X"], "it holds '1', which training had not: it had 01, X"),
        ([[1, 2], [3]], ["a", "b"], r"it holds '\[1, 2\]', which training had not"),
        ([7], ["a", "b"], "it holds '7', which training had not"),
        (["a "], [" a", "a  "], "it holds 'a ', which training had not"),
    ],
)
def test_what_stands_for_no_word_or_for_two_is_refused(column, known, sentence):
    with pytest.raises(ValueError, match=sentence):
        words_of_training(pd.Series(column), known, "it")


def test_a_class_whose_name_is_a_number_is_found_again(tmp_path):
    """The log density of a row of the class 1.10 is that of 1.10, also in a file without the other words, and in Python."""
    rng = np.random.default_rng(0)
    labels = np.array(["1.1", "1.10", "X"])[np.arange(60) % 3]
    x = np.where(labels == "1.1", -2.0, np.where(labels == "1.10", 2.0, 0.0)) + 0.1 * rng.normal(size=60)
    result = compare(
        None, x[:, None], labels, methods=["svgp"], settings=Settings(inducing=10, steps=60), say=str, threads=1
    )
    path = tmp_path / "n.csv"
    for word, low, high in (("1.1", -100.0, -0.5), ("1.10", -0.5, 0.0)):
        path.write_text(f"0,y\n2.0,{word}\n")
        assert low < predicted(result["svgp"], read_rows(path, {"y"}), "y")["log_density"][0] < high


def test_a_wide_file_is_read_as_one_piece(tmp_path, recwarn):
    """Pieces of a file were read by themselves, and a piece of figures alone made 1 of 01."""
    rows, columns = 3000, 400
    words = np.array(["01", "02"])[np.arange(rows) % 2].astype(object)
    words[-500:] = "X9"
    noise = ",".join(["0"] * columns)
    path = tmp_path / "w.csv"
    path.write_text(
        f"s,{','.join(f'c{k}' for k in range(columns))},y\n"
        + "".join(f"{w},{noise},{k}\n" for k, w in enumerate(words))
    )
    assert load(path).columns[:3] == ("s=01", "s=02", "s=X9") and not recwarn.list


def test_marks_of_missing_values_below_a_blank_line_are_counted(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("x\n\n2\nNA\nNA\n\n")
    np.testing.assert_array_equal(read_rows(path)["x"].to_numpy(dtype=float), [np.nan, 2, np.nan, np.nan])


@pytest.mark.parametrize("text", ["x\n1\n\n2\n3\n", "\n x\n1\n\n2\n3\n\n\n", "\ufeffx\r\n1\r\n\r\n2\r\n3\r\n"])
def test_a_blank_line_of_a_column_is_an_empty_cell(text, tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    found = read_rows(path)["x"].to_numpy(dtype=float)
    np.testing.assert_array_equal(found, [1, np.nan, 2, 3])
    path.write_bytes(text.replace("1\n\n2", "1\n2").replace("1\r\n\r\n2", "1\r\n2").encode())
    assert read_rows(path)["x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("mark", ["?", "-", ".", "missing", "n.a.", "Unknown", "#DIV/0!"])
def test_numbers_with_a_mark_of_missing_values_are_no_kinds(mark, tmp_path):
    path, cells = tmp_path / "t.csv", [str(k % 25) for k in range(100)]
    cells[::5] = [mark] * 20
    for columns in ({"a": cells, "y": range(100)}, {"x": range(100), "a": cells}):
        pd.DataFrame(columns).to_csv(path, index=False)
        with pytest.raises(
            ValueError,
            match=r"'a' of 't.csv' holds numbers and '.*' in row 0 .*, which stands for a missing value: drop or fill such rows, 20 in all",
        ):
            load(path)
    pd.DataFrame({"a": ["k1", mark, "k2"] * 10, "y": range(30)}).to_csv(path, index=False)
    assert len(load(path).columns) == 3  # a kind among kinds
    pd.DataFrame({"a": ["007", mark, "008"] * 10, "y": range(30)}).to_csv(path, index=False)
    assert len(load(path).columns) == 3  # codes


def test_columns_of_words_among_the_inputs_are_said():
    x = pd.DataFrame(
        {"day": ["2026-01-01", "2026-01-02", "2026-01-03"] * 5, "sex": ["m", "f", "f"] * 5, "a=b": range(15)}
    )
    (said,) = on_words(of_arrays("d", x, np.arange(15.0)))
    assert (
        said
        == "columns of words are inputs of 0 and 1, one for each word: day (3 words: 2026-01-01, 2026-01-02, 2026-01-03); sex (2 words: m, f)"
    )
    assert on_words(of_arrays("d", x[["a=b"]], np.arange(15.0))) == []
    assert on_words(Dataset("d", np.random.RandomState(0).randn(15, 2), np.arange(15.0), columns=("t=0", "t=1"))) == []


@pytest.mark.parametrize(
    "cells",
    [
        [Decimal(k) / 4 for k in range(15)],
        [str(k / 4) for k in range(15)],
        [*range(14), "14"],
        [10**25 + k * 10**20 for k in range(15)],
    ],
)
def test_a_column_of_objects_that_are_numbers_is_one_of_numbers(cells):
    x = pd.DataFrame({"a": pd.Series(cells, dtype=object), "w": ["u", "v", "u"] * 5})
    data = of_arrays("d", x, np.arange(15.0))
    assert data.columns == ("a", "w=v, not u")
    np.testing.assert_array_equal(data.x[:, 0], [float(cell) for cell in cells])


def test_a_number_beyond_floating_point_ones_is_refused():
    x = pd.DataFrame({"a": pd.Series([10**400 + k for k in range(15)], dtype=object)})
    with pytest.raises(ValueError, match="column 'a' of the inputs"):
        of_arrays("d", x, np.arange(15.0))


def test_figures_beyond_whole_numbers_are_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k}0000000000000000000000000,{k}\n" for k in range(1, 15)))
    np.testing.assert_allclose(load(path).x[:, 0], np.arange(1, 15) * 1e25)


def test_a_word_that_training_lacks_is_named_with_its_column():
    x = pd.DataFrame({"colour": ["red", "blue", "green"] * 10, "a": range(30)})
    x.loc[7, "colour"] = "rare"
    data = of_arrays("d", x, np.arange(30.0))
    number = next(k for k in range(40) if np.random.RandomState(k).permutation(30)[:3].tolist().count(7))
    with pytest.raises(
        ValueError,
        match="column 'colour' of 'd' has 'rare' in 1 of 30 rows, and in none of the training part: drop such rows, write a more frequent",
    ):
        split(data, number)


def test_rows_of_one_index_in_two_orders_are_refused():
    x = pd.DataFrame({"a": np.arange(12.0) % 5})
    y = pd.Series(np.arange(12.0))
    sentence = "have the same index in another order, and are taken in their order: give y.loc"
    with pytest.raises(ValueError, match=sentence):
        of_arrays("d", x.sort_values("a", kind="stable"), y)
    for other in (y.set_axis(np.arange(100, 112)), y.to_numpy(), y):
        assert len(of_arrays("d", x, other).x) == 12


def test_a_missing_word_of_a_target_is_named():
    with pytest.raises(ValueError, match="column 'y' of the targets is empty in row 1"):
        of_arrays("d", np.arange(12.0)[:, None], ["a", None, "b"] * 4)
