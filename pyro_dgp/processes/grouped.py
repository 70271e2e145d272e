"""Base of modules that hold parameters for several groups of independent functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Size, Tensor

from pyro_dgp.internal.assignment import CheckedModule


class Grouped(CheckedModule):
    """Module whose parameters may lead with the axes of groups.

    :ivar groups: batch axes of independent functions, each with parameters of its own; ``()`` for one function.
    """

    groups: Size = Size()
    #: Numbers of the groups that a pass takes, by their axis; see :meth:`taking`.
    _taken: Mapping[int, Tensor] = {}

    @contextmanager
    def taking(self, numbers: Mapping[int, Tensor]) -> Iterator[None]:
        """A scope in which the module, with its parts, stands for some of its groups, those of a plate that takes a part.

        :param numbers: numbers of groups by their axis, ``0`` for the first.
        """
        if not numbers and not self._taken:
            yield
            return
        modules = [module for module in self.modules() if isinstance(module, Grouped)]
        before = [module._taken for module in modules]
        for module in modules:
            module._taken = numbers
        try:
            yield
        finally:
            for module, each in zip(modules, before, strict=True):
                module._taken = each

    def of_groups(self, name: str) -> Tensor:
        """Return a parameter that leads with the groups: those of them that are taken."""
        value: Tensor = getattr(self, name)
        for axis, numbers in self._taken.items():
            value = value.index_select(axis, numbers.to(value.device))
        return value

    @property
    def present_groups(self) -> Size:
        """The groups that are taken; all of them outside :meth:`taking`."""
        return Size(len(self._taken[axis]) if axis in self._taken else size for axis, size in enumerate(self.groups))
