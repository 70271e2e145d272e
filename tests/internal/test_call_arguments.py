import numpy as np
import torch
from torch import nn

from pyro_dgp.internal.call_arguments import arguments_by_name, signature_of, tensors_in


class Model(nn.Module):
    def forward(self, x, y=None, *more, power=1.0, **extra):
        return x


def test_each_argument_has_the_name_that_the_model_has_for_it():
    named = arguments_by_name(Model(), (1, 2, 3, 4), {"power": 5, "exposure": 6})
    assert named == {"x": 1, "y": 2, "more[0]": 3, "more[1]": 4, "power": 5, "exposure": 6}
    assert [*arguments_by_name(lambda x, y=None: x, (), {"y": 2, "x": 1}).items()] == [("x", 1), ("y", 2)]


def test_without_a_signature_positions_are_names():
    assert signature_of(dict.fromkeys) is not None
    assert signature_of(max) is None
    assert arguments_by_name(max, (1, 2), {"key": 3}) == {"[0]": 1, "[1]": 2, "key": 3}
    assert arguments_by_name(lambda x: x, (1, 2), {}) == {"[0]": 1, "[1]": 2}


def test_tensors_are_found_in_what_holds_them():
    first, second = torch.ones(2), torch.zeros(3)
    assert [id(each) for each in tensors_in({"a": [first], "b": (second, 2.0, "text")})] == [id(first), id(second)]
    (found,) = tensors_in(np.array([1.0, 2.0]))
    assert found.tolist() == [1.0, 2.0]
    (fixed,) = tensors_in(np.broadcast_to(np.array(3), (2,)))
    assert fixed.tolist() == [3, 3]
    assert tensors_in(np.array(["a"])) == []
    assert tensors_in(None) == []
