"""Simulators with published formulas: Friedman 1 to 3 with their noise, borehole, OTL circuit and piston without any, and others for choices and for advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

from pyro_dgp.data.dataset import Array, Dataset

TEST_ROWS, SPLITS = 1000, 10

Ranges = Mapping[str, tuple[float, float]]

BOREHOLE: Ranges = {
    "radius of borehole (m)": (0.05, 0.15),
    "radius of influence (m)": (100, 50000),
    "transmissivity of upper aquifer (m2/yr)": (63070, 115600),
    "head of upper aquifer (m)": (990, 1110),
    "transmissivity of lower aquifer (m2/yr)": (63.1, 116),
    "head of lower aquifer (m)": (700, 820),
    "length of borehole (m)": (1120, 1680),
    "conductivity of borehole (m/yr)": (9855, 12045),
}
OTL: Ranges = {
    "b1 (kOhm)": (50, 150),
    "b2 (kOhm)": (25, 70),
    "f (kOhm)": (0.5, 3),
    "c1 (kOhm)": (1.2, 2.5),
    "c2 (kOhm)": (0.25, 1.2),
    "current gain": (50, 300),
}
PISTON: Ranges = {
    "weight (kg)": (30, 60),
    "surface (m2)": (0.005, 0.020),
    "initial gas volume (m3)": (0.002, 0.010),
    "spring coefficient (N/m)": (1000, 5000),
    "atmospheric pressure (N/m2)": (90000, 110000),
    "ambient temperature (K)": (290, 296),
    "filling gas temperature (K)": (340, 360),
}


WING: Ranges = {
    "wing area (ft2)": (150, 200),
    "weight of fuel in the wing (lb)": (220, 300),
    "aspect ratio": (6, 10),
    "quarter-chord sweep (degrees)": (-10, 10),
    "dynamic pressure at cruise (lb/ft2)": (16, 45),
    "taper ratio": (0.5, 1),
    "thickness to chord": (0.08, 0.18),
    "ultimate load factor": (2.5, 6),
    "design gross weight (lb)": (1700, 2500),
    "weight of paint (lb/ft2)": (0.025, 0.08),
}
ANGLES: Ranges = {f"angle {k} (radians)": (-np.pi, np.pi) for k in range(1, 4)}
SCREENED: Ranges = {f"input {k}": (-0.5, 0.5) for k in range(1, 21)}
SPILL: Ranges = {
    "mass of each spill (kg)": (7, 13),
    "diffusion rate in the channel (m2/s)": (0.02, 0.12),
    "location of the second spill (m)": (0.01, 3),
    "time of the second spill (s)": (30.01, 30.295),
}
BEAM: Ranges = {
    "width (in)": (2, 3),
    "thickness (in)": (3, 4),
    "modulus (psi)": (25e6, 33e6),
    "load across (lb)": (300, 700),
    "load down (lb)": (800, 1200),
}
ARM: Ranges = {f"angle {k} (radians)": (0, 2 * np.pi) for k in range(1, 5)} | {
    f"length {k}": (0, 1) for k in range(1, 5)
}


def unit_cube(inputs: int) -> Ranges:
    """Return the ranges of inputs between 0 and 1."""
    return {f"input {k}": (0, 1) for k in range(1, inputs + 1)}


def borehole(x: Array) -> Array:
    """Flow of water through a borehole, m3 a year (Harper and Gupta 1983; uniform inputs as in Morris, Mitchell, Ylvisaker 1993)."""
    rw, r, tu, hu, tl, hl, length, kw = x.T
    log = np.log(r / rw)
    flow: Array = 2 * np.pi * tu * (hu - hl) / (log * (1 + 2 * length * tu / (log * rw**2 * kw) + tu / tl))
    return flow


def otl_circuit(x: Array) -> Array:
    """Midpoint voltage of a push-pull circuit without an output transformer (Ben-Ari and Steinberg 2007)."""
    b1, b2, f, c1, c2, gain = x.T
    base, load = 12 * b2 / (b1 + b2), gain * (c2 + 9)
    voltage: Array = (base + 0.74) * load / (load + f) + 11.35 * f / (load + f) + 0.74 * f * load / ((load + f) * c1)
    return voltage


def piston(x: Array) -> Array:
    """Cycle time of a piston in a cylinder, seconds (Kenett and Zacks 1998; Ben-Ari and Steinberg 2007)."""
    weight, surface, volume, spring, pressure, ambient, filling = x.T
    a = pressure * surface + 19.62 * weight - spring * volume / surface
    heat = pressure * volume * ambient / filling
    v = surface / (2 * spring) * (np.sqrt(a**2 + 4 * spring * heat) - a)
    cycle: Array = 2 * np.pi * np.sqrt(weight / (spring + surface**2 * heat / v**2))
    return cycle


def wing_weight(x: Array) -> Array:
    """Weight of the wing of a light aircraft, lb (Forrester, Sobester and Keane 2008)."""
    area, fuel, aspect, sweep, pressure, taper, thickness, load, gross, paint = x.T
    cosine = np.cos(np.deg2rad(sweep))
    frame = 0.036 * area**0.758 * fuel**0.0035 * (aspect / cosine**2) ** 0.6 * pressure**0.006 * taper**0.04
    weight: Array = frame * (100 * thickness / cosine) ** -0.3 * (load * gross) ** 0.49 + area * paint
    return weight


def robot_arm(x: Array) -> Array:
    """Distance of the end of an arm of four parts from its shoulder (An and Owen 2001)."""
    angles, lengths = np.cumsum(x[:, :4], 1), x[:, 4:]
    distance: Array = np.hypot((lengths * np.cos(angles)).sum(1), (lengths * np.sin(angles)).sum(1))
    return distance


def ishigami(x: Array) -> Array:
    """Function of three angles, one of which acts by its product with another alone (Ishigami and Homma 1990)."""
    first, second, third = x.T
    value: Array = np.sin(first) + 7 * np.sin(second) ** 2 + 0.1 * third**4 * np.sin(first)
    return value


def screening(x: Array) -> Array:
    """Function of twenty inputs, of which a few matter (Welch, Buck, Sacks, Wynn, Mitchell and Morris 1992)."""
    value: Array = 5 * x[:, 11] / (1 + x[:, 0]) + 5 * (x[:, 3] - x[:, 19]) ** 2 + x[:, 4]
    value = value + 40 * x[:, 18] ** 3 - 5 * x[:, 18] + 0.25 * x[:, 12] ** 2
    slopes = {2: 0.05, 3: 0.08, 6: -0.03, 7: 0.03, 9: -0.09, 10: -0.01, 11: -0.07, 14: -0.04, 15: 0.06, 17: -0.01}
    return value - 0.03 * x[:, 17] + sum(slope * x[:, number - 1] for number, slope in slopes.items())


def spill(x: Array) -> Array:
    """Concentration of a pollutant a metre from the first of two spills, 40.1 seconds after it (Bliznyuk et al. 2008)."""
    mass, rate, location, later = x.T
    time, since = 40.1, 40.1 - later
    first = mass / np.sqrt(rate * time) * np.exp(-1 / (4 * rate * time))
    second = mass / np.sqrt(rate * since) * np.exp(-((1 - location) ** 2) / (4 * rate * since))
    concentration: Array = first + second
    return concentration


def dette_pepelyshev(x: Array) -> Array:
    """Function of eight inputs that bends in all of them (Dette and Pepelyshev 2010)."""
    first, second, third = x[:, :3].T
    value: Array = 4 * (first - 2 + 8 * second - 8 * second**2) ** 2 + (3 - 4 * second) ** 2
    value = value + 16 * np.sqrt(third + 1) * (2 * third - 1) ** 2
    return value + (np.arange(4, 9) * np.log1p(np.cumsum(x[:, 2:], 1)[:, 1:])).sum(1)


def sobol_g(x: Array) -> Array:
    """Product of functions with a kink, each input less important than the one before it (Sobol 1993; Marrel et al. 2009)."""
    weights = np.arange(1, x.shape[1] + 1)
    value: Array = ((np.abs(4 * x - 2) + weights) / (1 + weights)).prod(1)
    return value


def hartmann(x: Array) -> Array:
    """Hartmann's sum of four bumps in six inputs (Dixon and Szego 1978): a minimum of -3.32237."""
    heights = np.array([1.0, 1.2, 3.0, 3.2])
    rates = np.array(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    )
    centres = np.array(
        [
            [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
            [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
            [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
            [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
        ]
    )
    value: Array = -(heights * np.exp(-(rates * (x[..., None, :] - centres) ** 2).sum(-1))).sum(-1)
    return value


def currin(x: Array) -> Array:
    """Function of two inputs, steep in one corner (Currin, Mitchell, Morris and Ylvisaker 1991)."""
    first, second = x.T
    ratio = (2300 * first**3 + 1900 * first**2 + 2092 * first + 60) / (100 * first**3 + 500 * first**2 + 4 * first + 20)
    value: Array = (1 - np.exp(-1 / (2 * second))) * ratio
    return value


def franke(x: Array) -> Array:
    """Two bumps, a dip and a slope in two inputs (Franke 1979)."""
    a, b = 9 * x.T
    value: Array = 0.75 * np.exp(-((a - 2) ** 2) / 4 - (b - 2) ** 2 / 4) + 0.75 * np.exp(
        -((a + 1) ** 2) / 49 - (b + 1) / 10
    )
    return value + 0.5 * np.exp(-((a - 7) ** 2) / 4 - (b - 3) ** 2 / 4) - 0.2 * np.exp(-((a - 4) ** 2) - (b - 7) ** 2)


def park(x: Array) -> Array:
    """Function of four inputs (Park 1991; Cox, Park and Singer 2001)."""
    a, b, c, d = x.T
    value: Array = a / 2 * (np.sqrt(1 + (b + c**2) * d / a**2) - 1) + (a + 3 * d) * np.exp(1 + np.sin(c))
    return value


def goldstein_price(x: Array) -> Array:
    """Logarithm of the function of Goldstein and Price 1971 in the unit square, standardised (Picheny, Wagner and Ginsbourger 2013)."""
    a, b = 4 * x.T - 2
    first = 1 + (a + b + 1) ** 2 * (19 - 14 * a + 3 * a**2 - 14 * b + 6 * a * b + 3 * b**2)
    second = 30 + (2 * a - 3 * b) ** 2 * (18 - 32 * a + 12 * a**2 + 48 * b - 36 * a * b + 27 * b**2)
    value: Array = (np.log(first * second) - 8.693) / 2.427
    return value


def roos_arnold(x: Array) -> Array:
    """Product of kinks, all inputs alike (Roos and Arnold 1963)."""
    value: Array = np.abs(4 * x - 2).prod(1)
    return value


def zhou(x: Array) -> Array:
    """Two narrow bumps on a diagonal (Zhou 1998)."""
    bumps = [np.exp(-50 * ((x - centre) ** 2).sum(1)) for centre in (1 / 3, 2 / 3)]
    value: Array = (10 / np.sqrt(2 * np.pi)) ** x.shape[1] * sum(bumps) / 2
    return value


def cheng_sandu(x: Array) -> Array:
    """Function of two inputs (Cheng and Sandu 2010)."""
    value: Array = np.cos(x.sum(1)) * np.exp(x.prod(1))
    return value


def yuan_wahba(x: Array) -> Array:
    """Mean of targets whose noise has a scale of its own, ``exp(sin(2 pi x))`` (Yuan and Wahba 2004)."""
    value: Array = 2 * (np.exp(-30 * (x[:, 0] - 0.25) ** 2) + np.sin(np.pi * x[:, 0] ** 2)) - 2
    return value


def lim(x: Array) -> Array:
    """Function of two inputs that is no polynomial (Lim, Sacks, Studden and Welch 2002)."""
    a, b = x.T
    value: Array = ((30 + 5 * a * np.sin(5 * a)) * (4 + np.exp(-5 * b)) - 100) / 6
    return value


def cantilever(x: Array) -> Array:
    """Displacement of the end of a beam that is fixed at the other end, in (Wu, Shin, Sues and Cesare 2001)."""
    width, thickness, modulus, across, down = x.T
    bent: Array = 4 * 100**3 / (modulus * width * thickness) * np.hypot(down / thickness**2, across / width**2)
    return bent


def bump_in_a_corner(x: Array) -> Array:
    """Function of two inputs that is flat but in one corner (Gramacy and Lee 2008)."""
    value: Array = x[:, 0] * np.exp(-(x**2).sum(1))
    return value


def decreasing(x: Array) -> Array:
    """Sum of eight of ten inputs, each with half the weight of the one before (Linkletter et al. 2006)."""
    value: Array = 0.2 * (x[:, :8] * 0.5 ** np.arange(8)).sum(1)
    return value


def _bump_in_a_corner(rows: int, seed: int) -> tuple[Array, Array]:
    random = np.random.RandomState(seed)
    x = random.uniform(-2, 6, size=(rows, 2))
    return x, bump_in_a_corner(x) + 0.001 * random.normal(size=rows)


def _yuan_wahba(rows: int, seed: int) -> tuple[Array, Array]:
    random = np.random.RandomState(seed)
    x = random.uniform(size=(rows, 1))
    return x, yuan_wahba(x) + np.exp(np.sin(2 * np.pi * x[:, 0])) * random.normal(size=rows)


def _cheng_sandu(rows: int, seed: int) -> tuple[Array, Array]:
    random = np.random.RandomState(seed)
    x = random.uniform(size=(rows, 2))
    return x, cheng_sandu(x) + 0.05 * random.standard_t(3, size=rows)


def _noisy(
    function: Callable[[Array], Array], inputs: int, scale: Callable[[Array], Array], rows: int, seed: int
) -> tuple[Array, Array]:
    """Uniform inputs in the unit cube, and values of the function with noise, whose scale is a function of them."""
    random = np.random.RandomState(seed)
    x = random.uniform(size=(rows, inputs))
    y = function(x)
    return x, y + scale(y) * random.normal(size=rows)


def _gramacy_lee(rows: int, seed: int) -> tuple[Array, Array]:
    """Function of six inputs, two of which do nothing, with noise of scale 0.05 (Gramacy and Lee 2009)."""
    random = np.random.RandomState(seed)
    x = random.uniform(size=(rows, 6))
    y = np.exp(np.sin((0.9 * (x[:, 0] + 0.48)) ** 10)) + x[:, 1] * x[:, 2] + x[:, 3]
    return x, y + 0.05 * random.normal(size=rows)


def _uniform(function: Callable[[Array], Array], ranges: Ranges, rows: int, seed: int) -> tuple[Array, Array]:
    low, high = np.array(list(ranges.values()), dtype=float).T
    x = low + (high - low) * np.random.RandomState(seed).uniform(size=(rows, len(low)))
    return x, function(x)


def _friedman1(rows: int, seed: int, inputs: int = 10) -> tuple[Array, Array]:
    x, y = make_friedman1(rows, n_features=inputs, noise=1.0, random_state=seed)
    return x, y


def _friedman2(rows: int, seed: int) -> tuple[Array, Array]:
    x, y = make_friedman2(rows, noise=125.0, random_state=seed)
    return x, y


def _friedman3(rows: int, seed: int) -> tuple[Array, Array]:
    x, y = make_friedman3(rows, noise=0.1, random_state=seed)
    return x, y


#: Functions from a number of rows and a seed to inputs and targets, by name.
FORMULAS: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "friedman1": _friedman1,
    "friedman2": _friedman2,
    "friedman3": _friedman3,
    "borehole": partial(_uniform, borehole, BOREHOLE),
    "otl-circuit": partial(_uniform, otl_circuit, OTL),
    "piston": partial(_uniform, piston, PISTON),
}


#: The same, of simulators that choices are made on.
FOR_CHOICES: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "wing-weight": partial(_uniform, wing_weight, WING),
    "robot-arm": partial(_uniform, robot_arm, ARM),
}


#: The same, of simulators that advice is tested on; screening had a part in making its rules. Franke's has noise of scale 0.1, Park's of a tenth of its value, that of
#: Cheng and Sandu Student's noise of three degrees of freedom and scale 0.05, that of Gramacy and Lee 2008 (``corner``) of 0.001, and Linkletter's of 0.05.
FOR_ADVICE: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "ishigami": partial(_uniform, ishigami, ANGLES),
    "screening": partial(_uniform, screening, SCREENED),
    "gramacy-lee": _gramacy_lee,
    "spill": partial(_uniform, spill, SPILL),
    "dette-pepelyshev": partial(_uniform, dette_pepelyshev, unit_cube(8)),
    "sobol-g": partial(_uniform, sobol_g, unit_cube(6)),
    "hartmann": partial(_uniform, hartmann, unit_cube(6)),
    "currin": partial(_uniform, currin, unit_cube(2)),
    "franke": partial(_noisy, franke, 2, lambda y: np.full_like(y, 0.1)),
    "goldstein-price": partial(_uniform, goldstein_price, unit_cube(2)),
    "roos-arnold": partial(_uniform, roos_arnold, unit_cube(4)),
    "zhou": partial(_uniform, zhou, unit_cube(3)),
    "cheng-sandu": _cheng_sandu,
    "yuan-wahba": _yuan_wahba,
    "lim": partial(_uniform, lim, unit_cube(2)),
    "cantilever": partial(_uniform, cantilever, BEAM),
    "corner": _bump_in_a_corner,
    "linkletter": partial(_noisy, decreasing, 10, lambda y: np.full_like(y, 0.05)),
    "park": partial(_noisy, park, 4, lambda y: 0.1 * np.abs(y)),
}

#: The same, of a simulator whose five inputs are among 27 that have no effect.
WITH_INERT_INPUTS: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "friedman1-inert": partial(_friedman1, inputs=32)
}


def simulated(name: str, rows: int, *, seed: int = 20) -> Dataset:
    """Data of a simulator, ``NAME-ROWS``: each of ten splits trains on ``rows`` rows and tests on 1000 others.

    :param name: one of :data:`FORMULAS`, :data:`FOR_CHOICES`, :data:`FOR_ADVICE` or :data:`WITH_INERT_INPUTS`.
    """
    total = rows + TEST_ROWS
    x, y = (FORMULAS | FOR_CHOICES | FOR_ADVICE | WITH_INERT_INPUTS)[name](total, seed)
    splits = np.zeros((total, SPLITS), dtype=bool)
    random = np.random.RandomState(seed)
    for k in range(SPLITS):
        splits[random.permutation(total)[:TEST_ROWS], k] = True
    return Dataset(f"{name}-{rows}", x, y, splits=splits)
