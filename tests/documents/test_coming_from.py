"""The pages for those who come from another library: both libraries run, and give the numbers that the page says."""

import importlib.util
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Peer:
    """Another library, and how the code of its page is run.

    :ivar package: what pip installs.
    :ivar shorter: replacements, each of which must be found in the text.
    :ivar sampled: tolerance of the numbers that begin with "posterior" when chains are shortened so; the page's own otherwise.
    """

    package: str
    shorter: Mapping[str, str] = field(default_factory=dict)
    sampled: float | None = None


PEERS = {
    "docs/coming-from/dgpsi.md": Peer("dgpsi"),
    "docs/coming-from/gpflow.md": Peer("gpflow"),
    "docs/coming-from/gpytorch.md": Peer("gpytorch"),
    "docs/coming-from/numpyro.md": Peer(
        "numpyro",
        {"num_samples=600": "num_samples=60", "num_warmup=200": "num_warmup=60", "warmup_steps=200": "warmup_steps=60"},
        0.5,
    ),
}


def rows_of(text):
    """The table of numbers: theirs, ours, and the difference up to which they agree, by name."""
    table = text[text.index("| number |") :]
    return {
        name: tuple(map(float, cells))
        for name, *cells in re.findall(r"^\| (.+?) \| (\S+) \| (\S+) \| (\S+) \|$", table, re.M)
        if cells[0][0] in "-0123456789"
    }


@pytest.mark.parametrize("name", PEERS)
def test_both_libraries_give_the_numbers_of_the_page(name, tmp_path, monkeypatch):
    peer, text = PEERS[name], (ROOT / name).read_text()
    if importlib.util.find_spec(peer.package) is None:
        pytest.skip(f"{name} needs the other library: pip install {peer.package}")
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for long, short in peer.shorter.items():
        assert long in code, long
        code = code.replace(long, short)
    names = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the other library
        exec(compile(code, name, "exec"), names)
    numbers, rows = names["numbers"], rows_of(text)
    assert set(numbers) == set(rows)
    for what, (theirs, ours, tolerance) in rows.items():
        if what.startswith("posterior") and peer.sampled is not None:
            tolerance = peer.sampled
        found = tuple(map(float, numbers[what]))
        assert abs(found[0] - found[1]) <= tolerance, (what, found)
        assert found == pytest.approx((theirs, ours), abs=tolerance), what
        assert abs(theirs - ours) <= tolerance, what


@pytest.mark.parametrize("name", PEERS)
def test_a_page_says_how_to_install_the_other_library_and_what_differs(name):
    text = (ROOT / name).read_text()
    assert f"`pip install {PEERS[name].package}" in text
    assert "## What does not carry over" in text and "## What you gain" in text and rows_of(text)
