"""Zero-dimensional values with neither storage nor a launch: every kernel that reads one computes it (design §4a, 13).

They are uniform statements of their readers' kernels, as in a fused group. The contract's sentence has its limits, and
this is the place of them. A zero-dimensional value of a tensor keeps its storage, and one launch, where

- it is an output,
- something other than a computing kernel reads it: a collective, a send, a library call, an update (which stores it),
- it is a reduction's result or dropped out: those walk elements,
- a fused group makes it for others: the user said where it runs,
- a reader comes after an update of what the value is made from: there the old value is found no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.kernels.lower_memory import source_of
from coconet_lab.kernels.lower_order import kernels_reading, unit_graph


def values_inside(program: Program, host: frozenset[str]) -> frozenset[str]:
    """The values that the kernels of their readers compute.

    Parameters
    ----------
    program : Program
    host : frozenset of names
        Arithmetic on scalar inputs, which is done on the host.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> x = cl.tensor("x", cl.FP32, (8,), cl.Sliced(0))
    >>> y = x / cl.maximum(cl.norm(x, name="n"), 1.0, name="m")
    >>> sorted(values_inside(cl.program("p", outputs=[y], ranks=2), frozenset()))
    ['m']
    """
    found: set[str] = set()
    units, after = unit_graph(program, host, found)
    # Readers first: what a value's kernels are depends on which of its readers are kernels of their own.
    for name in reversed(tuple(program.ops)):
        if name in host or not _is_for_kernels_alone(program, name):
            continue
        found.add(name)
        updates = {units.get(u, u) for source in program.ops[name].sources for u in _updates_of(program, source)}
        if updates:
            kernels = {units.get(kernel, kernel) for kernel in kernels_reading(program, found, name)}
            if kernels.isdisjoint(_not_before(after, updates)):
                for kernel in kernels:
                    after[kernel] |= updates
            else:
                found.remove(name)
    return frozenset(found)


def _is_for_kernels_alone(program: Program, name: str) -> bool:
    op = program.ops[name]
    if not program.types[name].is_scalar or not _computes(op) or isinstance(op, o.Reduction | o.Dropout):
        return False
    readers, group = program.readers[name], program.fusion_of.get(name)
    at_home = group is None or all(program.fusion_of.get(reader) is group for reader in readers)
    return at_home and name not in program.output_set and all(_computes(program.ops[reader]) for reader in readers)


def _computes(op: o.Op) -> bool:
    """Whether `op` runs as a kernel that makes its result from its operands' elements."""
    return o.is_pointwise(op) or isinstance(op, o.Reduction)


def _not_before(after: Mapping[str, set[str]], units: set[str]) -> set[str]:
    """The units, and all that come after one of them."""
    found, stack = set(units), list(units)
    while stack:
        new = after[stack.pop()] - found
        found |= new
        stack += new
    return found


def _updates_of(program: Program, tensor: str) -> list[str]:
    readers = (program.ops[reader] for reader in program.readers[tensor])
    return [op.name for op in readers if isinstance(op, o.Update) and source_of(op) == tensor]
