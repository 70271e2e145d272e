"""Results of fewer draws in a folder in which a comparison goes on: those that stay, and those whose chains are made longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.files import Row, write_table
from pyro_dgp.comparison.request import Request, Say
from pyro_dgp.zoo.presets import methods_of

#: Setting of which a comparison that goes on may be given more.
DRAWS = "mcmc_samples"


class Lengthening:
    """Decision on results that have another number of draws than is asked for now.

    Methods without draws keep their results. A sampler that is asked for again with more draws goes on from those that it has. Any other
    difference is one of settings, which is refused.
    """

    def __init__(self, request: Request, config: Mapping[str, Any]) -> None:
        self.wanted = int(config[DRAWS])
        known = {**methods_of(request.settings.preset), **{method.name: method for method in request.chosen()}}
        self._asked = {method.name for method in request.chosen()}
        self._without = {name for name, method in known.items() if not method.inference.has_draws}

    def allows(self, row: Row, setting: str) -> bool:
        """Tell whether a row may have another value of a setting than is asked for now."""
        name, was = row["method"], row["config"].get(setting)
        if setting != DRAWS:
            return False
        return name in self._without or (name in self._asked and isinstance(was, int) and was < self.wanted)

    def staying(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of the methods that are not run again, with the number of draws that is asked for now."""
        stay = [row for row in rows if row["method"] in self._without or not self._differs(row)]
        return [{**row, "config": row["config"] | {DRAWS: self.wanted}} for row in stay]

    def begin(self, output: Path, rows: Sequence[Row], say: Say) -> None:
        """Say which chains are made longer."""
        if not any(map(self._differs, rows)):
            return
        staying = {row["method"]: row for row in self.staying(rows)}
        for row in rows:
            if row["method"] not in staying:
                say(f"{row['method']}: goes on from {row['config'][DRAWS]} draws of a chain to {self.wanted}")
        write_table(output, [staying.get(row["method"], row) for row in rows])

    def _differs(self, row: Row) -> bool:
        return bool(row["config"].get(DRAWS) != self.wanted)
