"""Names in compiled code: the global names that it reads, those that it assigns, and those of containers that it changes."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType

#: A global name, and the attributes that are read of it at once.
Path = tuple[str, ...]

#: Instructions that read a global name, those that read an attribute of what was read before, and those that stand between.
_READS, _ATTRIBUTES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "EXTENDED_ARG")
#: Instructions that change a container, and how far below the top of the stack it lies.
_WRITES = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_SLICE": 3}
#: Methods that change a container.
_CHANGES = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert"),
    *("pop", "popitem", "popleft", "remove", "setdefault", "update"),
)


def read_names(code: CodeType) -> Iterator[Path]:
    """Iterate over the global names that code reads; names such as ``__name__`` are those of its module, and none of these."""
    for path in _own_paths(_instructions(code)):
        if not _is_of_module(path[0]):
            yield path
    for inner in _inner(code):
        yield from read_names(inner)


def assigned_names(code: CodeType) -> Iterator[str]:
    """Iterate over the global names to which code gives another value."""
    yield from (str(each.argval) for each in _instructions(code) if each.opname == "STORE_GLOBAL")
    for inner in _inner(code):
        yield from assigned_names(inner)


def changed_names(code: CodeType) -> Iterator[Path]:
    """Iterate over the global names of what code changes by a key, ``SEEN[key] = value``, or by a method that changes containers."""
    instructions = _instructions(code)
    yield from (path[:-1] for path in _own_paths(instructions) if len(path) > 1 and path[-1] in _CHANGES)
    for at, instruction in enumerate(instructions):
        if instruction.opname in _WRITES:
            yield from _container(instructions, at)
    for inner in _inner(code):
        yield from changed_names(inner)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _is_of_module(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _own_paths(instructions: Sequence[dis.Instruction]) -> Iterator[Path]:
    for at, instruction in enumerate(instructions):
        if instruction.opname in _READS:
            yield _path(instructions, at)


def _path(instructions: Sequence[dis.Instruction], at: int) -> Path:
    """Return the global name that an instruction reads, with the attributes that the next ones read of it."""
    end = at + 1
    while end < len(instructions) and instructions[end].opname in _ATTRIBUTES:
        end += 1
    return tuple(str(each.argval) for each in instructions[at:end])


def _container(instructions: Sequence[dis.Instruction], at: int) -> Iterator[Path]:
    """Give the path of the container that an instruction changes by a key, if a global name led to it.

    The instruction that put it on the stack is the last one before which the stack was lower. A key with a condition in it may hide that one.
    """
    depth = _WRITES[instructions[at].opname]
    if at and instructions[at - 1].opname == "SWAP":  # as in SEEN[key] += 1, where the value comes last
        depth += 1
    height = 0
    for before in reversed(range(at)):
        height -= dis.stack_effect(instructions[before].opcode, instructions[before].arg, jump=False)
        if height <= -depth:
            if instructions[before].opname in _READS:
                yield _path(instructions, before)
            return
