"""The key of a program: equal iff the programs are equal but for made-up names."""

from __future__ import annotations

import hashlib

from coconet_lab.ir.ops import CustomOperator, Input, Op
from coconet_lab.ir.program import Program


def program_key(program: Program) -> str:
    """A digest of operations, types, annotations and outputs, in which an operation is known by its label only."""
    digests: dict[str, str] = {}
    for name, op in program.ops.items():
        digests[name] = _digest(_op_text(op, digests), repr(program.types[name]))
    fusions = {
        f.name: _digest(f.name if f.named else "", *sorted(digests[m] for m in f.members)) for f in program.fusions
    }
    overlaps = [
        _digest(v.name if v.named else "", *(fusions.get(s) or digests[s] for s in v.stages)) for v in program.overlaps
    ]
    return _digest(
        program.name,
        f"{program.ranks}/{program.groups}",
        *(digests[name] for name in program.outputs),
        "|",
        *sorted(digests.values()),
        "|",
        *sorted(fusions.values()),
        "|",
        *sorted(overlaps),
    )


def _op_text(op: Op, digests: dict[str, str]) -> str:
    called = op.name if isinstance(op, Input) else op.label
    operands = [digests[x] if isinstance(x, str) else repr(x) for x in op.operands]
    attributes = {k: (v.name, v.expression) if isinstance(v, CustomOperator) else v for k, v in op.attributes().items()}
    # What a type prints says neither how a list is divided into tensors nor into buckets.
    division = (op.type.pieces, op.type.bucket) if isinstance(op, Input) and op.type.pieces else ""
    return f"{op.kind}|{called}|{operands}|{attributes}|{division}"


def _digest(*parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
