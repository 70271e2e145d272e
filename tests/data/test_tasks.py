"""What targets are taken for, words in tables, and targets that are left as they are."""

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Dataset, load, split
from pyro_dgp.comparison.predict_command import _numbered, read_rows
from pyro_dgp.data.arrays import in_order
from pyro_dgp.data.categories import encoded_as, one_hot
from pyro_dgp.data.tasks import Task, guessed_task, task_of


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([0, 1, 1, 0], Task("binary", 2)),
        ([0, 1, 2, 2, 1], Task("multiclass", 3)),
        ([1, 2, 3], Task()),
        ([0, 1, 3], Task()),
        ([0, 0, 0], Task()),
        ([-1, 1, 1], Task()),
        (range(12), Task()),
        ([0.0, 0.5, 1.0], Task()),
    ],
)
def test_tasks_are_guessed_from_values(values, task):
    assert guessed_task(np.array(list(values), dtype=float)) == task


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("binary", [0, 1, 2], "are not 0 and 1"),
        ("multiclass", [0.5, 1, 2], "are no classes"),
        ("multiclass", [0, 1, 400], "2 values up to 400|3 values up to 400"),
        ("multiclass", [1, 2, 3], "begin at 1: number them 0, 1"),
        ("multiclass", [0, 0, 0], "all of one class"),
        ("counts", [-1, 2, 3], "are no counts"),
        ("counts", [0.5, 2, 3], "are no counts"),
        ("ranks", [0, 1], "there is no task 'ranks'"),
    ],
)
def test_targets_of_another_kind_are_refused(kind, values, message):
    with pytest.raises(ValueError, match=message):
        task_of(kind, np.array(values, dtype=float), "data")


def table(tmp_path, **columns):
    path = tmp_path / "table.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def rows(n=12):
    return np.arange(n) / n


def test_words_become_columns_and_classes(tmp_path):
    colours, sexes = ["red", "green", "blue"] * 4, ["f", "m"] * 6
    kinds = ["low", "mid", "high", "low"] * 3
    data = load(table(tmp_path, a=rows(), colour=colours, sex=sexes, kind=kinds))
    assert data.columns == ("a", "colour=blue", "colour=green", "colour=red", "sex=m, not f")
    assert data.x[0].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0] and data.x[1, 1:].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert data.labels == ("high", "low", "mid") and data.y[:3].tolist() == [1.0, 2.0, 0.0]
    assert data.task == Task("multiclass", 3)


def test_new_rows_are_encoded_as_training_rows_were(tmp_path):
    data = load(table(tmp_path, a=rows(), colour=["red", "green", "blue"] * 4, sex=["f", "m"] * 6, y=rows() ** 2))
    new = pd.DataFrame({"sex": ["m", "f"], "colour": ["blue", "red"], "a": [0.5, 0.25]})
    assert in_order(new, data.columns).tolist() == [[0.5, 1.0, 0.0, 0.0, 1.0], [0.25, 0.0, 0.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="holds 'pink', which training had not: it had blue, green, red"):
        in_order(new.assign(colour=["pink", "red"]), data.columns)
    with pytest.raises(ValueError, match="no column 'colour=blue'"):
        in_order(new.drop(columns="colour"), data.columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [0.1, None] * 6, "y": rows()}, "NaN or infinity in input column 'a', row 1"),
        (
            {"a": ["u", None] * 6, "y": rows()},
            r"column 'a' of 'table.csv' is empty in row 1 counted from 0 \(line 3 of the file\), as a cell that says NA or None is: drop or fill such rows, 6 in all",
        ),
        (
            {"a": [f"name {i}" for i in range(200)] * 2, "y": rows(400)},
            "200 different words in 400 rows, .* and at most 50 are made columns: correct",
        ),
        (
            {"a": [*map(str, rows(40)), "n/a?", *map(str, rows(40))], "y": rows(81)},
            r"does not hold numbers \('n/a\?' in row 40 counted from 0 \(line 42 of the file\)\) but .*: correct that cell, or encode or drop the column",
        ),
        (
            {"a": ["1", "2", "3", "4"] * 5 + ["oops"], "y": rows(21)},
            r"column 'a' of 'table.csv' holds numbers and the word 'oops' in row 20 counted from 0 \(line 22 of the file\): correct that cell",
        ),
        (
            {"a": rows(21), "y": ["1", "2", "3", "4"] * 5 + ["?"]},
            r"column 'y' of 'table.csv' holds numbers and '\?' in row 20 counted from 0 \(line 22 of the file\), which stands for a missing value: drop or fill such rows, 1 in all",
        ),
        (
            {"a": [f"2026-01-{i:02}" for i in range(1, 13)], "y": rows()},
            "12 different words in 12 rows, as names, dates and free text do, and at most 6 are made columns, one for two rows: correct",
        ),
    ],
)
def test_missing_inputs_and_free_text_are_refused_by_name(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        load(table(tmp_path, **columns))


def test_words_are_classes_and_nothing_else(tmp_path):
    path = table(tmp_path, a=rows(), y=["no", "yes"] * 6)
    assert load(path).task == load(path, task="binary").task == Task("binary", 2)
    assert load(path, task="multiclass").task == Task("multiclass", 2)
    with pytest.raises(ValueError, match="holds words, which are classes"):
        load(path, task="regression")


def test_archives_may_say_their_task_and_hold_booleans(tmp_path):
    x, y = np.random.RandomState(0).randn(12, 1), np.arange(12) % 2 == 0
    np.savez(tmp_path / "plain.npz", X=x, y=y)
    np.savez(tmp_path / "said.npz", X=x, y=y, task="counts")
    np.savez(tmp_path / "other.npz", X=x, y=y, task="ranking")
    assert load(tmp_path / "plain.npz").task == load(tmp_path / "other.npz", task="binary").task == Task("binary", 2)
    with pytest.raises(
        ValueError, match=r"'task' in 'other.npz' is 'ranking': choose from regression, binary, .*, or give --task"
    ):
        load(tmp_path / "other.npz")
    assert load(tmp_path / "said.npz").task == Task("counts")
    assert load(tmp_path / "said.npz", task="regression").task == Task()


def test_a_task_that_is_said_goes_before_one_that_is_guessed(tmp_path):
    path = table(tmp_path, a=rows(), y=[0, 1] * 6)
    assert load(path).task == Task("binary", 2)
    assert load(path, task="regression").task == Task()
    assert load(path, task="counts").task == Task("counts")


@pytest.mark.parametrize("task", [Task("binary", 2), Task("multiclass", 2), Task("counts")])
def test_targets_that_are_no_real_numbers_are_not_standardised(task):
    y = np.array([0.0, 1.0] * 10)
    data = Dataset("data", np.arange(20.0)[:, None], y, task=task)
    part = split(data, 0)
    assert set(part.y_train.tolist()) == {0.0, 1.0} and part.target.scale == 1.0 and part.target.mean == 0.0
    torch.testing.assert_close(part.x_train.mean(), torch.zeros(()))
    assert split(Dataset("data", data.x, y), 0).y_train.std(correction=0) == pytest.approx(1.0)


def test_new_words_are_refused_where_training_had_two():
    old = pd.DataFrame({"sex": ["female", "male"] * 3})
    columns = list(one_hot(old, "it").columns)
    assert columns == ["sex=male, not female"]
    assert encoded_as(pd.DataFrame({"sex": ["male", "female"]}), columns)[columns[0]].tolist() == [1.0, 0.0]
    assert encoded_as(pd.DataFrame({"sex": [" male", "female "]}), columns)[columns[0]].tolist() == [1.0, 0.0]
    for word in ("Male", "unknown", ""):
        with pytest.raises(ValueError, match="which training had not: it had female, male"):
            encoded_as(pd.DataFrame({"sex": ["male", word]}), columns)


def test_words_with_the_sign_between_two_words_are_refused():
    for words in (["no", "yes", "yes, not sure"], ["yes", "yes, not sure"]):
        with pytest.raises(
            ValueError, match="column 'answer' of it holds 'yes, not sure', and ', not ' stands between two words"
        ):
            one_hot(pd.DataFrame({"answer": words * 5}), "it")


def test_words_that_look_like_numbers_are_classes_still():
    labels = ["1", "2", "3+"]
    assert _numbered(pd.Series([1, 2, 1]), labels).tolist() == [0.0, 1.0, 0.0]
    assert _numbered(pd.Series(["3+", "1"]), labels).tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="'4', which training had not"):
        _numbered(pd.Series([1, 4]), labels)


def test_an_input_of_the_name_that_a_word_gets_is_refused(tmp_path):
    colours, sexes = ["red", "green", "blue"] * 4, ["f", "m"] * 6
    sentence = "column '{}' of 'table.csv' has the name that a word of column '{}' gets: rename it"
    for name, words, other in (("c", colours, "c=red"), ("s", sexes, "s=m, not f")):
        for columns in ({name: words, other: rows()}, {other: rows(), name: words}):
            with pytest.raises(ValueError, match=sentence.format(other, name)):
                load(table(tmp_path, **columns, y=rows() ** 2))
    with pytest.raises(
        ValueError, match="column 'c=red' of 'table.csv' has the name that a word of another column gets"
    ):
        load(table(tmp_path, c=colours, a=rows(), **{"c=red": rows() ** 2}))
    both = {"c": [*["d=e", "f", "g"] * 4], "c=d": [*["e", "f", "g"] * 4], "y": rows()}
    with pytest.raises(
        ValueError, match="column 'c=d' of 'table.csv' has the name that the beginning of a word of column 'c' gets"
    ):
        load(table(tmp_path, **both))
    assert load(table(tmp_path, **{"c": colours, "c=": rows(), "y": rows() ** 2})).columns[-1] == "c="


def test_columns_of_words_whose_names_hold_the_sign_are_encoded_again(tmp_path):
    """Names with "=" in columns of two words and of more, beside columns whose names they begin with."""
    cases = {
        "a=b": ["u", "v", "w"] * 4,
        "a": rows(),
        "p=q=r": ["f", "m"] * 6,
        "p": ["=1", "=2", "3=4"] * 4,
        "p=": rows(),
    }
    path = table(tmp_path, **cases, y=rows() ** 2)
    data = load(path)
    np.testing.assert_array_equal(in_order(pd.read_csv(path), data.columns), data.x)
    with pytest.raises(ValueError, match="column 'a=b' of the new rows holds 'z', which training had not: it had u, v"):
        in_order(pd.read_csv(path).assign(**{"a=b": "z"}), data.columns)


def test_words_of_training_may_look_like_numbers_in_new_rows(tmp_path):
    data = load(table(tmp_path, **{"a=b": ["1", "2", "3+"] * 4, "y": rows()}))
    assert in_order(pd.DataFrame({"a=b": [1, 2]}), data.columns).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_blanks_around_words_and_names_are_no_part_of_them(tmp_path):
    path = tmp_path / "table.csv"
    lines = "0,red ,f \n1,red, m\n2, green,f\n3,blue\t,m\n" * 3
    path.write_text(" a, b ,y\n" + lines)
    data = load(path)
    assert data.columns == ("a", "b=blue", "b=green", "b=red") and data.labels == ("f", "m")
    np.testing.assert_array_equal(data.x[:, 3], [1.0, 1.0, 0.0, 0.0] * 3)
    assert read_rows(path)["b"].tolist()[:2] == ["red", "red"] and load(path, " b ").target == "b"
    np.testing.assert_array_equal(in_order(pd.read_csv(path), data.columns), data.x)
    frame = pd.DataFrame({" a": rows(), "b ": pd.Categorical(["u", "v "] * 6), "y": [1, None] * 6})
    frame.fillna({"y": 2}).to_parquet(tmp_path / "table.parquet")
    assert load(tmp_path / "table.parquet").columns == ("a", "b=v, not u")


def test_blanks_that_training_had_in_names_and_words_are_kept():
    new = pd.DataFrame({"a": [1.0, 2.0], " a": [3.0, 4.0], 0: [5.0, 6.0]})
    assert in_order(new, (" a", "a", "0")).tolist() == [[3.0, 1.0, 5.0], [4.0, 2.0, 6.0]]
    assert in_order(new, ("a",)).tolist() == [[1.0], [2.0]]
    assert in_order(new[["a"]], ("a",)).tolist() == in_order(new[["a"]].set_axis([" a"], axis=1), ("a",)).tolist()
    assert in_order(pd.DataFrame({"c": [" u", "v"]}), ("c= u, not v",)).tolist() == [[1.0], [0.0]]
    with pytest.raises(ValueError, match="the inputs have no column 'a', which the fit takes"):
        in_order(new[[" a"]], (" a", "a"))


def test_new_rows_without_the_blanks_of_training_are_encoded_as_training_rows_were(tmp_path):
    frame = pd.DataFrame(
        {" a": rows(), "c ": [" red", "red and blue ", "green"] * 4, " d=e": [" f", "m"] * 6, "y": rows()}
    )
    kept = tuple(one_hot(frame[[" a", "c ", " d=e"]], "it").columns)
    assert kept == (" a", "c = red", "c =green", "c =red and blue ", " d=e=m, not  f")
    expected = in_order(frame, kept).tolist()
    path = tmp_path / "new.csv"
    frame.to_csv(path, index=False)
    new = read_rows(path)
    assert new.columns.tolist() == ["a", "c", "d=e", "y"] and new["c"][0] == "red"
    assert in_order(new, kept).tolist() == expected
    assert in_order(new.rename(columns={"a": "a\t", "c": " c"}), kept).tolist() == expected
    assert encoded_as(new, kept)[kept[1]].tolist() == [1.0, 0.0, 0.0] * 4
    assert in_order(new.assign(c=[" red", "red", "red "] * 4), kept)[:, 1].tolist() == [1.0] * 12
    with pytest.raises(ValueError, match="column 'c ' of the new rows holds 'pink', which training had not"):
        in_order(new.assign(c="pink"), kept)


def test_names_and_words_that_leave_a_choice_are_taken_as_they_are_alone():
    new = pd.DataFrame({"a": [1.0], "a ": [2.0]})
    with pytest.raises(ValueError, match="the inputs have no column ' a', which the fit takes"):
        in_order(new, (" a",))
    assert in_order(new, ("a ",)).tolist() == [[2.0]]
    with pytest.raises(ValueError, match="the inputs have no column ' a', which the fit takes"):
        in_order(new[["a"]], (" a", "a"))
    kept = ("c= u", "c=u", "c=v", " c=w")
    assert (
        in_order(pd.DataFrame({"c": ["u", " u", "v "], " c": "w"}), kept[:3]).tolist() == np.eye(3)[[1, 0, 2]].tolist()
    )
    with pytest.raises(ValueError, match="column 'c' of the new rows holds 'u ', which training had not"):
        in_order(pd.DataFrame({"c": ["u "]}), kept[:3])
    with pytest.raises(
        ValueError, match="the inputs have no column ' c=w', nor ' c' of words to make it of, which the fit takes"
    ):
        in_order(pd.DataFrame({"c": ["u"]}), kept)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_names_that_are_the_same_but_for_blanks_are_refused(ending, tmp_path):
    frame, path = pd.DataFrame({"a": rows(), "a ": rows(), "y": rows()}), tmp_path / f"table.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    with pytest.raises(ValueError, match="names the column 'a' twice: give each column a name of its own"):
        load(path)


def test_cells_of_blanks_are_empty(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,y\n" + "red,0\n  ,1\n" * 6)
    with pytest.raises(ValueError, match=r"column 'a' of 'table.csv' is empty in row 1 counted from 0 \(line 3"):
        load(path)
