"""Kill runs at random moments: ``python -m tests.kills [--kinds svi,ess] [--moments 50] [--out FILE]``.

Each kind of run is made once without a kill. Then it is killed (SIGKILL) at random moments of that time, started again, and must
end at the same bits. One JSON line is printed for each moment, and the counts at the end. Moments that FILE holds already count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.kills.harness import differences, live, result
from tests.kills.programs import PROGRAMS


def killed_of(rows: list[dict[str, Any]], name: str | None = None) -> int:
    """Return how many runs were killed before their end, of one kind or of all."""
    return sum(row["code"] == -9 for row in rows if name is None or row["kind"] == name)


def tried(name: str, folder: Path, moments: int, found: list[dict[str, Any]], out: Path | None) -> None:
    """Kill a kind of run at random moments until so many runs have been killed before their end."""
    own = [row for row in found if row["kind"] == name]
    if killed_of(own) >= moments:
        return
    live(name, folder / "first")  # the first process of all pays for imports
    whole = live(name, folder / "whole")
    expected, seconds = result(folder / "whole"), whole.seconds
    for number in itertools.count(len(own)):
        if killed_of(found, name) >= moments:
            return
        moment = random.Random(f"{name}-{number}").uniform(0.0, seconds)
        place = folder / str(number)
        killed = live(name, place, moment)
        again = live(name, place)
        seconds = min(seconds, killed.seconds) if killed.code == 0 else seconds  # the machine is faster than it was
        different = differences(expected, result(place)) if again.code == 0 else ["no result"]
        left = [str(path.relative_to(place)) for path in place.rglob(".part-*")]
        row = {
            "kind": name,
            "number": number,
            "whole_seconds": round(whole.seconds, 2),
            "killed_after": round(killed.seconds, 2),
            "code": killed.code,
            "unsaved_seconds": None if killed.unsaved is None else round(killed.unsaved, 3),
            "seconds_again": round(again.seconds, 2),
            "different": different[:3],
            "left_behind": left,
        }
        print(json.dumps(row), flush=True)
        found.append(row)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        shutil.rmtree(place)


def main() -> None:
    """Read the arguments, and kill."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(PROGRAMS), help="kinds of run, with commas between")
    parser.add_argument("--moments", type=int, default=50, help="runs of each kind that are killed before their end")
    parser.add_argument("--out", type=Path, help="file of JSON lines, which is gone on with")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    if arguments.out is not None and arguments.out.exists():
        found = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    for name in arguments.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            tried(name, Path(folder), arguments.moments, found, arguments.out)
        own = [row for row in found if row["kind"] == name]
        same = sum(not row["different"] for row in own)
        killed = killed_of(own)
        print(f"{name}: {same} of {len(own)} end at the same bits; {killed} were killed before their end", flush=True)


if __name__ == "__main__":
    main()
