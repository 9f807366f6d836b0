"""What each click and key of the page does. Messages come from a browser, so nothing in them is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coconet_lab.viz.explorer import state as st
from coconet_lab.viz.explorer.graph import scope_of

if TYPE_CHECKING:
    from coconet_lab.viz.explorer.explorer import Explorer


def clicked(ex: Explorer, message: Mapping[str, Any]) -> None:
    """Do what a message asks for; a stale one, or a ``knock`` that asks whether somebody is there, does nothing.

    Parameters
    ----------
    ex : Explorer
    message : mapping
        ``act``: what; ``arg``: on what; ``value``: of an input; ``add``: to the selection.
    """
    act, arg = message.get("act"), message.get("arg")
    value = message.get("value")
    simple = {"undo": ex.undo, "redo": ex.redo, "check": ex.check, "run": ex.run, "cancel": ex.cancel}
    if act in simple:
        simple[act]()
    elif act == "clear":
        ex.select()
    elif act in _ACTS:
        _ACTS[act](ex, arg, str(value) if value is not None else "", bool(message.get("add")))


def _select(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    graph = ex.page.graph
    boxes = [str(box) for box in arg] if isinstance(arg, list) else []
    if graph is None:
        return
    names = [name for box in boxes for name in graph.names(box)]
    singles = tuple(names[:1]) if len(names) == 1 else ()
    ex.select_boxes(names, singles, add)


def _open(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    graph = ex.page.graph
    box = next((found for found in graph.boxes if found.id == str(arg)), None) if graph is not None else None
    if box is not None and box.shape == "fold":
        ex.open_scopes(scope_of(box, ex.state.program))


def _fold(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    ex.open_scopes((str(arg),), close=True)


def _find(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    """Select the name that was typed, or the first that begins with it, or has it inside."""
    wanted = value.strip()
    names = list(ex.state.program.ops)
    if not wanted:
        return
    tests = (
        wanted.__eq__,
        lambda n: n.startswith(wanted),
        lambda n: wanted in n,
        lambda n: wanted.lower() in n.lower(),
    )
    found = next((name for test in tests for name in names if test(name)), None)
    if found is None:
        ex.say(f"no name has {wanted!r} in it")
    else:
        ex.select(found)


def _card(ex: Explorer, arg: Any) -> tuple[int, list[int]] | None:
    """The node and numbers of ``node:card`` or ``node:card:choice``, where the node is still the current one."""
    parts = str(arg).split(":")
    if not all(part.isdigit() for part in parts) or int(parts[0]) != ex.state.current:
        return None  # drawn for a schedule that was left since
    return int(parts[0]), [int(part) for part in parts[1:]]


def _move(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    place = _card(ex, arg)
    cards = ex.facts.cards(ex.state.node) if place is not None else []
    if place is not None and place[1] and place[1][0] < len(cards):
        ex.apply(cards[place[1][0]].step)


def _choose(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    place = _card(ex, value)
    if place is None or len(place[1]) != 2:
        return
    at, choice = place[1]
    cards = ex.facts.cards(ex.state.node)
    if at < len(cards) and choice < len(cards[at].choices):
        ex.facts.choose(ex.state.node, at, choice)
        ex.redraw()


def _way_out(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    place = _card(ex, arg)
    if place is not None and place[1] and place[1][0] < len(ex.page.near):
        step = ex.page.near[place[1][0]].way_out
        if step is not None:
            ex.apply(step)


def _jump(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if str(arg).isdigit() and int(arg) < len(ex.history):
        ex.jump(int(arg))


def _rename(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if str(arg).isdigit() and int(arg) < len(ex.history):
        ex.rename(value, int(arg))


def _tab(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if arg in st.TABS:
        ex.change(tab=arg)


def _target(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if arg in st.TARGETS:
        ex.change(target=arg)


def _kernel(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if value.isdigit():
        ex.look(kernel=int(value))


def _against(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if value.isdigit():
        ex.look(against=int(value))


def _goto(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    if value:
        ex.goto(value)


def _dismiss(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    ex.look(notice=None, refused="")


def _restart(ex: Explorer, arg: Any, value: str, add: bool) -> None:
    ex.look(notice=None)
    ex.run()


_ACTS = {
    "select": _select, "open": _open, "fold": _fold, "find": _find, "move": _move, "choose": _choose,
    "wayout": _way_out, "jump": _jump, "rename": _rename, "tab": _tab, "target": _target, "kernel": _kernel,
    "against": _against, "goto": _goto, "dismiss": _dismiss, "restart": _restart,
}  # fmt: skip
