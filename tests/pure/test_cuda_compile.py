"""NVRTC compiles every kernel of every workload for sm_80 and sm_90, without a GPU."""

from __future__ import annotations

import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cuda_samples as samples
import pytest

import coconet_lab.workloads as workloads
from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64
from coconet_lab.kernels import cuda_compile
from coconet_lab.kernels.cuda_compile import OPTIONS, Variant, compile_kernel, compile_text, find_nvrtc
from coconet_lab.kernels.cuda_meet import NAME, meet_text
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cuda_tuning import Tuning, chosen_form

ARCHITECTURES = ("sm_80", "sm_90")
SHAPES = [(40,), (64, 32), (30, 100)]
MADE = {
    **{f"{n} {d}": (lambda n=n, d=d: getattr(workloads, n)(elements=4096, ranks=2, dtype=d))
       for n in ("adam", "lamb", "sgd") for d in ("fp16", "fp32")},
    **{f"{n} list": (lambda n=n: getattr(workloads, n)(elements=SHAPES, ranks=2, dtype="fp16"))
       for n in ("adam", "lamb", "sgd")},
    **{f"attention {d}": (lambda d=d: workloads.self_attention(8, 16, 64, ranks=2, dtype=d)) for d in ("fp16", "fp32")},
    "mlp": lambda: workloads.mlp(8, 16, 64, ranks=2),
    "pipeline": lambda: workloads.pipeline(8, 16, 64, ranks=4, groups=2),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nvrtc():
    try:
        return find_nvrtc()
    except ToolError as error:
        pytest.skip(f"needs NVRTC: {error.found}")


@pytest.fixture(scope="module")
def cache(pytestconfig):
    """Compiled kernels by content: a second run compiles only what has changed."""
    return pytestconfig.cache.mkdir("cubins")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", MADE)
def test_every_kernel_of_a_workload_compiles(name, arch, cache):
    workload = MADE[name]()
    kernels = [kernel for schedule in workload.schedules.values() for kernel in lower(schedule.program).kernels()]
    sources = {source.name: source for source in map(print_kernel, kernels)}.values()
    with ThreadPoolExecutor(2) as pool:
        for code in pool.map(lambda source: compile_kernel(source, Variant(arch), cache=cache), sources):
            assert code[1:4] == b"ELF"


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", [FP16, BF16, FP32, FP64, INT32, INT64], ids=repr)
def test_every_operation_and_cast_of_a_dtype_compiles(kind, arch, cache):
    assert compile_kernel(print_kernel(samples.arithmetic(kind, 64)), Variant(arch), cache=cache)


@pytest.mark.parametrize("ranks", [1, 4, 8, 16])
def test_any_number_of_ranks_compiles_with_any_rank_and_unrolling(ranks, cache):
    for unroll in (1, 4):
        variant = Variant("sm_90", rank=ranks - 1, unroll=unroll, threads=256)
        assert compile_kernel(print_kernel(samples.sgd(ranks=ranks)), variant, cache=cache)


@pytest.mark.parametrize("form", ["turns", "push"])
@pytest.mark.parametrize("ranks", [2, 5, 16])
@pytest.mark.parametrize("elements", [4096, SHAPES], ids=["flat", "list"])
def test_what_is_written_to_peers_in_another_form_compiles_for_as_many_as_are_chosen_for_it(
    elements, ranks, form, cache
):
    program = workloads.adam(elements, ranks=ranks, dtype="fp16").schedules["fuse(RS-Opt-AG)"].program
    source = next(made for made in map(print_kernel, lower(program).kernels()) if made.kernel.has_peers)
    for threads in (384, 1024):
        chosen = chosen_form(source, Tuning(threads=threads, form=form), 132)
        assert chosen == form or (ranks == 16 and elements is SHAPES)
        assert compile_kernel(source, Variant("sm_90", 1, 1, threads, chosen), cache=cache)


@pytest.mark.parametrize("elements", [4096, SHAPES], ids=["flat", "list"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_vector_is_stored_by_16_byte_instructions_not_by_one_for_each_element(elements, dtype):
    # An assignment between structs was once taken apart where other accesses came in between: of lists, in fp32.
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings, which is not installed")
    program = workloads.adam(elements, ranks=2, dtype=dtype).schedules["fuse(RS-Opt-AG)"].program
    source = next(made for made in map(print_kernel, lower(program).kernels()) if made.kernel.has_peers)
    _, made = nvrtc.nvrtcCreateProgram(source.text.encode(), b"kernel.cu", 0, [], [])
    options = [*OPTIONS, "--gpu-architecture=compute_90", *Variant("sm_90").defines]
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), [option.encode() for option in options])
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    text = bytearray(nvrtc.nvrtcGetPTXSize(made)[1])
    nvrtc.nvrtcGetPTX(made, text)
    wide = len(re.findall(rb"st\.\S*v4\.\S*32", text))
    # Three tensors of state of two words each beside a 16-bit wire, else two (the third is what goes to all ranks).
    assert wide >= (3 * 2 if dtype == "fp16" else 2) + 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernels_that_measure_a_link_compile(arch, cache, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    gpu_link = importlib.import_module("gpu_link")
    variant = Variant(arch, unroll=gpu_link.UNROLL, threads=gpu_link.THREADS)
    code = compile_text("link", gpu_link.TEXT, variant, what="the link's kernels", cache=cache)
    assert all(name.encode() in code for name in gpu_link.KERNELS)


def test_names_that_would_end_a_comment_or_join_a_line_compile(cache):
    assert compile_kernel(print_kernel(samples.epilogue()), Variant("sm_90"), cache=cache)


def test_the_code_of_a_whole_plan_is_one_file_that_compiles(cache):
    plan = lower(workloads.lamb(4096, ranks=2).schedules["AR-Opt"].program)
    text = plan.code("cuda")
    assert all(print_kernel(kernel).body in text for kernel in plan.kernels())
    assert compile_text("plan", text, Variant("sm_90"), what="a plan", cache=cache)


def test_the_kernel_that_ranks_meet_in_compiles(cache):
    assert compile_text(NAME, meet_text(), Variant("sm_90", threads=32), what="meet", cache=cache)


def test_a_compiled_kernel_is_found_on_disk_and_not_compiled_again(tmp_path, monkeypatch):
    source = print_kernel(samples.sgd())
    first = compile_kernel(source, Variant("sm_90"), cache=tmp_path)
    version = find_nvrtc()[0]

    def fail(text, options):
        raise AssertionError("compiled again")

    monkeypatch.setattr(cuda_compile, "find_nvrtc", lambda: (version, fail))
    assert compile_kernel(source, Variant("sm_90"), cache=tmp_path) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_kernel(source, Variant("sm_90", unroll=2), cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_none(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert compile_kernel(print_kernel(samples.sgd()), Variant("sm_90"), cache=blocked / "below")


def test_a_kernel_that_does_not_compile_names_itself_and_the_first_error(tmp_path):
    with pytest.raises(CodegenError, match=r"refused the kernel of 'x' \(bad\).*undefined_name"):
        compile_text("bad", "__global__ void bad() { undefined_name(); }", Variant("sm_90"), what="the kernel of 'x'",
                     cache=tmp_path)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_the_compiler_does_not_know_says_to_take_a_newer_one(tmp_path):
    with pytest.raises(CodegenError, match=r"for sm_999: .*invalid value") as caught:
        compile_kernel(print_kernel(samples.sgd()), Variant("sm_999"), cache=tmp_path)
    assert "newer nvidia-cuda-nvrtc" in caught.value.hint


def test_a_target_that_is_none_is_refused():
    with pytest.raises(ToolError, match="no GPU target"):
        _ = Variant("sm_90 --evil").options
    with pytest.raises(ToolError, match="100 threads"):
        _ = Variant("sm_90", threads=100).options


def test_arithmetic_is_compiled_without_contraction():
    assert "--fmad=false" in Variant("sm_90").options
    assert not any("fast" in option or "prec" in option or "ftz" in option for option in Variant("sm_90").options)
