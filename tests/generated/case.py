"""One generated case: what was drawn, and what came of it."""

from __future__ import annotations

import dataclasses
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch

from pyro_dgp import module_local_parameters
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from tests.generated.checks import REFUSALS, is_sentence
from tests.generated.data import data_of
from tests.generated.program import fitted
from tests.generated.relations import Related
from tests.generated.spec import Spec, drawn

#: Warnings that arithmetic gives, and no library that has looked at its numbers.
ARITHMETIC = ("torch", "numpy", "sklearn", "scipy")


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    :ivar kind: ``ran``, ``refused`` or ``failed``.
    :ivar sentence: of the refusal, or of the failure.
    :ivar place: where in the library a failure was raised.
    :ivar notes: refusals of single figures of a case that ran.
    """

    kind: str
    sentence: str = ""
    place: str = ""
    notes: list[str] = field(default_factory=list)


def outcome(spec: Spec) -> Outcome:
    """Run a case under all checks."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, spec.ambient))
    pyro.clear_param_store()
    try:
        with module_local_parameters(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            return _held(spec, caught)
    finally:
        torch.set_default_dtype(before)


def _held(spec: Spec, caught: list[warnings.WarningMessage]) -> Outcome:
    try:
        data = data_of(spec)
        checked = Related(spec, data, fitted(spec, data))
        checked.run()
    except AssertionError as error:
        return Outcome("failed", str(error), "check " + _place(error, "tests/generated/"))
    except (*REFUSALS, NotPositiveDefiniteError) as error:
        if is_sentence(error):
            return Outcome("refused", str(error))
        return Outcome("failed", f"{type(error).__name__}: {error}", _place(error, "pyro_dgp/"))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {error}", _place(error, "pyro_dgp/"))
    for each in caught:
        if any(f"/{name}/" in each.filename for name in ARITHMETIC):
            return Outcome("failed", f"{each.category.__name__}: {each.message}", f"{each.filename}:{each.lineno}")
    return Outcome("ran", notes=sorted(set(checked.notes)))


def _place(error: BaseException, where: str) -> str:
    """The innermost frame in a file of the library or of the checks."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if where in frame.filename]
    if not frames:
        return ""
    last = frames[-2] if where == "tests/generated/" and len(frames) > 2 and frames[-1].name in _HELPERS else frames[-1]
    return f"{last.filename.split('/')[-1]}:{last.name}"


_HELPERS = ("finite", "shaped", "close", "equal")


def row(seed: int, number: int) -> dict[str, Any]:
    """Run case ``number`` and return its line."""
    spec, start = drawn(seed, number), time.perf_counter()
    found = outcome(spec)
    return {
        "case": number,
        "seed": seed,
        **dataclasses.asdict(found),
        "seconds": round(time.perf_counter() - start, 2),
        "spec": dataclasses.asdict(spec),
    }
