"""Fits on disk: arrays as ``.npz``, plain values as JSON, and for a model of the user's own a copy of its file. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.comparison.files import write_arrays
from pyro_dgp.comparison.kept_facts import PROBE, VERSION, encoded, read_fit
from pyro_dgp.comparison.method_fit import MethodFit
from pyro_dgp.comparison.own_model import OwnModel, model_from_source, own_model
from pyro_dgp.comparison.parts import Part
from pyro_dgp.comparison.request import is_made_by_hand
from pyro_dgp.data.splitting import Scaler
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.processor_numbers import ProcessorNumbers
from pyro_dgp.internal.whole_file import write_text
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.rescaled import default_dtype
from pyro_dgp.prediction.target_kinds import are_classes
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.method import DEEP_LEARNED, Method
from pyro_dgp.zoo.predictors import Predictor, Saved
from pyro_dgp.zoo.presets import methods_of
from pyro_dgp.zoo.settings import Settings

#: Folder of the fits within that of the results, and in it the copy of the user's file.
FOLDER, SOURCE = "fits", "model.py"

#: Beginning of the names of arrays that belong to the predictor.
_TENSOR = "predictor."

#: Training rows at which a restored fit must predict what it predicted when it was saved.
_PROBED = 5


@dataclass(frozen=True)
class Fitting:
    """Method, rows and settings of a fit.

    :ivar given: numbers of the training rows that the method was given.
    :ivar settings: those of the run.
    :ivar own: the user's model, if it is one.
    """

    method: Method
    part: Part
    given: Tensor
    settings: Settings
    own: OwnModel | None = None
    columns: tuple[str, ...] = ()
    target_name: str = "y"
    labels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def fit(self, fitted: Fitted) -> MethodFit:
        """The fit that it led to."""
        return MethodFit(
            self.method.name,
            fitted.predict,
            inputs=self.part.inputs,
            target=self.part.target,
            like=self.part.x_train[:0],
            columns=self.columns,
            target_name=self.target_name,
            labels=self.labels,
            outputs=self.outputs,
            seed=self.settings.seed,
            draws=fitted.draws,
            sample_stats=fitted.sample_stats,
            remarks=tuple(fitted.remarks),
        )


def save_fit(output: Path, fitting: Fitting, fitted: Fitted) -> None:
    """Write ``fits/METHOD.npz`` and ``fits/METHOD.json``, and a copy of the model's file if it was read from one.

    :raises ValueError: one sentence for a fit that cannot be saved.
    """
    if not isinstance(fitted.predict, Predictor):
        raise ValueError("its inference gives no Predictor, which alone can be saved")
    saved, folder, name = fitted.predict.saved(), output / FOLDER, fitting.method.name
    part, own = fitting.part, fitting.own
    facts = {
        "version": VERSION,
        "method": name,
        "is_named": not is_made_by_hand(fitting.method),
        "model": None if own is None else {"name": own.name, "is_file": own.source is not None},
        "settings": asdict(fitting.settings),
        "dtype": str(part.x_train.dtype).removeprefix("torch."),
        "inputs": _plain_scaler(part.inputs),
        "target": _plain_scaler(part.target),
        "columns": list(fitting.columns),
        "target_name": fitting.target_name,
        "labels": list(fitting.labels),
        "outputs": list(fitting.outputs),
        "remarks": list(fitted.remarks),
        "predictor": encoded(saved.facts),
    }
    arrays = {"x_train": part.x_train, "y_train": part.y_train, "given": fitting.given}
    arrays |= {_TENSOR + key: value for key, value in saved.tensors.items()}
    arrays |= {f"draws.{key}": value for key, value in fitted.draws.items()}
    stats = {f"stats.{key}": np.asarray(value) for key, value in fitted.sample_stats.items()}
    text = json.dumps(facts, indent=1)
    folder.mkdir(exist_ok=True)
    if own is not None and own.source is not None:
        write_text(folder / SOURCE, own.source)
    numbers = {key: value.detach().cpu().numpy() for key, value in arrays.items()}
    numbers[PROBE] = _probe(fitted.predict, part.x_train, fitting.settings.seed)
    files = folder / f"{name}.npz", folder / f"{name}.json"
    write_arrays(files[0], numbers | stats)
    write_text(files[1], text + "\n")
    try:
        load_fit(output, name, model=own, inference=fitting.method.inference)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        for file in files:
            file.unlink(missing_ok=True)
        raise ValueError(f"it cannot be restored ({error})") from error


def _settings(method: str, facts: Mapping[str, Any]) -> Settings:
    """Return the settings that a kept fit was made with; raise for those that are none."""
    try:
        return Settings(**facts["settings"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"the fit of {method!r} was kept with settings that are none: {first_line(error)}") from error


def load_fit(folder: Path | str, method: str, *, model: Any = None, inference: Inference | None = None) -> MethodFit:
    """The fit of one method that a comparison left in a folder; it lies on the processor.

    A fit that was made on the processor predicts what it predicted before it was saved, bit for bit. One that was made on a GPU draws other random
    numbers here.

    A model from a file is built by the copy of that file in the folder, which is run as a module: load your own alone.

    :param folder: the comparison's ``output``.
    :param method: its name there.
    :param model: the factory or model object, where the comparison was given one from Python.
    :param inference: the inference, where the comparison was given one that is not in the table of methods.
    :raises ValueError: one sentence if there is no such fit, or if the model or the inference is needed.
    """
    fits = Path(folder) / FOLDER
    kept = sorted(path.stem for path in fits.glob("*.json"))
    if method not in kept:
        there = f"it has {', '.join(kept)}" if kept else "it holds no fits: name the --output of a comparison"
        raise ValueError(f"there is no fit of {method!r} in {str(folder)!r}: {there}")
    facts, arrays = read_fit(fits, method)
    if inference is None and not facts["is_named"]:
        raise ValueError(f"{method!r} was an inference made by hand: give it as inference=")
    settings, dtype = _settings(method, facts), getattr(torch, facts["dtype"])
    if inference is None and method not in methods_of(settings.preset):
        raise ValueError(
            f"the fit of {method!r} in {str(folder)!r} is of a method that this program has not: give it as inference="
        )
    used = methods_of(settings.preset)[method].inference if inference is None else inference
    architecture = _architecture(fits, facts, model)
    with default_dtype(dtype), torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        x, y, given = (torch.as_tensor(arrays[name]) for name in ("x_train", "y_train", "given"))
        try:
            built = architecture.build(x, settings)
            predictor = used.restore(built, x[given], y[given], settings=settings, saved=_saved(facts, arrays))
            found = _probe(predictor, x, settings.seed)
        except (ValueError, RuntimeError, KeyError, TypeError, IndexError, AttributeError, MemoryError) as error:
            raise ValueError(
                f"the fit of {method!r} does not fit its model: give the model that it was fitted with ({first_line(error)})"
            ) from error
    if found.shape != arrays[PROBE].shape or not np.allclose(found, arrays[PROBE], rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"the fit of {method!r} predicts other values than it did when it was saved: give the model that it was fitted with, and look for "
            "changed files that the model uses, or for numbers that it draws and does not keep as parameters or buffers"
        )
    return MethodFit(
        method,
        predictor,
        inputs=_scaler(facts["inputs"]),
        target=_scaler(facts["target"]),
        like=x[:0],
        columns=tuple(facts["columns"]),
        target_name=facts["target_name"],
        labels=tuple(facts.get("labels", ())),
        outputs=tuple(facts.get("outputs", ())),
        seed=settings.seed,
        draws={name: torch.as_tensor(values) for name, values in _group(arrays, "draws.").items()},
        sample_stats=_group(arrays, "stats."),
        remarks=tuple(facts.get("remarks", ())),
    )


def _probe(predictor: Callable[[Tensor], Prediction], x: Tensor, seed: int) -> np.ndarray:
    """Predictive means and variances, or probabilities of classes, at a few training rows, by which a restored fit is known."""
    with default_dtype(x.dtype), torch.random.fork_rng(), ProcessorNumbers():
        torch.manual_seed(seed)
        prediction = predictor(x[:_PROBED])
        is_class = are_classes(prediction.mixture().components)
        figures = [prediction.probs] if is_class else [prediction.mean, prediction.variance]
    found: np.ndarray = torch.stack(figures).detach().cpu().numpy()
    return found


def _architecture(fits: Path, facts: Mapping[str, Any], model: Any) -> Architecture:
    """Find the recipe that builds the model of a fit."""
    described = facts["model"]
    if model is not None:
        return own_model(model).architecture()
    if described is None:
        return (
            methods_of(facts["settings"].get("preset"))[facts["method"]].architecture
            if facts["is_named"]
            else DEEP_LEARNED
        )
    if described["is_file"]:
        try:
            return model_from_source(fits / SOURCE, described["name"]).architecture()
        except ValueError as error:
            raise ValueError(
                f"{error}: where the model's file needs others beside it, give it where they are, --model FILE.py:NAME or model="
            ) from error
    raise ValueError(
        f"the model of this fit was given from Python as {described['name']}, which is not saved: give it as model="
    )


def _saved(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Saved:
    tensors = {name: torch.as_tensor(values) for name, values in _group(arrays, _TENSOR).items()}
    return Saved(tensors, facts["predictor"])


def _group(arrays: Mapping[str, np.ndarray], start: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}


def _plain_scaler(scaler: Scaler) -> dict[str, Any]:
    return {"mean": scaler.mean.tolist(), "scale": scaler.scale.tolist()}


def _scaler(plain: Mapping[str, Any]) -> Scaler:
    return Scaler(np.asarray(plain["mean"], dtype=float), np.asarray(plain["scale"], dtype=float))
