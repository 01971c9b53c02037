"""Rates of streaming, and the stride penalty of the entries that stream."""

from __future__ import annotations

import pytest

from nkijax.isa import rates
from nkijax.isa.accumulating import Exponential, TensorScalarCumulative, TensorScalarReduce
from nkijax.isa.activate2 import Activate2
from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.elementwise import ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.index import Iota
from nkijax.isa.move import Memset, TensorCopy
from nkijax.isa.operators import ACTIVATIONS, ALU
from nkijax.isa.reduce import TensorPartitionReduce, TensorReduce
from nkijax.isa.select import AffineSelect, TensorCopyPredicated
from nkijax.isa.selecting import RangeSelect, SelectReduce
from nkijax.isa.statistics import BnAggr, BnStats
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import tile

N = 512
SBUF, PSUM = Memory.sbuf, Memory.psum


def strided(step, dtype="float32", memory=SBUF):
    """A (128, N) view whose elements are `step` apart."""
    return tile((128, N * step), dtype, memory).slice(1, 0, N * step, step)


@pytest.mark.parametrize(
    ("target", "dst", "data", "cycles"),
    [
        (TRN1, ("bfloat16", SBUF, 1), ("bfloat16", SBUF, 1), N),
        (TRN2, ("bfloat16", SBUF, 1), ("float16", SBUF, 1), N / 4),
        (TRN2, ("bfloat16", SBUF, 2), ("bfloat16", SBUF, 1), N / 2),
        (TRN2, ("bfloat16", PSUM, 1), ("bfloat16", SBUF, 1), N / 2),
        (TRN2, ("bfloat16", PSUM, 1), ("bfloat16", SBUF, 2), N),
        (TRN2, ("bfloat16", PSUM, 1), ("bfloat16", PSUM, 1), N),
        (TRN2, ("float32", SBUF, 1), ("float32", SBUF, 1), N / 2),
        (TRN2, ("float32", SBUF, 1), ("float32", PSUM, 1), N),
        (TRN2, ("float8_e5m2", SBUF, 1), ("float8_e5m2", SBUF, 1), N / 2),
        (TRN3, ("float8_e5m2", SBUF, 1), ("bfloat16", SBUF, 1), N / 4),
    ],
)
def test_one_input(target, dst, data, cycles):
    views = [strided(step, dtype, memory) for dtype, memory, step in (dst, data)]
    assert rates.one_input_cycles(target, *views) == cycles


def test_one_input_cast():
    dst, data = tile((128, N)), tile((128, N), "bfloat16")
    assert rates.one_input_cycles(TRN2, dst, data) == N / 2
    assert rates.one_input_cycles(TRN2, dst, data, cast_rate=rates.CAST_RATE) == N / 1.3
    assert rates.one_input_cycles(TRN1, dst, data, cast_rate=rates.CAST_RATE) == N


@pytest.mark.parametrize(
    ("view", "penalty"),
    [
        (strided(1), 1),
        (strided(4), 1),  # 16 bytes exactly
        (strided(5), 2),
        (strided(8, "bfloat16"), 1),
        (strided(9, "bfloat16", PSUM), 2),
        (strided(16, "uint8"), 1),
        (strided(17, "uint8"), 2),
        (tile((128, 64, 8)).slice(2, 0, 1), 2),  # the innermost dimension that has elements to step over
        (tile((128, 8)).slice(1, 3, 4), 1),  # (128, 1)
        (tile((128, 1)).broadcast(1, N), 1),
        (tile((128, N), memory=Memory.private_hbm).slice(1, 0, N, 16), 1),
        (tile((8, 8, 8)).permute((0, 2, 1)), 2),
        (3.0, 1),
        (None, 1),
    ],
)
def test_strides_above_16_bytes(view, penalty):
    assert rates.stride_penalty(tile((128, N)), view) == penalty


def test_predicated():
    sbuf, psum = tile((128, N)), tile((128, N), memory=PSUM)
    assert rates.predicated_cycles(TRN1, sbuf, sbuf, sbuf) == 2 * N
    assert rates.predicated_cycles(TRN1, sbuf, psum, sbuf) == rates.predicated_cycles(TRN1, sbuf, sbuf, psum) == N
    assert rates.predicated_cycles(TRN1, sbuf, 1.0, sbuf) == N
    assert (
        rates.predicated_cycles(TRN2, sbuf, sbuf, sbuf) == rates.predicated_cycles(TRN3, sbuf, psum, sbuf) == 1.065 * N
    )


def test_work():
    wide, dense = strided(8), strided(1)
    latency = TRN2.latency_cycles(Engine.scalar)
    assert rates.work(TRN2, Engine.scalar, 100, dense) == Work(100, latency)
    assert rates.work(TRN2, Engine.scalar, 100, dense, wide, None, 2.0) == Work(200, latency)
    assert rates.work(TRN2, Engine.scalar, 20, wide) == Work(64, latency)
    assert rates.work(TRN2, Engine.scalar, 100, copy=True) == Work(100, TRN2.latency_cycles(Engine.scalar, copy=True))


ADD, EXP, MAX = ALU["add"], ACTIVATIONS["exp"], ALU["maximum"]
ONE = tile((128, 1))
STREAMS = {
    "tensor_copy": lambda x: TensorCopy(x, x),
    "tensor_copy scalar": lambda x: TensorCopy(x, x, Engine.scalar),
    "memset": lambda x: Memset(x, 1.0),
    "tensor_tensor": lambda x: TensorTensor(x, x, x, ADD),
    "tensor_tensor gpsimd": lambda x: TensorTensor(x, x, x, ADD, Engine.gpsimd),
    "tensor_scalar": lambda x: TensorScalar(x, x, ADD, 1.0),
    "tensor_scalar scalar": lambda x: TensorScalar(x, x, ADD, 1.0, engine=Engine.scalar),
    "scalar_tensor_tensor": lambda x: ScalarTensorTensor(x, x, ADD, 1.0, ADD, x),
    "tensor_copy_predicated": lambda x: TensorCopyPredicated(x, x, x),
    "tensor_reduce": lambda x: TensorReduce(ONE, ADD, x, 1),
    "tensor_partition_reduce": lambda x: TensorPartitionReduce(tile((1, N)), ADD, x),
    "activation": lambda x: Activate(x, EXP, x),
    "activation_reduce": lambda x: ActivationReduce(x, EXP, x, ADD, None),
    "activate2": lambda x: Activate2(x, EXP, x, 0.0, 0.0, ALU["bypass"], ALU["bypass"]),
    "tensor_scalar_reduce": lambda x: TensorScalarReduce(x, x, ADD, 1.0, ADD),
    "tensor_scalar_cumulative": lambda x: TensorScalarCumulative(x, x, ADD, ADD, 1.0),
    "exponential": lambda x: Exponential(x, x),
    "select_reduce": lambda x: SelectReduce(x, x, x, 0.0),
    "range_select": lambda x: RangeSelect(x, x, ADD, ADD, ONE, ONE),
    "bn_stats": lambda x: BnStats(ONE, x),
    "bn_aggr": lambda x: BnAggr(ONE, x),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_an_entry_takes_twice_as_long_with_a_wide_stride(target, name):
    # float32: strides 2 and 5, so that dense modes do not count
    narrow, wide = (STREAMS[name](strided(step)).cycles(target).issue_cycles for step in (2, 5))
    assert wide == 2 * narrow


@pytest.mark.parametrize("target", [TRN1, TRN2])
def test_the_start_of_gpsimd_is_not_doubled(target):
    for make in (lambda x: Iota(x, [[1, N]]), lambda x: AffineSelect(x, [[1, N]], 0, x, 0.0)):
        narrow, wide = (make(strided(step)).cycles(target).issue_cycles for step in (2, 5))
        start = 0 if target is TRN2 and make(strided(1)).api.endswith("select") else 150
        assert wide - start == pytest.approx(2 * (narrow - start))


def test_a_run_time_address_is_no_stream():
    x, wide = tile((128, N)), strided(5)
    i = tile((1, 1), "int32")
    assert TensorCopy(tile((128, 1)), x.select(1, i)).cycles(TRN2).issue_cycles == 600
    assert TensorCopy(wide, tile((128, 4, N)).select(1, i)).cycles(TRN1).issue_cycles == 2 * N
