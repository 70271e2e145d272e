"""Data sets: files, splits, folds, names, and the check before training."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes, load_sample_image

from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.data.named import NAMED, find, load_default, load_named, scan_line
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import held_out_rows, random_folds, split


def waves(rows=60, **more):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return Dataset("waves", x, 5 + 3 * np.sin(x[:, 0]) + 0.3 * rng.normal(size=rows), **more)


def write(path, **columns):
    frame = pd.DataFrame(columns)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def test_tables_are_read_with_their_target_and_the_names_of_their_columns(tmp_path):
    a, b, c = np.arange(12.0), np.arange(12.0) ** 2, np.ones(12)
    for suffix in (".csv", ".parquet"):
        data = load(write(tmp_path / f"t{suffix}", a=a, b=b, c=c), "b")
        np.testing.assert_array_equal(data.y, b)
        np.testing.assert_array_equal(data.x, np.stack([a, c], 1))
        assert (data.name, data.columns, data.target) == ("t", ("a", "c"), "b")
    last = load(tmp_path / "t.csv")
    np.testing.assert_array_equal(last.y, c)
    assert last.target == "c"


def test_archives_are_read_with_their_splits(tmp_path):
    data, mask = waves(), np.zeros((60, 2))
    mask[:7, 0] = mask[7:9, 1] = 1
    np.savez(tmp_path / "d.npz", X=data.x, y=data.y[:, None], splits=mask)
    read = load(tmp_path / "d.npz")
    np.testing.assert_array_equal(read.x, data.x)
    np.testing.assert_array_equal(read.y, data.y)
    np.testing.assert_array_equal(read.splits, mask == 1)
    assert read.fingerprint() != data.fingerprint()


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, float])
def test_masks_of_splits_may_be_numbers(kind, unannotated):
    mask = np.zeros((60, 1))
    mask[:7] = 1
    assert len(split(waves(splits=mask.astype(kind)), 0).y_test) == 7
    with pytest.raises(ValueError, match="hold other numbers than 0 and 1: give masks"):
        split(waves(splits=np.arange(60)[:, None]), 0)


def test_a_split_is_standardised_by_its_training_part():
    mask = np.zeros((60, 1), dtype=bool)
    mask[:7] = True
    data = waves(splits=mask)
    part = split(data, 0)
    assert len(part.x_test) == 7 and len(part.y_train) == 53
    torch.testing.assert_close(part.x_train.mean(0), torch.zeros(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(part.y_train.std(correction=0), torch.tensor(1.0))
    expected = (data.y[:7] - data.y[7:].mean()) / data.y[7:].std()
    torch.testing.assert_close(part.y_test, torch.tensor(expected))
    assert part.y_test * float(part.target.scale) + float(part.target.mean) == pytest.approx(data.y[:7])
    assert split(data, 0, dtype=torch.float32).x_train.dtype == torch.float32


def test_a_random_tenth_is_held_out_where_the_data_bring_no_splits():
    data = waves()
    masks = [held_out_rows(data, number) for number in (0, 1, 0)]
    assert [mask.sum() for mask in masks] == [6, 6, 6]
    assert (masks[0] == masks[2]).all() and (masks[0] != masks[1]).any()


@pytest.mark.parametrize(("rows", "folds"), [(60, 5), (61, 4), (7, 7)])
def test_folds_test_every_row_once_in_equal_parts(rows, folds):
    masks = random_folds(rows, folds)
    np.testing.assert_array_equal(masks.sum(1), np.ones(rows))
    assert np.ptp(masks.sum(0)) <= 1 and masks.sum(0).min() >= 1
    assert folds == rows or (masks != random_folds(rows, folds, seed=1)).any()
    with pytest.raises(ValueError, match=f"{rows} rows are split into 2 to {rows} folds, not {rows + 1}"):
        random_folds(rows, rows + 1)


def test_splits_that_cannot_be_trained_on_are_refused():
    with pytest.raises(ValueError, match="has splits 0 to 1, not 2"):
        split(waves(splits=np.zeros((60, 2), dtype=bool)), 2)
    with pytest.raises(ValueError, match="leaves no training or no test rows"):
        split(waves(splits=np.ones((60, 1), dtype=bool)), 0)
    with pytest.raises(ValueError, match="numbered from 0, got -1"):
        split(waves(), -1)


def test_the_default_data_are_a_line_of_the_photograph_with_folds():
    data = load_default()
    photograph = load_sample_image("china.jpg").astype(float)
    np.testing.assert_array_equal(data.x[:, 0], np.arange(0, 640, 2))
    np.testing.assert_allclose(data.y, [photograph[150, 2 * i].sum() / 3 for i in range(320)])
    np.testing.assert_array_equal(data.splits.sum(1), np.ones(320))
    assert data.columns == ("position along the line (pixels)",) and data.target == "grey value"
    check(data)
    assert scan_line(160).fingerprint() != data.fingerprint() == load_named("scan-line").fingerprint()


def test_names_are_found_before_files(tmp_path, monkeypatch):
    x, y = load_diabetes(return_X_y=True)
    data = find("diabetes")
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert len(data.columns) == 10 and data.columns[2] == "bmi"
    own = find(write(tmp_path / "own.csv", a=np.arange(12.0), b=np.arange(12.0)))
    assert own.name == "own"
    for name in NAMED:
        assert find(name).name == name
    with pytest.raises(ValueError, match="'diabetes' has one target: progression"):
        find("diabetes", "bmi")
    with pytest.raises(ValueError, match="no data set 'wine': choose from scan-line, diabetes"):
        load_named("wine")
    with pytest.raises(ValueError, match="there is no file 'wine'.*names of data sets are scan-line, diabetes"):
        find("wine")


def test_the_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    table = write(tmp_path / "t.csv", a=np.arange(12.0))
    for package, read in (("PIL", load_default), ("pandas", lambda: load(table))):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=rf"needs {package}: pip install 'pyro-dgp\[compare\]'"):
                read()
