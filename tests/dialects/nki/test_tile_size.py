"""nl.tile_size follows the target."""

import pytest

import nkijax
import nkijax.dialects.nki.language as nl

KIB = 1024


@pytest.mark.parametrize(("target", "sbuf_kib"), [("trn1", 192), ("trn2", 224), ("trn3", 256)])
def test_sizes(target, sbuf_kib):
    seen = []

    def kernel():
        t = nl.tile_size
        assert (t.pmax, t.gemm_stationary_fmax, t.gemm_moving_fmax, t.bn_stats_fmax) == (128, 128, 512, 512)
        assert (t.psum_bank_fmax, t.psum_fmax, t.psum_bank_fmax_bytes, t.psum_num_banks) == (512, 512, 2 * KIB, 8)
        assert t.sbuf_size_bytes == 128 * sbuf_kib * KIB
        assert t.sbuf_fmax_bytes == t.total_available_sbuf_size == sbuf_kib * KIB - 16384
        assert t.sbuf_fmax == t.sbuf_fmax_bytes // 4
        assert t.psum_min_align >= t.sbuf_min_align >= 1
        seen.append(True)

    nkijax.trace(kernel, target=target)
    assert seen


def test_outside_of_kernels_the_environment_says(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert nl.tile_size.sbuf_size_bytes == 24 * KIB * KIB
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4")
    assert nl.tile_size.sbuf_size_bytes == 32 * KIB * KIB


def test_a_bank_may_be_taken_for_transposes(monkeypatch):
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
    assert nl.tile_size.psum_num_banks == 7
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert nl.tile_size.psum_num_banks == 8


def test_sizes_are_read_only():
    with pytest.raises(AttributeError):
        nl.tile_size.pmax = 64
