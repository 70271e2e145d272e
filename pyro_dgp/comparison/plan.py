"""The plan of a comparison: its rows, methods and settings, with everything checked that can be checked before training."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pyro_dgp.comparison.copies import on_copies
from pyro_dgp.comparison.figures import Axis
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.own_model import OwnModel
from pyro_dgp.comparison.parts import Part, masks_of, part_of
from pyro_dgp.comparison.rehearsal import as_the_model_has_it, own_anatomy, refusals
from pyro_dgp.comparison.request import Request, Say, default_methods, is_made_by_hand
from pyro_dgp.comparison.target_remarks import (
    on_classes_and_counts,
    on_few_values,
    on_two_values,
    on_whole_numbers,
    on_words,
)
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.internal.site_names import is_inside_observation, site_of
from pyro_dgp.likelihoods import Ordinal
from pyro_dgp.models.standardizer import Standardizer
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.presets import named_preset
from pyro_dgp.zoo.settings import Settings

#: Settings that say which run it is and what its data are, and nothing of a preset.
_OF_THE_RUN = ("split", "seed", "task", "classes", "outputs")


@dataclass(frozen=True)
class Plan:
    """Rows, methods and settings of a comparison.

    :ivar parts: training and test rows, one for each fold.
    :ivar methods: those that are to be run.
    :ivar settings: the request's, with what the data and the model changed in them.
    :ivar anatomy: of the user's model; without one, of the zoo's deep model, if inferences made by hand are to fit it.
    """

    request: Request
    dataset: Dataset
    parts: Sequence[Part]
    methods: Sequence[Method]
    settings: Settings
    anatomy: Anatomy | None = None

    def given(self, method: Method, part: Part, say: Say) -> Tensor:
        """Numbers of the training rows that a method is given: all, or a random subset of as many as it takes."""
        rows = len(part.x_train)
        given = method.inference.given_rows(self.settings, rows)
        if len(given) < rows:
            say(f"{method.name}: trained on a random subset of {len(given)} of the {rows} training rows")
        return given

    @property
    def scores_on(self) -> str:
        """Units of the scores."""
        if not self.request.standardize:
            return "the target in its own units"
        is_real = (
            _is_standardised(self.anatomy) if self.request.model is not None else self.dataset.task.is_standardized
        )
        return "the standardised target" if is_real else "the target as it is"

    @property
    def input_axis(self) -> Axis:
        """Name and units of the first input, for figures of one input."""
        columns, scaler = self.dataset.columns, self.parts[0].inputs
        return Axis(columns[0] if columns else "input", mean=float(scaler.mean[0]), scale=float(scaler.scale[0]))

    @property
    def target_axis(self) -> Axis:
        """Name and units of the target, for figures."""
        if self.dataset.outputs:
            return Axis("standardised targets", mean=0.0, scale=1.0)
        scaler = self.parts[0].target
        return Axis(self.dataset.target, mean=float(scaler.mean), scale=float(scaler.scale))

    def remarks(self, method: Method) -> list[str]:
        """Sentences to be said before a method starts."""
        meets_own = self.request.model is not None or is_made_by_hand(method)
        own = method.inference.remarks_on(self.anatomy) if meets_own and self.anatomy is not None else []
        timed = self.settings.minutes is not None and not method.inference.keeps_time
        said = ["it has a number of steps or draws of its own, and takes no --minutes"] if timed else []
        return [*method.architecture.remarks(), *method.inference.remarks(self.settings), *own, *said]


def plan_of(request: Request, dataset: Dataset, *, finished: Sequence[Row], say: Say) -> Plan:
    """Standardise the rows, build the user's model once and try every method on a few rows.

    :param finished: rows of methods that are not run again.
    :raises ValueError: for rows that cannot be split or standardised, a model that cannot be built or called, and, in one sentence
        each, methods that cannot fit it.
    """
    done = {row["method"] for row in finished}
    methods = [method for method in request.chosen() if method.name not in done]
    masks = masks_of(dataset, request.folds, request.settings.split)
    first = part_of(dataset, masks[0], request.like, standardize=request.standardize, standardize_target=False)
    settings = _reduced(request.settings_for(dataset), first)
    model, anatomy = _examined(request, methods, first, settings)
    is_real = _is_standardised(anatomy) if request.model is not None else dataset.task.is_standardized
    if request.model is not None and dataset.labels and anatomy is not None:
        _require_classes(request.model, dataset, anatomy)
        _require_order(model, dataset)
    if request.standardize and request.model is not None and is_real:
        _require_no_units_of_targets(model)
    parts = [
        part_of(
            dataset,
            mask,
            request.like,
            standardize=request.standardize,
            standardize_target=is_real,
        )
        for mask in masks
    ]
    for remark in (
        *_remarks_on_data(request, dataset, anatomy),
        *on_copies(dataset, masks),
        *_remarks_on_model(request, model),
        *_remarks_on_twins(methods),
        *_remarks_on_layers(request, methods),
    ):
        say(remark)
    if model is not None and anatomy is not None:
        tried = [method for method in methods if request.model is not None or is_made_by_hand(method)]
        if request.model is not None:
            settings = as_the_model_has_it(settings, anatomy)
            tried = list({method.name: method for method in (*tried, *_sampler(request, anatomy))}.values())
        if tried:
            names = ", ".join(method.name for method in tried)
            say(f"{names}: tried for one step on a few rows first")
        methods = _able(methods, refusals(tried, model, anatomy, parts[0], settings=settings), request, say=say)
    if request.model is None and (not is_real or dataset.outputs):
        _refuse(_refused_by_task(methods, dataset, parts[0], settings=settings))
    if settings.inducing < request.settings.inducing:
        say(
            f"{request.settings.inducing} inducing points are more than the {settings.inducing} distinct training inputs: reduced to "
            f"{settings.inducing}"
        )
    return Plan(request, dataset, parts, methods, settings, anatomy)


def _refused_by_task(methods: Sequence[Method], dataset: Dataset, part: Part, *, settings: Settings) -> list[str]:
    """One sentence on the methods that cannot fit the zoo's model of targets that are no single real numbers, and one for each other refusal."""
    able = default_methods(None, dataset.task)
    unfit: list[str] = []
    sentences: list[str] = []
    for method in methods:
        torch.manual_seed(settings.seed)
        model = method.architecture.build(part.x_train, settings)
        anatomy = anatomy_of(model, part.x_train, part.y_train)
        refused = refusals([method], model, anatomy, part, settings=settings)
        try:
            method.inference.check(settings)
        except ValueError:
            sentences += refused  # whatever the target is
        else:
            if method.name in able:  # which has another reason than the task
                sentences += refused
            elif refused:
                unfit.append(method.name)
    if unfit:
        sentences.append(
            f"{', '.join(unfit)} cannot fit the target {dataset.target!r}, which holds {dataset.task}: take {', '.join(able[:-1])} or {able[-1]}"
        )
    return sentences


def _able(methods: Sequence[Method], refused: Mapping[str, list[str]], request: Request, *, say: Say) -> list[Method]:
    """The methods that can fit a user's model.

    Those that nobody asked for by name are left out, in a sentence.

    :raises ValueError: for a method that was asked for and cannot, and where none can.
    """
    names = {name for each in refused.values() for name in each}
    able = [method for method in methods if method.name not in names]
    were_named = request.model is None or tuple(request.methods) != default_methods(request.model)
    if were_named or not able or not names <= {method.name for method in methods}:
        _refuse(list(refused))
    for sentence in refused:
        say(f"{sentence}; the others are compared")
    return able


def _examined(
    request: Request, methods: Sequence[Method], part: Part, settings: Settings
) -> tuple[nn.Module | None, Anatomy | None]:
    """The user's model, or the zoo's if inferences made by hand are to fit it, with its anatomy.

    :param part: rows whose target is left as it is, since a target of classes or counts must be.
    """
    if request.model is not None:
        model = _built(request, part)
        return model, own_anatomy(model, request.model.name, part)
    by_hand = [method for method in methods if is_made_by_hand(method)]
    if not by_hand:
        return None, None
    model = by_hand[0].architecture.build(part.x_train, settings)
    return model, anatomy_of(model, part.x_train, part.y_train)


def _require_classes(model: OwnModel, dataset: Dataset, anatomy: Anatomy) -> None:
    """Raise for words as targets of a user's model that observes no classes, or another number of them."""
    words, number = ", ".join(dataset.labels), len(dataset.labels)
    if anatomy.classes == number:
        return
    kind = {0: "counts or other numbers", 2: "two classes"}.get(anatomy.classes, f"{anatomy.classes} classes")
    observed = "real numbers" if anatomy.is_real else kind
    remedy = f"Softmax({number})" if number > 2 else "Bernoulli()"
    raise ValueError(
        f"the target {dataset.target!r} holds the words {words}, and {model.name} observes {observed}: give it a likelihood of {number} classes, such as {remedy}, "
        "or choose another target"
    )


def _require_order(model: nn.Module | None, dataset: Dataset) -> None:
    """Raise for words without an order as targets of a model of classes that have one."""
    has_order = dataset.is_ordered or len(dataset.labels) < 3  # of two classes either order is one
    parts = () if model is None or has_order else model.modules()
    if any(isinstance(part, Ordinal) for part in parts):
        raise ValueError(
            f"the model has the likelihood Ordinal, of classes in an order, and the words {', '.join(dataset.labels)} of {dataset.target!r} have none: "
            "number them 0, 1, ... in their order, or declare it, as in pandas.Categorical(y, categories=[...], ordered=True)"
        )


def _require_no_units_of_targets(model: nn.Module | None) -> None:
    """Raise for a model that standardises targets which are standardised before it gets them."""
    for part in () if model is None else model.modules():
        units = part.target_units if isinstance(part, Standardizer) else None
        if units is not None and bool((units.mean != 0).any() | (units.scale != 1).any()):
            raise ValueError(
                "the model carries a Standardizer of the targets, and a comparison standardises inputs and targets by itself: leave it out of the "
                "model, or say standardize=False"
            )


def _is_standardised(anatomy: Anatomy | None) -> bool:
    """Tell whether a target may be standardised: any real number."""
    return anatomy is None or anatomy.is_real


def _remarks_on_data(request: Request, dataset: Dataset, anatomy: Anatomy | None) -> list[str]:
    """Sentences on what is done to inputs and targets."""
    said = on_words(dataset)
    if request.model is None and not dataset.task.is_standardized:
        return said + on_classes_and_counts(dataset)
    if dataset.outputs:
        said.append(
            f"the targets are {', '.join(dataset.outputs)}: NLL is that of all of a row together, RMSE and CRPS are means over them"
        )
        return said
    if request.standardize and not _is_standardised(anatomy):
        said.append(
            "the likelihood is of classes, counts or positive numbers: the target is left as it is, and only the inputs are standardised"
        )
    elif request.standardize and request.model is not None and request.model.is_object:
        said.append(
            "the model gets standardised inputs and targets: say standardize=False if it was made for the units of the data"
        )
    if request.model is None:
        said += on_whole_numbers(dataset)
    return said + ([*on_two_values(dataset), *on_few_values(dataset)] if _is_standardised(anatomy) else [])


def _remarks_on_model(request: Request, model: nn.Module | None) -> list[str]:
    """Sentences on arguments of a user's model that keep their defaults, and on settings that are not those of a preset."""
    said = []
    if request.model is not None and model is not None:
        others = list(inspect.signature(getattr(model, "forward", model)).parameters.values())[2:]
        kept = [each.name for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if kept:
            said.append(
                f"the model is called as model(x, y), without {', '.join(kept)}: where rows have such values, as exposures, a comparison leaves them out, and "
                "fit(objective, x, y, ...) takes them"
            )
    if request.settings.preset is not None:
        theirs = named_preset(request.settings.preset).settings
        names = [name for name in vars(theirs) if name not in _OF_THE_RUN]
        differing = [
            f"{name}={getattr(request.settings, name)!r} (its own: {getattr(theirs, name)!r})"
            for name in names
            if getattr(request.settings, name) != getattr(theirs, name)
        ]
        if differing:
            said.append(
                f"preset {request.settings.preset} with other settings than its own, which are PRESETS[{request.settings.preset!r}].settings: {', '.join(differing)}"
            )
    return said


def _remarks_on_twins(methods: Sequence[Method]) -> list[str]:
    """Sentences on methods that differ by the zoo's model alone, and not on a model that is given."""
    said = []
    for number, method in enumerate(methods):
        twins = [
            other.name
            for other in methods[:number]
            if (other.architecture, other.inference) == (method.architecture, method.inference)
        ]
        if twins:
            said.append(f"{method.name} and {twins[0]} are the same inference on this model and give the same figures")
    return said


def _remarks_on_layers(request: Request, methods: Sequence[Method]) -> list[str]:
    """Sentences on methods whose model has one layer, where more than usual are asked for."""
    layers = request.settings.layers
    if request.model is not None or layers <= Settings.layers:
        return []
    names = [each.name for each in methods if not each.architecture.is_deep and not is_made_by_hand(each)]
    return [f"one layer, whatever --layers says ({layers}): {', '.join(names)}"] if names else []


def _sampler(request: Request, anatomy: Anatomy) -> list[Method]:
    """The sampler of the gap, if one is asked for.

    :raises ValueError: for a model whose likelihood is not written around a Gaussian process.
    """
    study = request.study()
    if study is None:
        return []
    if not any(is_inside_observation(name) and site_of(name) == anatomy.response for name in anatomy.functions):
        raise ValueError(
            f"the gap compares function values under a likelihood, and the site {anatomy.response!r} has none: write "
            f"pyro.sample({anatomy.response!r}, likelihood(gp(x)), obs=y)"
        )
    return [study.reference]


def _built(request: Request, part: Part) -> nn.Module:
    assert request.model is not None
    torch.manual_seed(request.settings.seed)
    return request.model.build(part.x_train, request.settings)


def _refuse(sentences: Sequence[str]) -> None:
    if sentences:
        raise ValueError("\n".join(sentences))


def _reduced(settings: Settings, part: Part) -> Settings:
    """The settings with M, and orthogonal points, at most the number of distinct training inputs."""
    most = len(torch.unique(part.x_train, dim=0))
    orthogonal = None if settings.orthogonal is None else min(settings.orthogonal, most)
    return replace(settings, inducing=min(settings.inducing, most), orthogonal=orthogonal)


@contextmanager
def torch_defaults(request: Request) -> Iterator[None]:
    """A scope with the request's default dtype and number of threads."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(getattr(torch, request.dtype))
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])
