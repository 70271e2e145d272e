"""Columns that were declared as kinds, text that is all numbers, names that are numbers, and tables without names."""

import numpy as np
import pandas as pd
import pytest

from pyro_dgp import load
from pyro_dgp.comparison.method_fit import as_array
from pyro_dgp.data.streams import ParquetStream, Stream
from pyro_dgp.data.tasks import Task

A = np.random.RandomState(0).randn(24)


def parquet(folder, **columns):
    pd.DataFrame(columns).to_parquet(folder / "d.parquet")
    return folder / "d.parquet"


def test_kinds_of_whole_numbers_are_kinds(tmp_path):
    kinds = pd.Categorical([70, 5, 9] * 8)
    inputs = load(parquet(tmp_path, a=A, k=kinds, y=A))
    assert inputs.columns == ("a", "k=5", "k=9", "k=70") and inputs.x[0, 1:].tolist() == [0.0, 0.0, 1.0]
    classes = load(parquet(tmp_path, a=A, y=kinds))
    assert classes.labels == ("5", "9", "70") and classes.task == Task("multiclass", 3)
    assert classes.y[:3].tolist() == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "values", [pd.Series([70, 5] * 5, dtype="category"), pd.DataFrame({"k": pd.Categorical([1, 2])})]
)
def test_kinds_in_memory_are_refused(values):
    with pytest.raises(ValueError, match=r"a column holds kinds \(category\): encode it as columns of 0 and 1"):
        as_array(values)


def test_text_that_is_all_numbers_is_numbers(tmp_path):
    binary = load(parquet(tmp_path, a=A, y=["0", "1"] * 12))
    assert binary.task == Task("binary", 2) and binary.y[:2].tolist() == [0.0, 1.0]
    assert load(parquet(tmp_path, a=["0.5", "2"] * 12, y=A)).x[:2, 0].tolist() == [0.5, 2.0]
    with pytest.raises(ValueError, match="holds numbers and the word '007'"):
        load(parquet(tmp_path, a=["007", "8"] * 12, y=A))


def test_names_that_are_whole_numbers_are_words(tmp_path):
    table = pd.DataFrame({0: A, 1: ["u", "v"] * 12, 2: A})
    table.to_parquet(tmp_path / "d.parquet")
    found = load(tmp_path / "d.parquet")
    assert found.columns == ("0", "1=v, not u") and found.target == "2"


def test_a_first_row_of_data_with_a_word_is_no_line_of_names(tmp_path):
    rows = "".join(f"{a:.3f},{'mf'[int(a > 0)]},{2 * a:.3f}\n" for a in A)
    (tmp_path / "d.csv").write_text(rows)
    with pytest.raises(
        ValueError, match=r"holds numbers, .* and 'f', which occurs below, .* add a line with a name for each column"
    ):
        load(tmp_path / "d.csv")
    for names, columns in (
        ("0,sex,1", ("0", "sex=m, not f")),
        ("0,1,2", ("0", "1=m, not f")),
        ("a,m,2", ("a", "m=m, not f")),
        ("2010,sex,2020", ("2010", "sex=m, not f")),
        ("2020,sex,2010.5", ("2020", "sex=m, not f")),
    ):
        (tmp_path / "d.csv").write_text(f"{names}\n{rows}")
        assert load(tmp_path / "d.csv").columns == columns


def test_one_year_beside_words_is_a_name(tmp_path):
    (tmp_path / "d.csv").write_text("region,2020\n" + "".join(f"{'nsew'[at % 4]},{a:.3f}\n" for at, a in enumerate(A)))
    assert load(tmp_path / "d.csv").target == "2020"


def test_a_column_of_lists_is_one_sentence(tmp_path):
    with pytest.raises(
        ValueError, match=r"column 'a' of 'd.parquet' does not hold numbers .* encode or drop the column"
    ):
        load(parquet(tmp_path, a=[[a, 2.0] for a in A], b=A, y=A))


class Rows(Stream):
    sizes = (5,)

    def read(self, block):
        return np.ones((5, 2)), np.ones(5)


@pytest.mark.parametrize("size", [0, -1])
def test_batches_and_samples_of_no_rows_are_refused(size):
    with pytest.raises(ValueError, match=f"batch_size is at least 1 and start at least 0, got {size} and 0"):
        next(Rows().batches(size))
    with pytest.raises(ValueError, match=f"a sample has at least 1 row, got rows={size}: ask for more"):
        Rows().sample(size)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"k": pd.Categorical(["u", "v"] * 12)},
            "column 'k' of .* holds kinds .category., not numbers: encode or drop it",
        ),
        ({"k": pd.Categorical([7, 8] * 12)}, "column 'k' of .* holds kinds .category., not numbers: encode or drop it"),
        ({"k": pd.to_timedelta(A, unit="D")}, "column 'k' of .* holds duration.*, not numbers: encode or drop it"),
        ({}, "has no input columns besides y: give at least one"),
    ],
)
def test_a_stream_of_columns_of_no_numbers_is_one_sentence(columns, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        ParquetStream(parquet(tmp_path, **columns, y=A), "y")
