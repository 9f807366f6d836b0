"""Storage that updates share: which input a version stands in, and which gathers write in place (design §4a, 18-19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coconet_lab.ir.ops import AllGather, Input, Op, Send, Update
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType


def storage_of(ops: Mapping[str, Op], name: str) -> str | None:
    """The input whose storage `name` is a version of: an input, its updates, and gathers of their blocks."""
    op = ops[name]
    while not isinstance(op, Input):
        if isinstance(op, Update | AllGather):
            source = op.operands[0]
            inner = ops[source] if isinstance(source, str) else op
            if isinstance(op, AllGather) and not isinstance(inner, Update):
                return None
            op = inner
        else:
            return None
    return op.name


def is_in_place_gather(program: Program, name: str) -> bool:
    """Whether `name` gathers a sliced update of a Replicated tensor: it writes into that tensor and is an effect."""
    return gathers_in_place(program.ops, program.types, name)


def gathers_in_place(ops: Mapping[str, Op], types: Mapping[str, TensorType], name: str) -> bool:
    """As `is_in_place_gather`, for operations and types that are no program yet."""
    op = ops[name]
    if not isinstance(op, AllGather):
        return False
    source = op.operands[0]
    if not isinstance(source, str) or not isinstance(ops[source], Update):
        return False
    tensor = storage_of(ops, source)
    return tensor is not None and types[tensor].layout.is_replicated


def is_effect(program: Program, name: str) -> bool:
    """Whether dropping `name` would change more than its own value: updates, sends and gathers in place."""
    return isinstance(program.ops[name], Update | Send) or is_in_place_gather(program, name)


def updated_inputs(program: Program) -> dict[str, str]:
    """For every input that is updated, the name of its last version (the gather, where it is gathered in place)."""
    last: dict[str, str] = {}
    for name, op in program.ops.items():
        if isinstance(op, Update) or is_in_place_gather(program, name):
            tensor = storage_of(program.ops, name)
            if tensor is not None:
                last[tensor] = name
    return last


def order_edges(program: Program) -> Iterator[tuple[str, str]]:
    """Edges of the order graph beyond the data edges: a reader of w comes before the update of w.

    An updated block and the gather of it in place stand in one storage, so the readers of both come first.
    """
    for name, op in program.ops.items():
        if not isinstance(op, Update):
            continue
        tensor = op.operands[0]
        for version in _in_one_storage(program, tensor) if isinstance(tensor, str) else ():
            yield from ((reader, name) for reader in program.readers[version] if reader not in (name, tensor))


def _in_one_storage(program: Program, tensor: str) -> list[str]:
    """`tensor` as a block and whole: the update of which it is the gather in place, and its own gathers in place."""
    block = next(program.ops[tensor].sources) if is_in_place_gather(program, tensor) else tensor
    if not isinstance(program.ops[block], Update):
        return [block]
    return [block, *(r for r in program.readers[block] if is_in_place_gather(program, r))]
