"""Where the explorer appears: a live page, and beside it a static picture that the page hides while it lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coconet_lab.viz.explorer.costs import Costs
from coconet_lab.viz.explorer.state import State
from coconet_lab.viz.explorer.static import drawing, png_text, static_html, static_text
from coconet_lab.viz.explorer.work import Cancelled


class Shown:
    """The page and the static picture of one explorer; neither exists until it is shown.

    Parameters
    ----------
    mark : str
        Class of the static picture.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._widget: Any = None
        self._handle: Any = None
        self._pictured: tuple[State, Mapping[int, Costs | None]] | None = None

    @property
    def has_page(self) -> bool:
        """Whether there is a page to draw on."""
        return self._widget is not None

    def widget(self, view: Callable[[], Mapping[str, Any]], on_message: Callable[[dict[str, Any]], None]) -> Any:
        """The page; the first call makes it."""
        if self._widget is None:
            from coconet_lab.viz.explorer.widget import ExplorerWidget

            self._widget = ExplorerWidget(view(), on_message)
        return self._widget

    def draw(self, view: Callable[[], Mapping[str, Any]]) -> None:
        """Draw all panes again, if there is a page."""
        if self._widget is not None:
            self._widget.show(view())

    def draw_header(self, html: str, said: Mapping[str, str]) -> None:
        """Draw the header again, if there is a page; `said` is for screen readers."""
        if self._widget is not None:
            self._widget.show_header(html, said)

    def display(self, widget: Any, state: State, costs: Mapping[int, Costs | None]) -> None:
        """Show both outputs in the cell that runs: a bundle of both would show nothing in an offline export."""
        from IPython.display import display

        display(widget)  # type: ignore[no-untyped-call]
        bundle = _bundle(state, costs, self._mark)
        self._handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def draw_static(self, state: State, costs: Mapping[int, Costs | None], cancelled: Cancelled) -> None:
        """The static picture of a state, unless a newer one is waiting."""
        if self._handle is None or cancelled() or self._is_pictured(state, costs):
            return
        bundle = _bundle(state, costs, self._mark)
        if not cancelled():
            self._handle.update(bundle, raw=True)
            self._pictured = state, costs

    def _is_pictured(self, state: State, costs: Mapping[int, Costs | None]) -> bool:
        """Whether the static picture shows this already: it knows no selection and no tab."""
        if self._pictured is None:
            return False
        last, known = self._pictured
        same = (last.current, last.opened, last.lit) == (state.current, state.opened, state.lit)
        return same and last.nodes is state.nodes and known == costs


def _bundle(state: State, costs: Mapping[int, Costs | None], mark: str) -> dict[str, str]:
    """HTML for pages, a PNG for PDF and for sites that strip SVG, text for the rest."""
    from coconet_lab.viz.draw import layout
    from coconet_lab.viz.paint import scene_bytes

    picture = drawing(state)
    png = layout(picture.source, "png") or scene_bytes(picture.scene, "png")
    return {
        "text/html": static_html(state, costs, mark),
        "image/png": png_text(png),
        "text/plain": static_text(state),
    }
