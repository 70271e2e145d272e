"""The plan of a comparison: its rows, methods and settings, with everything checked that can be checked before training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pyro_dgp.comparison.figures import Axis
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.parts import Part, masks_of, part_of
from pyro_dgp.comparison.rehearsal import as_the_model_has_it, own_anatomy, refusals
from pyro_dgp.comparison.request import Request, Say
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.internal.site_names import is_inside_observation, site_of
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.methods import METHODS, Method
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Rows, methods and settings of a comparison.

    :ivar parts: training and test rows, one for each fold.
    :ivar methods: those that are to be run.
    :ivar settings: the request's, with what the data and the model changed in them.
    :ivar anatomy: of the user's model, if it is one.
    """

    request: Request
    dataset: Dataset
    parts: Sequence[Part]
    methods: Sequence[Method]
    settings: Settings
    anatomy: Anatomy | None = None

    def given(self, method: Method, part: Part, say: Say) -> Tensor:
        """Numbers of the training rows that a method is given: all, or a random subset of as many as it takes."""
        most, rows = method.inference.most_rows(self.settings), len(part.x_train)
        if most is None or rows <= most:
            return torch.arange(rows)
        generator = torch.Generator().manual_seed(self.settings.seed)
        say(f"{method.name}: trained on a random subset of {most} of the {rows} training rows")
        return torch.randperm(rows, generator=generator)[:most]

    @property
    def input_axis(self) -> Axis:
        """Name and units of the first input, for figures of one input."""
        columns, scaler = self.dataset.columns, self.parts[0].inputs
        return Axis(columns[0] if columns else "input", mean=float(scaler.mean[0]), scale=float(scaler.scale[0]))

    @property
    def target_axis(self) -> Axis:
        """Name and units of the target, for figures."""
        scaler = self.parts[0].target
        return Axis(self.dataset.target, mean=float(scaler.mean), scale=float(scaler.scale))

    def remarks(self, method: Method) -> list[str]:
        """Sentences to be said before a method starts."""
        own = [] if self.anatomy is None else method.inference.remarks_on(self.anatomy)
        return [*method.architecture.remarks(), *method.inference.remarks(self.settings), *own]


def plan_of(request: Request, dataset: Dataset, *, finished: Sequence[Row], say: Say) -> Plan:
    """Standardise the rows, build the user's model once and try every method on a few rows.

    :param finished: rows of methods that are not run again.
    :raises ValueError: for rows that cannot be split or standardised, a model that cannot be built or called, and, in one sentence
        each, methods that cannot fit it.
    """
    done = {row["method"] for row in finished}
    methods = [method for method in request.chosen() if method.name not in done]
    masks = masks_of(dataset, request.folds, request.settings.split)
    parts = [part_of(dataset, mask, request.like, standardize=request.standardize) for mask in masks]
    settings, anatomy = _reduced(request.settings, parts[0]), None
    if request.model is not None:
        model = _built(request, parts[0])
        anatomy = own_anatomy(model, request.model.name, parts[0])
        if not anatomy.is_real:
            say(
                "the likelihood is of classes or counts: the target is left as it is, and only the inputs are standardised"
            )
            parts = [
                part_of(dataset, mask, request.like, standardize=request.standardize, standardize_target=False)
                for mask in masks
            ]
        settings = as_the_model_has_it(settings, anatomy)
        tried = {method.name: method for method in (*methods, *_sampler(request, anatomy))}
        _refuse(refusals(list(tried.values()), model, anatomy, parts[0], settings=settings))
    else:
        _refuse(_refusals_of_own_inferences(methods, parts[0], settings))
    if settings.inducing < request.settings.inducing:
        say(
            f"{request.settings.inducing} inducing points are more than the {settings.inducing} distinct training inputs: reduced to "
            f"{settings.inducing}"
        )
    return Plan(request, dataset, parts, methods, settings, anatomy)


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


def _refusals_of_own_inferences(methods: Sequence[Method], part: Part, settings: Settings) -> list[str]:
    """Sentences on inferences that are not in the table and cannot fit the zoo's model."""
    own = [method for method in methods if METHODS.get(method.name) != method]
    if not own:
        return []
    model = own[0].architecture.build(part.x_train, settings)
    return refusals(own, model, anatomy_of(model, part.x_train, part.y_train), part, settings=settings)


def _reduced(settings: Settings, part: Part) -> Settings:
    """The settings with M at most the number of distinct training inputs."""
    return replace(settings, inducing=min(settings.inducing, len(torch.unique(part.x_train, dim=0))))


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
