"""The text of CUDA kernels: golden files, names kept out of code, dims folded, arguments packed as the struct says."""

from __future__ import annotations

import re
from dataclasses import replace

import cuda_samples as samples
import numpy as np
import pytest

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import FP32, INT32
from coconet_lab.kernels.cuda_abi import MAX_CTAS, MAX_RANKS, SLOTS, STATE_BYTES, fields
from coconet_lab.kernels.cuda_launch import Team, arguments, bucket_count, bucket_tables
from coconet_lab.kernels.cuda_printer import prelude, print_kernel, split_phases
from coconet_lab.kernels.cuda_scalar import custom, number
from coconet_lab.kernels.cuda_space import fold, vector_counts, walk
from coconet_lab.kernels.kernel import Space, TensorParam

SAMPLES = {
    "sgd": samples.sgd(),
    "epilogue": samples.epilogue(),
    "norms": samples.norms(),
    "rows": samples.rows((4, 6, 16), 0, (2,)),
    "list": samples.list_norms(),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_text_is_the_golden_one(name, golden):
    golden(print_kernel(SAMPLES[name]).body, ".cu")


def test_the_prelude_is_the_golden_one(golden):
    golden(prelude(), ".cu")


def test_what_a_kernel_and_the_host_count_with_are_the_same_numbers():
    text = prelude()

    def number_of(pattern):
        (found,) = re.findall(pattern, text)
        return int(found)

    assert number_of(r"\bSLOTS = (\d+)") == SLOTS
    assert number_of(r"\bEXCHANGE_LINE = (\d+)") == MAX_CTAS == number_of(r"epoch\[(\d+)\]")
    assert number_of(r"pad \+ line \* (\d+)") == MAX_RANKS
    words = re.search(r"struct State \{(.*?)\n\};", text, re.DOTALL).group(1).count("u32 ")
    assert 4 * (words - 1 + MAX_CTAS) == STATE_BYTES


@pytest.mark.parametrize("name", SAMPLES)
def test_no_extent_of_the_space_is_in_the_text(name):
    kernel = SAMPLES[name]
    small = print_kernel(kernel)
    larger = replace(kernel, space=replace(kernel.space, shape=tuple(7 * n for n in kernel.space.shape)))
    tensors = tuple(
        replace(t, shape=tuple(7 * n if n > 1 else 1 for n in t.shape)) if t.shape != (len(samples.LIST),) else t
        for t in kernel.tensors
    )
    pieces = tuple((7 * int(np.prod(p)),) for p in kernel.space.pieces)
    larger = replace(larger, tensors=tensors, space=replace(larger.space, pieces=pieces))
    assert print_kernel(larger).body == small.body


def test_no_user_name_reaches_code_and_none_ends_a_comment():
    body = print_kernel(samples.epilogue()).body
    code = re.sub(r"//[^\n]*", "", body)
    for name in ("fused", "total_rs", "error", "add", "out_part"):
        assert not re.search(rf"\b{name}\b", code)
    assert not any(line.endswith("\\") for line in body.splitlines())
    assert all(character.isprintable() or character == "\n" for character in body)


def test_equal_kernels_of_other_names_are_one_function():
    kernel = samples.sgd()
    renamed = replace(kernel, name="other", origin=tuple("x" for _ in kernel.origin))
    assert print_kernel(renamed).name == print_kernel(kernel).name
    assert print_kernel(kernel).name != print_kernel(samples.norms()).name


def test_dims_that_all_tensors_share_are_walked_as_one():
    assert fold(samples.epilogue(dim=0)).dims == ((0, 1), (2,))
    assert fold(samples.epilogue(dim=1)).dims == ((0,), (1,), (2,))
    assert fold(samples.sgd()).dims == ((0,),)
    assert fold(samples.sgd()).width == 8


def test_a_block_starts_where_its_rank_does():
    found = walk(samples.epilogue((4, 6, 16), dim=2), 1)
    assert found.extents == (24, 8)
    assert found.index == 8
    assert found.origins == (8, 8, 8, 8)


def test_chunks_of_a_sliced_dim_are_relative_to_the_block():
    kernel = samples.epilogue((8, 6, 16), dim=0)
    kernel = replace(kernel, space=replace(kernel.space, chunk_dim=0))
    assert walk(kernel, 1, (2, 4)).index == 6 * 6 * 16
    assert walk(kernel, 1, (2, 4)).extents == (12, 16)


@pytest.mark.parametrize(
    ("shift", "elements", "expected"), [(0, 1024, (64, 512)), (0, 1003, (62, 496)), (2, 1024, (0, 0))]
)
def test_vectors_where_everything_is_aligned_and_one_by_one_elsewhere(shift, elements, expected):
    kernel = samples.sgd(elements)
    found = walk(kernel, 0)
    addresses = ((256 + shift, 512 + shift), (1024,), (2048 + shift, 4096 + shift))
    assert vector_counts(kernel, found, addresses) == expected


def test_an_odd_block_of_a_whole_tensor_is_not_read_by_vectors():
    kernel = samples.sgd(1003)
    found = walk(kernel, 1)
    addresses = tuple(
        tuple(base + o * t.dtype.itemsize for base in (0, 4096)) for o, t in zip(found.origins, kernel.tensors)
    )
    assert found.extents == (501,)
    assert vector_counts(kernel, found, addresses) == (0, 0)


def test_arguments_have_the_words_that_the_struct_has():
    source = print_kernel(samples.sgd())
    packed = arguments(
        source, 1, tensors=((256, 512), (1024,), (2048, 4096)), scalars=(8,), team=Team((16, 32), 64, 10, True, True, 5)
    )
    words = packed["words"][0].tolist()
    assert len(words) == sum(f.words for f in fields(source.kernel, source.folding))
    assert words[:2] == [256 + 512 * 2, 512 + 512 * 2]
    assert words[-5:] == [16, 32, 64, 10, 3 | 5 << 8]


def test_bucket_tables_count_from_the_block():
    tables = [bucket_tables(samples.list_norms(), rank) for rank in range(2)]
    assert sum(len(t["bucket_piece"]) for t in tables) == 7
    assert all(t["bucket_start"][0] == 0 for t in tables)
    assert tables[0]["piece_bucket"].tolist() == [0, 1, 3, 4, 4]
    assert tables[1]["piece_bucket"].tolist() == [0, 0, 0, 0, 3]


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("dim", [0, None])
@pytest.mark.parametrize("chunk", [None, (0, 1), (1, 3), (7, 900), (0, 1024), (1000, 5000), (4000, 4000)])
def test_the_buckets_of_a_list_are_counted_as_its_tables_have_them(ranks, dim, chunk):
    pieces = ((5,), (0,), (1023,), (1024,), (3,), (2050,))
    space = Space((4105,), dim, ranks, 0 if chunk else None, pieces)
    kernel = replace(samples.list_norms(), space=space)
    for rank in range(ranks):
        assert bucket_count(space, rank, chunk) == len(bucket_tables(kernel, rank, chunk)["bucket_piece"])


def test_reductions_over_different_dims_get_phases_of_their_own():
    assert len(split_phases(samples.two_ways()).phases) == 3
    assert len(split_phases(samples.norms()).phases) == 2


def test_constants_are_written_exactly():
    assert number(0.1, FP32) == "0.10000000149011612f"
    assert number(-(2**31), INT32) == "(-2147483647 - 1)"
    assert number(float("inf"), FP32) == "__int_as_float(0x7F800000)"


@pytest.mark.parametrize("expression", ["{0} ** 2", "print({0})", "{1}", "{0}; x", "", "'a'", "{0} if 1 else 2"])
def test_an_expression_that_is_not_understood_is_refused(expression):
    with pytest.raises(CodegenError, match="kernel expression"):
        custom(expression, ("r0",), FP32)


def test_a_group_of_more_ranks_than_a_line_has_flags_is_refused():
    tensor = TensorParam("x", FP32, (64,), "whole")
    kernel = replace(samples.sgd(), space=Space((64,), 0, 17), tensors=(tensor,) * 3)
    with pytest.raises(CodegenError, match="17 ranks"):
        print_kernel(kernel)
