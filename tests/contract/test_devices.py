"""The models of the contract on a device beside the processor."""

import math

import pyro
import pytest
import torch
from pyro.infer import SVI
from torch.utils._pytree import tree_map

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, draw_functions, predict
from tests.contract.table import CASES
from tests.virtual_device import virtual_device

#: Models that hold tensors or distributions of their own which no ``to`` moves, as a user's model may: torch refuses them.
HOLD_TENSORS = {
    "zero-inflated counts",
    "ordinal",
    "errors in variables",
    "change point",
    "latent offset",
    "latent slope",
    "random effects",
    "latent inputs",
    "plain function",
    "partial",
    "conditioned",
    "masked rows",
    "data of its own",
}
#: Words of refusals: models without a function to draw, or with one for each group.
NO_FUNCTIONS = (
    "there is no Gaussian process at",
    "functions can be drawn where",
    "functions are drawn",
    "the guide holds functions",
)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in HOLD_TENSORS], ids=lambda n: n.replace(" ", "_")
)
@pytest.mark.filterwarnings("ignore:.*was not registered in the param store")
def test_a_model_is_fitted_on_another_device(name, monkeypatch):
    case = CASES[name]
    with virtual_device(monkeypatch) as device:
        model = case.model().to(device)

        def there(part):
            return tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, part)

        args, kwargs = there(tuple(case.args)), there(dict(case.kwargs))
        guide = Variational(model, InducingPoints(case.points), MonteCarlo(3))
        guide.initialize(*args, **kwargs)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO())
        assert all(math.isfinite(svi.step(*args, **kwargs)) for _ in range(3))
        new, new_kwargs = there(case.new[0]), there(dict(case.new_kwargs))
        prediction = predict(guide, new, 5, site=case.site, **new_kwargs)
        assert (prediction.probs if case.has_classes else prediction.mean).device == device
        try:
            values = draw_functions(guide, 3, site=case.function or case.site)(new, **new_kwargs)
        except (ValueError, RuntimeError) as refusal:
            assert any(words in str(refusal) for words in NO_FUNCTIONS), str(refusal)
        else:
            assert values.device == device


def test_the_list_names_models():
    assert set(CASES) > HOLD_TENSORS
