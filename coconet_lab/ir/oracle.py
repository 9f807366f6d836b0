"""What a program means: all ranks in one process, in NumPy, one operation after the other (design §4a).

Fused groups and overlaps change nothing here. A sum across ranks is added in rank order from rank 0's value on, 16-bit
values in float32 and others in their own type; matmul, conv, norms and sums run in float64; each is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from coconet_lab.arguments import refusal, whole
from coconet_lab.ir.inputs import Scheduled, check_inputs, input_block, program_of, random_inputs
from coconet_lab.ir.ops import Custom, Input
from coconet_lab.ir.oracle_ops import HANDLERS, expression_fault
from coconet_lab.ir.program import Program
from coconet_lab.ir.rank_values import PerRank, RankValues
from coconet_lab.ir.updates import updated_inputs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class OracleRun:
    """Every value of a program on every rank.

    Attributes
    ----------
    values : mapping of name to list
        One array per rank of the program; None on ranks of other groups.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (3,), cl.Local)
    >>> program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=2)
    >>> run(program, {"g": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}).output("total")
    array([5., 7., 9.], dtype=float32)
    """

    program: Program
    values: Mapping[str, PerRank]
    _ranks: RankValues = field(repr=False)

    def output(self, name: Any) -> Array:
        """The global value of any name: blocks joined; a Local value has a leading axis over its group's ranks."""
        return self._ranks.whole(self.program.resolve(name))

    @cached_property
    def outputs(self) -> Mapping[str, Array]:
        """The global value of every output."""
        return {name: self._ranks.whole(name) for name in self.program.outputs}

    @cached_property
    def state(self) -> Mapping[str, Array]:
        """The global value that is left in every input that is updated in place."""
        return {tensor: self._ranks.whole(last) for tensor, last in updated_inputs(self.program).items()}

    def on_rank(self, rank: int) -> Mapping[str, Array]:
        """What one rank of the program holds of every value its group has."""
        if whole(rank, "a rank", hint="on_rank(0)") >= self.program.ranks:
            rule = f"program {self.program.name!r} has ranks 0 to {self.program.ranks - 1}"
            raise refusal("a rank", rank, rule, "on_rank(0)")
        return {name: value for name, ranks in self.values.items() if (value := ranks[rank]) is not None}

    def __getitem__(self, name: Any) -> Array:
        return self.output(name)

    def __repr__(self) -> str:
        return f"{self.program.name} on {self.program.ranks} simulated ranks: {', '.join(self.program.outputs)}"


def run(
    program: Program | Scheduled,
    inputs: Mapping[str, Any] | None = None,
    *,
    before: Callable[[str], None] | None = None,
) -> OracleRun:
    """Compute every value of `program` on all its ranks.

    Parameters
    ----------
    program : Program or Schedule
    inputs : mapping or None
        As `check_inputs` takes them; None draws `random_inputs`.
    before : callable or None
        Called with each operation's name before it is computed; what it raises ends the run.

    Raises
    ------
    InputError
        Inputs that do not fit the program.
    """
    program = program_of(program)
    given = check_inputs(program, random_inputs(program) if inputs is None else inputs)
    ranks = RankValues(program)
    for name, op in program.ops.items():
        if before is not None:
            before(name)
        with np.errstate(all="ignore"):
            if isinstance(op, Input):
                blocks = dict(_input_blocks(program, given, name))
                found: PerRank = [blocks.get(rank) for rank in range(program.ranks)]
            else:
                found = HANDLERS[type(op)](ranks, op)
        ranks.store(name, found)
    return OracleRun(program, ranks.values, ranks)


def expression_faults(found: OracleRun) -> Iterator[tuple[str, str]]:
    """The custom operators whose kernel expression is far from their meaning on the values of a run, and how."""
    for name, op in found.program.ops.items():
        fault = expression_fault(found._ranks, op) if isinstance(op, Custom) else None
        if fault is not None:
            yield name, fault


def _input_blocks(program: Program, inputs: Mapping[str, Any], name: str) -> Iterator[tuple[int, Array]]:
    group = program.types[name].group
    for rank in range(program.ranks):
        if group is None or rank // program.group_ranks == group:
            yield rank, input_block(program, inputs, name, rank)
