"""A comparison that goes on with more draws: chains are made longer to the same bits, and all else stays as it is."""

import json
import os
import pickle
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

from pyro_dgp import EllipticalSlice, InferenceGap, Settings, whitened
from pyro_dgp.__main__ import main
from pyro_dgp.comparison.files import write_table
from pyro_dgp.comparison.gap_study import GapResult
from pyro_dgp.comparison.request import Request
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.comparison.run import compare
from pyro_dgp.comparison.run import run as run_request
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.zoo.by_mcmc import ByMCMC

X = np.random.RandomState(0).randn(14, 2)
Y = np.sin(2 * X[:, 0])
SETTINGS = Settings(epochs=2, inducing=5, samples=2, width=1, mcmc_points=6, warmup=4, mcmc_samples=8)
FIGURES = ("nll", "rmse", "crps", "steps")


@pytest.fixture(autouse=True)
def _no_figure(monkeypatch):
    """Other tests look at the figure."""
    monkeypatch.setattr(ComparisonResult, "draw", lambda *_: None)


class Evil:
    """A pickle that makes a folder when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def run(output, draws, methods, said=None, **options):
    settings = replace(SETTINGS, mcmc_samples=draws)
    say = (lambda sentence: None) if said is None else said.append
    return compare(None, X, Y, methods=methods, settings=settings, output=output, say=say, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("near_draws")
def test_the_command_makes_chains_longer_to_the_same_bits(tmp_path, capsys):
    """Slices, the no-U-turn sampler and stochastic-gradient HMC, beside a method without draws, which is not run again."""
    np.savez(tmp_path / "d.npz", X=X, y=Y)
    command = ["compare", "--data", str(tmp_path / "d.npz"), "--methods", "svgp,ess,nuts,sghmc", "--epochs", "2"]
    command += ["--inducing", "5", "--samples", "2", "--width", "1", "--mcmc-points", "6", "--warmup", "4"]

    def of(name, draws, *rest):
        status = main([*command, "--mcmc-samples", str(draws), "--output", str(tmp_path / name), *rest])
        return status, json.loads((tmp_path / name / "results.json").read_text())

    _, whole = of("whole", 12)
    _, first = of("parts", 8)
    capsys.readouterr()
    status, longer = of("parts", 12, "--resume")
    output = "".join(capsys.readouterr())
    assert status == 0 and "ess: goes on from 8 draws of a chain to 12" in output
    assert "svgp: finished before, not run again" in output
    own = {row["method"]: row for row in whole}
    for row in longer:
        assert [row[name] for name in FIGURES] == [own[row["method"]][name] for name in FIGURES]
        assert row["config"] == own[row["method"]]["config"] and row["config"]["mcmc_samples"] == 12
    assert next(row for row in longer if row["method"] == "svgp")["train_seconds"] == first[0]["train_seconds"]
    for name in ("ess", "nuts", "sghmc"):
        with (
            np.load(tmp_path / "whole" / "fits" / f"{name}.npz", allow_pickle=False) as one,
            np.load(tmp_path / "parts" / "fits" / f"{name}.npz", allow_pickle=False) as other,
        ):
            assert set(one.files) == set(other.files)
            assert all(np.array_equal(one[key], other[key], equal_nan=True) for key in one.files)
    for options, sentence in (
        (("--resume",), "mcmc_samples 12 in ess, now 8"),
        (("--resume", "--warmup", "5"), "made with other settings"),
    ):
        assert of("parts", 8, *options)[0] == 2
        assert sentence in capsys.readouterr().err


def test_a_lengthened_chain_makes_the_missing_draws_alone(tmp_path, monkeypatch):
    said, calls, sample = [], [], EllipticalSlice.sample

    def counted(self, params):
        calls.append(1)
        return sample(self, params)

    run(tmp_path / "out", 8, ["ess"])
    assert (tmp_path / "out" / ".ess" / "fold-0" / "chain-0.safetensors").exists()
    with pytest.raises(ValueError, match="made with other settings .mcmc_samples 8 in ess, now 11"):
        run(tmp_path / "out", 11, ["svgp"], resume=True)  # which does not ask for more of ess
    monkeypatch.setattr(EllipticalSlice, "sample", counted)
    run(tmp_path / "out", 11, ["ess"], said, resume=True)
    assert len(calls) == 3 and "ess: goes on from 8 draws of a chain to 11" in said


def test_files_of_more_draws_have_no_row_of_fewer(tmp_path, monkeypatch):
    """A run that is killed before the table has the new row, and then goes on with the old number of draws."""
    said, write = [], write_table

    def killed(output, rows):
        if any(row["method"] == "ess" for row in rows):
            raise KeyboardInterrupt
        write(output, rows)

    run(tmp_path / "out", 8, ["ess"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pyro_dgp.comparison.run.write_table", killed)
        run(tmp_path / "out", 11, ["ess"], resume=True)
    result = run(tmp_path / "out", 8, ["ess"], said, resume=True)
    assert "ess: finished before, not run again" not in said and result.rows[0]["config"]["mcmc_samples"] == 8
    with h5py.File(tmp_path / "out" / "ess.nc") as file:
        assert file["sample_stats"]["lp"].shape == (1, 8)


def test_a_gap_of_fewer_draws_is_measured_again(tmp_path, monkeypatch):
    measured = []

    gap = InferenceGap(**dict.fromkeys(("mean", "sd", "wasserstein", "kl"), torch.ones(2)))

    def measure(self, study):
        measured.append(1)
        gaps = {"fixed": {"ess again": gap, "dsvi": gap}}
        return GapResult(gaps, study, torch.ones(2, 1), draws=self.plan.settings.mcmc_samples)

    monkeypatch.setattr("pyro_dgp.comparison.run._Run._gaps", measure)
    monkeypatch.setattr("pyro_dgp.comparison.gap_study.draw_gap", lambda gaps, x, path, reference: path.touch())

    def asked(draws, resume, gap="ess"):
        settings = replace(SETTINGS, mcmc_samples=draws)
        request = Request(
            output=tmp_path / "out",
            dataset=Dataset("waves", X, Y),
            methods=("dsvi",),
            settings=settings,
            resume=resume,
            gap=gap,
        )
        run_request(request, say=lambda sentence: None)
        return len(measured)

    assert [asked(8, False), asked(8, True), asked(9, True), asked(9, True)] == [1, 1, 2, 2]
    assert [asked(10, True, gap=None), asked(10, True), asked(10, True)] == [2, 3, 3]


def test_a_pickle_in_a_folder_of_results_is_not_read(tmp_path):
    """At the name of the old files it is ignored, and at that of the new ones it is a sentence."""
    marker = tmp_path / "marker"
    for name in ("chain-0.pickle", "chain-0.safetensors"):
        folder = tmp_path / name / ".ess" / "fold-0"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(pickle.dumps(Evil(marker)))
        if name == "chain-0.pickle":
            run(tmp_path / name, 8, ["ess"], resume=True)
        else:
            with pytest.raises(RuntimeError, match="ess failed: the chain .* cannot be read .*: delete it to start"):
                run(tmp_path / name, 8, ["ess"], resume=True)
        assert not marker.exists()


def test_a_kernel_whose_state_is_not_known_is_said(tmp_path):
    class Unknown(MCMCKernel):
        """Slices, behind another face."""

        def __init__(self, model):
            self.model, self.slices = whitened(model), EllipticalSlice(model)
            super().__init__()

        def setup(self, warmup_steps, *args, **kwargs):
            self.slices.setup(warmup_steps, *args, **kwargs)
            self.transforms = self.slices.transforms

        @property
        def initial_params(self):
            return self.slices.initial_params

        def sample(self, params):
            return self.slices.sample(params)

    said = []
    run(tmp_path / "out", 8, [("mine", ByMCMC(Unknown))], said)
    assert any("the state of Unknown cannot be saved, so --resume begins its chains again" in each for each in said)
