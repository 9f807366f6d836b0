"""Philox4x32-10 against its published vectors, and what a dropout's mask depends on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coconet_lab.ir.rng import dropout_keep, flat_indices, keep_threshold, philox, random_words

ONES = 0xFFFFFFFF
VECTORS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ONES,) * 4, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(counter, key, words):
    assert " ".join(f"{word:08x}" for word in philox(counter, key)) == words


def test_one_call_serves_four_neighbouring_elements():
    seed, stream = 0x0123456789ABCDEF, 0xFEDCBA9876543210
    words = random_words(seed, stream, np.arange(8, 12))
    call = philox((2, 0, stream & ONES, stream >> 32), (seed & ONES, seed >> 32))
    assert words.tolist() == call.tolist()


def test_an_index_beyond_32_bits_uses_the_high_counter_word():
    index = 4 * 2**32 + 3
    assert random_words(5, 6, np.array([index])).tolist() == [philox((0, 1, 6, 0), (5, 0))[3]]


def test_a_negative_seed_counts_as_its_twos_complement():
    indices = np.arange(16)
    assert (random_words(-1, 0, indices) == random_words(2**64 - 1, 0, indices)).all()


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**63 - 1))
def test_a_word_depends_on_the_index_and_not_on_what_is_asked_beside_it(start, length, seed):
    whole = random_words(seed, 9, np.arange(128))
    assert (random_words(seed, 9, np.arange(start, start + length)) == whole[start : start + length]).all()


def test_large_tensors_are_drawn_in_chunks_that_do_not_show():
    index = np.arange(2**20 - 3, 2**20 + 5)
    assert (random_words(1, 2, np.arange(2**20 + 5))[-8:] == random_words(1, 2, index)).all()


def test_scattered_indices_and_none_at_all_are_fine():
    whole = random_words(1, 2, np.arange(40))
    asked = np.array([[39, 0], [7, 7]])
    assert (random_words(1, 2, asked) == whole[asked]).all()
    assert random_words(1, 2, np.zeros((0, 3), np.int64)).shape == (0, 3)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
def test_a_dropout_keeps_a_word_at_or_above_the_threshold(p):
    words = random_words(3, 4, np.arange(10_000))
    keep = dropout_keep(3, 4, np.arange(10_000), p)
    assert (keep == (words.astype(np.int64) >= int(p * 2**32))).all()
    assert abs(keep.mean() - (1 - p)) < 0.02
    assert keep_threshold(0.5) == 2**31


def test_elements_and_streams_and_seeds_draw_differently():
    base = dropout_keep(0, 0, np.arange(256), 0.5)
    assert 0 < base.sum() < 256
    assert (base != dropout_keep(1, 0, np.arange(256), 0.5)).any()
    assert (base != dropout_keep(0, 1, np.arange(256), 0.5)).any()


def test_flat_indices_count_in_the_global_value():
    whole = flat_indices((4, 6), ((0, 4), (0, 6)))
    assert (whole == np.arange(24).reshape(4, 6)).all()
    assert (flat_indices((4, 6), ((0, 4), (2, 4))) == whole[:, 2:4]).all()
    assert flat_indices((), ()).shape == ()
    assert flat_indices((5,), ((5, 5),)).shape == (0,)
