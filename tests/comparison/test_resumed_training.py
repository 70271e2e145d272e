"""A comparison that is cut off within a method goes on within it."""

from functools import partial

import numpy as np
import pytest

from pyro_dgp import Checkpoints, Settings, compare
from pyro_dgp.comparison import one_method
from pyro_dgp.comparison.results import ComparisonResult

METHODS = ["svgp", "dsvi", "dspp", "sghmc", "exact-gp"]
X = np.random.RandomState(0).randn(40, 2)
DATA = X, np.sin(2 * X[:, 0])
SETTINGS = Settings(epochs=6, inducing=5, width=2, samples=2, mcmc_samples=8)


class Killed(BaseException):
    """What ends a program at a moment of the test's choice."""


def run(method, output, stop=None, *, resume=False):
    calls = []

    def progress(name):
        def after(*_):
            calls.append(name)
            if len(calls) == stop:
                raise Killed

        return after

    result = compare(None, *DATA, methods=[method], settings=SETTINGS, output=output, resume=resume, progress=progress)
    return result.rows[0], len(calls)


@pytest.mark.usefixtures("near_draws")
@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_cut_off_goes_on_to_the_same_scores(method, tmp_path, monkeypatch):
    monkeypatch.setattr(one_method, "Checkpoints", partial(Checkpoints, seconds=0.0))
    monkeypatch.setattr(ComparisonResult, "draw", lambda *_: None)  # seven runs: other tests look at the figure
    whole, calls = run(method, tmp_path / "whole")
    for number, moment in enumerate((1, calls // 2, calls)):
        folder = tmp_path / str(number)
        with pytest.raises(Killed):
            run(method, folder, moment)
        row, made = run(method, folder, resume=True)
        assert [row[name] for name in ("nll", "rmse", "crps", "steps")] == [
            whole[name] for name in ("nll", "rmse", "crps", "steps")
        ]
        assert made == calls - moment + 1
        assert (folder / f".{method}").exists() == (method == "sghmc")  # to whose chain draws can be added
