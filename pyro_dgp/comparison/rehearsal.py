"""What a method cannot fit, said before anything runs: every method is tried for a step on a few rows."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from pyro_dgp.comparison.parts import Part
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.progress import silent
from pyro_dgp.prediction.scores import scores
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings

#: Rows of a rehearsal.
ROWS = 20


def _remedy(error: Exception) -> str:
    """Return the remedy for an argument that a comparison does not pass; nothing for another error."""
    is_missing = isinstance(error, TypeError) and "required positional argument" in str(error)
    return (
        ": a comparison passes nothing else, so give further arguments defaults, or train by fit(objective, x, y, ...)"
        if is_missing
        else ""
    )


def own_anatomy(model: nn.Module, name: str, part: Part) -> Anatomy:
    """The anatomy of a user's model.

    :raises ValueError: one sentence if it cannot be called with inputs and targets, or observes no y.
    """
    try:
        anatomy = anatomy_of(model, part.x_train, part.y_train)
    except Exception as error:
        shapes = f"inputs {tuple(part.x_train.shape)} and targets {tuple(part.y_train.shape)}"
        raise ValueError(
            f"{name} raised {first_line(error)} when it was called as model(x, y) with {shapes}{_remedy(error)}"
        ) from error
    if not anatomy.functions:
        raise ValueError(
            f"{name} has no Gaussian process: write pyro.sample('y', likelihood(gp(x)), obs=y) in its forward"
        )
    if anatomy.response is None and anatomy.exact:
        raise ValueError(
            f"{name} observes y as values of the Gaussian process {anatomy.exact[-1]!r} without noise: put a likelihood between them, "
            "pyro.sample('y', likelihood(gp(x)), obs=y)"
        )
    if anatomy.response is None:
        raise ValueError(f"{name} observes no y: write pyro.sample('y', ..., obs=y) in its forward")
    return anatomy


def as_the_model_has_it(settings: Settings, anatomy: Anatomy) -> Settings:
    """The settings with the number of layers and the width that a user's model has."""
    return replace(settings, layers=anatomy.layers, width=anatomy.width)


def refusals(
    methods: Sequence[Method], model: nn.Module, anatomy: Anatomy, part: Part, *, settings: Settings
) -> dict[str, list[str]]:
    """One sentence for each reason why methods cannot fit a user's model, with their names; empty if all can."""
    reasons: dict[str, list[str]] = {}
    few = _few_rows(part.x_train)
    x, y = part.x_train[few], part.y_train[few]
    for method in methods:
        try:
            method.inference.check(settings)
            method.inference.check_model(anatomy)
            _rehearse(method, copy.deepcopy(model), x, y, settings)
        except NotPositiveDefiniteError:
            continue  # a few rows at the first step say nothing about the whole run
        except Exception as error:
            reasons.setdefault(_sentence(error), []).append(method.name)
    return {f"{', '.join(names)} cannot fit this model: {reason}": names for reason, names in reasons.items()}


def _few_rows(x: Tensor) -> Tensor:
    """Numbers of some rows, equally spaced."""
    return torch.linspace(0, len(x) - 1, min(ROWS, len(x))).long()


def _rehearse(method: Method, model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> None:
    """A whole run in miniature: fit, predict, score."""
    small = replace(
        settings,
        inducing=min(settings.inducing, 5),
        row_inducing=min(settings.row_inducing, 2),
        orthogonal=min(settings.orthogonal_points, 5),
        frequencies=min(settings.frequencies, 2),
        neighbors=min(settings.neighbors, 5),
        epochs=1,
        steps=None,
        batch_size=len(x),
        mcmc_samples=2,
        warmup=0,
        chains=1,
    )
    with _aside():
        torch.manual_seed(settings.seed)
        fitted = method.inference.run(model, x, y, settings=small, progress=silent)
        scores(fitted.predict(x[:2]), y[:2])


@contextmanager
def _aside() -> Iterator[None]:
    """A scope that leaves the random numbers as they were and says nothing."""
    logger = logging.getLogger("pyro_dgp")
    before = logger.disabled
    logger.disabled = True
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _sentence(error: Exception) -> str:
    """An exception in one line, with its kind unless it is a sentence of this library.

    Pyro wraps an error of a density into one that names the site alone.
    """
    if str(error).startswith("Error while computing log_prob") and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, ValueError | NotImplementedError) and str(error).strip():
        return str(error).strip().splitlines()[0]
    return first_line(error)
