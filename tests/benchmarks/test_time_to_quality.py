"""Time to quality: a peer that is followed and gone on with, the level, and the first fit that reaches it."""

import math

import pytest
import torch

from benchmarks.common import peer_curves
from benchmarks.common.gpytorch_stock import StockDeepGP, StockDSPP
from benchmarks.common.peer_curves import NOTEBOOKS, Followed, Notebook
from benchmarks.studies.time_to_quality import SLACK, first_at, level, own_run, table
from pyro_dgp import Settings
from pyro_dgp.data.named import load_named
from pyro_dgp.data.splitting import split

SMALL = Settings(width=2, inducing=5, samples=2, batch_size=30)
PEERS = {"dgp": Notebook(StockDeepGP(), SMALL), "dspp": Notebook(StockDSPP(), SMALL, (0.5,))}


@pytest.fixture
def part():
    return split(load_named("diabetes"), 0, dtype=torch.float64)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_was_cut_off_has_the_scores_of_one_that_was_not(name, part, tmp_path, monkeypatch):
    whole = Followed(PEERS[name], part, steps=24, path=tmp_path / "whole.pt").run()
    assert [score[0] for score in whole["scores"]] == [10, 12, 15, 18, 22, 24] and whole["error"] is None
    seconds = [score[1] for score in whole["scores"]]
    assert seconds == sorted(seconds) and seconds[-1] <= whole["seconds"]
    assert not (tmp_path / "whole.pt").exists()
    monkeypatch.setattr(peer_curves, "SAVED_EVERY", -1.0)  # after each step
    cut = Followed(PEERS[name], part, steps=24, path=tmp_path / "cut.pt")
    take = cut._one_step

    def until(index):
        if cut.step == 17:
            raise KeyboardInterrupt
        take(index)

    monkeypatch.setattr(cut, "_one_step", until)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    again = Followed(PEERS[name], part, steps=24, path=tmp_path / "cut.pt")
    assert again.step == 17 and again.seconds > 0
    values = [score[3] for score in again.run()["scores"]]
    assert values == pytest.approx([score[3] for score in whole["scores"]], abs=1e-6)


def test_the_score_of_a_peer_is_that_of_its_mixture(part, tmp_path):
    followed = Followed(PEERS["dspp"], part, steps=10, path=tmp_path / "state.pt")
    (score,) = followed.run()["scores"]
    mean, sd, log_weights = peer_curves.components(followed.model, followed.x_test)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=log_weights.expand(mean.shape[1], -1)),
        torch.distributions.Normal(mean.T, sd.T),
    )
    assert score[3] == pytest.approx(-float(mixture.log_prob(followed.y_test).mean()), abs=1e-5)
    assert followed.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)  # past the milestone


def test_a_peer_that_breaks_keeps_its_scores_and_says_so(part, tmp_path, monkeypatch):
    followed = Followed(PEERS["dgp"], part, steps=24, path=tmp_path / "state.pt")

    def breaks(index):
        raise RuntimeError("no number")

    monkeypatch.setattr(followed, "_one_step", lambda index: followed.step >= 11 and breaks(index))
    found = followed.run()
    assert found["error"] == "RuntimeError: no number" and [score[0] for score in found["scores"]] == [10]


def test_the_notebooks_have_their_own_sizes(part, tmp_path):
    dgp = Followed(NOTEBOOKS["gpytorch-dgp"], part, steps=1, path=tmp_path / "dgp.pt")
    assert dgp.model.hidden.variational_strategy.inducing_points.shape == (10, 128, 10) and dgp.samples == 10
    dspp = Followed(NOTEBOOKS["gpytorch-dspp"], part, steps=1000, path=tmp_path / "dspp.pt")
    assert dspp.model.top.variational_strategy.inducing_points.shape == (300, 3)
    assert sorted(dspp.schedule.milestones) == [50, 375, 750]
    assert {each.dtype for each in dgp.model.parameters()} == {torch.float32}


def peer_row(scores):
    return {"dataset": "d", "peer": "gpytorch-dgp", "library": "gpytorch-dgp", "asked": 99, "scores": scores}


def own_row(asked, nll, method="dsvi"):
    key = {"dataset": "d", "peer": "gpytorch-dgp", "library": method, "asked": asked, "steps": asked}
    return {**key, "nll": nll, "seconds": asked / 10, "processor_seconds": asked / 5}


def test_the_level_is_the_lowest_score_and_its_time_the_first_at_it():
    peer = peer_row(
        [[10, 1.0, 2.0, 0.9], [20, 2.0, 4.0, math.nan], [30, 3.0, 6.0, 0.505], [40, 4.0, 8.0, 0.5], [50, 5.0, 9.0, 0.6]]
    )
    assert level(peer) == (0.5, 4.0, 8.0)
    assert level(peer, SLACK) == (0.51, 3.0, 6.0)
    fits = [own_row(25, 0.8), own_row(50, 0.507), own_row(100, 0.49), own_row(200, 0.4)]
    assert first_at(fits, 0.5)["asked"] == 100 and first_at(fits, 0.51)["asked"] == 50 and first_at(fits, 0.1) is None
    fits += [own_row(25, 0.45, "dsvi-collapsed")]
    line, collapsed = table([peer, *fits], 0.0).to_dict("records")
    assert line["times faster"] == pytest.approx(0.4) and line["in processor seconds"] == pytest.approx(0.4)
    assert (collapsed["method"], collapsed["steps"]) == ("dsvi-collapsed", 25)
    assert collapsed["times faster"] == pytest.approx(1.6)
    (line,) = table([peer, fits[0]], 0.0).to_dict("records")  # the other method was not run
    assert math.isnan(line["times faster"]) and line["best"] == 0.8


def test_a_fit_of_a_named_method_has_about_the_steps_that_were_asked_for():
    assert own_run("diabetes", "sgpr", 4, data=None)["steps"] == 4
    found = own_run("diabetes", "svgp", 5, data=None)
    assert found["steps"] == 5 and math.isfinite(found["nll"])
    assert found["processor_seconds"] > 0 and found["seconds"] > 0
