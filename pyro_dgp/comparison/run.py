"""The comparison: methods on one data set, each from a copy of the untrained model, scored alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyro_dgp.comparison.files import (
    TABLE,
    Curves,
    Row,
    make_folder,
    read_curves,
    write_arrays,
    write_arviz,
    write_table,
)
from pyro_dgp.comparison.finished import VERSION, finished_rows
from pyro_dgp.comparison.gap_study import FILE as GAP_TABLE
from pyro_dgp.comparison.gap_study import GapResult, GapStudy
from pyro_dgp.comparison.keep import FOLDER, load_fit, save_fit
from pyro_dgp.comparison.lengthening import Lengthening
from pyro_dgp.comparison.lock import locked_folder
from pyro_dgp.comparison.method_fit import MethodFit
from pyro_dgp.comparison.one_method import Outcome, Untrained, arviz_of, run_method
from pyro_dgp.comparison.own_model import own_model
from pyro_dgp.comparison.parts import with_test_rows
from pyro_dgp.comparison.plan import Plan, plan_of, torch_defaults
from pyro_dgp.comparison.request import (
    Named,
    Request,
    Say,
    check,
    check_output,
    default_methods,
    is_made_by_hand,
    no_progress,
)
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.data.arrays import as_array, in_order, numbered, of_arrays
from pyro_dgp.data.dataset import Dataset, by_output
from pyro_dgp.data.dataset import check as check_data
from pyro_dgp.data.named import load_default
from pyro_dgp.data.tasks import Task
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.untrusted_files import why
from pyro_dgp.internal.whole_file import remove_parts
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings

#: Gives the progress callback of a method, by its name.
Progresses = Callable[[str], Progress]


class MethodFailedError(RuntimeError):
    """A method stopped with a numerical error, or its files could not be written.

    :ivar result: what the other methods gave.
    """

    def __init__(self, message: str, result: ComparisonResult) -> None:
        super().__init__(message)
        self.result = result


def compare(
    model: Any,
    x: Any,
    y: Any,
    *,
    methods: Sequence[Named] | None = None,
    test: tuple[Any, Any] | None = None,
    settings: Settings = Settings(),
    split: int | None = None,
    seed: int | None = None,
    folds: int | None = None,
    standardize: bool = True,
    output: Path | str | None = None,
    resume: bool = False,
    name: str = "data",
    dtype: str = "float64",
    device: str = "auto",
    threads: int | None = None,
    say: Say = print,
    progress: Progresses = no_progress,
) -> ComparisonResult:
    """Fit several methods to one model and one data set, and score them on the same held-out rows.

    >>> import numpy as np
    >>> from pyro_dgp.models.deep_gp import DeepGP
    >>> x = np.linspace(0, 10, 40)[:, None]
    >>> toy = Settings(inducing=5, samples=2, epochs=1)
    >>> result = compare(lambda x: DeepGP(x, 2, 1), x, np.sin(x[:, 0]), methods=["dsvi"], settings=toy, say=lambda sentence: None)
    >>> result["dsvi"].predict(x[:3]).mean.shape
    torch.Size([3])

    :param model: a factory that is called with the (standardised) training inputs ``(N, D)`` and returns a model, such as the class of
        the model; or a model object, with ``test``; or nothing for the model of each method in the table.
    :param x: inputs ``(N, D)`` in their own units, an array or a tensor.
    :param y: targets ``(N,)`` in their own units.
    :param methods: names of the table (``pyro-dgp methods``), or pairs ``(name, inference)``, mixed freely; a few if not given.
    :param test: inputs and targets of the test rows. If not given, a tenth of the rows is held out.
    :param split: number of that tenth, and the seed of folds and validation rows; that of the settings if not given.
    :param seed: of everything random; that of the settings if not given.
    :param folds: number of folds of a cross-validation, whose scores are pooled over all rows, see
        :func:`~pyro_dgp.comparison.one_method.pooled_scores`.
    :param standardize: whether inputs and targets are standardised by the statistics of the training rows.
    :param output: folder for ``results.json``, the figure, an ArviZ file for each method and the fits; nothing is written if not given.
    :param resume: methods that the folder has results for are not run again; a sampler that is asked for more draws adds them to its chains.
    :param name: of the data, in table and figure.
    :param say: gets every remark, a sentence each.
    :param progress: gives the progress callback of a method, by its name.
    :raises ValueError: for bad input, and for a method that cannot fit the model, before training starts.
    :raises MethodFailedError: at the end, if methods stopped with a numerical error, or files could not be written; it has what was fitted.
    """
    _check_kinds(methods, settings, progress)
    own = None if model is None else own_model(model)
    dataset = of_arrays(name, x, y, task=settings.task if model is None else Task().kind)
    if test is not None:
        if folds is not None:
            raise ValueError("test= and folds= are two ways to choose the test rows: give one of them")
        check_data(dataset)
        dataset = with_test_rows(dataset, *_test_rows(test, dataset))
    elif own is not None and own.is_object:
        raise ValueError(
            "a model object was made for certain training rows: give the others as test=(x_test, y_test), or a factory that makes it"
        )
    number = 0 if test is not None else settings.split if split is None else split
    settings = replace(settings, split=number, seed=settings.seed if seed is None else seed)
    request = Request(
        output=None if output is None else Path(output),
        dataset=dataset,
        methods=default_methods(own, dataset.task) if methods is None else tuple(methods),
        settings=settings,
        model=own,
        folds=folds,
        standardize=standardize,
        dtype=dtype,
        device=device,
        threads=threads,
        resume=resume,
    )
    return run(request, say=say, progress=progress)


def _check_kinds(methods: Any, settings: Any, progress: Any) -> None:
    """Raise for arguments of another kind, which would be misread later."""
    if isinstance(methods, str):
        raise TypeError(f"methods is a list of names: write methods=[{methods!r}]")
    if not isinstance(settings, Settings):
        raise TypeError(f"settings is a Settings object, such as Settings(epochs=50), not {settings!r}")
    if not callable(progress):
        raise TypeError(f"progress is a function from the name of a method to its callback, not {progress!r}")


def _test_rows(test: Any, dataset: Dataset) -> tuple[Any, Any]:
    if not isinstance(test, tuple) or len(test) != 2:
        raise TypeError("test is a pair of arrays: test=(x_test, y_test)")
    x, y = in_order(test[0], dataset.columns), as_array(numbered(by_output(test[1], dataset.outputs), dataset.labels))
    if x.ndim != 2 or x.shape[1] != dataset.x.shape[1] or y.shape != (len(x), *dataset.y.shape[1:]) or not len(x):
        wanted = "(N,)" if dataset.y.ndim == 1 else f"(N, {dataset.y.shape[1]})"
        raise ValueError(
            f"the test rows have inputs {x.shape} and targets {y.shape}: they must be (N, {dataset.x.shape[1]}) and {wanted}, N at least 1"
        )
    _require_targets_of_task(y, dataset.task)
    return x, y


def _require_targets_of_task(y: Any, task: Task) -> None:
    """Raise for targets of test rows that are none of the classes of training, or no counts."""
    if task.classes and (strange := y[~np.isin(y, np.arange(task.classes))]).size:
        raise ValueError(
            f"the targets of the test rows hold {strange[0]:g}, and those of the training rows the classes 0 to {task.classes - 1}: drop such rows, or train on "
            "rows of every class"
        )
    if task.kind == "counts" and (strange := y[(y != np.round(y)) | (y < 0)]).size:
        raise ValueError(f"the targets of the test rows hold {strange[0]:g}, which is no count: drop or mend such rows")


def run(request: Request, *, say: Say = print, progress: Progresses = no_progress) -> ComparisonResult:
    """Run what is asked for, and write ``results.json``, ``METHOD.nc``, the fits and ``comparison.png`` if there is a folder.

    Everything is checked before anything is trained. What has finished is kept if the rest is interrupted. No other run may write to the folder
    meanwhile.

    :raises ValueError: for bad input, and for a folder in which another run is, before training starts.
    :raises MethodFailedError: at the end, if methods stopped with a numerical error, or files could not be written.
    """
    check(request)
    dataset = request.dataset or load_default()
    check_data(dataset)
    config, output = request.config(dataset), request.output
    with _held(output), torch_defaults(request):
        longer, found = Lengthening(request, config), list[Row]()
        if output is not None:
            check_output(output, request.resume)
        if output is not None and request.resume:
            found = _found(request, config, longer, say)
        rows = longer.staying(found)
        plan = plan_of(request, dataset, finished=rows, say=say)
        if output is not None:
            longer.begin(output, found, say)
        _introduce(plan, rows, say)
        comparison = _Run(plan, config, rows, say, progress)
        try:
            comparison.methods()
            comparison.gap()
        finally:
            comparison.close()
    if comparison.failures:
        failures = "; ".join(f"{name} failed: {reason}" for name, reason in comparison.failures.items())
        raise MethodFailedError(failures, comparison.result)
    return comparison.result


def _found(request: Request, config: dict[str, Any], longer: Lengthening, say: Say) -> list[Row]:
    """Return the results that the folder has already."""
    assert request.output is not None
    asked = [method.name for method in request.chosen()]
    return finished_rows(request.output, config, request.inferences(), asked=asked, allows=longer.allows, say=say)


@contextmanager
def _held(output: Path | None) -> Iterator[None]:
    """Make the folder of the results, keep other runs out of it, and leave none that is empty."""
    if output is None:
        yield
        return
    make_folder(output)
    try:
        with locked_folder(output):
            remove_parts(output)
            remove_parts(output / FOLDER)
            yield
    finally:
        with suppress(OSError):  # it is not empty, or is gone
            output.rmdir()


def _introduce(plan: Plan, finished: Sequence[Row], say: Say) -> None:
    """Say what is compared on what."""
    name, part = plan.dataset.name, plan.parts[0]
    folds = "" if len(plan.parts) == 1 else f", the first of {len(plan.parts)} folds"
    say(
        f"{name}: {len(part.x_train)} training rows, {len(part.x_test)} test rows, {part.x_train.shape[1]} inputs{folds}"
    )
    if plan.request.model is None and plan.dataset.task.is_standardized:
        unit = "of the standardised target's" if plan.request.standardize else "in squared units of the target"
        say(f"the noise variance of every method stays above {NOISE_FLOOR:g} {unit}")
    for row in finished:
        say(f"{row['method']}: finished before, not run again")


class _Run:
    """A comparison as far as it has come."""

    def __init__(self, plan: Plan, config: dict[str, Any], finished: list[Row], say: Say, progress: Progresses) -> None:
        self.plan, self.config, self.say, self.progress = plan, config, say, progress
        self.failures: dict[str, str] = {}
        self.output = plan.request.output
        curves: dict[str, Curves] = {}
        fits: dict[str, Callable[[], MethodFit]] = {}
        if self.output is not None:
            curves = {row["method"]: read_curves(self.output, row["method"]) for row in finished}
            fits = {row["method"]: partial(self._loaded, row["method"]) for row in finished}
        self.result = ComparisonResult(
            list(finished),
            curves,
            plan.dataset.name,
            input_axis=plan.input_axis,
            target_axis=plan.target_axis,
            scores_on=plan.scores_on,
            fits=fits,
            measure=self._measure,
        )

    def methods(self) -> None:
        """Run every method of the plan; one that stops with a numerical error leaves the others. Where files cannot be written it ends."""
        untrained = [Untrained(part, self.plan.settings) for part in self.plan.parts]
        for method in self.plan.methods:
            chains = None if self.output is None else self.output / f".{method.name}"
            try:
                outcome = run_method(method, self.plan, untrained, chains=chains, say=self.say, progress=self.progress)
            except (RuntimeError, ValueError, OSError) as error:
                self._failed(method.name, str(error))
                continue
            if not self._kept(method, outcome):
                return
            if chains is not None and not outcome.first.fitted.draws:  # draws can be added to chains
                shutil.rmtree(chains, ignore_errors=True)

    def _failed(self, name: str, reason: str) -> None:
        self.say(f"{name} failed: {reason}")
        self.failures[name] = reason

    def _kept(self, method: Method, outcome: Outcome) -> bool:
        """Write the files of a method, then the table that names it, and add it to the result; tell whether they could be written."""
        settings, name = self.plan.settings, method.name
        head = {"method": name, "dataset": self.plan.dataset.name, "split": settings.split, "seed": settings.seed}
        inference = self.plan.request.inferences().get(name)
        made_by_hand = {} if inference is None else {"inference": inference}
        row = head | outcome.row | made_by_hand | {"version": VERSION, "config": self.config}
        reason = self._write(row, outcome)
        fit = outcome.first.fitting.fit(outcome.first.fitted)
        self.result.rows.append(row)
        self.result.curves[name] = outcome.curves
        self.result.fits[name] = lambda: fit
        if reason is not None:
            remedy = "no method after it is run: make room for them, and go on with --resume"
            self._failed(name, f"its files cannot be written to {str(self.output)!r} ({reason}): {remedy}")
        return reason is None

    def _write(self, row: Row, outcome: Outcome) -> str | None:
        """Write the files of a method, and then the table; return the reason if that cannot be done."""
        if self.output is None:
            return None
        name, first = row["method"], outcome.first
        try:
            if (self.output / TABLE).exists():  # which may have a row of fewer draws, whose files are about to go
                write_table(self.output, self.result.rows)
            write_arviz(self.output / f"{name}.nc", arviz_of(first))
            write_arrays(self.output / f"{name}.npz", outcome.curves)
            try:
                save_fit(self.output, first.fitting, first.fitted)
            except ValueError as error:
                self.say(f"{name}: its fit is not kept: {error}")
            write_table(self.output, [*self.result.rows, row])
        except OSError as error:
            return why(error)
        return None

    def _loaded(self, name: str) -> MethodFit:
        """The fit of a method that was finished before."""
        assert self.output is not None
        by_hand = {method.name: method.inference for method in self.plan.request.chosen() if is_made_by_hand(method)}
        return load_fit(self.output, name, model=self.plan.request.model, inference=by_hand.get(name))

    def gap(self) -> None:
        """Measure the gap that was asked for, unless the folder has it."""
        study = self.plan.request.study()
        draws = self.plan.settings.mcmc_samples
        if study is None or (self.output is not None and study.finished(self.output, draws)):
            return
        if self.output is not None and (self.output / GAP_TABLE).exists():
            self.say(
                f"the gap: {str(self.output / GAP_TABLE)!r} is broken, or of another study or number of draws: it is made again"
            )
        try:
            gaps = self._gaps(study)
            if self.output is not None:
                gaps.write_files(self.output)
        except OSError as error:
            self._failed("the gap", f"its files cannot be written to {str(self.output)!r} ({why(error)})")
        except (RuntimeError, ValueError) as error:
            self._failed("the gap", str(error))
        else:
            if self.output is not None:
                shutil.rmtree(self.output / ".gap", ignore_errors=True)

    def _gaps(self, study: GapStudy) -> GapResult:
        part = self.plan.parts[0]
        given = self.plan.given(study.reference, part, self.say)
        folder = None if self.output is None else self.output / ".gap"
        x, y = part.x_train[given], part.y_train[given]
        return study.run(
            x, y, part.x_test, settings=self.plan.settings, progress=self.progress, say=self.say, folder=folder
        )

    def _measure(self, reference: str) -> GapResult:
        """The gap to a sampler, measured when it is asked for."""
        study = self.plan.request.study_of(reference)
        study.check()
        with _held(self.output), torch_defaults(self.plan.request):
            gaps = self._gaps(study)
            if self.output is not None:
                shutil.rmtree(self.output / ".gap", ignore_errors=True)
        return gaps

    def close(self) -> None:
        """Draw the figure of what there is."""
        if self.output is None or not self.result.rows:
            return
        try:
            self.result.draw(self.output / "comparison.png")
        except OSError as error:
            self._failed("the figure", f"it cannot be written to {str(self.output)!r} ({why(error)})")
