"""An epoch is as many steps as the rows of a data set fill batches, of the models that the paper states."""

import json
import sys

import pytest
import torch

from benchmarks.common.timing import toy
from benchmarks.studies import time_of_an_epoch as epoch


def test_epochs_are_timed_by_their_steps(tmp_path, monkeypatch, capsys):
    times = {"dsvi": 0.1, "dspp": 0.2, "avdgp-ar2p": 0.05}
    monkeypatch.setattr(
        epoch, "alternate", lambda steps, repeats, **_: ({name: torch.full((3,), times[name]) for name in steps}, {})
    )
    monkeypatch.setattr(sys, "argv", ["epoch", "--only", "Kin8nm,Song", "--json", str(tmp_path / "times.json")])
    epoch.main()
    rows = json.loads((tmp_path / "times.json").read_text())
    assert [row["method"] for row in rows] == 2 * list(times)
    assert rows[0]["train_seconds"] == pytest.approx(66 * 0.1) and rows[0]["test_seconds"] == pytest.approx(82 * 0.1)
    assert rows[4]["train_seconds"] == pytest.approx(825 * 0.2) and rows[4]["test_seconds"] == pytest.approx(1031 * 0.2)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2] == "| Kin8nm | 8,192 | 8 | 6.60 | 13.20 | 3.30 | 8.20 | 16.40 | 4.10 |"


def test_the_models_are_those_of_the_paper(local):
    data = toy(300, 12)
    guide, _ = epoch.guide("dspp", data)
    guide.initialize(*data)
    assert [process.basis.size for process in guide.processes.children()] == [256, 128, 128]
    guide, _ = epoch.guide("avdgp-ar2p", data)
    guide.initialize(*data)
    assert guide.propagation.num_components == 32
    step, test = epoch.training("dsvi", data, 100)
    step()
    test()
