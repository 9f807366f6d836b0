"""The explorer's page: an anywidget whose one synced trait holds the panes, and messages that bring clicks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from coconet_lab.viz.palette import DARK, LIGHT, Palette

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("canvas.js", "keys.js", "explorer.js")
_LAYOUTS = ("local", "replicated", "sliced", "scalar", "group")
_PLAIN = ("changed", "selected", "background", "text", "muted", "edge", "line", "bad", "good")


def theme_css() -> str:
    """The palette as CSS variables for both themes, and rules that recolour drawings: their attributes stay light.

    The notebook's theme decides (``data-jp-theme-light``, VS Code's body classes), else the system's preference.
    """
    root = ".cl-explorer"
    dark = f"{{ {_variables(DARK)} }}"
    rules = [
        f"{root} {{ {_variables(LIGHT)} }}",
        f'body[data-jp-theme-light="false"] {root}, body.vscode-dark {root}, body.vscode-high-contrast {root} {dark}',
        f"@media (prefers-color-scheme: dark) {{ body:not([data-jp-theme-light]):not(.vscode-light) {root} {dark} }}",
    ]
    for light, name in _names().items():
        rules += [f'{root} svg [{part}="{light}" i] {{ {part}: var(--cl-{name}); }}' for part in ("fill", "stroke")]
    return "\n".join(rules) + "\n"


def _variables(palette: Palette) -> str:
    found = [f"--cl-{name}: {getattr(palette, name)};" for name in _PLAIN]
    for name in _LAYOUTS:
        paint = getattr(palette, name)
        found += [f"--cl-{name}: {paint.fill};", f"--cl-{name}-ink: {paint.ink};"]
    return " ".join(found)


def _names() -> dict[str, str]:
    """Light colour → variable; where two names share a colour, the one that text and lines are drawn in wins."""
    found = {}
    for name in _LAYOUTS:
        paint = getattr(LIGHT, name)
        found[paint.fill] = name
        found[paint.ink] = f"{name}-ink"
    for name in reversed(_PLAIN):
        found[getattr(LIGHT, name)] = name
    return found


@lru_cache(maxsize=1)
def page_css() -> str:
    """All CSS of the page."""
    return theme_css() + (_ASSETS / "explorer.css").read_text(encoding="utf-8")


class ExplorerWidget(anywidget.AnyWidget):
    """What the notebook shows. It knows no schedules: `view` is HTML by pane, and messages bring clicks."""

    # An anywidget is one module, and nothing is fetched at run time: the files make one text.
    _esm = "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    _css = page_css()
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, view: Mapping[str, Any], on_message: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(view=dict(view))
        self._receive = on_message
        self._sending = threading.Lock()
        self.on_msg(self._on_custom)

    def __repr__(self) -> str:
        # What a page shows in the widget's place where there is no kernel; the drawing below it stays.
        return "the explorer's page: run this cell to click in it"

    def _on_custom(self, _: Any, content: Any, buffers: Any) -> None:
        if isinstance(content, dict):
            self._receive(content)

    def show(self, view: Mapping[str, Any]) -> None:
        """Draw panes again."""
        with self._sending:
            self.view = dict(view)

    def show_header(self, html: str, said: Mapping[str, str]) -> None:
        """The header alone, and what screen readers are told: progress comes several times a second."""
        with self._sending:
            self.send({"header": html, "said": dict(said)})
