"""The moves panel as values: legal moves with what they change, refusals with the way out, and what does not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from coconet_lab.errors import CoconetError, Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.schedule.kinds import KINDS, make_step
from coconet_lab.transforms.base import Transform
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer.words import TITLES, effect, operands_text, step_title, step_words, touched


@dataclass(frozen=True, slots=True)
class Card:
    """A legal move.

    Parameters
    ----------
    step : Transform
    title, operands, effect : str
        ``Split``, ``total``, ``AllReduce → ReduceScatter + AllGather``.
    touches : tuple of names
        What it would touch, outlined while the card has the focus.
    after : Program
        The program it leads to.
    choices : tuple of (text, step)
        Other values of its parameter (the dim of a split), itself included; empty where there is no choice.
    """

    step: Transform
    title: str
    operands: str
    effect: str
    touches: tuple[str, ...]
    after: Program
    choices: tuple[tuple[str, Transform], ...] = ()


@dataclass(frozen=True, slots=True)
class Declined:
    """A move that is refused here, and why.

    Parameters
    ----------
    title : str
    refusal : Refusal
    way_out : Transform or None
        A step that leads out and is itself legal.
    way_text : str
        ``split total first``.
    """

    title: str
    refusal: Refusal
    way_out: Transform | None = None
    way_text: str = ""


def cards(program: Program, legal: Iterable[Transform], cancelled: Callable[[], bool] = lambda: False) -> list[Card]:
    """A card for every legal move, in the order of `legal`; other forms of one move become its choices."""
    found = []
    for step in legal:
        if cancelled():
            break
        try:
            after = step.rewrite(program)
        except CoconetError:
            continue  # `legal` came from an older idea of the program
        found.append(
            Card(step, step_title(step), operands_text(step), effect(step, program, after),
                 touched(step, program, after), after, choices(program, step))
        )  # fmt: skip
    return found


def choices(program: Program, step: Transform) -> tuple[tuple[str, Transform], ...]:
    """The dims a split may take, and its other form."""
    if not isinstance(step, Split) or step.dim is not None:
        return ()
    kind = program.types[step.target]
    dims = [Split(step.target, dim) for dim in range(len(kind.shape))]
    forms: list[tuple[str, Transform]] = [
        (f"dim {at}", step if at == first else form)
        for first in [_default_dim(program, dims)]
        for at, form in enumerate(dims)
        if form.why_not(program) is None
    ]
    other = Split(step.target, None, "reduce_broadcast")
    if isinstance(program.ops[step.target], o.AllReduce) and other.why_not(program) is None:
        forms.append(("reduce + broadcast", other))
    return tuple(forms) if len(forms) > 1 else ()


def _default_dim(program: Program, dims: Sequence[Split]) -> int:
    return next((at for at, form in enumerate(dims) if form.why_not(program) is None), -1)


def for_selection(found: Sequence[Card], selected: Sequence[str]) -> list[Card]:
    """Cards that touch the selection, in their order; all of them where nothing is selected."""
    if not selected:
        return list(found)
    chosen = set(selected)
    return [card for card in found if chosen.intersection(card.touches)]


def declined(
    program: Program, selected: Sequence[str], legal_kinds: Iterable[str]
) -> tuple[list[Declined], list[Declined]]:
    """Refusals for a selection: near misses, and what does not apply; nothing for kinds that have a legal move."""
    near: list[Declined] = []
    never: list[Declined] = []
    done = set(legal_kinds)
    for kind in KINDS:
        if kind in done:
            continue
        refusals = list(_refusals(program, kind, selected))
        if not refusals:
            continue
        best = max(refusals, key=lambda r: (r.applies, r.way_out is not None))
        entry = Declined(TITLES.get(kind, kind), best, *_way_out(program, best))
        (near if best.applies else never).append(entry)
    near.sort(key=lambda entry: entry.way_out is None)
    return near, never


def _refusals(program: Program, kind: str, selected: Sequence[str]) -> Iterator[Refusal]:
    """Why each step of a kind that a person could mean by the selection is refused."""
    for names, arguments in _asked(program, kind, selected):
        try:
            refusal = make_step(program, kind, names, arguments).why_not(program)
        except CoconetError as error:
            refusal = Refusal(error.found, error.rule, error.hint, applies=False)
        if refusal is not None:
            yield refusal


def _asked(program: Program, kind: str, selected: Sequence[str]) -> Iterator[tuple[list[str], dict[str, object]]]:
    """Names and arguments of the steps a selection may mean."""
    if not selected:
        return
    first, rest = selected[0], list(selected[1:])
    readers = list(program.readers[selected[-1]])
    if kind == "split":
        yield [first], {}
    elif kind == "dead":
        yield [], {"name": first}
    elif kind == "as_slice":
        yield list(selected), {}
    elif kind == "reorder":
        below = rest or _last_readers(program, first)
        yield [first], {"past": below or [first]}
    elif kind == "fuse":
        if rest or not readers:
            yield list(selected), {}
        yield from (([*selected, reader], {}) for reader in readers[:3])
    elif kind == "overlap":
        sources = [s for s in program.ops[first].sources if not isinstance(program.ops[s], o.Input)]
        if rest:
            yield list(selected), {}
        yield from (([*selected, _unit(program, reader)], {}) for reader in readers[:3])
        yield from (([_unit(program, source), *selected], {}) for source in sources[:2])


def _unit(program: Program, name: str) -> str:
    fusion = program.fusion_of.get(name)
    return fusion.name if fusion else name


def _last_readers(program: Program, name: str) -> list[str]:
    """Outputs below a value, which a reorder would be meant to pass."""
    below, pending = {name}, [name]
    while pending:
        for reader in program.readers[pending.pop()]:
            if reader not in below:
                below.add(reader)
                pending.append(reader)
    return [output for output in program.outputs if output in below and output != name]


def _way_out(program: Program, refusal: Refusal) -> tuple[Transform | None, str]:
    """The refusal's step that leads out, where it can be taken now, and its words."""
    step = refusal.way_out
    if not isinstance(step, Transform) or step.why_not(program) is not None:
        return None, ""
    words = step_words(step)
    return step, f"{words[0].upper()}{words[1:]} first"
