"""What samples of perf count as."""

import pytest

from benchmarks.attribution import Sample, purpose_of


@pytest.mark.parametrize(
    ("symbol", "of", "purpose"),
    [
        ("rep_movs_alternative", "[kernel.kallsyms]", "kernel copies in and out"),
        ("clear_page_erms", "[kernel.kallsyms]", "page faults and memory"),
        ("ext4_sync_file", "[kernel.kallsyms]", "kernel, other"),
        ("__memmove_avx_unaligned_erms", "/usr/lib/libc.so.6", "memmove, user space"),
        ("malloc", "/usr/lib/libc.so.6", "other native"),
        ("XXH3_128bits_update", "/site-packages/xxhash/_xxhash.so", "xxhash"),
        ("[unknown]", "/site-packages/pyarrow/libarrow.so.2600", "arrow, zstd, allocator"),
        ("_PyEval_EvalFrameDefault", "/lib/libpython3.11.so.1.0", "Python"),
        ("[unknown]", "inlined", "other native"),
    ],
)
def test_samples_count_by_object_and_symbol(symbol: str, of: str, purpose: str) -> None:
    assert purpose_of(symbol, of) == purpose


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (
            "          python    8446      7f12 _PyEval_EvalFrameDefault (/lib/libpython3.11.so.1.0)",
            Sample("python", 8446, "_PyEval_EvalFrameDefault", "/lib/libpython3.11.so.1.0"),
        ),
        (
            " lance_backgroun  8454  ffffffff81 std::sort(a, b) (inlined)",
            Sample("lance_backgroun", 8454, "std::sort(a, b)", "inlined"),
        ),
        (
            " two words 12 7f [unknown] ([kernel.kallsyms])\n",
            Sample("two words", 12, "[unknown]", "[kernel.kallsyms]"),
        ),
    ],
)
def test_a_line_of_perf_is_a_sample(line: str, sample: Sample) -> None:
    assert Sample.parse(line) == sample


def test_another_line_is_no_sample() -> None:
    with pytest.raises(ValueError, match="not a sample of perf: 'python'"):
        Sample.parse("python")
