"""Large programs made small before they are drawn: scopes, chains and, last, stretches of operations become one box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program

MOST_BOXES = 40


@dataclass(frozen=True, slots=True)
class Fold:
    """Operations drawn as one box. `scopes` are the dotted scopes it stands for, none for a chain."""

    names: tuple[str, ...]
    title: str
    note: str
    scopes: tuple[str, ...] = ()


def fold_program(
    program: Program,
    shown: Sequence[str],
    *,
    keep: frozenset[str] = frozenset(),
    opened: frozenset[str] = frozenset(),
    limit: int = MOST_BOXES,
) -> tuple[Fold, ...]:
    """What to fold so that a picture of `shown` has at most `limit` boxes; nothing where it already has.

    Deepest scopes go first, those without a kept operation before the others, and equal neighbouring scopes merge.
    What is still too much folds pointwise chains that only the next member reads, then stretches of program order.

    Parameters
    ----------
    keep : names
        Never folded: what is selected, what changed, outputs.
    opened : scopes
        Dotted scopes that stay open, and their enclosing ones.
    limit : int
        Boxes. `keep` and `opened` win over it.
    """
    if len(shown) <= limit:
        return ()
    free = [name for name in shown if name not in keep and not any(_inside(name, scope) for scope in opened)]
    held = len(shown) - len(free)
    folded: dict[str, str] = {}
    for scopes in _levels(shown, free, keep, opened):
        for name in free:
            scope = next((s for s in _scopes(name) if s in scopes), None)
            if scope is not None:
                folded[name] = scope
        folds = _merged(program, shown, free, folded)
        if _boxes(free, folds) + held <= limit:
            return tuple(folds)
    folds = _merged(program, shown, free, folded)
    folds += _chains(program, [name for name in free if name not in folded])
    excess = _boxes(free, folds) + held - limit
    if excess > 0:
        folds = _stretches(program, free, folds, max(limit - held, 1))
    return tuple(folds)


def _boxes(free: Sequence[str], folds: Sequence[Fold]) -> int:
    return len(free) - sum(len(fold.names) - 1 for fold in folds)


def _scopes(name: str) -> list[str]:
    """The scopes around a name, outermost first: ``a.b.c`` lies in ``a`` and ``a.b``."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: n + 1]) for n in range(len(parts)) if all(parts)]


def _inside(name: str, scope: str) -> bool:
    return name.startswith(f"{scope}.")


def _levels(
    shown: Sequence[str], free: Sequence[str], keep: frozenset[str], opened: frozenset[str]
) -> Iterator[set[str]]:
    """Sets of scopes to fold, one more each time: deepest first, then those that hold a kept operation."""
    found = {scope for name in free for scope in _scopes(name)}
    found -= {outer for scope in opened for outer in [*_scopes(scope), scope]}
    with_kept = found & {scope for name in shown if name in keep for scope in _scopes(name)}
    chosen: set[str] = set()
    for part in (found - with_kept, with_kept):
        for depth in sorted({scope.count(".") for scope in part}, reverse=True):
            chosen |= {scope for scope in part if scope.count(".") == depth}
            yield chosen


def _merged(program: Program, shown: Sequence[str], free: Sequence[str], folded: dict[str, str]) -> list[Fold]:
    """A fold per scope, and one for each run of equal neighbours."""
    members: dict[str, list[str]] = {}
    for name in free:
        if name in folded:
            members.setdefault(folded[name], []).append(name)
    last = {scope: max(program.position[n] for n in names) for scope, names in members.items()}
    loose = sorted(program.position[n] for n in shown if n not in folded and not _is_input(program, n))
    runs: list[list[str]] = []
    signature: tuple[object, ...] | None = None
    for scope in sorted(members, key=lambda s: last[s]):
        mine = (scope.rpartition(".")[0], _signature(program, scope, members[scope]))
        apart = runs and any(last[runs[-1][-1]] < at < last[scope] for at in loose)
        if mine == signature and not apart:
            runs[-1].append(scope)
        else:
            runs.append([scope])
        signature = mine
    return [_scope_fold(program, run, members) for run in runs]


def _signature(program: Program, scope: str, names: Sequence[str]) -> tuple[object, ...]:
    """Equal for scopes whose operations are the same but for the scope's name and where their operands come from."""
    inside = set(names)

    def source(operand: object) -> object:
        if isinstance(operand, str):
            return operand.removeprefix(scope) if operand in inside else program.types[operand]
        return operand

    return tuple(
        (name.removeprefix(scope), op.kind, program.types[name], tuple(map(source, op.operands)), _attributes(op))
        for name, op in ((name, program.ops[name]) for name in names)
    )


def _attributes(op: o.Op) -> str:
    return repr({k: v for k, v in op.attributes().items() if k not in ("stream", "operator")})


def _scope_fold(program: Program, run: Sequence[str], members: dict[str, list[str]]) -> Fold:
    names = tuple(name for scope in run for name in members[scope])
    if len(run) == 1:
        return Fold(names, run[0], _note(program, names), tuple(run))
    inner = run[-1].rpartition(".")[2]
    note = f"{len(run)} equal blocks, {_note(program, names)}"
    return Fold(names, f"{run[0]} … {inner}", note, tuple(run))


def _note(program: Program, names: Iterable[str]) -> str:
    """``324 ops, 36 ⇄ AllReduce``."""
    ops = [program.ops[name] for name in names]
    counted = Counter(op.kind for op in ops if op.is_collective)
    computed = sum(not isinstance(op, o.Input) for op in ops)
    inputs = len(ops) - computed
    parts = [f"{computed} ops"] if computed else []
    parts += [f"{inputs} inputs"] if inputs else []
    return ", ".join([*parts, *(f"{count} ⇄ {kind}" for kind, count in counted.items())])


def _is_input(program: Program, name: str) -> bool:
    return isinstance(program.ops[name], o.Input)


def _chains(program: Program, names: Sequence[str]) -> list[Fold]:
    """Pointwise operations each read by the next one alone, in the same fused group and overlap."""
    free = {name for name in names if o.is_pointwise(program.ops[name])}
    used: set[str] = set()
    folds = []
    for name in names:
        if name not in free or name in used:
            continue
        chain = [name]
        while len(program.readers[chain[-1]]) == 1:
            reader = program.readers[chain[-1]][0]
            if reader not in free or reader in used or _place(program, reader) != _place(program, name):
                break
            chain.append(reader)
        if len(chain) > 1:
            used.update(chain)
            folds.append(Fold(tuple(chain), f"{chain[0]} … {chain[-1]}", f"{len(chain)} pointwise ops"))
    return folds


def _place(program: Program, name: str) -> tuple[object, ...]:
    return program.fusion_of.get(name), program.overlap_of.get(name), program.types[name].group


def _stretches(program: Program, free: Sequence[str], folds: Sequence[Fold], most: int) -> list[Fold]:
    """At most `most` boxes: neighbours in program order laid together, so that no edge runs backwards."""
    in_fold = {name: fold for fold in folds for name in fold.names}
    units: list[tuple[str, ...]] = []
    seen: set[int] = set()
    for name in free:
        fold = in_fold.get(name)
        if fold is None:
            units.append((name,))
        elif id(fold) not in seen:
            seen.add(id(fold))
            units.append(fold.names)
    units.sort(key=lambda unit: max(program.position[name] for name in unit))
    size = -(-len(units) // most)
    result = []
    for at in range(0, len(units), size):
        together = units[at : at + size]
        names = tuple(name for unit in together for name in unit)
        if len(together) == 1:
            result += [in_fold[names[0]]] if names[0] in in_fold else []
        else:
            result.append(Fold(names, f"{names[0]} … {names[-1]}", _note(program, names)))
    return result
