"""A layout of our own for machines without Graphviz, and what makes any SVG fit to stand in a page with others."""

from __future__ import annotations

import html
import re


def with_head(text: str, title: str) -> str:
    """SVG that shrinks to its column and says what it is to a screen reader."""
    label = html.escape(title, quote=True)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" style="max-width:100%;height:auto" ', 1).strip()


def prefixed(text: str, prefix: str) -> str:
    """SVG whose ids start with `prefix`, so that two drawings in one page do not mix."""
    return re.sub(r'(<[^<>]*?\s)id="', rf'\1id="p{prefix}-', text)


def scene_svg(scene: object) -> str:
    return ""


def scene_bytes(scene: object, kind: str) -> bytes:
    return b""
