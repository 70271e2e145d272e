"""Cross-validation: folds partition the rows, and scores are pooled over all of them."""

import json
import math

import numpy as np
import pytest
import torch

from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.parts import fold_masks, part_of
from pyro_dgp.comparison.request import Request
from pyro_dgp.comparison.run import compare, run
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.zoo.settings import Settings

TOY = Settings(inducing=5, samples=2, epochs=2, width=2)


def dataset(rows=31):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 2))
    return Dataset("waves", x, 5 + 3 * np.sin(x[:, 0]) + 0.3 * rng.normal(size=rows))


def quiet(sentence):
    del sentence


def test_folds_partition_the_rows_and_own_ones_are_taken():
    masks = np.stack(fold_masks(dataset(), 4, 0))
    assert (masks.sum(0) == 1).all() and sorted(masks.sum(1)) == [7, 8, 8, 8]
    assert not np.array_equal(masks, np.stack(fold_masks(dataset(), 4, 1)))
    own = np.arange(31)[:, None] % 3 == np.arange(3)
    with_own = Dataset("waves", dataset().x, dataset().y, splits=own)
    np.testing.assert_array_equal(fold_masks(with_own, 3, 0), own.T)
    assert len(fold_masks(with_own, 5, 0)) == 5
    overlapping = Dataset("waves", dataset().x, dataset().y, splits=np.random.default_rng(0).random((31, 3)) < 0.3)
    assert (np.sum(fold_masks(overlapping, 3, 0), 0) == 1).all()  # splits that are no partition are no folds
    for count in (1, 32):
        with pytest.raises(ValueError, match="folds must be at least 2 and at most the 31 rows"):
            fold_masks(dataset(), count, 0)


def test_standardising_is_undone_exactly():
    data, mask = dataset(), fold_masks(dataset(), 3, 0)[0]
    like = torch.empty(0, dtype=torch.float64)
    part = part_of(data, mask, like)
    np.testing.assert_allclose(part.x_train.numpy() * part.inputs.scale + part.inputs.mean, data.x[~mask], rtol=1e-14)
    np.testing.assert_allclose(part.y_test.numpy() * part.target.scale + part.target.mean, data.y[mask], rtol=1e-14)
    assert part.target_scale == data.y[~mask].std() and abs(float(part.y_train.mean())) < 1e-14
    plain = part_of(data, mask, like, standardize=False)
    np.testing.assert_array_equal(plain.x_test, data.x[mask])
    np.testing.assert_array_equal(plain.y_train, data.y[~mask])
    half = part_of(data, mask, like, standardize_target=False)
    assert torch.equal(half.x_train, part.x_train) and torch.equal(half.y_test, plain.y_test)


def test_scores_are_those_of_the_folds_pooled_by_hand(tmp_path):
    """Each fold is run by itself, as a data set that brings that split, and its rows are pooled here."""
    data = dataset()
    masks = fold_masks(data, 3, 0)
    result = run(Request(output=tmp_path / "out", dataset=data, methods=("svgp",), settings=TOY, folds=3), say=quiet)
    row = result.rows[0]
    log_densities, errors, scales, crps = [], [], [], []
    for mask in masks:
        single = Dataset("waves", data.x, data.y, splits=mask[:, None])
        fit = run(Request(dataset=single, methods=("svgp",), settings=TOY), say=quiet)["svgp"]
        prediction = fit.predict(data.x[mask])
        log_densities.append(prediction.log_prob(data.y[mask]).detach().numpy())
        errors.append(prediction.mean.detach().numpy() - data.y[mask])
        crps.append(prediction.crps(data.y[mask]).detach().numpy())
        scales.append(data.y[~mask].std())
    scale = math.sqrt(np.mean(np.square(scales)))
    assert row["nll_original"] == pytest.approx(-np.concatenate(log_densities).mean())
    assert row["rmse_original"] == pytest.approx(math.sqrt(np.square(np.concatenate(errors)).mean()))
    assert row["crps_original"] == pytest.approx(np.concatenate(crps).mean())
    assert row["nll"] == pytest.approx(row["nll_original"] - math.log(scale))
    assert row["rmse"] == pytest.approx(row["rmse_original"] / scale)
    assert row["nll_per_fold"] == pytest.approx([-float(part.mean()) - math.log(scale) for part in log_densities])
    assert (row["folds"], row["n_test"], row["n_train"]) == (3, 31, 20)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result.rows
    assert len(result.curves["svgp"]["observed"]) == int(masks[0].sum())
    assert "folds" in str(result).splitlines()[0]


def test_folds_are_told_apart_from_a_split_when_resuming(tmp_path):
    request = Request(output=tmp_path / "out", dataset=dataset(), methods=("svgp",), settings=TOY, folds=2)
    first = run(request, say=quiet)
    again = Request(**{**vars(request), "resume": True})
    resumed = run(again, say=quiet)
    assert resumed.rows == first.rows
    x = dataset().x[:3]
    assert torch.equal(resumed["svgp"].predict(x).mean, first["svgp"].predict(x).mean)
    with pytest.raises(ValueError, match="made with other settings"):
        run(Request(**{**vars(again), "folds": None}), say=quiet)
    with pytest.raises(ValueError, match="test= and folds= are two ways"):
        data = dataset()
        compare(None, data.x, data.y, methods=["svgp"], test=(data.x, data.y), folds=3, say=quiet)


@pytest.mark.parametrize("folds", [None, 2])
def test_predictions_say_that_their_fit_is_that_of_the_first_fold(folds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(Request(output=tmp_path / "out", dataset=dataset(), methods=("svgp",), settings=TOY, folds=folds), say=quiet)
    np.savez(tmp_path / "new.npz", X=dataset().x[:3])
    assert main(["predict", "--fit", "out", "--method", "svgp", "--data", "new.npz"]) == 0
    said = capsys.readouterr().out
    sentence = "the fit is that of the first of 2 folds, trained on 15 rows: compare without folds (--split 0) for one of more rows"
    assert (sentence in said.splitlines()) == (folds is not None), said
    assert folds is not None or "fold" not in said
    (tmp_path / "out" / "results.json").write_text("{")  # broken: nothing is said of folds
    assert main(["predict", "--fit", "out", "--method", "svgp", "--data", "new.npz", "--output", "again.csv"]) == 0
    assert "fold" not in capsys.readouterr().out
