"""Progress of a comparison in a terminal."""

from __future__ import annotations

import sys
from typing import Any

from pyro_dgp.internal.progress import Progress

#: Least seconds between two states of a line: in a terminal, and in a file or a pipe, which keeps all of them.
SECONDS, SECONDS_IN_FILE = 0.2, 60.0


class Bars:
    """A progress line for each method, with the current figures and the time left."""

    def __init__(self) -> None:
        self.current: Any = None

    def say(self, sentence: str) -> None:
        """A remark, above the bars."""
        from tqdm import tqdm

        self.close()
        tqdm.write(sentence, file=sys.stderr)

    def start(self, name: str) -> Progress:
        """The progress callback of one method."""
        from tqdm import tqdm

        self.close()
        seconds = SECONDS if sys.stderr.isatty() else SECONDS_IN_FILE
        options = {"mininterval": seconds, "maxinterval": max(10.0, seconds)}
        self.current = bar = tqdm(desc=f"{name:>10}", dynamic_ncols=True, file=sys.stderr, **options)

        def progress(step: int, total: int, figures: dict[str, float]) -> None:
            bar.total = total
            if step % max(total // 200, 1) == 0 or step == total:
                bar.set_postfix({key: f"{value:.3g}" for key, value in figures.items()}, refresh=False)
            bar.update(step - bar.n)

        return progress

    def close(self) -> None:
        """Leave the current line as it stands."""
        if self.current is not None:
            self.current.close()
            self.current = None
