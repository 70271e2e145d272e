"""A function of one point as a compiled program for several points at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from pyro_dgp.internal.compiled_function import CompiledFunction, close, generators


class CompiledBatch(CompiledFunction):
    """A function of tensors at several points, as one program: :class:`CompiledFunction` whose arguments and results have one more axis in front.

    The function is recorded at the first point; its operations are then vectorised by ``torch.func.vmap``. It draws nothing at random.
    """

    def at(self, *points: Tensor) -> tuple[list[Tensor], Tensor] | None:
        """The results, and at which points they are right ``(C,)``; nothing where there is no program."""
        is_new = not self.is_checked
        before = generators(points) if is_new else []
        found = self.run(points, before)
        if found is None:
            return None
        results, serves = found
        if is_new and bool(serves.any()):
            compared = [[value[serves] for value in values] for values in (results, points)]
            if not self.passes(compared[0], compared[1], before):
                return None
        return results, serves

    def recorded(self, points: Sequence[Tensor]) -> GraphModule:
        """See :meth:`CompiledFunction.recorded`; the last result tells at which points the others are right."""
        from torch.fx.experimental.proxy_tensor import make_fx

        first = [point[0] for point in points]
        # Without operations in place: vmap cannot write several results into the place of one.
        one = make_fx(torch.func.functionalize(super().recorded(first)))(*first)
        for node in one.graph.nodes:
            if node.target is torch.ops.aten.zero.default:  # for which vmap has no rule
                node.target = torch.ops.aten.zeros_like.default
        one.recompile()

        def several(*points: Tensor) -> tuple[Tensor, ...]:
            *results, failures = torch.func.vmap(one)(*points)
            return *results, (failures == 0) & results[0].reshape(len(failures), -1).isfinite().all(-1)

        return make_fx(several)(*points)

    def is_close(self, found: Tensor, expected: Tensor) -> bool:
        """See :meth:`CompiledFunction.is_close`; each point has a scale of its own."""
        return all(close(a, b) for a, b in zip(found, expected, strict=True))

    def expected(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See :meth:`CompiledFunction.expected`."""
        each = [self.function(*point) for point in zip(*points, strict=True)]
        return tuple(torch.stack(results) for results in zip(*each, strict=True))
