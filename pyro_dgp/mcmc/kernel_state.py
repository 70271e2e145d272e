"""States of kernels of Pyro's MCMC between two iterations, as tensors, numbers and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro.infer import HMC
from pyro.infer.mcmc.adaptation import ArrowheadMassMatrix, BlockMassMatrix
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.ops.arrowhead import SymmArrowhead

from pyro_dgp.training.checkpoints import Stateful

#: Names of the attributes that change from one iteration to the next, of HMC and NUTS, and of a random walk.
_HMC = ("_t", "_accept_cnt", "_mean_accept_prob", "_divergences", "_z_last", "_potential_energy_last", "_z_grads_last")
_RANDOM_WALK = ("_t", "_accept_cnt", "_mean_accept_prob", "_log_step_size", "_energy_last")

#: Names of those of the adaptation of HMC: of its windows, of dual averaging, and of Welford's scheme for both kinds of a mass matrix.
_WINDOWS = ("step_size", "_current_window")
_DUAL_AVERAGING = ("prox_center", "_t", "_x_t", "_x_avg", "_g_avg")
_WELFORD = ("n_samples", "_mean", "_m2", "_m2_top", "_m2_bottom_diag")


def can_be_saved(kernel: MCMCKernel) -> bool:
    """Tell whether :func:`stateful` knows the state of a kernel."""
    try:
        stateful(kernel)
    except ValueError:
        return False
    return True


def stateful(kernel: MCMCKernel) -> Stateful:
    """Return the kernel if its class says what its state is, or the state of Pyro's HMC, NUTS or random walk.

    A state is taken between two iterations, and set on a kernel of the same options after its ``setup`` with the same data, warm-up and
    ``initial_params``. It then goes on to the same bits.

    :raises ValueError: for any other kernel.
    """
    if isinstance(kernel, Stateful):
        return kernel
    if isinstance(kernel, HMC) and isinstance(kernel.mass_matrix_adapter, BlockMassMatrix | ArrowheadMassMatrix):
        return _HamiltonianState(kernel)
    if isinstance(kernel, RandomWalkKernel):
        return _RandomWalkState(kernel)
    raise ValueError(
        f"the state of {type(kernel).__name__} cannot be saved: give it state_dict and load_state_dict, or leave folder out"
    )


def _values(thing: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes of these names that there are."""
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _set_values(thing: Any, names: tuple[str, ...], values: Mapping[str, Any]) -> None:
    """Set the attributes of these names, whatever others the values hold."""
    for name in names:
        if name in values:
            setattr(thing, name, values[name])
        elif hasattr(thing, name):
            raise KeyError(name)


class _RandomWalkState:
    """State of Pyro's random walk."""

    def __init__(self, kernel: RandomWalkKernel) -> None:
        self.kernel = kernel

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Stateful`."""
        return _values(self.kernel, _RANDOM_WALK)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`Stateful`."""
        _set_values(self.kernel, _RANDOM_WALK, state)


class _HamiltonianState:
    """State of Pyro's HMC or NUTS: the present point with its energy and gradients, counts, and what the warm-up adapts."""

    def __init__(self, kernel: HMC) -> None:
        self.kernel, self.adapter, self.mass = kernel, kernel._adapter, kernel.mass_matrix_adapter

    @property
    def _dual_averaging(self) -> Any:
        """Adaptation of the step size, where there is any."""
        return getattr(self.adapter, "_step_size_adapt_scheme", None)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Stateful`."""
        return {
            "own": _values(self.kernel, _HMC),
            "windows": _values(self.adapter, _WINDOWS),
            "step size": _values(self._dual_averaging, _DUAL_AVERAGING),
            "mass": [self._block(sites, matrix) for sites, matrix in self._matrices().items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`Stateful`."""
        own = {tuple(block["sites"]): block for block in state["mass"]}
        if list(own) != list(self._matrices()):
            raise ValueError("its mass matrix is of other sites")
        self._set_matrices({sites: block["matrix"] for sites, block in own.items()})
        for sites, scheme in self.mass._adapt_scheme.items():  # the setter of the matrices has reset them
            _set_values(scheme, _WELFORD, own[sites]["moments"])
        _set_values(self._dual_averaging, _DUAL_AVERAGING, state["step size"])
        _set_values(self.adapter, _WINDOWS, state["windows"])
        _set_values(self.kernel, _HMC, state["own"])

    def _block(self, sites: tuple[str, ...], matrix: Any) -> dict[str, Any]:
        """One block of the mass matrix, with the moments from which the next one will be made."""
        moments = _values(self.mass._adapt_scheme.get(sites), _WELFORD)
        return {"sites": list(sites), "matrix": matrix, "moments": moments}

    def _matrices(self) -> dict[tuple[str, ...], Any]:
        """Matrices by their sites: of an arrowhead the mass matrix, of blocks its inverse."""
        is_arrowhead = isinstance(self.mass, ArrowheadMassMatrix)
        found: dict[tuple[str, ...], Any] = self.mass.mass_matrix if is_arrowhead else self.mass.inverse_mass_matrix
        return found

    def _set_matrices(self, matrices: Mapping[tuple[str, ...], Any]) -> None:
        """Set the matrices, and with them their factors."""
        if isinstance(self.mass, ArrowheadMassMatrix):
            self.mass.mass_matrix = {sites: SymmArrowhead(*matrix) for sites, matrix in matrices.items()}
        else:
            self.mass.inverse_mass_matrix = dict(matrices)
