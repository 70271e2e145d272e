"""A request for a comparison: what is compared on what, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.gap_study import GapStudy
from pyro_dgp.comparison.lock import FOLDER_LOCK, require_unlocked
from pyro_dgp.comparison.own_model import OwnModel
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.tasks import Task
from pyro_dgp.internal.optional import require
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.untrusted_files import why
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.inference import Inference
from pyro_dgp.zoo.method import DEEP_LEARNED, Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.presets import methods_of, refuse_stated
from pyro_dgp.zoo.settings import Settings

#: Methods that are compared if none are named: on the zoo's models, and on a model of the user's own.
DEFAULT_METHODS, OWN_METHODS = ("exact-gp", "svgp", "ppgpr", "dsvi", "nuts"), ("dsvi", "dspp", "nuts")
#: The same for targets that are no real numbers, and for several.
OTHER_METHODS = ("svgp", "ppgpr", "dsvi", "dspp")

#: Methods, settings and folds where no data are named: the scan line of a photograph, one input and 320 rows, in a few minutes.
FIRST_METHODS = ("exact-gp", "gp-nuts", "svgp", "dsvi", "dspp")
FIRST_SETTINGS = Settings(
    width=1,
    inducing=50,
    samples=8,
    batch_size=120,
    epochs=300,
    learning_rate=0.03,
    beta=1.0,  # validation rows chose it in every fold
    mcmc_points=320,
    mcmc_samples=240,
    warmup=80,
    chains=2,
)
FIRST_FOLDS = 4

#: Characters of a method's name, which names files, at most.
MOST_CHARACTERS = 100

#: Settings of the zoo's own model, which another model does not have.
OF_THE_ZOO = ("layers", "width", "kernel")

#: Method by its name in the table, or a name and an inference made by hand.
Named = str | tuple[str, Inference]

#: Gets every remark, a sentence each.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """Data, methods and settings of a comparison, and the folder of its results.

    :ivar dataset: the data; those of :func:`~pyro_dgp.data.named.load_default` if not given.
    :ivar methods: names of the table, or pairs of a name and an inference.
    :ivar settings: for all methods.
    :ivar model: the model that every method fits; each the zoo's own if not given.
    :ivar folds: number of folds of a cross-validation; a single split, ``settings.split``, if not given.
    :ivar standardize: whether inputs and targets are standardised by the statistics of the training rows.
    :ivar output: folder of the results. It must not exist or be empty, unless ``resume``. Nothing is written if not given.
    :ivar resume: methods that the folder has results for are not run again.
    :ivar gap: a sampler, ``ess`` or ``nuts``: the deep methods are fitted once more to one and the same model and data, and their
        distances from it written to ``gap.json``; see :class:`~pyro_dgp.comparison.gap_study.GapStudy`.
    """

    output: Path | None = None
    dataset: Dataset | None = None
    methods: Sequence[Named] = DEFAULT_METHODS
    settings: Settings = Settings()
    model: OwnModel | None = None
    folds: int | None = None
    standardize: bool = True
    dtype: str = "float64"
    device: str = "auto"
    threads: int | None = None
    resume: bool = False
    gap: str | None = None

    @property
    def like(self) -> Tensor:
        """An empty tensor of the dtype and on the device of everything."""
        return torch.empty(0, dtype=getattr(torch, self.dtype), device=device_of(self.device))

    def chosen(self) -> list[Method]:
        """The methods that are asked for, on the model that they are asked to fit."""
        own = None if self.model is None else self.model.architecture()
        return [_method(given, own, methods_of(self.settings.preset)) for given in self.methods]

    def inferences(self) -> dict[str, str]:
        """Fingerprints of the inferences that were made by hand, by method."""
        return {method.name: fingerprint(method.inference) for method in self.chosen() if is_made_by_hand(method)}

    def study(self) -> GapStudy | None:
        """The gap that was asked for, of those methods that fit the deep model."""
        return None if self.gap is None else self.study_of(self.gap)

    def study_of(self, reference: str) -> GapStudy:
        """The gap to a sampler, of those methods that fit the deep model."""
        if reference not in {*METHODS, *(method.name for method in self.chosen())}:
            raise ValueError(f"there is no method {reference!r} to take as reference: {_choice(reference, METHODS)}")
        own = None if self.model is None else self.model.architecture()
        named = {method.name: method for method in self.chosen()}
        sampler = named[reference] if reference in named else _method(reference, own, METHODS)
        methods = [method for method in self.chosen() if own is not None or method.architecture.is_deep]
        return GapStudy([method for method in methods if not method.architecture.has_network], sampler)

    def settings_for(self, dataset: Dataset) -> Settings:
        """The settings with the task of the data, where the zoo's own models are fitted; a model that is given says itself what it observes."""
        return for_task(self.settings, Task() if self.model is not None else dataset.task)

    def config(self, dataset: Dataset) -> dict[str, Any]:
        """Values that results must have in common to stand in one table."""
        config: dict[str, Any] = {"dataset": dataset.name, "data": dataset.fingerprint(), "dtype": self.dtype}
        config |= asdict(self.settings_for(dataset))
        if self.model is not None:
            config = {name: value for name, value in config.items() if name not in OF_THE_ZOO}
        config |= {} if self.folds is None else {"folds": self.folds}
        config |= {} if self.standardize else {"standardize": False}
        config |= {"names": _names(dataset)}
        return config | ({} if self.model is None else self.model.identity())


def _names(dataset: Dataset) -> dict[str, Any]:
    """The names by which kept fits take new rows."""
    lists = {kind: list(getattr(dataset, kind)) for kind in ("columns", "outputs", "labels")}
    return {"target": dataset.target, **lists}


def for_task(settings: Settings, task: Task) -> Settings:
    """Settings with a task.

    :raises ValueError: for a preset and a target that is not one real number.
    """
    if settings.preset is not None and not task.is_standardized:
        raise ValueError(
            f"preset {settings.preset} has models of real numbers, and the target holds {task}: leave the preset out"
        )
    if settings.preset is not None and task.outputs > 1:
        raise ValueError(
            f"preset {settings.preset} has models of one target, and there are {task.outputs}: name one, or leave the preset out"
        )
    return replace(settings, task=task.kind, classes=task.classes, outputs=task.outputs)


def is_made_by_hand(method: Method) -> bool:
    """Tell whether an inference stands behind a method that the table does not have."""
    return method.name not in METHODS


def default_methods(model: OwnModel | None, task: Task = Task()) -> tuple[str, ...]:
    """The methods that are compared if none are named."""
    if model is not None:
        return OWN_METHODS
    return DEFAULT_METHODS if task.is_standardized and task.outputs == 1 else OTHER_METHODS


def _method(given: Named, own: Architecture | None, named: Mapping[str, Method]) -> Method:
    """The method of a name, or of a name and an inference, on the user's model if there is one."""
    if isinstance(given, str):
        method = named[given]
        return method if own is None else replace(method, architecture=own)
    name, inference = given
    return Method(name, type(inference).__name__, "", DEEP_LEARNED if own is None else own, inference)


def check(request: Request) -> None:
    """Raise ``ValueError`` with one sentence for anything in the request that cannot be run.

    :raises ImportError: if a package that every comparison needs is missing.
    """
    require("arviz", "h5netcdf", "matplotlib", extra="compare", what="a comparison")
    check_choice(request)
    if request.output is not None:
        require_unlocked(request.output)
        check_output(request.output, request.resume)
    elif request.resume:
        raise ValueError("there is nothing to resume without output=, the folder of the results")


#: Names of devices: ``auto`` is the GPU where there is one.
DEVICES = ("auto", "cpu", "cuda")


def check_choice(request: Request) -> None:
    """Raise ``ValueError`` with one sentence for methods, settings and devices that cannot be run."""
    _check_device(request.device)
    _check_methods(request)
    refuse_stated(request.settings)
    _check_settings(request)


def _check_methods(request: Request) -> None:
    names: list[str] = []
    preset = request.settings.preset
    table = methods_of(preset)
    for given in request.methods:
        if not isinstance(given, str) and not _is_pair(given):
            raise TypeError(f"a method is a name of the table or a pair (name, inference), not {given!r}")
        names.append(given if isinstance(given, str) else given[0])
        if not is_file_name(names[-1]):
            raise ValueError(_no_name(names[-1]))
        if len(names[-1]) > MOST_CHARACTERS:
            raise ValueError(
                f"the name {names[-1][:20]!r}... of a method has {len(names[-1])} characters and names files: give it {MOST_CHARACTERS} at most"
            )
        if isinstance(given, str) and given not in table:
            where = "" if preset is None else f" in preset {preset}"
            raise ValueError(f"there is no method {given!r}{where}: {_choice(given, table)}")
        if not isinstance(given, str) and given[0] in METHODS:
            raise ValueError(f"{given[0]!r} is a method of the table: give your inference another name")
    if not names:
        raise ValueError("no methods to compare: name at least one")
    if len(set(names)) < len(names):
        raise ValueError("a method is named twice: name each once")
    if request.model is not None:
        brought = [name for name in names if name in METHODS and METHODS[name].architecture.has_network]
        if brought:
            raise ValueError(
                f"{brought[0]} puts a network of its own in front of the zoo's model and fits no other: wrap yours in DeepKernel, and "
                f"take {brought[0].removeprefix('dkl-')}"
            )


def _no_name(name: str) -> str:
    """The sentence about a name that can be that of no method, or about several names in one."""
    several = [part for part in re.split(r"[\s;|]+", name) if part]
    if len(several) > 1 and all(map(is_file_name, several)):
        return f"{name!r} is no name of a method: separate names by commas, {','.join(several)}"
    return f"{name!r} cannot name the files of a method: use letters, digits, dots, plus and minus"


def _choice(name: str, names: Iterable[str]) -> str:
    """The remedy for a name that is none of some: the one that is meant, if one is near, and all."""
    names = list(names)
    near = get_close_matches(name, names, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}choose from {', '.join(names)}"


def is_file_name(name: str) -> bool:
    """Tell whether files can be called by the name of a method, in the folder of the results and nowhere else."""
    return re.fullmatch(r"[\w+-][\w.+-]*", name) is not None


def _is_pair(given: Any) -> bool:
    return (
        isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], Inference)
    )


def _check_settings(request: Request) -> None:
    settings = request.settings
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if settings.minutes is not None and not 0 < settings.minutes < float("inf"):
        raise ValueError(f"minutes must be a positive number, got {settings.minutes}")
    if settings.minutes is not None and settings.has_length:
        raise ValueError("the length of training is given twice: say epochs, steps or minutes")
    if not 0 < settings.alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, got {settings.alpha}")
    if settings.seed >= 2**31:
        raise ValueError(f"seed must be below 2**31, got {settings.seed}")
    if not 0 < settings.learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be a positive number, got {settings.learning_rate}")
    if request.model is None:
        for method in request.chosen():
            method.architecture.check(settings)
            method.inference.check(settings)
    study = request.study()
    if study is not None:
        study.check()
    if request.folds is not None and request.folds < 2:
        raise ValueError(f"folds must be at least 2, got {request.folds}")
    if request.threads is not None and request.threads < 1:
        raise ValueError(f"threads must be at least 1, got {request.threads}")
    if request.dtype not in ("float32", "float64"):
        raise ValueError(f"dtype is float32 or float64, not {request.dtype!r}")


def check_output(output: Path, resume: bool) -> None:
    """Raise ``ValueError`` for a folder of results that cannot be made, or has something in it that would be overwritten."""
    try:
        held = {path.name for path in output.iterdir()} - {FOLDER_LOCK}
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        if output.exists():
            raise ValueError(f"the output {str(output)!r} is a file: name a folder") from error
        return
    except OSError as error:
        raise ValueError(f"the folder {str(output)!r} cannot be read ({why(error)}): name another --output") from error
    if held and not resume:
        raise ValueError(f"the folder {str(output)!r} exists: name another --output, or go on in it with --resume")


_LEAST = {
    "layers": 1,
    "width": 1,
    "inducing": 1,
    "row_inducing": 1,
    "orthogonal": 1,
    "frequencies": 1,
    "neighbors": 1,
    "samples": 1,
    "batch_size": 1,
    "beta": 0,
    "split": 0,
    "seed": 0,
    "mcmc_points": 2,
    "mcmc_samples": 8,
    "warmup": 0,
    "chains": 1,
}


def _check_device(choice: str) -> None:
    if choice not in DEVICES:
        raise ValueError(f"device is {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, not {choice!r}")


def device_of(choice: str) -> str:
    """The device that ``auto``, ``cpu`` or ``cuda`` means here."""
    _check_device(choice)
    if choice == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for and torch sees none: use --device cpu")
    return "cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu"


def no_progress(name: str) -> Progress:
    """A progress callback that shows nothing."""
    return lambda step, total, figures: None
