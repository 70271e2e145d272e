"""Two threads that train or predict at once would corrupt each other: the second one is refused, in one sentence."""

import os
import threading
import warnings

import pyro
import pytest
import torch

from pyro_dgp import ELBO, DeepGP, InducingPoints, MarginalLikelihood, MonteCarlo, Variational, fit, predict, run_chains
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.mcmc.nuts import WhitenedNUTS


def data():
    x = torch.linspace(-1, 1, 12)[:, None]
    return x, torch.sin(3 * x[:, 0])


def guide_of(layers=1):
    torch.manual_seed(0)
    x, y = data()
    guide = Variational(DeepGP(x, layers=layers, width=1), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    return guide


def in_another_thread(do):
    """What a call in another thread raises; ``None`` where it raises nothing."""
    found = []

    def run():
        try:
            do()
            found.append(None)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_all_that_runs_a_model_is_refused_while_another_thread_trains():
    x, y = data()
    guide, other, model = guide_of(), guide_of(2), DeepGP(x, layers=1)
    prediction, objective = predict(other, x), ELBO(12)(other.model, other)
    svi = pyro.infer.SVI(other.model, other, pyro.optim.Adam({"lr": 0.01}), ELBO(12))
    calls = {
        "fit": lambda: fit(objective, x, y, steps=1),
        "marginal likelihood": lambda: fit(MarginalLikelihood(model), x, y, steps=1),
        "loss": lambda: objective(x, y),
        "svi": lambda: svi.step(x, y),
        "predict": lambda: prediction.mean,
        "initialize": lambda: other.initialize(x, y),
        "draw of the guide": lambda: other(x, y),
        "chains": lambda: run_chains(
            WhitenedNUTS(model), (x, y), num_samples=1, warmup_steps=1, num_chains=1, processes=1
        ),
    }
    errors = {}

    def train_the_others(step, loss):
        errors.update({name: in_another_thread(do) for name, do in calls.items()})

    result = fit(ELBO(12)(guide.model, guide), x, y, steps=2, callback=train_the_others)
    assert len(result.losses) == 2
    for name, error in errors.items():
        assert isinstance(error, ValueError) and "let one thread do so at a time" in str(error), (name, error)
    assert not pyro.settings.get("module_local_params") and not pyro.poutine.runtime._PYRO_STACK


def test_one_after_another_they_train_as_alone():
    x, y = data()
    alone = [fit(ELBO(12)(g.model, g), x, y, steps=3).losses for g in (guide_of(), guide_of(2))]
    lock, found = threading.Lock(), {}

    def train(layers):
        with lock:
            guide = guide_of(layers)
            found[layers] = fit(ELBO(12)(guide.model, guide), x, y, steps=3).losses

    threads = [threading.Thread(target=train, args=(layers,)) for layers in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1] == alone[0]
    assert len(found[2]) == 3


def test_an_error_lets_go():
    with pytest.raises(KeyError), one_thread:
        raise KeyError

    def enter():
        with one_thread:
            pass

    assert in_another_thread(enter) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
@pytest.mark.parametrize("by_the_one_inside", [False, True])
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not(by_the_one_inside):
    def fork():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
        if child == 0:
            try:
                with one_thread:
                    pass
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with one_thread:
        if by_the_one_inside:
            assert fork() == 0
        else:
            codes = []
            thread = threading.Thread(target=lambda: codes.append(fork()))
            thread.start()
            thread.join()
            assert codes == [0]
    with one_thread:
        pass
