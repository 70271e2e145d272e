"""Advice: the method that fits to a part of a data set speak for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.copies import on_copies
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.pilots import distinct_inputs, pilot_data
from pyro_dgp.comparison.request import Say, for_task
from pyro_dgp.comparison.standings import Standing, Trial
from pyro_dgp.comparison.tables import Column, table
from pyro_dgp.comparison.target_remarks import on_real_numbers, on_words
from pyro_dgp.data.arrays import as_array, of_arrays
from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.zoo.settings import Settings

#: Methods of one layer: inducing points, trained on some rows a step and on all; the exact GP, and the exact GP of neighbours. Then two layers by a predictive loss.
ELBO, BEST_Q, ALL_ROWS, NEIGHBOURS, PREDICTIVE = "svgp", "sgpr", "exact-gp", "vecchia-gp", "dspp"
#: Methods of two layers by the ELBO, or losses that are close to it: for one target of real numbers, with many rows, and for other tasks.
DEEP, DEEP_OF_MANY, DEEP_OF_OTHERS = "dsvi-collapsed", "gamma-dgp", "dsvi"
#: Training rows up to which these are tried: the exact GP, in the place of neighbours; two layers whose steps have all rows; and one such layer.
FEW_ROWS, MANY_ROWS, VERY_MANY_ROWS = 2000, 5000, 20_000
#: Lag in NLL, nats a row, that is worth a shorter time, and standard errors within which two methods are not told apart.
WORTH, ERRORS = 0.02, 2.0
#: Ratio of two times within which they are level, and seconds below which all are.
LEVEL, SHORT = 1.5, 2.0
#: Share of the variance above which it is said that every method leaves that much.
MUCH_LEFT = 0.9
#: What is said of depth and sizes.
OF_SIZES = "layers, width and inducing points are as given: others were not tried"

COLUMNS: tuple[Column, ...] = (
    ("name", "method", str),
    ("expected", "expected NLL", "{:.3f}".format),
    ("behind", "behind", "{:.3f}".format),
    ("error", "+-", "{:.3f}".format),
    ("left", "variance left", "{:.1%}".format),
    ("seconds", "full fit s", lambda seconds: f"{seconds:.0f}" if seconds >= 1 else "<1"),
)


@dataclass(frozen=True)
class Advice:
    """A method for a data set, and why.

    :ivar method: name in the table of methods.
    :ivar settings: settings for it, as :func:`~pyro_dgp.compare` takes them.
    :ivar rows: a row for each method, lowest NLL first, and last one that may fall back on the ELBO: ``name``, ``expected`` (NLL of a full fit, nats a row), ``behind`` (nats behind the first)
        and its standard ``error``, ``left`` (share of the variance of the targets that is left; nothing for several classes) and ``seconds`` of a full fit.
    :ivar reasons: sentences.
    :ivar seconds: time that the advice took.
    :ivar options: options of ``pyro-dgp compare``: the method.
    """

    method: str
    settings: Settings
    _: KW_ONLY
    rows: Sequence[Row]
    reasons: Sequence[str]
    seconds: float
    options: str

    def __str__(self) -> str:
        return "\n".join([table(self.rows, COLUMNS), "", *self.reasons])


def advise(
    dataset: Any,
    y: Any = None,
    *,
    settings: Settings = Settings(),
    jobs: int = 1,
    threads: int = 1,
    dtype: str = "float64",
    say: Say | None = None,
) -> Advice:
    """Choose a method by fits to a part of the training rows. Layers, width and inducing points stay as given.

    1. A part of the training rows of ``settings.split`` is held out. Of fewer than 1,000 training rows it is a fifth. Of more it is 200 rows or a ninth,
       whichever is more, but never above 1,000. A part of fewer than 50 rows is too small: then two or three are held out in turn. The test rows of that
       split are not looked at.
    2. Each of these is fitted to the others with all steps. One layer: ``sgpr``, or ``svgp`` with more than 20,000 training rows or a given ``batch_size``; and ``exact-gp``, or ``vecchia-gp`` with more than 2,000.
       Two layers: ``dsvi-collapsed``, or ``gamma-dgp`` with more than 5,000 or a given ``batch_size``; and ``dspp``, by a predictive loss, with a beta of 0.05. Classes, counts and several
       targets have ``svgp``, ``dsvi`` and ``dspp``.
    3. Where ``dspp`` is not ahead of the best of the others by two standard errors in NLL, or is behind it in CRPS by one, it is not taken,
       since a full fit of it may fall back on the ELBO, unless ``settings.beta`` is given. Where the target takes few values, on each of which a density can put a spike, it is ahead by its CRPS or not at all.
    4. Of those that are behind the lowest NLL by no more than a standard error, and by no more than 0.02 nats a row, the quickest is taken. Times within a factor
       of 1.5, or below 2 s, are level, and the lower NLL decides.

    :param dataset: data set, such as :func:`~pyro_dgp.load` reads, or ``Dataset(name, x, y)`` of arrays or tensors, whose ``task=Task("binary", 2)`` makes
        its target one of classes. Or inputs ``(N, D)``, as an array, a tensor or a table, with ``y``.
    :param y: targets ``(N,)`` of these inputs: real numbers, unless ``settings.task`` says otherwise.
    :param settings: settings of all fits.
    :param jobs: fits at a time, each in a process of its own.
    :param threads: threads of each.
    :param dtype: of everything, ``float32`` or ``float64``.
    :param say: gets a sentence after each fit.
    :raises ValueError: for data that no method can be trained on, and where every fit fails.

    >>> from pyro_dgp import Settings, advise, load_named
    >>> advice = advise(load_named("diabetes"), settings=Settings(inducing=5, epochs=1))
    >>> advice.method in {row["name"] for row in advice.rows}
    True
    """
    start = time.perf_counter()
    dataset = _checked(dataset, y, settings)
    data = pilot_data(dataset, settings.split, seed=settings.seed)
    workers = Workers(jobs, threads=threads)
    least = replace(settings, inducing=min(settings.inducing, distinct_inputs(data)))
    trial = Trial(data, least, workers=workers, dtype=dtype, say=_nothing if say is None else say)
    standings = _methods(trial)
    if not standings:
        name, error = next(iter(trial.failures.items()))
        raise ValueError(f"no method could be fitted to {dataset.name!r}; {name} ended with: {error}")
    taken = _quickest(standings)
    assert data.splits is not None
    remarks = [*on_words(dataset), *on_real_numbers(dataset), *on_copies(data, data.splits.T)]
    return Advice(
        taken.method,
        for_task(settings, dataset.task),
        rows=[_row(standing, standings[0]) for standing in standings],
        reasons=[
            *_reasons(standings, taken),
            *_on_sizes(taken),
            *_on_steps(standings, settings),
            *remarks,
            *(f"{name} failed: {error}" for name, error in trial.failures.items()),
        ],
        seconds=time.perf_counter() - start,
        options=f"--methods {taken.method}",
    )


def _checked(dataset: object, y: object, settings: Settings) -> Dataset:
    """Return the data set in arrays; raise where there is none, or where settings ask for what advice does not give."""
    if y is not None and not isinstance(dataset, Dataset):
        dataset = of_arrays("data", dataset, y, task=settings.task)
    elif y is not None:
        raise TypeError("a data set has its own targets: leave y out")
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"advise takes inputs and targets, advise(x, y), or a data set, such as load('prices.csv'), not one {type(dataset).__name__}"
        )
    if settings.minutes is not None:
        raise ValueError("the fits of advise have all steps: leave minutes out, and give epochs or steps if need be")
    if settings.preset is not None:
        raise ValueError("advise tries the library's own models: leave the preset out")
    dataset = replace(dataset, x=as_array(dataset.x), y=as_array(dataset.y))
    check(dataset)
    return dataset


def _nothing(sentence: str) -> None:
    """Say nothing."""


def _methods(trial: Trial) -> list[Standing]:
    """Try the methods, and return their standings, best first."""
    is_real = trial.data.task.is_standardized and trial.data.task.outputs == 1
    rows = len(trial.data.x)
    may_have_all = is_real and trial.settings.batch_size is None
    deep = DEEP_OF_OTHERS if not is_real else DEEP if may_have_all and rows <= MANY_ROWS else DEEP_OF_MANY
    one_layer = [BEST_Q if may_have_all and rows <= VERY_MANY_ROWS else ELBO]
    if is_real:
        one_layer.insert(0, ALL_ROWS if rows <= FEW_ROWS else NEIGHBOURS)
    found = trial.standings([*one_layer, deep, PREDICTIVE])
    others = [standing for name, standing in found.items() if name != PREDICTIVE]
    if trial.settings.beta is None and PREDICTIVE in found and others:
        best = min(others, key=lambda standing: standing.expected)
        found[PREDICTIVE] = replace(found[PREDICTIVE], may_fall_back=not _is_ahead(found[PREDICTIVE], best))
    return sorted(found.values(), key=lambda standing: (standing.may_fall_back, standing.expected))


def _is_ahead(predictive: Standing, other: Standing) -> bool:
    return predictive.scores.is_clearly_better_than(other.scores, ERRORS)


def _quickest(standings: Sequence[Standing]) -> Standing:
    """Return the quickest of those that are as good as the first; of several whose times are level, the first of them."""
    best = standings[0]
    candidates = [each for each in standings if not each.may_fall_back]
    close = [each for each in candidates if each is best or _is_as_good(*each.behind(best))]
    most = max(LEVEL * min(each.seconds for each in close), SHORT)
    return next(each for each in close if each.seconds <= most)


def _is_as_good(behind: float, error: float) -> bool:
    return behind <= min(error, WORTH)


def _row(standing: Standing, best: Standing) -> Row:
    """Return the row of a method in the table."""
    row: Row = {"name": standing.method, "expected": standing.expected, "seconds": standing.seconds}
    if standing is not best:
        row["behind"], row["error"] = standing.behind(best)
    return row | ({} if standing.left is None else {"left": standing.left})


def _reasons(standings: Sequence[Standing], taken: Standing) -> list[str]:
    """Return sentences on the method that is taken, and on those that are close."""
    best, rows = standings[0], len(standings[0].nll)
    if taken is best:
        of_others = " of the others" if any(each.expected < best.expected for each in standings) else ""
        said = [f"{taken.method} is taken: its expected NLL is the lowest{of_others}"]
    else:
        behind, error = taken.behind(best)
        said = [
            f"{taken.method} is taken: it is {behind:.3f} nats a row (+- {error:.3f}) behind {best.method}, and is fitted in {taken.seconds:.1f} s in the "
            f"place of {best.seconds:.1f}"
        ]
    for each in standings:
        behind, error = each.behind(taken)
        if each.may_fall_back:
            said.append(
                f"{each.method} is not clearly ahead of {best.method} and is not taken: a full fit of it may fall back on the ELBO, and these numbers are those of its predictive loss"
            )
        elif each is not taken and abs(behind) <= ERRORS * error:
            said.append(f"{rows} held-out rows cannot tell {each.method} from it")
    left = [each.left for each in standings if each.left is not None and not each.may_fall_back]
    if taken.left is not None and taken.left > MUCH_LEFT >= min(left):
        said.append(
            f"{taken.method} leaves {taken.left:.0%} of the variance of the target, and another method {min(left):.0%}: its mean is hardly better than a constant"
        )
    if left and min(left) > MUCH_LEFT:
        said.append(
            f"the methods leave {min(left):.0%} of the variance of the target or more: none is much better than its mean"
        )
    return said


def _on_sizes(taken: Standing) -> list[str]:
    """Return the sentence on depth and sizes."""
    return [] if taken.method in (ALL_ROWS, NEIGHBOURS) else [OF_SIZES]


def _on_steps(standings: Sequence[Standing], settings: Settings) -> list[str]:
    """Return the sentence on fits that are shorter than usual."""
    if not settings.has_length:
        return []
    return [
        f"all fits had {_length(settings)} as given, and so has the fit that is advised: these may be too few to tell methods apart, and without "
        "epochs or steps they are as long as each method needs"
    ]


def _length(settings: Settings) -> str:
    name, count = ("step", settings.steps) if settings.epochs is None else ("epoch", settings.epochs)
    return f"one {name}" if count == 1 else f"{count} {name}s"
