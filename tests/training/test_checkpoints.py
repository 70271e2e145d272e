"""Training that is cut off and started again ends at the same bits as training that was not."""

import itertools
import json

import numpy as np
import pytest
import torch

from pyro_dgp import (
    ELBO,
    Checkpoints,
    DeepGP,
    Fallback,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    SigmaPoints,
    StochasticGradientHMC,
    Validation,
    Variational,
    fit,
    fit_stream,
    fit_validated,
)
from pyro_dgp.internal.checkpoint import StateError, read_state, write_state
from pyro_dgp.training.second_start import fit_with_second_start


class Killed(BaseException):
    """What ends a program at a moment of the test's choice."""


def killer(step):
    """A callback that ends the program at its call of this number, counted over all runs; ``None``: never."""
    calls = itertools.count(1)

    def after(*_):
        if next(calls) == step:
            raise Killed

    return after


def data(rows=30):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=generator)
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(rows, generator=generator)


def start(propagation=None, covariance="full", layers=2):
    torch.manual_seed(0)
    x, y = data()
    guide = Variational(DeepGP(x, layers=layers), InducingPoints(6, covariance), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    return guide, x, y


def by_fit(after, folder):
    guide, x, y = start()
    result = fit(ELBO(30)(guide.model, guide), x, y, steps=13, batch_size=8, callback=after)
    return guide, result.losses


def by_marginal_likelihood(after, folder):
    torch.manual_seed(0)
    x, y = data()
    model = DeepGP(x, layers=1)
    result = fit(MarginalLikelihood(model), x, y, steps=9, batch_size=30, callback=after)
    return model, result.losses


def by_stream(after, folder):
    guide, x, y = start()
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    stream = NumpyStream(folder / "x.npy", folder / "y.npy", block_rows=4, dtype=x.dtype)
    result = fit_stream(ELBO(30)(guide.model, guide), stream, steps=13, batch_size=7, callback=after)
    return guide, result.losses


def by_validation(folds, with_fallback):
    def run(after, folder):
        guide, x, y = start(SigmaPoints("qr3", 4))
        fitted = fit_validated(
            guide,
            lambda beta, rows: PredictiveLogLikelihood(rows, beta),
            x,
            y,
            steps=8,
            batch_size=10,
            validation=Validation(betas=(0.1, 1.0), share=0.2, checks=3, folds=folds),
            fallback=Fallback(ELBO) if with_fallback else None,
            report=after,
        )
        return guide, [fitted.validation_nll, fitted.steps, fitted.best_step, *fitted.searched.values()]

    return run


def by_second_start(after, folder):
    guide, x, y = start(layers=1)
    objective = ELBO(30)(guide.model, guide)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_dgp.training.second_start.explains_nothing", lambda *_, **__: True)
        patch.setattr("pyro_dgp.training.second_start.FEWEST", 12)
        result, is_second = fit_with_second_start(guide, objective, x, y, steps=12, callback=after, batch_size=30)
    return guide, [*result.losses, is_second]


def by_sghmc(after, folder):
    guide, x, y = start(MonteCarlo(1), "delta")
    sampler = StochasticGradientHMC(burn_in=8, thin=2, window=3)
    result = sampler.run(guide, x, y, num_samples=3, batch_size=8, report=after)
    return guide, [
        *torch.cat([draws.flatten() for draws in result.draws.values()]).tolist(),
        *result.potential.tolist(),
    ]


class Annealed(torch.nn.Module):
    """An objective of the user's, whose weight of the KL follows what it counts."""

    def __init__(self, inner, *, kind):
        super().__init__()
        self.inner, self.kind, self._count, self.passes = inner, kind, 0, []
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x, y):
        self._count += 1
        self.passes.append(len(x))
        self.seen.add_(1)
        counted = {"number": self._count, "list": len(self.passes), "buffer": float(self.seen)}[self.kind]
        self.inner.elbo.beta = min(1.0, counted / 10)
        return self.inner(x, y)


class Warmed(torch.optim.Adam):
    """An optimiser that counts its steps by itself."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        self.param_groups[0]["weight_decay"] = 1 / self.calls
        return super().step(closure)


def by_own_objective(kind):
    def run(after, folder):
        guide, x, y = start()
        objective = Annealed(PredictiveLogLikelihood(30, 0.05)(guide.model, guide), kind=kind)
        result = fit(objective, x, y, steps=13, batch_size=8, callback=after)
        return guide, result.losses

    return run


def by_callback_that_sets_beta(after, folder):
    guide, x, y = start()
    objective = PredictiveLogLikelihood(30, 0.05)(guide.model, guide)

    def anneal(step, loss):
        objective.elbo.beta = min(1.0, step / 10)
        after(step, loss)

    return guide, fit(objective, x, y, steps=13, batch_size=8, callback=anneal).losses


def by_own_optimiser(after, folder):
    guide, x, y = start()
    result = fit(
        ELBO(30)(guide.model, guide),
        x,
        y,
        steps=13,
        batch_size=8,
        callback=after,
        optimizer=lambda objective, lr: Warmed(objective.parameters(), lr),
    )
    return guide, result.losses


RUNS = {
    "counts in a number": (by_own_objective("number"), (6,)),
    "counts in a list": (by_own_objective("list"), (6,)),
    "counts in a buffer": (by_own_objective("buffer"), (6,)),
    "beta by a callback": (by_callback_that_sets_beta, (6,)),
    "own optimiser": (by_own_optimiser, (6,)),
    "fit": (by_fit, (1, 6, 13)),
    "marginal likelihood": (by_marginal_likelihood, (5,)),
    "stream": (by_stream, (2, 5, 6, 11)),
    "one fold": (by_validation(1, with_fallback=False), (1, 3, 4)),
    "folds": (by_validation(2, with_fallback=False), (1, 4, 7, 9)),
    "fallback": (by_validation(1, with_fallback=True), (2, 5, 9, 14)),
    "second start": (by_second_start, (11, 15)),
    "sghmc": (by_sghmc, (3, 9, 13)),
}


def values(state, name=""):
    """All tensors of a state by name, whatever they are nested in."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    parts = state if isinstance(state, dict) else {}
    return {k: v for key, part in parts.items() for k, v in values(part, f"{name}.{key}").items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_cut_off_ends_at_the_bits_of_one_that_is_not(name, tmp_path):
    run, moments = RUNS[name]
    whole, figures = run(killer(None), tmp_path)
    for moment in moments:
        folder = tmp_path / str(moment)
        with pytest.raises(Killed), Checkpoints(folder, seconds=0.0):
            run(killer(moment), tmp_path)
        with Checkpoints(folder, seconds=0.0):
            again, found = run(killer(None), tmp_path)
        assert found == figures, moment
        wanted = values(whole.state_dict())
        assert wanted
        for key, value in values(again.state_dict()).items():
            assert torch.equal(wanted[key], value), (moment, key)


def test_steps_that_were_saved_are_not_made_again(tmp_path):
    with pytest.raises(Killed), Checkpoints(tmp_path, seconds=0.0):
        by_fit(killer(10), tmp_path)
    calls = []
    with Checkpoints(tmp_path, seconds=0.0):
        by_fit(lambda step, loss: calls.append(step), tmp_path)
    assert calls == [9, 10, 11, 12]  # the tenth step was cut off before it was saved
    with Checkpoints(tmp_path, seconds=0.0):
        by_fit(lambda step, loss: calls.append(step), tmp_path)
    assert len(calls) == 4


def test_what_a_kill_left_of_an_unfinished_file_is_removed(tmp_path):
    left = tmp_path / ".part-1-run-1.safetensors"
    left.touch()
    with Checkpoints(tmp_path):
        assert not left.exists()


def test_nothing_is_written_before_it_is_time_but_the_end(tmp_path):
    seen = []
    with Checkpoints(tmp_path, seconds=1000.0):
        by_fit(lambda *_: seen.append(list(tmp_path.glob("run*"))), tmp_path)
    assert not any(seen)
    assert len(list(tmp_path.iterdir())) == 1


def test_random_numbers_after_a_run_are_those_of_a_run_that_was_made(tmp_path):
    drawn = []
    for _ in range(2):
        with Checkpoints(tmp_path, seconds=0.0):
            by_fit(None, tmp_path)
        drawn.append((torch.randn(3).tolist(), np.random.default_rng(0).random()))
    assert drawn[0] == drawn[1]


def changed(x, y, **options):
    guide, _, _ = start()
    options = {"steps": 13, "batch_size": 8} | options
    loss, shift = options.pop("loss", ELBO(30)), options.pop("shift", 0.0)
    return fit(loss(guide.model, guide), x, y + shift, **options)


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("has steps 13, and this one 20", {"steps": 20}),
        ("has learning_rate 0.02, and this one 0.01", {"learning_rate": 0.01}),
        ("has batch_size 8, and this one 9", {"batch_size": 9}),
        ("has seed 0, and this one 1", {"seed": 1}),
        ("has loss ELBO, and this one PredictiveLogLikelihood", {"loss": PredictiveLogLikelihood(30)}),
        ("has fingerprint of the data", {"shift": 1e-6}),
        ("has fingerprint of the data", {"shift": torch.eye(30)[29]}),  # a row that the first step may not have
        ("has fingerprint of the data", {"shift": torch.eye(30)[0]}),
    ],
)
def test_another_run_is_refused(sentence, change, tmp_path):
    with Checkpoints(tmp_path, seconds=0.0):
        by_fit(None, tmp_path)
    x, y = data()
    with pytest.raises(ValueError, match=sentence), Checkpoints(tmp_path):
        changed(x, y, **change)


def test_another_first_loss_is_refused(tmp_path):
    """What a function holds is in no fact."""

    class Louder(ELBO):
        def observed(self, site, weighted):
            return factor * super().observed(site, weighted)

    for factor in (1.0, 2.0):
        guide, x, y = start()
        with Checkpoints(tmp_path):
            if factor == 1.0:
                fit(Louder(30)(guide.model, guide), x, y, steps=2)
            else:
                with pytest.raises(
                    ValueError, match="began with a loss of .*data, model, loss or random numbers differ"
                ):
                    fit(Louder(30)(guide.model, guide), x, y, steps=2)


def test_other_data_of_a_sampler_are_refused(tmp_path):
    for row in range(3):
        guide, x, y = start(MonteCarlo(1), "delta")
        with Checkpoints(tmp_path / str(row), seconds=0.0):
            StochasticGradientHMC(burn_in=2).run(guide, x, y, num_samples=1, batch_size=8)
        guide, x, y = start(MonteCarlo(1), "delta")
        with pytest.raises(ValueError, match="has fingerprint of the data"), Checkpoints(tmp_path / str(row)):
            StochasticGradientHMC(burn_in=2).run(guide, x, y + torch.eye(30)[row], num_samples=1, batch_size=8)


@pytest.mark.parametrize("save", [1000.0, 0.0])
def test_another_seed_is_refused_where_the_first_loss_is_the_same(save, tmp_path):
    """Two programs with the loss of the prior alone at the start, which no place of the inducing points changes."""

    def train(seed, step):
        x, y = data()
        torch.manual_seed(seed)
        guide = Variational(DeepGP(x, layers=1), InducingPoints(6), MonteCarlo(1))
        guide.initialize(x, y)
        return fit(ELBO(30)(guide.model, guide), x, y, steps=3, callback=killer(step))

    with Checkpoints(tmp_path, seconds=save):
        if save:
            train(0, None)
        else:
            with pytest.raises(Killed):
                train(0, 3)
    with pytest.raises(ValueError, match="began with other random numbers: set the seed"), Checkpoints(tmp_path):
        train(1, None)
    with Checkpoints(tmp_path):
        assert len(train(0, None).losses) == 3


def test_a_checkpoint_of_numbers_that_are_none_is_not_written(tmp_path):
    guide, x, y = start()

    def spoil(step, loss):
        if step == 4:
            with torch.no_grad():
                next(guide.parameters()).fill_(torch.nan)

    with pytest.raises(Exception, match=r"NaN|nan"), Checkpoints(tmp_path, seconds=0.0):
        fit(ELBO(30)(guide.model, guide), x, y, steps=13, batch_size=8, callback=spoil)
    saved = read_state(next(tmp_path.iterdir()))
    assert len(saved["state"]["losses"]) == 4
    assert all(torch.isfinite(value).all() for value in values(saved["state"]["parameters"]).values())


def test_a_file_that_cannot_be_written_does_not_end_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    expected = by_fit(None, tmp_path)[1]
    monkeypatch.setattr("pyro_dgp.training.checkpoints.write_state", full)
    with (
        pytest.warns(UserWarning, match="No space left on device.*training goes on"),
        Checkpoints(tmp_path, seconds=0.0),
    ):
        assert by_fit(None, tmp_path)[1] == expected


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\xff" * 100, json.dumps({"version": 1}).encode()])
def test_a_file_that_is_no_checkpoint_is_refused(content, tmp_path):
    (tmp_path / "run-1.safetensors").write_bytes(content)
    with (
        pytest.raises(ValueError, match=r"run-1.safetensors' cannot be read .* delete this one"),
        Checkpoints(tmp_path),
    ):
        by_fit(None, tmp_path)


def test_a_file_of_a_later_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pyro_dgp.internal.checkpoint.VERSION", 2)
    write_state(tmp_path / "state", {"steps": 1})
    monkeypatch.undo()
    with pytest.raises(StateError, match="version 2, and this program reads up to 1"):
        read_state(tmp_path / "state")


def test_states_are_read_as_they_were_written(tmp_path):
    state = {
        "a": [1, 2.5, None, True, "word", float("inf")],
        "b": {"c": torch.arange(6).view(2, 3).mT, "d": torch.randn(4, dtype=torch.float64)[::2]},
        "e": torch.zeros(0, dtype=torch.uint8),
    }
    write_state(tmp_path / "state", state)
    read = read_state(tmp_path / "state")
    assert read["a"] == state["a"]
    for found, wanted in [
        (read["b"]["c"], state["b"]["c"]),
        (read["b"]["d"], state["b"]["d"]),
        (read["e"], state["e"]),
    ]:
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    with pytest.raises(TypeError, match="not set"):
        write_state(tmp_path / "state", {"a": {1}})
    with pytest.raises(TypeError, match="keys of a state are words"):
        write_state(tmp_path / "state", {"a": {1: 2}})


def test_tensors_keep_their_layout_in_memory(tmp_path):
    """Since rounding in linear algebra hangs on it; and a layout that overlaps or has gaps is refused."""
    base = torch.randn(3, 4, dtype=torch.float64)
    state = {
        "a": base.mT,
        "b": torch.empty_strided((8, 1), (1, 8)).copy_(base.view(-1)[:8, None]),
        "c": base,
        "d": base.mT[:0],
    }
    write_state(tmp_path / "state", state)
    read = read_state(tmp_path / "state")
    for name, wanted in state.items():
        assert torch.equal(read[name], wanted)
        assert read[name].numel() == 0 or read[name].stride() == wanted.stride()
        assert read[name].data_ptr() % 64 == 0
    whole = (tmp_path / "state").read_bytes()
    for strides in (b"9, 3", b"0, 3", b"1, 1", b"-1, 3"[:4], b'"ab"', b"1.50"):
        spoiled = whole.replace(b"[1, 4]", b"[" + strides + b"]")
        assert spoiled != whole
        (tmp_path / "state").write_bytes(spoiled)
        with pytest.raises(StateError):
            read_state(tmp_path / "state")


def test_batches_of_a_stream_begin_at_any_of_them(tmp_path):
    x, y = data(23)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    for block, size in [(3, 4), (2, 7), (30, 5), (5, 30), (1, 3)]:
        stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", block_rows=block, dtype=x.dtype)
        whole = list(itertools.islice(stream.batches(size, seed=1), 25))
        for first in range(20):
            part = itertools.islice(stream.batches(size, seed=1, start=first), 5)
            for found, wanted in zip(part, whole[first : first + 5], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), (block, size, first)
