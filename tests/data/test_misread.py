"""Files and values that were read as something else than they say."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Settings, Standardizer, compare
from pyro_dgp.comparison.predict_command import read_rows
from pyro_dgp.data.categories import words_of
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load, require_numbers
from pyro_dgp.data.splitting import Scaler, held_out_rows, split


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("rows have more fields than the first line has names", "a,b\n" + "1,2,3\n4,5,7\n" * 9),
        ("its first line holds numbers, 0.5, 1.5, and no names", "0.5,1.5\n" + "1,2\n3,5\n" * 9),
        ("names the column 'y' twice", "a,y,y\n" + "1,2,3\n4,5,7\n" * 9),
        ("column 1 has no name; if it numbers the rows", ",a,y\n" + "0,2,3\n1,5,7\n" * 9),
    ],
)
def test_a_table_that_would_be_misread_is_refused(sentence, text, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load(path)


def test_names_that_number_the_columns_are_names(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("0,1,2\n" + "".join(f"{k},{k * k},{k**3}\n" for k in range(12)))
    data = load(path)
    assert data.columns == ("0", "1")
    np.testing.assert_array_equal(data.y, np.arange(12.0) ** 3)


#: A row of the training part of split 1.
ROW = int(np.flatnonzero(~held_out_rows(Dataset("d", np.zeros((40, 2)), np.zeros(40)), 1))[0])


def table(rows=40):
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    return x, np.sin(x[:, 0])


@pytest.mark.parametrize("value", [1e200, -1e300])
def test_a_value_that_makes_all_others_equal_is_refused(value):
    x, y = table()
    y[ROW] = value
    with pytest.raises(ValueError, match=r"the target 'y' of 'd' holds -?1e\+[23]00, so far .* of 36 stay apart"):
        split(Dataset("d", x, y), 1)
    x, y = table()
    x[ROW, 1] = value
    with pytest.raises(ValueError, match=r"input column 1 of 'd' holds -?1e\+[23]00"):
        split(Dataset("d", x, y), 1)
    with pytest.raises(ValueError, match="stay apart"):
        compare(None, x, y, methods=["svgp"], settings=Settings(split=1))
    with pytest.raises(ValueError, match="stay apart when it is standardised to float64"):
        Standardizer.fit(torch.as_tensor(x))


def test_single_precision_tells_less_apart():
    x, y = table()
    x[ROW, 0] = 1e10
    data = Dataset("d", x, y)
    assert len(split(data, 1).x_train[:, 0].unique()) == 36
    with pytest.raises(ValueError, match="standardised to float32"):
        split(data, 1, dtype=torch.float32)


def test_columns_of_few_values_and_large_ones_are_no_fault():
    x, y = table()
    x[:, 1] = np.arange(40) == 5  # one row of its kind
    assert split(Dataset("d", x * 1e6 + 1e9, y), 0, dtype=torch.float32).x_train.shape == (36, 2)


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_a_column_of_large_values_is_standardised(size):
    values = np.random.RandomState(1).randn(30, 2)
    small, large = Scaler.fit(values), Scaler.fit(values * np.array([1.0, size]))
    np.testing.assert_allclose(large.scale, small.scale * [1.0, size], rtol=1e-12)
    np.testing.assert_allclose(large(values * [1.0, size]), small(values), rtol=1e-9, atol=1e-12)


WRITTEN = {
    "thousands": ["1,000", "2,500.5", "1,250,000", "900"],
    "dollars": ["$5", "$1,000.50", "-$3", "$ 4"],
    "euros": ["5 €", "7,50 €", "1.000,50 €", "1.000.000,5 €"],
    "pounds": ["£5", "£6", "£5", "£6"],
    "shares": ["5%", "10 %", "5%", "10 %"],
    "decimal commas": ["0,5", "1,5", "-0,5", "1,5e3"],
    "blanks": ["1 000", "2\u00a0000", "1\u202f000,5", "1 000"],
    "another minus": ["\u22125", "\u22126", "7", "\u22125e\u22123"],
    "minus behind": ["5-", "6-", "7", "5.5-"],
    "accounts": ["(5)", "(6)", "7", "(1,000)"],
    "some of many": ["1", "2", "3", "4"] * 4 + ["1,000"] * 4,
    "one and a word": ["1,000", "2,000"] * 9 + ["many", "1,000"],
}


@pytest.mark.parametrize("cells", WRITTEN.values(), ids=WRITTEN)
def test_numbers_with_signs_or_separators_are_refused_as_numbers(cells, tmp_path):
    path, numbers = tmp_path / "t.csv", [k / 20 for k in range(20)]
    cells = (cells * 5)[:20]
    example = next(cell for cell in cells if not cell.isdigit() and cell != "many")
    sentence = (
        rf"column 'c' of '?(t.csv|the new rows)'? holds numbers written as {re.escape(repr(example))} in row \d+ .*: "
        "write numbers as -1000.5, with a hyphen for the minus, without separators of thousands, units or currency signs"
    )
    for columns in ({"c": cells, "y": numbers}, {"a": numbers, "c": cells}):
        pd.DataFrame(columns).to_csv(path, index=False)
        with pytest.raises(ValueError, match=sentence):
            load(path)
    with pytest.raises(ValueError, match=sentence):
        load(path, "a,c")
    with pytest.raises(ValueError, match=sentence):
        require_numbers(read_rows(path), "the new rows")


@pytest.mark.parametrize(
    "words",
    [
        ["k1", "k2"],
        ["v2.0", "v2.1", "v3"],
        ["2026-01-01", "2026-01-02"],
        ["1/2/2026", "1/3/2026"],
        ["1.2.2026", "1.3.2026"],
        ["3+", "2"],
        ["$", "$$"],
        ["high, 5", "low"],
        ["%", ","],
        ["1", "2", "k3"],
        ["5 €", "free"],
        ["10 20", "30 40"],
        ["2020 01 01", "2020 01 02"],
        ["555 1234", "555 1235"],
        ["1,2,3", "4,5,6"],
        ["1 2 3", "4 5 6"],
        ["1,23,456", "1,23,457"],
        ["1,000 2,000", "3,000 4,000"],
        ["- 1", "- 2"],
        ["1" * 150 + ",5", "1" * 150 + ",6"],
        ["\u0663,\u0664", "\u0661,\u0662"],
    ],
)
def test_words_with_figures_are_words(words, tmp_path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"a": range(12), "c": (words * 6)[:12]}).to_csv(path, index=False)
    assert load(path).labels == tuple(sorted(words))


@pytest.mark.parametrize("kinds", [["5%", "10%"], ["0,1", "0,2"], ["1,2", "3,4", "5,6"], ["$ -1,000", "$5"]])
def test_kinds_that_look_like_numbers_are_refused_with_the_remedy(kinds, tmp_path):
    path = tmp_path / "t.csv"
    cells, numbers = (kinds * 6)[:12], [k / 12 for k in range(12)]
    sentence = "write numbers as -1000.5, with a hyphen for the minus, without separators of thousands, units or currency signs"
    remedy = "; if its numbers name kinds, write them as words, such as k1"
    for columns in ({"c": cells, "y": numbers}, {"a": numbers, "c": cells}):
        pd.DataFrame(columns).to_csv(path, index=False)
        with pytest.raises(ValueError, match=f"{sentence}{remedy}$"):
            load(path)
    with pytest.raises(ValueError, match=f"{sentence}$"):
        load(path, "a,c")  # several targets are numbers


@pytest.mark.parametrize("cells", [["red", "green", "blue"] * 1000, ["1", "2", "3"] * 1000 + ["k"]])
def test_words_are_looked_at_once_however_many_rows_they_are_in(cells, monkeypatch):
    looked_at, to_numeric = [], pd.to_numeric

    def counted(cells, **options):
        looked_at.append(len(cells))
        return to_numeric(cells, **options)

    monkeypatch.setattr(pd, "to_numeric", counted)
    if "k" in cells:
        with pytest.raises(ValueError, match="holds numbers and the word 'k' in row 3000 counted from 0"):
            words_of(pd.Series(cells), "c", "it")
    else:
        assert words_of(pd.Series(cells), "c", "it") == ["blue", "green", "red"]
    assert max(looked_at) <= 4


def test_cells_that_are_no_text_are_told_apart_by_their_text():
    cells = pd.Series([[1, 2], [3], 1.5, None, True, "$5", "1,000"] * 3, dtype=object)
    with pytest.raises(ValueError, match="is empty in row 3"):
        words_of(cells, "c", "it")
    assert words_of(cells.dropna(), "c", "it") == ["$5", "1,000", "1.5", "True", "[1, 2]", "[3]"]


SEPARATED = {
    "semicolons": ("a;b", "1;2"),
    "semicolons, decimal commas": ("a;b", "1,5;2,5"),
    "tabs": ("a\tb", "1\t2"),
    "tabs, decimal commas": ("a\tb", "1,5\t2,5"),
    "vertical bars": ("a|b", "1|2"),
    "vertical bars, a comma in quotes": ('"a, with a comma"|b', "1|2"),
    "semicolons and tabs": ("a b;b\tc;d", "1;2\t3;4"),
}


@pytest.mark.parametrize("name", SEPARATED)
def test_columns_that_are_separated_by_another_sign_are_refused_by_it(name, tmp_path):
    first, row = SEPARATED[name]
    path = tmp_path / "t.csv"
    sentence = f"'t.csv' separates columns by {name.split(',')[0].split(' and')[0]} ({first!r}): separate columns by commas, and write decimals with a point"
    for start in (b"", b"\xef\xbb\xbf", b"\n\n", b"\r\n"):
        path.write_bytes(start + f"{first}\r\n".encode() + f"{row}\r\n".encode() * 12)
        for read in (load, read_rows):
            with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
                read(path)
    path.write_text(first)
    with pytest.raises(ValueError, match="separate columns by commas"):
        load(path)


@pytest.mark.parametrize("first", ["a", "p(a|b)", '"a;b"', '"a\tb"', "a b"])
def test_a_file_of_one_column_is_one(first, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\n" + "1.5\n2\n" * 6)
    assert read_rows(path).columns.tolist() == [first.strip('"')]
    with pytest.raises(ValueError, match="no input columns besides the target"):
        load(path)


def test_commas_stand_beside_other_signs(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("p(a|b),a;b\n" + "1|2,3\n1|3,4\n" * 6)
    assert load(path).columns == ("p(a|b)=1|3, not 1|2",)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("sign", [",", "\t"])
@pytest.mark.parametrize("name", ["größe", "a"])
def test_text_in_another_encoding_is_refused_with_the_remedy(encoding, sign, name, tmp_path):
    path = tmp_path / "t.csv"
    if (encoding, name) == ("latin-1", "a"):
        return  # which is UTF-8 too
    path.write_bytes((f"{name}{sign}b\n" + f"1{sign}2\n3{sign}5\n" * 6).encode(encoding))
    remedy = "separate columns by commas" if (encoding, sign) == ("latin-1", "\t") else "save it as UTF-8$"
    for read in (load, read_rows):
        with pytest.raises(ValueError, match=f"'t.csv' .*{remedy}"):
            read(path)
