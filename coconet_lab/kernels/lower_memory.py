"""Where every value of a program is kept: host scalars, buffers, and the slots that alias them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.updates import is_in_place_gather, storage_of, updated_inputs
from coconet_lab.kernels.kernel import Placement
from coconet_lab.kernels.plan import Buffer, Slot

EVERY_GROUP = -1


@dataclass(slots=True)
class Memory:
    """The buffers of a Plan being made.

    Parameters
    ----------
    program : Program
    host : frozenset of names
        Zero-dim values that depend on scalar inputs alone: arguments of kernels, no memory.
    copied : frozenset of names
        Local slices that get a buffer of their own.
    forwarded : mapping
        Value -> the update whose tensor its kernel writes straight into.
    inside : set of names
        Zero-dim values that the kernels of their readers compute (`lower_inside`): no memory, no launch.
    buffers, slots : dict
        What was given out so far; a buffer's life and symmetry are filled in at the end.
    """

    program: Program
    host: frozenset[str]
    copied: frozenset[str]
    forwarded: dict[str, str]
    inside: set[str]
    buffers: dict[str, Buffer]
    slots: dict[str, Slot]

    @classmethod
    def of(cls, program: Program) -> Memory:
        """An empty memory for `program`, with a buffer for every tensor input."""
        host = host_scalars(program)
        memory = cls(program, host, copied_slices(program), {}, set(), {}, {})
        updated = updated_inputs(program)
        for name in program.inputs:
            if name not in host:
                memory.slots[name] = memory.new(name, program.types[name], "state" if name in updated else "input")
        return memory

    def home(self, name: str) -> Slot:
        """Where a stored value is found; its buffer is made when first asked for."""
        known = self.slots.get(name)
        if known is not None:
            return known
        op, kind = self.program.ops[name], self.program.types[name]
        shared = self._shares_with(op)
        if shared is not None:
            slot = replace(self.home(shared), type=kind)
        else:
            slot = self.new(name, kind, "output" if name in self.program.outputs else "temporary")
        self.slots[name] = slot
        return slot

    def _shares_with(self, op: o.Op) -> str | None:
        """The value whose buffer `op` writes into or is found in."""
        if op.name in self.forwarded:
            return self.forwarded[op.name]
        if isinstance(op, o.Update) or is_in_place_gather(self.program, op.name):
            return storage_of(self.program.ops, op.name)
        if isinstance(op, o.LocalSlice) and op.name not in self.copied:
            return source_of(op)
        return None

    def new(self, value: str, kind: TensorType, role: str) -> Slot:
        """A fresh buffer for a value of this type."""
        name = f"b{len(self.buffers)}"
        placement: Placement = "block" if kind.layout.is_sliced else "whole"
        group = EVERY_GROUP if kind.group is None else kind.group
        size = kind.stored_bytes(self.program.group_ranks)
        self.buffers[name] = Buffer(name, value, kind, placement, role, False, group, size, 0, 0)  # type: ignore[arg-type]
        return Slot(name, kind)

    def taken_in(self, members: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a kernel of `members` computes, in program order, and which of it are zero-dim values it takes in."""
        asked = frozenset(members)
        found = dict.fromkeys(members)
        stack = list(members)
        while stack:
            for source in self.program.ops[stack.pop()].sources:
                if source in self.inside and source not in found:
                    found[source] = None
                    stack.append(source)
        everything = tuple(sorted(found, key=self.program.position.__getitem__))
        return everything, tuple(name for name in everything if name in self.inside and name not in asked)

    def placement(self, slot: Slot) -> Placement:
        """Whether the slot's buffer has the global shape or holds this rank's block alone."""
        return self.buffers[slot.buffer].placement


def source_of(op: o.Op, at: int = 0) -> str:
    """The value an operation reads as operand number `at`."""
    return list(op.sources)[at]


def host_scalars(program: Program) -> frozenset[str]:
    """Zero-dim values computed on the host: scalar inputs, and arithmetic on nothing but them."""
    updated = updated_inputs(program)
    found: set[str] = set()
    for name, op in program.ops.items():
        kind = program.types[name]
        if kind.shape != () or kind.pieces or not kind.layout.is_replicated or name in updated:
            continue
        if isinstance(op, o.Input) or (
            isinstance(op, o.Pointwise | o.Cast) and all(source in found for source in op.sources)
        ):
            found.add(name)
    return frozenset(found)


def copied_slices(program: Program) -> frozenset[str]:
    """Local slices with storage of their own: outputs, members of groups, and those of a tensor updated later on."""
    found: set[str] = set()
    updates = [op for op in program.ops.values() if isinstance(op, o.Update)]
    for name, op in program.ops.items():
        if not isinstance(op, o.LocalSlice):
            continue
        root = storage_of(program.ops, source_of(op))
        behind = _ancestors(program, name) if root is not None and updates else set()
        overwritten = any(storage_of(program.ops, u.name) == root and u.name not in behind for u in updates)
        if name in program.outputs or name in program.fusion_of or (root is not None and overwritten):
            found.add(name)
    return frozenset(found)


def _ancestors(program: Program, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for source in program.ops[stack.pop()].sources:
            if source not in found:
                found.add(source)
                stack.append(source)
    return found
