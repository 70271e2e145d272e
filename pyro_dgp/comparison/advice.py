"""Advice: the method that fits to a part of a data set speak for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.method_fit import as_array
from pyro_dgp.comparison.pilots import distinct_inputs, pilot_data
from pyro_dgp.comparison.plan import on_few_values, on_two_values
from pyro_dgp.comparison.request import Say, for_task
from pyro_dgp.comparison.standings import Standing, Trial
from pyro_dgp.comparison.tables import Column, table
from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.zoo.settings import Settings

#: Methods of one layer by the ELBO and by a predictive loss, and that of two layers by a predictive loss, which is not tried but derived.
ELBO, PREDICTIVE, DEEP_PREDICTIVE = "svgp", "ppgpr", "dspp"
#: Methods without layers and inducing points, for few rows and for many.
ALL_POINTS = ("exact-gp", "vecchia-gp")
#: Methods of two layers by losses that are close to the ELBO: for one target of real numbers, where rows are few besides, and for other tasks.
DEEP, DEEP_OF_FEW, DEEP_OF_OTHERS = "gamma-dgp", "aep", "dsvi"
#: Training rows up to which the exact GP is tried, in the place of Vecchia's approximation; and ``aep``, which takes twice the time of ``gamma-dgp``
#: and is level with it where rows are many.
FEW_ROWS, FEWER_ROWS = 1000, 500
#: Lead in NLL, nats a row, of two layers over one by the ELBO, from which on a predictive loss of one layer is not tried, for one target of real numbers: it was
#: behind two layers there on nearly all measured splits, see the table of advice in benchmarks/results.
FAR_AHEAD = 0.5
#: Lag in NLL, nats a row, that is worth a shorter time, and standard errors within which two methods are not told apart.
WORTH, ERRORS = 0.02, 2.0
#: Ratio of two times within which they are level, and seconds below which all are.
LEVEL, SHORT = 1.5, 2.0
#: Share of the variance above which it is said that every method leaves that much.
MUCH_LEFT = 0.9
#: What is said of a predictive loss that is not tried, and of depth and sizes, by the table of advice in benchmarks/results.
NOT_TRIED = f"{PREDICTIVE} was not tried: two layers are ahead of {ELBO} by more than {FAR_AHEAD} nats a row, where it has hardly ever been ahead of them"
OF_SIZES = (
    "layers, width and inducing points are as given, and larger ones were not tried: on four other data sets they gained 0.03 nats a row at most, in two to "
    "three times the time"
)

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
    :ivar rows: a row for each method, lowest NLL first: ``name``, ``expected`` (NLL of a full fit, nats a row), ``behind`` (nats behind the first)
        and its standard ``error`` where both were fitted, ``left`` (share of the variance of the targets that is left, of methods that were tried) and ``seconds`` of
        a full fit.
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
    dataset: Dataset,
    *,
    settings: Settings = Settings(),
    jobs: int = 1,
    threads: int = 1,
    dtype: str = "float64",
    say: Say | None = None,
) -> Advice:
    """Choose a method by fits to a part of the training rows. Layers, width and inducing points stay as given, as stored measurements suggest.

    1. A part of the training rows of ``settings.split`` is held out: 200 rows, or a ninth where that is more, 1,000 at most; of fewer than 1,000 training
       rows a fifth. Where that is fewer than 50 rows, two or three parts are held out in turn. The test rows of that split are not looked at.
    2. Each of these is fitted to the others with all steps: ``svgp``; ``exact-gp``, or ``vecchia-gp`` with more than 1,000 training rows; ``gamma-dgp``; and ``aep`` with up
       to 500. Classes, counts and several targets have ``svgp`` and ``dsvi``. ``ppgpr``, one layer by a predictive loss with a beta of
       0.05, is fitted too, unless the target is one of real numbers and two layers are ahead of ``svgp`` by 0.5 nats a row.
       Where ``ppgpr`` is not ahead of ``svgp`` by two standard errors, or is behind it in CRPS by one, its full fit is expected to fall back on the ELBO,
       and has that NLL. Where the target takes few values, on each of which a density can put a spike, it is ahead by its CRPS or not at all.
    3. ``dspp`` takes the time of all of them together and is not tried. Where ``ppgpr`` is ahead of ``svgp``, ``dspp`` is expected to be ahead of two layers by the ELBO by as
       much.
    4. Of those that are behind the lowest NLL by no more than a standard error, and by no more than 0.02 nats a row, the quickest is taken. Times within a factor
       of 1.5, or below 2 s, are level, and the lower NLL decides.

    :param dataset: data set, such as :func:`~pyro_dgp.load` reads, or ``Dataset(name, x, y)`` of arrays or tensors. ``task=Task("binary", 2)`` makes
        its target one of classes.
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
    dataset = _checked(dataset, settings)
    data = pilot_data(dataset, settings.split, seed=settings.seed)
    workers = Workers(jobs, threads=threads)
    least = replace(settings, inducing=min(settings.inducing, distinct_inputs(data)))
    trial = Trial(data, least, workers=workers, dtype=dtype, say=_nothing if say is None else say)
    standings = _methods(trial)
    if not standings:
        name, error = next(iter(trial.failures.items()))
        raise ValueError(f"no method could be fitted to {dataset.name!r}; {name} ended with: {error}")
    taken = _quickest(standings)
    remarks = [*on_two_values(dataset), *on_few_values(dataset)] if dataset.task.is_standardized else []
    return Advice(
        taken.method,
        for_task(settings, dataset.task),
        rows=[_row(standing, standings[0]) for standing in standings],
        reasons=[
            *_reasons(standings, taken),
            *([] if PREDICTIVE in {*trial.failures, *(each.method for each in standings)} else [NOT_TRIED]),
            *_on_sizes(taken),
            *_on_steps(standings, settings),
            *remarks,
            *(f"{name} failed: {error}" for name, error in trial.failures.items()),
        ],
        seconds=time.perf_counter() - start,
        options=f"--methods {taken.method}",
    )


def _checked(dataset: object, settings: Settings) -> Dataset:
    """Return the data set in arrays; raise where there is none, or where settings ask for what advice does not give."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"advise takes a data set, such as load('prices.csv') or Dataset('prices', x, y), not {type(dataset).__name__}"
        )
    if settings.minutes is not None:
        raise ValueError("the fits of advise have all steps: leave minutes out, and give epochs if need be")
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
    deep = [DEEP_OF_OTHERS] if not is_real else [DEEP_OF_FEW, DEEP] if rows <= FEWER_ROWS else [DEEP]
    all_points = [ALL_POINTS[rows > FEW_ROWS]] if is_real else []
    found = trial.standings([*all_points, ELBO, *deep])
    if not (is_real and _are_far_ahead(found)):
        found |= trial.standings([PREDICTIVE])
    derived = _deep_predictive(trial, found, [found[name] for name in deep if name in found])
    if PREDICTIVE in found and ELBO in found and not _is_ahead(found[PREDICTIVE], found[ELBO]):
        found[PREDICTIVE] = replace(found[ELBO], method=PREDICTIVE, seconds=found[PREDICTIVE].seconds)
    return sorted([*found.values(), *derived], key=lambda standing: standing.expected)


def _deep_predictive(trial: Trial, found: Mapping[str, Standing], deep: Sequence[Standing]) -> list[Standing]:
    """Return the standing of two layers by the predictive loss, where one layer by it is ahead of one by the ELBO."""
    one, like = found.get(PREDICTIVE), found.get(ELBO)
    if one is None or like is None or not deep or not _is_ahead(one, like):
        return []
    best = min(deep, key=lambda standing: standing.expected)
    nll = best.nll + (one.nll - like.nll).mean()
    seconds = best.seconds / trial.work(best.method) * trial.work(DEEP_PREDICTIVE)
    return [Standing(DEEP_PREDICTIVE, nll, crps=None, left=None, seconds=seconds, is_estimate=True)]


def _are_far_ahead(found: Mapping[str, Standing]) -> bool:
    """Whether two layers are so far ahead of one that a predictive loss of one is not tried."""
    tried = [found[name].expected for name in (DEEP, DEEP_OF_FEW, DEEP_OF_OTHERS) if name in found]
    return bool(tried) and ELBO in found and min(tried) < found[ELBO].expected - FAR_AHEAD


def _is_ahead(predictive: Standing, other: Standing) -> bool:
    return predictive.scores.is_clearly_better_than(other.scores, ERRORS)


def _quickest(standings: Sequence[Standing]) -> Standing:
    """Return the quickest of those that are as good as the first; of several whose times are level, the first of them."""
    best = standings[0]
    close = [each for each in standings if each is best or _is_as_good(*each.behind(best))]
    most = max(LEVEL * min(each.seconds for each in close), SHORT)
    return next(each for each in close if each.seconds <= most)


def _is_as_good(behind: float, error: float) -> bool:
    return behind <= min(error, WORTH)


def _row(standing: Standing, best: Standing) -> Row:
    """Return the row of a method in the table."""
    behind, error = standing.behind(best)
    row: Row = {"name": standing.method, "expected": standing.expected, "seconds": standing.seconds}
    if standing is not best:
        is_guess = standing.is_estimate or best.is_estimate  # it moves with the method that it is derived from
        row |= {"behind": behind} | ({} if is_guess else {"error": error})
    return row | ({} if standing.left is None else {"left": standing.left})


def _reasons(standings: Sequence[Standing], taken: Standing) -> list[str]:
    """Return sentences on the method that is taken, and on those that are close."""
    best, rows = standings[0], len(standings[0].nll)
    by_name = {each.method: each for each in standings}
    if taken is best:
        said = [f"{taken.method} is taken: its expected NLL is the lowest"]
    else:
        behind, error = taken.behind(best)
        said = [
            f"{taken.method} is taken: it is {behind:.3f} nats a row (+- {error:.3f}) behind {best.method}, and is fitted in {taken.seconds:.1f} s in the "
            f"place of {best.seconds:.1f}"
        ]
    for each in standings:
        behind, error = each.behind(taken)
        if each.method == PREDICTIVE and ELBO in by_name and torch.equal(each.nll, by_name[ELBO].nll):
            said.append(
                f"{PREDICTIVE} is not clearly ahead of {ELBO}: a full fit of it would be trained by the ELBO too, and has that NLL above"
            )
        elif each is not taken and not each.is_estimate and abs(behind) <= ERRORS * error:
            said.append(f"{rows} held-out rows cannot tell {each.method} from it")
    if DEEP_PREDICTIVE in by_name:
        said.append(
            f"{DEEP_PREDICTIVE} was not fitted: its expected NLL is an estimate, that of the best deep method tried, and what {PREDICTIVE} is ahead of {ELBO}"
        )
    if taken.is_estimate:
        fitted = next(each for each in standings if not each.is_estimate)
        said.append(
            f"{fitted.method} is the best that was fitted: where the difference matters, compare both, --methods {taken.method},{fitted.method}"
        )
    left = [each.left for each in standings if each.left is not None]
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
    return [] if taken.method in ALL_POINTS else [OF_SIZES]


def _on_steps(standings: Sequence[Standing], settings: Settings) -> list[str]:
    """Return the sentence on fits that are shorter than usual."""
    if settings.epochs is None:
        return []
    return [
        f"all fits had {_epochs(settings.epochs)} as given, and so has the fit that is advised: these may be too few to tell methods apart, and without "
        "epochs they are as many as each method needs"
    ]


def _epochs(count: int) -> str:
    return "one epoch" if count == 1 else f"{count} epochs"
