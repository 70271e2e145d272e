"""References that Sphinx leaves open: names by the file that defines them, names that are not public, names of other libraries.

A reference to something that has no page becomes plain text, but only if it exists: a reference to nothing stays a warning.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

import pyro_dgp

#: Nodes that become links.
LINKS = nodes.reference | pending_xref


@functools.cache
def public() -> dict[int, str]:
    """Public names by the identity of what they name."""
    return {id(getattr(pyro_dgp, name)): name for name in pyro_dgp.__all__}


@functools.cache
def modules() -> list[Any]:
    """All modules of the package."""
    found = pkgutil.walk_packages(pyro_dgp.__path__, "pyro_dgp.")
    return [pyro_dgp, *(importlib.import_module(each.name) for each in found if not each.name.endswith("__main__"))]


def attribute(value: Any, path: list[str]) -> Any:
    """What a path of names leads to, fields of a dataclass with it; ``None`` if it leads nowhere."""
    for name in path:
        annotated = name in {
            key for base in getattr(value, "__mro__", ()) for key in vars(base).get("__annotations__", {})
        }
        value = True if annotated else getattr(value, name, None)
    return value


def imported(path: str) -> Any:
    """What a full path names, such as ``torch.nn.Module``; ``None`` if it names nothing."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return attribute(module, parts[length:])
    return None


def exists(target: str) -> bool:
    """Whether a reference names something, in full or by a name that some file of the package knows."""
    parts = target.split(".")
    if hasattr(builtins, parts[0]) or imported(target) is not None:
        return True
    if any(attribute(module, parts) is not None for module in modules()):
        return True
    classes = {value for module in modules() for value in vars(module).values() if isinstance(value, type)}
    return any(attribute(each, parts) is not None for each in classes if each.__module__.startswith("pyro_dgp"))


def around(node: Any) -> Iterator[Any]:
    """The nodes that a node is in, the nearest first: the text of a link to another page is a node of its own within the link."""
    while node.parent is not None:
        node = node.parent
        yield node


def link_names(app: Any, doctree: Any) -> None:
    """Link code of prose that is a public name, or a call of one, to its entry in the reference. Links and headings stay as they are."""
    if app.env.docname.startswith("api/"):
        return
    for literal in list(doctree.findall(nodes.literal)):
        name = re.match(r"(?:pyro_dgp\.)?(\w+)(?:\(.*\))?$", literal.astext())
        if name is None or name[1] not in pyro_dgp.__all__:
            continue
        if any(isinstance(each, LINKS | nodes.title) for each in around(literal)):
            continue
        target = f"pyro_dgp.{name[1]}"
        link = pending_xref("", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=True)
        link["refdoc"] = app.env.docname
        literal.replace_self(link)
        link += literal


def resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """The page of what a reference names, or its text where that exists and has no page.

    :returns: ``None`` for a reference to nothing, of which Sphinx then warns.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~.")
    if not all(part.isidentifier() for part in target.split(".")):
        return contnode  # the shape in an annotation, such as "*b n d"
    value = imported(target)
    domain = env.get_domain("py")
    if value is not None and id(value) in public():
        name = f"pyro_dgp.{public()[id(value)]}"
        entry = domain.objects.get(name)
        if entry is not None:
            return domain.resolve_xref(env, node["refdoc"], app.builder, entry.objtype, name, node, contnode)
    return contnode if exists(target) else None
