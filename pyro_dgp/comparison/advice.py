"""Advice: the method, the depth and the sizes that fits to parts of a data set speak for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.method_fit import as_array
from pyro_dgp.comparison.pilots import Candidate, distinct_inputs, pilot_data, pilot_name
from pyro_dgp.comparison.plan import on_few_values, on_two_values
from pyro_dgp.comparison.request import Say, for_task
from pyro_dgp.comparison.standings import Standing, Trial
from pyro_dgp.comparison.tables import Column, table
from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

#: Methods that are tried with all steps; and methods that are tried with a quarter of them, each with the one-layer method of the same loss.
IN_FULL, IN_SHORT = ("svgp", "ppgpr"), {"dspp": "ppgpr"}
#: Methods with one model and losses that are alike. All are tried with a quarter of the steps, and the best of them with all.
RACED = ("dsvi", "gamma-dgp", "aep")
#: Methods of real numbers alone, one output.
OF_REAL = ("gamma-dgp", "aep")
#: Methods that are tried where there are few rows, as the exact GP is. With more, ``aep`` takes twice the time of ``gamma-dgp`` and is close to it.
OF_FEW = ("aep",)
#: Methods without layers and inducing points.
ALL_POINTS = ("exact-gp", "vecchia-gp")
#: Predictive methods, and the ELBO of the same model that a full fit falls back on.
FALLBACKS = {"ppgpr": "svgp", "dspp": "dsvi"}
#: Training rows up to which the exact GP is a candidate; with more, Vecchia's approximation is one in its place.
MOST_EXACT_ROWS = 1000
#: Lag in NLL, nats a row, that is worth a shorter time, and standard errors within which two candidates are not told apart.
WORTH, ERRORS = 0.02, 2.0
#: Gain in NLL after a quarter of the steps, nats a row, below which a larger model is not worth its time. Three that were ahead by 0.04 to 0.08 then
#: were ahead by 0.007 with all steps.
WORTH_OF_SIZE = 0.1
#: Training rows for each inducing point, below which sizes are not told apart.
ROWS_OF_POINT = 4
#: Share of the variance above which it is said that every candidate leaves that much.
MUCH_LEFT = 0.9

COLUMNS: tuple[Column, ...] = (
    ("name", "candidate", str),
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
    :ivar rows: a row for each candidate, lowest NLL first: ``name``, ``expected`` (NLL of a full fit, nats a row), ``behind`` (nats behind the first)
        and its standard ``error``, ``left`` (share of the variance of the targets that is left, of methods that had all steps) and ``seconds`` of
        a full fit.
    :ivar reasons: sentences.
    :ivar seconds: time that the advice took.
    :ivar options: options of ``pyro-dgp compare``: the method, and what was changed in the settings.
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
    """Choose a method, and the numbers of layers, inducing points and hidden outputs, by fits to parts of the training rows.

    1. A part of the training rows of ``settings.split`` is held out: 200 rows, but a ninth at least, a fifth and 1,000 at most. Where that is fewer than
       50 rows, up to three parts are held out in turn. The test rows of that split are not looked at.
    2. ``svgp``, ``ppgpr`` and ``exact-gp``, or ``vecchia-gp`` with more than 1,000 training rows, are fitted with all steps. ``dspp`` has
       a quarter of them: what the other three quarters bring ``ppgpr``, one layer with the same loss, is taken for what they will bring ``dspp``, row by
       row. A predictive loss is fitted with two values of beta, 0.05 and 1, of which the better is kept; where it is not ahead of the ELBO by three
       standard errors, or behind it in CRPS by one, its full fit is expected to fall back on the ELBO, and has that NLL.
       ``dsvi``, ``gamma-dgp`` and, with up to 1,000 training rows, ``aep`` have a quarter of the steps too. The best of them is
       fitted with all, and the others are expected to gain what it gains.
    3. Of those that are behind the lowest NLL by no more than a standard error, and 0.02 nats a row, the quickest is taken.
    4. Where there are more than four training rows for each inducing point, it is tried with one layer more, with twice the inducing points and with
       twice the hidden outputs, each for a quarter of the steps, with the beta that it chose. The best of these is taken if it is ahead by two standard
       errors and 0.1 nats a row.

    :param dataset: data set, such as :func:`~pyro_dgp.load` reads, or ``Dataset(name, x, y)`` of arrays or tensors. ``task=Task("binary", 2)`` makes
        its target one of classes.
    :param settings: settings of all fits, in which the chosen numbers are changed.
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
    best, sizes = _with_sizes(trial, taken, settings)
    remarks = [*on_two_values(dataset), *on_few_values(dataset)] if dataset.task.is_standardized else []
    rows = [_row(standing, standings[0]) for standing in standings]
    return Advice(
        best.method,
        best.full(for_task(settings, dataset.task)),
        rows=rows,
        reasons=[
            *_reasons(standings, taken),
            *sizes,
            *_on_steps(standings, settings),
            *remarks,
            *_failures(trial, standings),
        ],
        seconds=time.perf_counter() - start,
        options=" ".join([f"--methods {best.method}", *(f"--{name} {value}" for name, value in best.changes.items())]),
    )


def _checked(dataset: object, settings: Settings) -> Dataset:
    """Return the data set in arrays; raise where there is none, or where settings ask for what advice does not give."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"advise takes a data set, such as load('prices.csv') or Dataset('prices', x, y), not {type(dataset).__name__}"
        )
    if settings.minutes is not None:
        raise ValueError("the fits of advise have shares of the steps: leave minutes out, and give epochs if need be")
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
    is_small = len(trial.data.x) <= MOST_EXACT_ROWS
    full = [Candidate(name) for name in ([ALL_POINTS[not is_small], *IN_FULL] if is_real else IN_FULL)]
    raced = [Candidate(name) for name in RACED if (is_real or name not in OF_REAL) and (is_small or name not in OF_FEW)]
    short = {Candidate(name): Candidate(like) for name, like in IN_SHORT.items()}
    trial.make(full, is_short=False)
    trial.make([*short.values(), *short, *raced], is_short=True)
    found = [
        *(trial.full(each) for each in full),
        *_of_race(trial, raced),
        *(trial.short(each, like) for each, like in short.items()),
    ]
    by_name = {each.candidate.method: each for each in found if each is not None}
    fallen = [_or_fallback(each, by_name.get(FALLBACKS.get(name, ""))) for name, each in by_name.items()]
    return sorted(fallen, key=lambda standing: standing.expected)


def _of_race(trial: Trial, raced: Sequence[Candidate]) -> list[Standing | None]:
    """Fit the best of the candidates after a quarter of the steps with all steps, the next one where that fails, and return the standings of all."""
    tried = {each: found for each in raced if (found := trial.tried(each)) is not None}
    for best in sorted(tried, key=lambda each: float(tried[each].nll.mean())):
        trial.make([best], is_short=False)
        if (standing := trial.full(best)) is not None:
            return [standing, *(trial.short(each, best) for each in tried if each is not best)]
    return []


def _or_fallback(standing: Standing, fallback: Standing | None) -> Standing:
    """Return the standing with the scores of its fallback, where a full fit would take that: where it is not clearly ahead of it."""
    if fallback is None or standing.scores.is_clearly_better_than(fallback.scores):
        return standing
    return replace(standing, nll=fallback.nll, crps=fallback.crps)


def _quickest(standings: Sequence[Standing]) -> Standing:
    """Return the quickest of those that are as good as the first."""
    best = standings[0]
    close = [each for each in standings if each is best or _is_as_good(*each.behind(best))]
    return min(close, key=lambda each: each.seconds)


def _is_as_good(behind: float, error: float) -> bool:
    return behind <= min(error, WORTH)


def _with_sizes(trial: Trial, best: Standing, settings: Settings) -> tuple[Candidate, list[str]]:
    """Try the best candidate in larger forms, and return the one to take, and a sentence on each form."""
    base = best.candidate
    forms = _larger(base, trial.data, settings)
    if not forms:
        why = (
            "it has neither layers nor inducing points"
            if base.method in ALL_POINTS
            else "the data are too few to tell sizes apart"
        )
        return base, [f"no larger form of {base.name} was tried: {why}"]
    like = best.like
    trial.make([base, like], is_short=True)
    made = trial.tried(base)
    trial.make(forms, is_short=True, beta=None if made is None else made.beta)
    short = trial.short(base, like)
    found = [standing for form in forms if (standing := trial.short(form, like)) is not None]
    if short is None or not found:
        return base, []
    kept = [each for each in found if _is_worth(*each.behind(short))]
    chosen = min(kept, key=lambda each: each.expected, default=short)
    return chosen.candidate, [_on_size(each, each.behind(short), chosen=chosen, is_kept=each in kept) for each in found]


def _is_worth(behind: float, error: float) -> bool:
    return behind < -max(WORTH_OF_SIZE, ERRORS * error)


def _larger(base: Candidate, data: Dataset, settings: Settings) -> list[Candidate]:
    """Return the larger forms of a candidate that may serve the data: none for the exact GP and Vecchia's, and none where rows are few."""
    if base.method in ALL_POINTS or distinct_inputs(data) <= ROWS_OF_POINT * settings.inducing:
        return []
    is_deep = METHODS[base.method].architecture.is_deep
    changes = [{"layers": settings.layers + 1}] if is_deep else []
    changes += [{"width": 2 * settings.width}] if is_deep and data.x.shape[1] > settings.width else []
    return [Candidate(base.method, changes=change) for change in (*changes, {"inducing": 2 * settings.inducing})]


def _on_size(standing: Standing, behind: tuple[float, float], *, chosen: Standing, is_kept: bool) -> str:
    """Return a sentence on a larger form.

    :param chosen: the form that is taken, or the candidate as it is.
    :param is_kept: whether it is far enough ahead to be taken, were there no better one.
    """
    outcome = "it is taken" if standing is chosen else "it is not taken"
    if is_kept and standing is not chosen:
        outcome += f", since {_form(chosen)} is further ahead"
    return f"{_form(standing)}: {_by_how_much(*behind)}, {outcome}"


def _form(standing: Standing) -> str:
    ((name, value),) = standing.candidate.changes.items()
    return f"{name} {value}"


def _by_how_much(behind: float, error: float) -> str:
    """Return a difference in words."""
    return f"{'ahead' if behind < 0 else 'behind'} by {abs(behind):.3f} nats a row (+- {error:.3f})"


def _row(standing: Standing, best: Standing) -> Row:
    """Return the row of a candidate in the table."""
    behind, error = standing.behind(best)
    row: Row = {"name": standing.candidate.name, "expected": standing.expected, "seconds": standing.seconds}
    row |= {} if standing is best else {"behind": behind, "error": error}
    return row | ({} if standing.left is None else {"left": standing.left})


def _reasons(standings: Sequence[Standing], taken: Standing) -> list[str]:
    """Return sentences on the candidate that is taken, and on those that are close."""
    best, rows = standings[0], len(standings[0].nll)
    name = taken.candidate.name
    if taken is best:
        said = [f"{name} is taken: its expected NLL is the lowest"]
    else:
        behind, error = taken.behind(best)
        said = [
            f"{name} is taken: it is {behind:.3f} nats a row (+- {error:.3f}) behind {best.candidate.name}, and is fitted in {taken.seconds:.0f} s in the "
            f"place of {best.seconds:.0f}"
        ]
    by_name = {each.candidate.method: each for each in standings}
    for each in standings:
        fallback = by_name.get(FALLBACKS.get(each.candidate.method, ""))
        behind, error = each.behind(taken)
        if fallback is not None and torch.equal(each.nll, fallback.nll):
            said.append(
                f"{each.candidate.name} is not clearly ahead of {fallback.candidate.name}, and would fall back on it"
            )
        elif each is not taken and abs(behind) <= ERRORS * error:
            said.append(f"{rows} held-out rows cannot tell {each.candidate.name} from it")
    left = [each.left for each in standings if each.left is not None]
    if left and min(left) > MUCH_LEFT:
        said.append(
            f"the methods leave {min(left):.0%} of the variance of the target or more: none is much better than its mean"
        )
    return said


def _on_steps(standings: Sequence[Standing], settings: Settings) -> list[str]:
    """Return sentences on scores that are estimates, and on fits that are shorter than usual."""
    short = [each.candidate.name for each in standings if each.is_estimate]
    said = [f"the expected NLL of {name} is an estimate, from a quarter of the steps" for name in short]
    if settings.epochs is not None:
        said.append(
            f"all fits had {settings.epochs} epochs as given, which may be fewer than they need: without --epochs they have as many as a full fit"
        )
    return said


def _failures(trial: Trial, standings: Sequence[Standing]) -> list[str]:
    """Return a sentence on each fit that failed, and on each method that is not judged since one layer failed."""
    found = {standing.candidate.method for standing in standings}
    said = [f"{name} failed: {error}" for name, error in trial.failures.items()]
    return said + [
        f"{name} is not judged, since {like} failed"
        for name, like in IN_SHORT.items()
        if name not in found
        and any(pilot_name(Candidate(like), is_short=is_short) in trial.failures for is_short in (False, True))
    ]
