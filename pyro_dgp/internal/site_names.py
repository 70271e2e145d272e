"""Names of sites, processes and parameters that the library makes from the names in a user's model.

| name | example | what has it |
|---|---|---|
| site | ``h``, ``y`` | what the user wrote: ``pyro.sample("h", gp(x))``, ``pyro.sample("y", likelihood(gp(x)), obs=y)`` |
| process key | ``h``, ``y/f`` | the variational process or the inducing inputs of one GP; a GP inside an observation has a name of its own |
| function site | ``h``, ``y_f`` | the values of one GP where they are sampled |
| whitened site | ``h_whitened``, ``y_f_whitened`` | the same values in whitened coordinates |
| inducing site | ``h_inducing_whitened`` | whitened inducing variables of one GP |
| process parameter | ``processes.y/f.q.mean`` | a parameter of one process in the state of a guide |

>>> key = process_key("y", "f")
>>> key, site_of(key), is_inside_observation(key), is_inside_observation("h")
('y/f', 'y', True, False)
>>> site_of(process_key("scope/y", "f")), function_site_of("scope/y/f")
('scope/y', 'scope/y_f')
>>> function_site("y", "f"), function_site_of(key), function_site_of("h")
('y_f', 'y_f', 'h')
>>> whitened_site("h"), inducing_site("h"), without_whitened("h_whitened")
('h_whitened', 'h_inducing_whitened', 'h')
>>> is_whitened("h_inducing_whitened"), is_inducing("h_inducing_whitened"), is_inducing("h_whitened")
(True, True, False)
>>> process_parameter("processes.y/f.q.mean_unconstrained"), process_parameter("propagation.nodes")
(('y/f', 'q.mean'), None)
"""

from __future__ import annotations

_BETWEEN = "/"
_WHITENED = "_whitened"
_INDUCING = "_inducing"
_PROCESSES = "processes"
_UNCONSTRAINED = "_unconstrained"


def process_key(site: str, gp: str) -> str:
    """The process key of a GP inside the observation ``site``, ``y/f``. A GP that is a site itself has the site's name as its key."""
    return f"{site}{_BETWEEN}{gp}"


def site_of(key: str) -> str:
    """The site at which the model has the GP of a process key."""
    return key.rpartition(_BETWEEN)[0] or key


def is_inside_observation(key: str) -> bool:
    """Whether a process key is that of a GP inside an observation; otherwise the GP is a site of its own, whose name has no slash."""
    return _BETWEEN in key


def function_site(site: str, gp: str) -> str:
    """The site of the sampled values of a GP inside the observation ``site``, ``y_f``."""
    return f"{site}_{gp}"


def function_site_of(key: str) -> str:
    """The site of the sampled values of the GP of a process key."""
    return function_site(site_of(key), key.rpartition(_BETWEEN)[2]) if is_inside_observation(key) else key


def require_no_slash(site: str) -> None:
    """Raise for a site of a GP whose name could be the key of a GP inside an observation."""
    if _BETWEEN in site:
        raise ValueError(
            f"the Gaussian process site {site!r} has a slash in its name, as the function of an observation has (y/f): give it a name without one; "
            "pyro.poutine.scope and pyro.contrib.autoname put slashes in"
        )


def whitened_site(function_site: str) -> str:
    """The site of whitened function values, ``h_whitened``."""
    return function_site + _WHITENED


def inducing_site(function_site: str) -> str:
    """The site of the whitened inducing variables of a GP, ``h_inducing_whitened``."""
    return function_site + _INDUCING + _WHITENED


def is_whitened(site: str) -> bool:
    """Whether a site holds whitened values, of functions or of inducing variables."""
    return site.endswith(_WHITENED)


def is_inducing(site: str) -> bool:
    """Whether a site holds whitened inducing variables."""
    return site.endswith(_INDUCING + _WHITENED)


def without_whitened(site: str) -> str:
    """The inverse of :func:`whitened_site`; any other name as it is."""
    return site.removesuffix(_WHITENED)


def process_parameter(name: str) -> tuple[str, str] | None:
    """The process key and the attribute of a parameter of a guide; nothing if it belongs to no process."""
    owner, _, rest = name.partition(".")
    if owner != _PROCESSES:
        return None
    key, _, attribute = rest.partition(".")
    return key, attribute.removesuffix(_UNCONSTRAINED)
