"""Small pieces of HTML: every text that came from a user is escaped here, and nowhere built by hand."""

from __future__ import annotations

from html import escape

from coconet_lab.viz.scene import visible

Attribute = str | int | bool | None


def text(words: object) -> str:
    """Escaped text, with control characters written out."""
    return escape(visible(str(words)), quote=True)


def lines_text(words: object) -> str:
    """As `text`, but lines stay lines."""
    return "\n".join(text(line) for line in str(words).split("\n"))


def tag(name: str, inner: str = "", **attributes: Attribute) -> str:
    """An element around `inner` (HTML already); attributes are escaped, ``data_act`` is ``data-act``, None is left out.

    Examples
    --------
    >>> tag("button", text("a < b"), data_act="undo", disabled=False, cls="x")
    '<button data-act="undo" class="x">a &lt; b</button>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("input", "br", "hr"):
        return f"<{name}{written}>"
    return f"<{name}{written}>{inner}</{name}>"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def button(words: str, act: str, arg: Attribute = None, *, key: str = "", **attributes: Attribute) -> str:
    """A button whose click sends `act` with `arg`; it keeps the focus by `key` when its pane is drawn again."""
    return tag("button", text(words), type="button", data_act=act, data_arg=arg, data_key=key or act, **attributes)


def select(act: str, options: list[tuple[str, str]], chosen: str, *, label: str, **attributes: Attribute) -> str:
    """A select whose change sends `act` with the option's value."""
    inner = "".join(tag("option", text(words), value=value, selected=value == chosen) for value, words in options)
    return tag("select", inner, data_change=act, aria_label=label, **attributes)
