"""A model of the user's own: where it comes from, how it is built, and the sentences for what can go wrong."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from pyro_dgp.comparison.fingerprint import fingerprint, fingerprints_of_globals
from pyro_dgp.internal.errors import first_line, place_in_own_code
from pyro_dgp.internal.untrusted_files import UnreadableError, require_plain
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.settings import Settings

#: Entry of the facts on a model that has the fingerprints of what it reads by global names.
GLOBALS = "model_globals"


@dataclass(frozen=True)
class OwnModel:
    """A recipe for a model: a factory that is called with the training inputs.

    :ivar make: from training inputs ``(N, D)`` to the untrained model.
    :ivar name: what it is called in messages.
    :ivar source: text of the file that it was read from, if it was.
    :ivar is_object: whether it was given as a finished model, made for certain training rows.
    :ivar given: the factory or the model as it was given, or found in its file.
    """

    make: Callable[[Tensor], Any]
    name: str
    source: str | None = None
    is_object: bool = False
    given: Any = None

    def build(self, x: Tensor, settings: Settings) -> nn.Module:
        """The untrained model.

        :raises ValueError: one sentence where the factory fails or makes something else than a model.
        """
        try:
            model = self.make(x)
        except Exception as error:
            raise ValueError(
                f"{self.name} raised {first_line(error)}{place_in_own_code(error)} when it was called with training inputs of shape {tuple(x.shape)}"
            ) from error
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"{self.name} returned {type(model).__name__}, not a model: let it return a PyroModule that is called as model(x, y)"
            )
        return model.to(x)

    def architecture(self) -> Architecture:
        """The recipe in the form that methods take; the number of layers is that of the settings."""
        return Architecture(self.build, is_deep=True)

    def identity(self) -> dict[str, Any]:
        """Facts that tell this model from others in a table of results, and fingerprints of the globals that it reads, which say what has changed."""
        is_record = is_dataclass(self.given) and not isinstance(
            self.given, type
        )  # whose class is no part of its fingerprint
        given = [type(self.given), self.given] if is_record else self.given
        found = {"model": self.name, "model_code": fingerprint(given), GLOBALS: fingerprints_of_globals(self.given)}
        if self.source is None:
            return found
        return found | {"model_source": hashlib.sha256(self.source.encode()).hexdigest()[:16]}


def own_model(given: Any) -> OwnModel:
    """The recipe behind what a user gives: a factory such as a class, or a finished model."""
    if isinstance(given, OwnModel):
        return given
    if isinstance(given, nn.Module):
        kind = type(given)
        return OwnModel(
            lambda x: copy.deepcopy(given), f"{kind.__module__}.{kind.__qualname__}", is_object=True, given=given
        )
    if not callable(given):
        raise TypeError(
            f"the model is {type(given).__name__}: give a factory that is called with the training inputs, such as the class of the "
            "model, or a model object with test=(x_test, y_test)"
        )
    kind = given if hasattr(given, "__qualname__") else type(given)
    return OwnModel(given, f"{kind.__module__}.{kind.__qualname__}", given=given)


def model_from_file(text: str) -> OwnModel:
    """The factory that ``FILE.py:NAME`` names.

    :raises ValueError: one sentence for no such file, no such name, or what cannot be called.
    """
    path, separator, name = text.rpartition(":")
    if not separator or not path or not name:
        raise ValueError(f"--model is FILE.py:NAME, the file and the name of a class or function in it, got {text!r}")
    file = Path(path)
    try:
        require_plain(file)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ValueError(f"there is no file {path!r}: check the path given to --model") from error
        raise ValueError(f"{path!r} cannot be read ({error}): check the path given to --model") from error
    return model_from_source(file, name)


def model_from_source(file: Path, name: str) -> OwnModel:
    """The factory of that name in a Python file, which is run as a module."""
    try:
        require_plain(file)
        source = file.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        reason = str(error) if isinstance(error, UnreadableError) else first_line(error)
        raise ValueError(f"the model's file {str(file)!r} cannot be read ({reason}): give it by --model") from error
    module = _run_file(file, source)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ValueError(f"{str(file)!r} has no {name!r}: it has {', '.join(public) or 'nothing that could be called'}")
    factory = getattr(module, name)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(
            f"{name!r} in {str(file)!r} is {type(factory).__name__}, which cannot be called with the training inputs: name a class or a function"
        )
    return OwnModel(factory, name, source, given=factory)


def _run_file(file: Path, source: str) -> ModuleType:
    """Run a file as a module of a name of its own, with its folder on the path; its classes travel to other processes by value."""
    name = f"{file.stem}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(f"{str(file)!r} cannot be run as a module: it raised {first_line(error)}") from error
    finally:
        sys.path.pop(0)
    for pickler in _PICKLERS:
        if importlib.util.find_spec(pickler) is not None:
            importlib.import_module(pickler).register_pickle_by_value(module)
    return module


#: Modules that carry classes to other processes: older versions of joblib bring their own.
_PICKLERS = ("cloudpickle", "joblib.externals.cloudpickle")
