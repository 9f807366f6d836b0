"""Numerical proof of a schedule: its program, on simulated ranks, against the one it started from (design §4a)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coconet_lab.errors import CoconetError, ProofError
from coconet_lab.ir.compare import Difference, first_difference
from coconet_lab.ir.exact import below, inexact_sums, integer_inputs, reordered
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.ir.oracle import OracleRun, expression_faults, run
from coconet_lab.ir.program import Program
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.schedule.record import take
from coconet_lab.schedule.shrink import shrunk
from coconet_lab.transforms.base import Transform


@dataclass(frozen=True, slots=True)
class Proof:
    """That a schedule's outputs and state equal its program's, on simulated ranks.

    Attributes
    ----------
    outputs, states : int
        Values compared: outputs, and inputs updated in place.
    ranks : int
    inexact : tuple of names
        Reordered sums that are not exact; what lies below them was compared within 16 eps.
    size : "small" or "full"
    seed : int
    notes : tuple of str
        What weakens the proof: why it ran at full size, or an output that is mostly NaN.
    """

    outputs: int
    states: int
    ranks: int
    inexact: tuple[str, ...]
    size: str
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every value was compared bit for bit."""
        return not self.inexact

    def __repr__(self) -> str:
        values = _count(self.outputs, "output")
        if self.states:
            values += f" and {_count(self.states, 'updated tensor')}"
        how = "exact" if self.exact else f"within 16 eps below {', '.join(self.inexact)}"
        notes = "".join(f"; {note}" for note in self.notes)
        return f"equal: {values} × {_count(self.ranks, 'rank')}, {how}, at {self.size} size{notes}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def prove(
    base: Program, steps: Sequence[Transform], *, seed: int = 0, full: bool = False,
    before: Callable[[str], None] | None = None,
) -> Proof:  # fmt: skip
    """Run `base` and what `steps` make of it on equal inputs, and compare all outputs and state on all ranks.

    Parameters
    ----------
    base : Program
    steps : sequence of Transform
    seed : int
        Of the inputs drawn.
    full : bool
        Keep the program's extents instead of small ones.
    before : callable or None
        Called with each operation's name before it is computed; an exception of a class of its own ends the proof.

    Raises
    ------
    ProofError
        The first element that differs, both values, and the first step after which it does.
    """
    programs, size, notes = _programs(base, steps, full)
    start = programs[0]
    inputs = proof_inputs(start, integer_inputs(start), seed)
    expected = run(start, inputs, before=before)
    for name, fault in expression_faults(expected):
        raise ProofError(
            f"the kernel expression of {name!r} is not its meaning: {fault}",
            rule="an operator's expression computes what its meaning says; kernels run the one, proofs the other",
            where=f"program {start.name!r}",
            hint="change expression= or meaning= of the operator",
        )
    sums = inexact_sums(expected)

    def differs(changed: Program) -> str | None:
        return difference_text(expected, changed, _computed(changed, inputs, before), reordered(start, changed, sums))

    found = differs(programs[-1])
    if found is not None:
        number = next((k for k, changed in enumerate(programs[1:], 1) if differs(changed) is not None), len(steps))
        raise _error(start, programs, steps, number, differs(programs[number]) or found)
    states = len(updated_inputs(start))
    inexact = tuple(sorted(reordered(start, programs[-1], sums)))
    return Proof(len(start.outputs), states, start.ranks, inexact, size, seed, (*notes, *_mostly_nan(expected)))


def _programs(base: Program, steps: Sequence[Transform], full: bool) -> tuple[list[Program], str, tuple[str, ...]]:
    """The program before and after every step, small where it can be."""
    if not full:
        try:
            start = shrunk(base)
            return _replayed(start, steps), "full" if start == base else "small", ()
        except CoconetError:
            # Extents that something ties together, or a step that needs them: the real ones type-checked.
            return _replayed(base, steps), "full", ("its steps do not hold at smaller extents",)
    return _replayed(base, steps), "full", ()


def _replayed(program: Program, steps: Sequence[Transform]) -> list[Program]:
    programs = [program]
    for number, step in enumerate(steps, 1):
        programs.append(take(programs[-1], step, number).after)
    return programs


def _computed(program: Program, inputs: dict[str, np.ndarray], before: Callable[[str], None] | None) -> OracleRun | str:
    """The run, or why there is none."""
    try:
        return run(program, inputs, before=before)
    except (CoconetError, ValueError, IndexError, TypeError, KeyError) as error:
        return f"the program cannot be computed: {type(error).__name__}: {error}"


def difference_text(
    expected: OracleRun, changed: Program, found: OracleRun | str, inexact: frozenset[str]
) -> str | None:
    """The first difference between two runs' outputs and state on any rank, or None.

    Parameters
    ----------
    expected : OracleRun
        Of the program before all steps.
    changed : Program
    found : OracleRun or str
        Of `changed`, or why it could not run.
    inexact : names
        Sums of the first program that may differ in their last bits.
    """
    if isinstance(found, str):
        return found
    base = expected.program
    if changed.outputs != base.outputs:
        return f"the outputs are {list(changed.outputs)} instead of {list(base.outputs)}"
    states = updated_inputs(base), updated_inputs(changed)
    if set(states[0]) != set(states[1]):
        return f"the tensors updated in place are {sorted(states[1])} instead of {sorted(states[0])}"
    tolerant = below(base, inexact)
    pairs = [(name, name, name) for name in base.outputs]
    pairs += [(tensor, states[0][tensor], states[1][tensor]) for tensor in states[0]]
    for shown, before, after in pairs:
        difference = _first(shown, expected.output(before), changed, found, after, before in tolerant)
        if difference is not None:
            return str(difference)
    return None


def _first(
    shown: str, expected: np.ndarray, program: Program, found: OracleRun, name: str, tolerant: bool
) -> Difference | None:
    held = ((rank, array) for rank, array in enumerate(found.values[name]) if array is not None)
    kind, ranks = program.types[name], program.group_ranks
    return first_difference(shown, kind, held, expected, group_ranks=ranks, tolerant=tolerant)


def _error(
    start: Program, programs: Sequence[Program], steps: Sequence[Transform], number: int, found: str
) -> ProofError:
    step = f"step {number}: {steps[number - 1].script()}" if steps else "no step"
    return ProofError(
        found,
        rule="every schedule computes the values of the program it started from [paper §3]",
        where=f"program {start.name!r}, first after {step}",
        hint=f"schedule.before({max(number, 1)}).check(), and schedule.record[{max(number - 1, 0)}].diff",
    )


def _mostly_nan(expected: OracleRun) -> Iterator[str]:
    """NaN equals NaN, so an output full of them proves little."""
    for name, value in expected.outputs.items():
        wide = value.astype(np.float64)
        if wide.size and np.isnan(wide).mean() > 0.5 and _is_meant(expected, name):
            yield f"most of {name!r} is NaN: give the inputs low= and high="


def _is_meant(expected: OracleRun, name: str) -> bool:
    """Whether NaN tells of bad inputs: a reduce leaves it off its root on purpose."""
    return expected.program.ops[name].kind != "Reduce"
