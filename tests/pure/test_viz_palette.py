"""The palette's claims: the layouts are told apart by every sight and by lightness, and text on them is readable."""

from __future__ import annotations

from itertools import combinations

import pytest

from coconet_lab import Local, Replicated, Sliced
from coconet_lab.viz.palette import DARK, LIGHT, SIGHT, contrast, difference, lab, page_css

THEMES = {"light": LIGHT, "dark": DARK}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHT)
def test_layout_fills_differ_for_every_sight(theme, sight):
    fills = [getattr(THEMES[theme], kind).fill for kind in ("local", "replicated", "sliced")]
    for one, other in combinations(fills, 2):
        assert difference(one, other, sight) >= 20, (one, other)


@pytest.mark.parametrize(("theme", "wanted"), [("light", (87, 93, 79)), ("dark", (33, 22, 42))])
def test_layout_fills_differ_in_lightness(theme, wanted):
    fills = [getattr(THEMES[theme], kind).fill for kind in ("local", "replicated", "sliced")]
    assert [round(lab(fill)[0]) for fill in fills] == list(wanted)


@pytest.mark.parametrize(("theme", "text_least"), [("light", 10), ("dark", 5)])
def test_text_and_ink_are_readable_on_every_fill(theme, text_least):
    palette = THEMES[theme]
    for kind in ("local", "replicated", "sliced"):
        paint = getattr(palette, kind)
        assert contrast(palette.text, paint.fill) >= text_least, kind
        assert contrast(paint.ink, paint.fill) >= 4.4, kind
    assert contrast(palette.text, palette.background) >= 10
    assert contrast(palette.muted, palette.background) >= 4.5
    for word in (palette.bad, palette.good):
        assert contrast(word, palette.background) >= 4.5


def test_the_measures_agree_with_known_values():
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)
    assert lab("#FF0000") == pytest.approx((53.24, 80.09, 67.20), abs=0.05)
    assert difference("#FF0000", "#00FF00", "normal") > 3 * difference("#FF0000", "#8A7A00", "protan")


@pytest.mark.parametrize("layout", [Local, Replicated, Sliced(2)])
def test_a_layout_and_its_text_have_one_paint(layout):
    assert LIGHT.paint(layout) is LIGHT.paint(repr(layout)) is getattr(LIGHT, layout.kind.lower())
    assert LIGHT.paint(None) is LIGHT.scalar


def test_the_page_css_recolours_every_layout_for_both_ways_to_be_dark():
    css = page_css(".cl-graph")
    for kind in ("local", "replicated", "sliced", "scalar"):
        light, dark = getattr(LIGHT, kind), getattr(DARK, kind)
        assert css.count(f'[fill="{light.fill}" i] {{ fill: {dark.fill}; }}') == 2
        assert css.count(f'[stroke="{light.ink}" i] {{ stroke: {dark.ink}; }}') == 2
