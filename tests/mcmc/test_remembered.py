import torch

from pyro_dgp.mcmc.remembered import Remembered


def test_other_values_are_a_change_and_a_move_is_none():
    layer = torch.nn.BatchNorm1d(2)
    layer.running_var.fill_(torch.nan)
    then = Remembered([layer, torch.nn.Linear(1, 1)])
    assert then.changed() == []
    layer.double()
    layer.register_buffer("later", torch.zeros(1))
    assert then.changed() == []
    layer.running_mean = torch.ones(2)
    layer.weight.data[0] = 5.0
    assert then.changed() == ["weight", "running_mean"]
    assert then.changed(besides=["weight"]) == ["running_mean"]
    layer.running_mean = None
    layer.bias = torch.nn.Parameter(torch.zeros(3))
    assert then.changed() == ["weight", "bias", "running_mean"]
