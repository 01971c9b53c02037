"""The algebra of views, against NumPy views of the same storage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.errors import KernelError
from nkijax.machine import Memory
from nkijax.view import Buffer, Dynamic, View


def whole(shape, dtype="float32", memory=Memory.sbuf, index=0):
    return View.whole(Buffer(index, tuple(shape), dtype, memory))


def hbm(*shape):
    return whole(shape, memory=Memory.private_hbm)


def elements(view: View) -> np.ndarray:
    """The flat addresses of a view's elements."""
    return view.offset + sum(
        (s * g for s, g in zip(view.strides, np.indices(view.shape), strict=True)), np.zeros((), int)
    )


def register():
    return View.whole(Buffer(9, (1,), "int32", Memory.register))


OPS = ["slice", "select", "permute", "expand_dim", "squeeze", "split", "flatten", "reshape"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_chains_of_methods_agree_with_numpy(shape, data):
    view, array = hbm(*shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        op = data.draw(st.sampled_from(OPS))
        d = data.draw(st.integers(0, view.ndim - 1))
        n = view.shape[d]
        if op == "slice":
            start = data.draw(st.integers(0, n - 1))
            end, step = data.draw(st.integers(start + 1, n)), data.draw(st.integers(1, 3))
            view, array = view.slice(d, start, end, step), np.moveaxis(np.moveaxis(array, d, 0)[start:end:step], 0, d)
        elif op == "select" and view.ndim > 1:
            i = data.draw(st.integers(0, n - 1))
            view, array = view.select(d, i), array[(slice(None),) * d + (i,)]
        elif op == "permute":
            order = data.draw(st.permutations(range(view.ndim)))
            view, array = view.permute(order), array.transpose(order)
        elif op == "expand_dim":
            view, array = view.expand_dim(d), np.expand_dims(array, d)
        elif op == "squeeze" and n == 1 and view.ndim > 1:
            view, array = view.squeeze_dim(d), array.squeeze(d)
        elif op == "split" and n % 2 == 0:
            view = view.reshape_dim(d, (2, -1))
            array = array.reshape(*array.shape[:d], 2, n // 2, *array.shape[d + 1 :])
        elif op == "reshape" and array.flags.c_contiguous:
            view, array = view.reshape((-1, array.shape[-1])), array.reshape(-1, array.shape[-1])
        elif op == "flatten" and view.ndim > 1 and array.flags.c_contiguous:
            view, array = view.flatten_dims(0, 1), array.reshape(-1, *array.shape[2:])
        assert view.shape == array.shape
        np.testing.assert_array_equal(elements(view), array)


def test_on_chip_the_partition_dimension_stays():
    t = whole((64, 4, 8))
    for call in (
        lambda: t.permute((1, 0, 2)),
        lambda: t.broadcast(0, 2),
        lambda: t.expand_dim(0),
        lambda: t.reshape_dim(0, (2, 32)),
        lambda: t.flatten_dims(0, 1),
    ):
        with pytest.raises(KernelError, match="partition dimension"):
            call()
    with pytest.raises(KernelError, match="Partition dim size must be preserved, got 64 -> "):
        t.reshape((32, 64))
    assert t.reshape((64, 32)).strides == (32, 1)
    assert t.flatten_dims(1, 2).shape == (64, 32)


def test_select_keeps_two_dimensions_on_chip_and_one_in_hbm():
    t = whole((64, 4, 8))
    assert t.select(0, 3).shape == (1, 4, 8)
    assert t.select(2, 0).shape == (64, 4)
    assert t.select(1, 0).select(1, 5).shape == (64, 1)
    assert hbm(3).select(0, 1).shape == (1,)
    assert hbm(3, 4).select(0, 1).shape == (4,)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: hbm(3, 12).slice(1, 0, 128), r"dimension 1: index range \[0, 127\] exceed dimension size of 12"),
        (lambda: hbm(3, 12).select(0, 3), "dimension 0: index 3 exceed dimension size of 3"),
        (lambda: hbm(3, 12).slice(1, 0, 4, 0), "step: must be at least 1"),
        (lambda: hbm(3, 12).slice(2, 0, 4), r"slice dim: must be in \[0, 2\), got 2"),
        (lambda: hbm(3, 12).permute((0, 0)), "permutation"),
        (lambda: hbm(3, 12).broadcast(1, 4), "must have size 1"),
        (lambda: hbm(3, 12).squeeze_dim(0), "must have size 1"),
        (lambda: hbm(3, 12).reshape((5, 7)), "must keep 36 elements"),
        (lambda: hbm(3, 12).permute((1, 0)).reshape((36,)), "do not allow"),
        (lambda: hbm(3, 12).slice(1, 0, 6).flatten_dims(0, 1), "must be contiguous"),
        (lambda: hbm(4, 6).ap([[7, 4], [1, 6]]), r"addresses \[0, 26\] exceed its 24 elements"),
        (lambda: whole((128, 32)).ap([[31, 128], [1, 4]]), "invalid partition stride.*must equal.*32"),
        (lambda: whole((4, 4)).ap([[4, 4]], vector_offset=whole((4, 1), "int32")), "must be in HBM"),
        (lambda: hbm(4, 4).ap([[4, 4]], scalar_offset=register(), vector_offset=register()), "exclude each other"),
        (lambda: hbm(4, 4).ap([[4, 4]], scalar_offset=whole((1, 1))), "1-element integer tile"),
        (lambda: whole((4, 4)).select(0, register()), "partition dimension"),
        (lambda: hbm(4, 4).select(0, register()).select(0, register()), "at most one run-time index"),
        (lambda: whole((4, 6), "int8").reinterpret("float32"), "does not divide"),
    ],
)
def test_errors_name_the_rule(call, words):
    with pytest.raises(KernelError, match=words):
        call()


def test_run_time_indices_carry_stride_and_limit():
    r = register()
    assert hbm(8, 6).select(0, r).dynamic == Dynamic(r, 6, 8)
    assert hbm(8, 6).shifted(0, r, 3).dynamic == Dynamic(r, 6, 6)
    assert whole((8, 5, 6)).select(1, r).dynamic == Dynamic(r, 6, 5)
    ap = hbm(4, 128 * 16).ap([[16, 128], [1, 16]], scalar_offset=r)
    assert ap.dynamic == Dynamic(r, 2048, 4) and ap.shape == (128, 16)
    rows = whole((4, 1), "int32", index=3)
    ap = hbm(10, 6).ap([[6, 4], [1, 6]], vector_offset=rows)
    assert ap.dynamic == Dynamic(rows, 6, 10, vector=True) and ap.strides == (0, 1)


def test_ap_offsets_compose_and_rescale_with_the_dtype():
    t = hbm(4, 8).slice(0, 1, 3)
    assert t.ap([[1, 4]], offset=2).offset == 10
    assert t.ap([[1, 4]], dtype="bfloat16").offset == 16


def test_reinterpret_scales_the_last_dimension():
    t = whole((4, 6))
    b = t.reinterpret("bfloat16")
    assert (b.shape, b.strides, b.offset) == ((4, 12), (12, 1), 0)
    assert b.slice(1, 4, 8).reinterpret("float32").offset == 2
    assert b.reinterpret("float32").shape == t.shape


def test_contiguity_ignores_the_partition_stride():
    t = whole((128, 4, 8))
    assert t.is_contiguous() and t.slice(0, 0, 128, 2).is_contiguous() and not t.slice(1, 0, 4, 2).is_contiguous()
    assert not hbm(8, 8).slice(1, 0, 4).is_contiguous() and hbm(8, 8).slice(0, 2, 4).is_contiguous()
