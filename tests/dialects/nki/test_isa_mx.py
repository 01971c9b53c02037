"""MX instructions as kernels spell them; numbers of the entries are tested beside them."""

import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError

RNG = np.random.default_rng(0)
STATIONARY = (RNG.standard_normal((256, 8)) / 4).astype(ml_dtypes.bfloat16)  # 64 partitions of 4 values
MOVING = (RNG.standard_normal((256, 16)) / 4).astype(ml_dtypes.bfloat16)


def interleaved(x):
    """(4 * 64, F) in HBM as an SBUF tile (64, 4 * F) whose neighbours are 64 rows apart in x."""
    f = x.shape[1]
    tile = nl.ndarray((64, f, 4), x.dtype)
    nisa.dma_copy(tile, x.reshape((4, 64, f)).ap([[f, 64], [1, f], [64 * f, 4]]))
    return tile.reshape((64, 4 * f))


def quantized_product(a, b, dtype=nl.float8_e4m3fn_x4, scale_dtype=nl.uint8, packed=False, out=nl.float32):
    """a.T @ b by quantizing both; with `packed` their scales share one tile, the second's four rows further down."""
    m, n = a.shape[1], b.shape[1]
    left, right = nl.ndarray((64, m), dtype), nl.ndarray((64, n), dtype)
    if packed:
        scales = nl.ndarray((64, n), scale_dtype)
        left_scale, right_scale = scales[0:, :m], scales[4:, :]
    else:
        left_scale, right_scale = nl.ndarray((64, m), scale_dtype), nl.ndarray((64, n), scale_dtype)
    nisa.quantize_mx(left, interleaved(a), left_scale)
    nisa.quantize_mx(dst=right, src=interleaved(b), dst_scale=right_scale, name="right")
    psum = nl.ndarray((m, n), out, buffer=nl.psum)
    nisa.nc_matmul_mx(psum, left, right, left_scale, right_scale)
    result = nl.ndarray((m, n), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(result, nl.copy(psum, nl.float32))
    return result


def product():
    return STATIONARY.astype(np.float32).T @ MOVING.astype(np.float32)


@pytest.mark.parametrize("eager, packed", [(False, False), (False, True), (True, True)])
def test_quantize_and_multiply(eager, packed):
    """The published kernels: interleave by a strided copy, quantize, multiply; then with scales in one tile."""
    result = nkijax.run(quantized_product, STATIONARY, MOVING, packed=packed, target="trn3", eager=eager)
    np.testing.assert_allclose(result, product(), atol=0.25)
    assert np.abs(result - product()).max() > 0


def test_steps_of_a_contraction_fold_into_one():
    """Each step has data and scales of its own."""

    def kernel(a, b, sa, sb):
        out, psum = (nl.ndarray((8, 16), nl.float32, buffer=r) for r in (nl.shared_hbm, nl.psum))
        for step in range(3):
            x, y = (nl.load(t[step].view(nl.float8_e5m2_x4)) for t in (a, b))
            nisa.nc_matmul_mx(psum, x, y, nl.load(sa[step]), nl.load(sb[step]))
        nisa.dma_copy(out, nl.copy(psum))
        return out

    rng, rows = np.random.default_rng(1), [32 * (p // 32) + (p % 32) // 8 for p in range(64)]
    data = [rng.choice([-2, -1, 0.5, 1, 3], (3, 64, f, 4)).astype(ml_dtypes.float8_e5m2) for f in (8, 16)]
    scales = [rng.integers(124, 130, (3, 64, f)).astype(np.uint8) for f in (8, 16)]
    full = [
        v.astype(np.float64) * 2.0 ** (s[:, rows].astype(np.float64) - 127)[..., None]
        for v, s in zip(data, scales, strict=True)
    ]
    args = [*(v.view(np.uint8).reshape(3, 64, -1) for v in data), *scales]
    got = nkijax.run(kernel, *args, target="trn3")
    np.testing.assert_allclose(got, np.einsum("tkmq,tknq->mn", *full), rtol=1e-6, atol=1e-6)
    assert str(nkijax.trace(kernel, *args, target="trn3")).count("NcMatmulMx") == 1


def test_bfloat16_result_and_reduced_precision():
    exact = nkijax.run(quantized_product, STATIONARY, MOVING, target="trn3")
    rounded = nkijax.run(quantized_product, STATIONARY, MOVING, out=nl.bfloat16, target="trn3")
    np.testing.assert_array_equal(rounded, exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    loose = {"scale_dtype": nl.float8_e8m0fnu, "target": "trn3", "precise": False}
    np.testing.assert_array_equal(nkijax.run(quantized_product, STATIONARY, MOVING, **loose), exact)


@pytest.mark.parametrize(
    "view, element", [(nl.float4_e2m1fn_x4, ml_dtypes.float4_e2m1fn), (nl.float8_e5m2_x4, ml_dtypes.float8_e5m2)]
)
def test_weights_quantized_before(view, element):
    """Data arrives as bytes and is viewed as x4; contiguous scales are spread over the quadrants."""
    rng = np.random.default_rng(1)
    four = element is ml_dtypes.float4_e2m1fn
    values = [rng.choice([-2, -1, -0.5, 0, 0.5, 1, 3], (64, f, 4)).astype(element) for f in (8, 16)]
    codes = [v.view(np.uint8) for v in values]
    packed = [(c[..., 0::2] | c[..., 1::2] << 4 if four else c).reshape(64, -1) for c in codes]
    scales = [rng.integers(124, 130, (8, f)).astype(np.uint8) for f in (8, 16)]

    def kernel(a, b, sa, sb):
        result = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        operands = []
        for data, scale in ((a, sa), (b, sb)):
            f = scale.shape[1]
            tile, rows = nl.ndarray((64, f), view), nl.ndarray((64, f), nl.uint8)
            nisa.dma_copy(tile, data.ap([[f, 64], [1, f]], dtype=view))
            for quadrant in range(2):
                nisa.dma_copy(rows[nl.ds(32 * quadrant, 4), :], scale[nl.ds(4 * quadrant, 4), :])
            operands.append((tile, rows))
        psum = nl.ndarray((8, 16), nl.float32, buffer=nl.psum)
        (x, xs), (y, ys) = operands
        nisa.nc_matmul_mx(psum, x, y, stationary_scale=xs, moving_scale=ys, tile_position=(0, 0), tile_size=(64, 128))
        nisa.dma_copy(result, nl.copy(psum))
        return result

    full = [
        v.astype(np.float64) * 2.0 ** (s.repeat(8, axis=0).astype(np.float64) - 127)[:, :, None]
        for v, s in zip(values, scales, strict=True)
    ]
    want = np.einsum("kmq,knq->mn", *full)
    got = nkijax.run(kernel, *packed, *scales, target="trn3")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_scales_of_other_tensors_stay():
    def kernel(x):
        out = nl.ndarray((64, 4), nl.uint8, buffer=nl.shared_hbm)
        scales, data = nl.full((64, 4), 9, nl.uint8), nl.ndarray((64, 4), nl.float8_e4m3fn_x4)
        nisa.quantize_mx(data, nl.load(x), scales[8:, :])
        nisa.dma_copy(out, scales)
        return out

    scales = nkijax.run(kernel, np.ones((64, 16), ml_dtypes.bfloat16), target="trn3")
    written = [8, 9, 10, 11, 40, 41, 42, 43]
    assert (scales[written] == 120).all() and (np.delete(scales, written, axis=0) == 9).all()


def test_refusals():
    def refused(kernel, target="trn3"):
        with pytest.raises(KernelError) as error:
            nkijax.trace(kernel, STATIONARY, MOVING, target=target)
        assert error.value.site.startswith(__file__)
        return error.value.message

    assert "quantize_mx: needs gen4 or later, got trn2" in refused(quantized_product, "trn2")
    assert "must be one of ['float8_e5m2_x4', 'float8_e4m3fn_x4'], got float4_e2m1fn_x4" in refused(
        lambda a, b: quantized_product(a, b, dtype=nl.float4_e2m1fn_x4)
    )
    assert "dst_scale: must be a tensor, got None" in refused(lambda a, b: nisa.quantize_mx(a, b, None))
    assert "moving_scale: must be a tensor, got 1.0" in refused(lambda a, b: nisa.nc_matmul_mx(a, a, b, a, 1.0))
