"""Values that modules keep outside their state_dict."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from pyro_dgp.internal import attributes
from pyro_dgp.internal.attributes import Attributes, restore, snapshot
from pyro_dgp.internal.checkpoint import read_state, write_state


class Holder(nn.Module):
    """A module with values of every kind."""

    def __init__(self):
        super().__init__()
        self.number, self._hidden, self.word, self.nothing = 1, 2.5, "a", None
        self.state, self.defaults = 1, [1]
        self.sizes, self.seen, self.past = (1, (2, "b")), [1, [2]], deque([1, 2], 3)
        self.by_number, self.by_word = {1: 2.0}, {"a": [1]}
        self.array, self.scalar = np.arange(3.0), np.float64(0.5)
        self.tensor = torch.arange(3.0)
        self.register_buffer("buffer", torch.zeros(2), persistent=False)

    def change(self):
        self.number, self._hidden, self.word, self.nothing = 2, 3.5, "b", 1
        self.state, self.defaults = 2, [2]
        self.sizes = (2, (3, "c"))
        self.seen.append(3)
        self.past.extend([3, 4])
        self.by_number[2] = 3.0
        self.by_word["b"] = [2]
        self.array += 1
        self.scalar = np.float64(1.5)
        self.tensor += 1
        self.buffer.add_(1)


NAMES = (
    *("number", "_hidden", "word", "nothing", "state", "defaults", "sizes", "seen", "past", "by_number", "by_word"),
    *("array", "scalar", "tensor", "buffer"),
)


def told(module):
    return {name: (type(getattr(module, name)), repr(getattr(module, name))) for name in NAMES}


def test_values_of_every_kind_are_set_in_another_object_by_a_file(tmp_path):
    one, other = Holder(), Holder()
    begun, at_one, at_other = told(one), Attributes(one), Attributes(other)
    assert at_one.changed() == {}
    one.change()
    assert all(told(one)[name] != begun[name] for name in NAMES)
    write_state(tmp_path / "state", {"attributes": at_one.changed()})
    at_other.set(read_state(tmp_path / "state")["attributes"])
    assert told(other) == told(one)
    at_other.set({})
    assert told(other) == begun


def test_objects_that_others_hold_too_are_filled():
    module = nn.ModuleList([Holder(), Holder()])
    shared, listed = torch.zeros(1), [0]
    for each in module:
        vars(each).update(tensor=shared, seen=listed)
    before = snapshot(module)
    shared += 5
    listed.append(1)
    restore(module, before)
    assert all(each.tensor is shared and each.seen is listed for each in module)
    assert float(shared) == 0 and listed == [0]


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(3).to_sparse(),
        torch.zeros(2, 2, layout=torch.sparse_coo),
        object(),
        {(1, 2): 3},
        torch.zeros(2, requires_grad=True) * 2,
    ],
    ids=["coo", "empty", "object", "keys", "graph"],
)
def test_others_are_left_alone(value):
    module = Holder()
    module.other = value
    at = Attributes(module)
    module.change()
    state = snapshot(module)
    assert "other" not in state["attributes"]["0:"] and set(at.changed()["0:"]) == set(NAMES)
    vars(module)["other"] = None
    restore(module, state)
    assert vars(module)["other"] is None


def test_a_list_in_itself_and_large_tensors_are_left_alone(monkeypatch):
    monkeypatch.setattr(attributes, "MOST", 10)
    module = Holder()
    inside: list[object] = []
    inside.append(inside)
    vars(module)["inside"] = inside
    module.large, module.small = torch.zeros(11), torch.zeros(10)
    found = snapshot(module)["attributes"]["0:"]
    assert "small" in found and "large" not in found and "inside" not in found
