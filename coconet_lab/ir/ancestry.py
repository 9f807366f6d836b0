"""What every value of a program depends on, as ranges of numbers: asked in a moment, whatever lies between."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coconet_lab.ir.program import Program

Cone = tuple[int, ...]  # the bounds of ranges of numbers, ascending: first, end, first, end, …
_MANY = 8  # readers that are not looked at one by one any more


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The ancestors of every value: a tree's are one range of numbers, and what branches share adds few.

    Each value hangs below the reader from which the way down is longest, which is near the best tree there is (Agrawal,
    Borgida and Jagadish, SIGMOD 1989).

    Parameters
    ----------
    names : sequence
        The values in the tree's post-order.
    number : mapping
        Their places in it.
    cones : mapping
        For every value, the numbers of itself and of all that it depends on.
    many : mapping
        The numbers of the readers of values with many, ascending.
    groups : mapping
        The numbers of the members of every fused group, ascending.
    run_ends : mapping
        For every value, the end of the run that it begins: values each of which only the next one reads, all in the
        same fused group or overlap, or all in none.
    """

    names: Sequence[str]
    number: Mapping[str, int]
    cones: Mapping[str, Cone]
    many: Mapping[str, Sequence[int]]
    groups: Mapping[str, Sequence[int]]
    run_ends: Mapping[str, str]

    def is_below(self, name: str, other: str) -> bool:
        """Whether `name` depends on `other`; no value depends on itself."""
        return name != other and is_within(self.number[other], self.cones[name])

    def cone(self, names: Iterable[str]) -> Cone:
        """The numbers of `names` and of all that they depend on."""
        return _merged([self.cones[name] for name in names])

    def readers_within(self, program: Program, name: str, cone: Cone) -> list[str]:
        """The readers of a value whose numbers lie in the ranges."""
        numbers = self.many.get(name)
        if numbers is None:
            return [reader for reader in program.readers[name] if is_within(self.number[reader], cone)]
        return [self.names[at] for first, end in spans(numbers, cone) for at in numbers[first:end]]


def is_within(number: int, cone: Cone) -> bool:
    """Whether a number lies in one of the ranges."""
    return bisect_right(cone, number) % 2 == 1


def spans(numbers: Sequence[int], cone: Cone) -> list[tuple[int, int]]:
    """Which parts of an ascending list lie in the ranges: first and end of each that is not empty, the last first."""
    found = []
    for at in range(len(cone) - 2, -1, -2):
        first, end = bisect_left(numbers, cone[at]), bisect_left(numbers, cone[at + 1])
        if first < end:
            found.append((first, end))
    return found


def ancestry(program: Program) -> Ancestry:
    """The ancestry of a program; `Program.ancestry` keeps it."""
    ranges = _tree_ranges(program)
    number = {name: end - 1 for name, (_, end) in ranges.items()}
    cones: dict[str, Cone] = {}
    for name, op in program.ops.items():
        own = ranges[name]
        shared = [cone for cone in map(cones.__getitem__, op.sources) if cone[0] < own[0] or cone[-1] > own[1]]
        cones[name] = _merged([own, *shared]) if shared else own
    many = {
        name: sorted(map(number.__getitem__, readers))
        for name, readers in program.readers.items()
        if len(readers) > _MANY
    }
    groups = {fusion.name: sorted(map(number.__getitem__, fusion.members)) for fusion in program.fusions}
    return Ancestry(sorted(number, key=number.__getitem__), number, cones, many, groups, _run_ends(program))


def _tree_ranges(program: Program) -> dict[str, tuple[int, int]]:
    """For every value, the post-order numbers of the tree below it, in which its own is the last."""
    parent: dict[str, str] = {}
    height: dict[str, int] = {}
    for name in reversed([*program.ops]):
        readers = program.readers[name]
        if readers:
            parent[name] = max(readers, key=height.__getitem__)
            height[name] = height[parent[name]] + 1
        else:
            height[name] = 0
    size = dict.fromkeys(program.ops, 1)
    for name, reader in reversed(parent.items()):  # operands before their readers
        size[reader] += size[name]
    ranges: dict[str, tuple[int, int]] = {}
    free: dict[str | None, int] = {None: 0}  # below each value, the first number that no operand has yet
    for name in reversed([*program.ops]):
        reader_or_none = parent.get(name)
        first = free[name] = free[reader_or_none]
        free[reader_or_none] = end = first + size[name]
        ranges[name] = first, end
    return ranges


def _run_ends(program: Program) -> dict[str, str]:
    units = program.unit_of
    ends: dict[str, str] = {}
    for name in reversed([*program.ops]):
        readers = program.readers[name]
        goes_on = len(readers) == 1 and units.get(name) == units.get(readers[0])
        ends[name] = ends[readers[0]] if goes_on else name
    return ends


def _merged(cones: Sequence[Cone]) -> Cone:
    """The ranges of all, those that meet made one."""
    ranges = sorted((cone[at], cone[at + 1]) for cone in cones for at in range(0, len(cone), 2))
    bounds: list[int] = []
    for first, end in ranges:
        if bounds and first <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds += (first, end)
    return tuple(bounds)
