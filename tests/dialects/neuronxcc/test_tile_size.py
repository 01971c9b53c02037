"""Sizes of the active target."""

from nkijax.dialects.neuronxcc import language as nl


def test_sizes():
    t = nl.tile_size
    assert (t.pmax, t.psum_fmax, t.gemm_stationary_fmax, t.gemm_moving_fmax, t.bn_stats_fmax) == (
        128,
        512,
        128,
        512,
        512,
    )
    assert t.total_available_sbuf_size == 192 * 1024 - 16 * 1024 and t.psum_min_align == 4 and t.sbuf_min_align == 1
