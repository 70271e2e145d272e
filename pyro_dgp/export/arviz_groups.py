"""ArviZ objects from NumPy arrays, in the form of the installed major version.

This file imports no torch: an environment that holds only ArviZ can load it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

Groups = Mapping[str, Mapping[str, np.ndarray]]
Axes = Mapping[str, list[str]]
Labels = Mapping[str, np.ndarray]


def import_arviz() -> Any:
    """Import ArviZ, without the announcement that version 0.23 makes once a day.

    :raises ImportError: without ArviZ, which the extra ``arviz`` installs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except ModuleNotFoundError as error:
            raise ImportError("an ArviZ object or R-hat needs arviz: pip install 'pyro-dgp[arviz]'") from error
    return arviz


def from_groups(
    groups: Groups,
    dims: Axes | None = None,
    coords: Labels | None = None,
    *,
    pred_dims: Axes | None = None,
    pred_coords: Labels | None = None,
) -> Any:
    """Make an ArviZ object from arrays: ``InferenceData`` (ArviZ 0.x) or ``DataTree`` (1.x).

    :param groups: arrays by variable name by group name; sampled arrays start with (chain, draw).
    :param dims: names of the other axes, by variable.
    :param coords: labels along named axes.
    :param pred_dims: ``dims`` of the groups ``predictions`` and ``predictions_constant_data``.
    :param pred_coords: ``coords`` of the groups ``predictions`` and ``predictions_constant_data``.
    """
    az = import_arviz()
    predicted = {name for group, arrays in groups.items() if group.startswith("predictions") for name in arrays}
    others = {name for group, arrays in groups.items() if not group.startswith("predictions") for name in arrays}
    axes: dict[str, Any] = {
        "dims": {name: names for name, names in (dims or {}).items() if name in others},
        "pred_dims": {name: names for name, names in (pred_dims or {}).items() if name in predicted},
        "coords": dict(coords or {}),
        "pred_coords": dict(pred_coords or {}),
    }
    data = {name: dict(arrays) for name, arrays in groups.items()}
    if int(az.__version__.split(".")[0]) >= 1:
        return az.from_dict(data, **axes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains", UserWarning)
        # Version 0.23 would give these groups the dimensions and labels of the training rows and draws.
        new = {name: data.pop(name) for name in ("predictions", "predictions_constant_data") if name in data}
        made = az.from_dict(**data, dims=axes["dims"], coords=axes["coords"])
        for name, arrays in new.items():
            sampled: dict[str, Any] = {} if name == "predictions" else {"default_dims": []}
            named = {"dims": axes["pred_dims"], "coords": axes["pred_coords"], **sampled}
            made.add_groups(**{name: az.dict_to_dataset(arrays, **named)})
    return made


def bytes_of(data: Any) -> int:
    """Return the bytes of all arrays of an ArviZ object, of either major version."""
    if hasattr(data, "nbytes"):
        return int(data.nbytes)
    return sum(int(data[group].nbytes) for group in data.groups())
