"""Lines of a printed CPU kernel, and the names in it: addresses, ranges and strides of one walk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.numba_forms import finished
from coconet_lab.kernels.numba_walk import Walk, is_per_piece

TILE = 1024
"""Elements computed at a time: a dozen float32 tiles still fit the first two caches."""


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line: its code, a comment beside it, and the value of the program it belongs to."""

    text: str
    comment: str = ""
    origin: str = ""

    @property
    def shown(self) -> str:
        """Code and comment."""
        if not self.comment:
            return self.text
        return f"{self.text}  # {self.comment}" if self.text.strip() else f"{self.text}# {self.comment}"


class Lines:
    """Collects lines at the current indent."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._indent = 0

    def add(self, text: str, origin: str = "", comment: str = "") -> None:
        """One more line."""
        self.lines.append(Line("    " * self._indent + text, comment, origin))

    def note(self, comment: str) -> None:
        """A line that is a comment alone."""
        self.add("", comment=comment)

    @contextmanager
    def block(self, indented: bool = True) -> Iterator[None]:
        """Lines added inside are indented."""
        self._indent += indented
        yield
        self._indent -= indented


def comment_name(name: str) -> str:
    """A user's name as a comment shows it: escaped, so that it stays a comment of one line."""
    return ascii(name)


class Frame:
    """What all phases of a kernel share.

    Names in printed code: ``t3`` tensor 3 here, ``t3_1`` on rank 1, ``t3_s0`` its step along loop 0; ``n0, b0, e0, f0``
    extent, begin, end and first index of this rank's block of loop 0; ``x0`` its index; ``s1, q1, z1`` partials,
    results and number of results of reduction 1; ``r7`` register 7; ``v7`` its tile.
    """

    def __init__(self, kernel: k.Kernel, walk: Walk, lines: Lines) -> None:
        self.kernel, self.walk, self.lines = kernel, walk, lines
        self.sliced = walk.level_of(kernel.space.dim)
        self.pieces_at = kernel.space.parts + 2
        self.scattered = [at for at, tensor in enumerate(kernel.tensors) if tensor.scattered]

    def print_prologue(self) -> None:
        """Addresses, ranges and strides."""
        if self.kernel.space.blocks:
            self.lines.add(f"part, rank = rank, rank % {self.kernel.space.ranks}", comment="block, rank on this host")
        self._print_addresses()
        for level in range(len(self.walk.levels)):
            self._print_range(level)
        self._print_strides()
        self._print_accumulators()

    def origin(self, register: int) -> str:
        """The value a register holds."""
        origins = self.kernel.origin
        return origins[register] if register < len(origins) else ""

    @staticmethod
    def accumulated(phase: k.Phase) -> list[int]:
        """The reductions a phase adds to, in order."""
        found = [s.accumulator for s in (*phase.uniform, *phase.body) if isinstance(s, k.Accumulate)]
        return sorted(set(found))

    def accumulator_origin(self, at: int) -> str:
        """The value a reduction is: that of the first register its result is read into."""
        for statement in self.kernel.statements():
            if isinstance(statement, k.Result) and statement.accumulator == at:
                return self.origin(statement.out)
        return ""

    def _print_addresses(self) -> None:
        gathered = {s.tensor for s in self.kernel.statements() if isinstance(s, k.Combine)}
        for at, tensor in enumerate(self.kernel.tensors):
            shape = ", ".join(["whole"] if tensor.placement == "whole" else ["block"])
            note = f"{comment_name(tensor.value)}, {tensor.dtype}, {shape}"
            self.lines.add(f"t{at} = pointers[{at}, rank]", tensor.value, note)
            if at in gathered:
                for rank in range(self.kernel.space.ranks):
                    self.lines.add(f"t{at}_{rank} = pointers[{at}, {rank}]", tensor.value)

    def _print_range(self, level: int) -> None:
        """``n`` extent, ``f`` first index of the rank's block, ``b`` and ``e`` what this launch walks, ``c`` stored."""
        space, dims, add = self.kernel.space, self.walk.levels[level], self.lines.add
        if not dims:
            add(f"n{level} = {self._piece_count() if self.walk.by_piece else '1'}")
            add(f"b{level}, e{level} = 0, n{level}")
            return
        outer = dims[0]
        inner = "".join(f" * extents[{d}]" for d in dims[1:])
        add(f"n{level} = extents[{outer}]{inner}")
        begin, end = "0", f"extents[{outer}]"
        if outer == space.dim:
            self._print_block(level, outer)
            begin, end = "first", "last"
            if outer == space.chunk_dim:
                add("low, high = min(first + lo, last), min(first + hi, last)")
                begin, end = "low", "high"
            add(f"f{level} = first{inner}")
        elif outer == space.chunk_dim:
            add(f"low, high = min(lo, extents[{outer}]), min(hi, extents[{outer}])")
            begin, end = "low", "high"
        add(f"b{level}, e{level} = {begin if begin == '0' else begin + inner}, {end}{inner}")

    def _piece_count(self) -> str:
        """Tensors of the list: each has a start, and a shift in every scattered buffer."""
        count = f"extents.size - {self.pieces_at + 1}"
        return f"({count}) // {1 + len(self.scattered)}" if self.scattered else count

    def _print_block(self, level: int, dim: int) -> None:
        space, add = self.kernel.space, self.lines.add
        part = "part" if space.blocks else "rank"
        if space.pieces:
            add(f"first, last = extents[1 + {part}], extents[2 + {part}]")
            return
        add(f"block = (extents[{dim}] + {space.parts - 1}) // {space.parts}")
        add(f"first = min({part} * block, extents[{dim}])")
        add(f"last = min(first + block, extents[{dim}])")
        inner = "".join(f" * extents[{d}]" for d in self.walk.levels[level][1:])
        add(f"c{level} = block{inner}")

    def _print_strides(self) -> None:
        for at, varies in enumerate(self.walk.tensors):
            for level in sorted(varies - {self.walk.run}):
                if is_per_piece(self.kernel, at) or at in self.scattered:
                    continue
                steps = [self._stored(at, inner) for inner in sorted(varies) if inner > level]
                self.lines.add(f"t{at}_s{level} = {' * '.join(steps) or '1'}", self.kernel.tensors[at].value)

    def _stored(self, tensor: int, level: int) -> str:
        return f"c{level}" if self._is_block(tensor, level) else f"n{level}"

    def _is_block(self, tensor: int, level: int) -> bool:
        return self.kernel.tensors[tensor].placement == "block" and level == self.sliced

    def _print_accumulators(self) -> None:
        """Where partials and results lie."""
        base = len(self.kernel.tensors)
        for at, (accumulator, varies) in enumerate(zip(self.kernel.accumulators, self.walk.accumulators)):
            origin = self.accumulator_origin(at)
            note = f"{accumulator.fn}: {comment_name(origin)}"
            self.lines.add(f"z{at} = {' * '.join(f'n{level}' for level in sorted(varies)) or '1'}", origin, note)
            self.lines.add(f"s{at} = pointers[{base + at}, rank] + turn * 8 * z{at}", origin)
            self.lines.add(f"q{at} = pointers[{base + at}, rank] + 16 * z{at}", origin)
            if accumulator.crosses:
                for rank in range(self.kernel.space.ranks):
                    self.lines.add(f"s{at}_{rank} = pointers[{base + at}, {rank}] + turn * 8 * z{at}", origin)

    def offset(self, tensor: int) -> str:
        """Where the innermost loop's elements begin in a tensor, but for the loop's own index."""
        varies = self.walk.tensors[tensor]
        if is_per_piece(self.kernel, tensor):
            return "x0"
        if tensor in self.scattered:
            return f"extents[{self.pieces_at + 1} + {1 + self.scattered.index(tensor)} * n0 + x0]"
        terms = []
        for level in sorted(varies - {self.walk.run}):
            index = f"(x{level} - f{level})" if self._is_block(tensor, level) else f"x{level}"
            terms.append(f"{index} * t{tensor}_s{level}")
        text = " + ".join(terms)
        if self.walk.run in varies and self._is_block(tensor, self.walk.run):
            return f"{text} - f{self.walk.run}" if text else f"-f{self.walk.run}"
        return text

    def result_offset(self, accumulator: int) -> str:
        """The same for a reduction's results, which have global extents."""
        varies = self.walk.accumulators[accumulator]
        terms = []
        for level in sorted(varies - {self.walk.run}):
            inner = [f"n{at}" for at in sorted(varies) if at > level]
            terms.append(" * ".join([f"x{level}", *inner]))
        return " + ".join(terms)

    def flat(self) -> str:
        """The global flat index in the space where the innermost loop's index is 0."""
        levels = [at for at in range(self.walk.run) if self.walk.levels[at]]
        return " + ".join(" * ".join([f"x{at}", *(f"n{i}" for i in range(at + 1, self.walk.run + 1))]) for at in levels)

    def finished(self, at: int, total: str) -> str:
        """The end of a reduction: divided, rooted, rounded once."""
        accumulator = self.kernel.accumulators[at]
        if not accumulator.dtype.is_float:
            return f"i64(i32({total}))" if accumulator.dtype.itemsize == 4 else total
        if accumulator.fn == "mean":
            total = f"{total} / f64({self._count(at)})"
        elif accumulator.fn == "norm":
            total = f"sqrt_f64({total})"
        return finished(total, accumulator.dtype)

    def _count(self, at: int) -> str:
        """How many elements each result is the mean of."""
        if self.kernel.accumulators[at].per_piece:
            return f"extents[{self.pieces_at + 1} + i] - extents[{self.pieces_at} + i]"
        dims = self.kernel.accumulators[at].dims
        chosen = range(len(self.kernel.space.shape)) if dims is None else dims
        return " * ".join(f"extents[{d}]" for d in chosen) or "1"
