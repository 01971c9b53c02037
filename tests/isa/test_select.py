"""affine_select and tensor_copy_predicated."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.operators import ALU
from nkijax.isa.select import AffineSelect, TensorCopyPredicated
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import Buffer
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile, whole

P, F = 4, 6
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]
COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "less": np.less,
}
INDEX = np.arange(P)[:, None] * 2 - np.arange(F) + 1  # offset 1, channel_multiplier 2, pattern [[-1, F]]
psum = Memory.psum


def setup(dtype="float32", dst="float32"):
    data, memory = store(random((P, F), dtype), dtype)
    out, more = store(random((P, F), dst, 1), dst)
    return out, data, {**memory, **more}


# ---- affine_select


@pytest.mark.parametrize("name", COMPARE)
def test_affine_select_comparisons(name):
    dst, data, memory = setup()
    execute(AffineSelect(dst, [[-1, F]], 2, data, -1e30, ALU[name], 1), memory)
    want = np.where(COMPARE[name](INDEX, 0), load(data, memory), np.float32(-1e30))
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_affine_select_dtypes(dtype):
    for other in (dtype, "float32"):
        dst, data, memory = setup(dtype, other)
        execute(AffineSelect(dst, [[-1, F]], 2, data, 2.5, ALU["less"], 1), memory)
        tile_cast = load(data, memory) if other == dtype else load(data, memory).astype(np.float32)
        want = np.where(INDEX < 0, tile_cast, reference_cast(np.float32(2.5), other))
        np.testing.assert_array_equal(load(dst, memory), want)


def test_affine_select_copies_bits():
    data, memory = store(np.full((P, F), 2**24 + 1), "int32")
    execute(AffineSelect(data, [[-1, F]], 2, data, 0, ALU["greater_equal"], 1), memory)
    np.testing.assert_array_equal(load(data, memory), np.where(INDEX >= 0, 2**24 + 1, 0))
    nans, memory = store(np.zeros((P, F)))
    memory[nans.buffer].view(np.uint32)[...] = 0x7FC01234
    execute(AffineSelect(nans, [[0, F]], 0, nans, 0.0), memory)
    assert (memory[nans.buffer].view(np.uint32) == 0x7FC01234).all()


def test_affine_select_when_low_precision_is_stored_as_float32():
    dst, data = tile((P, F), "bfloat16"), tile((P, F), "bfloat16")
    x = jnp.full((P, F), 1 / 3, jnp.float32)
    (out,) = AffineSelect(dst, [[0, F]], 1, data, 0.1).run(Reader({data: x}, {}))
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, np.where(np.arange(P)[:, None] == 0, x, np.float32(0.1)))


def test_8_8_affine_select_views_register_and_causal_mask():
    data, memory = store(random((P, 3, 2)))
    out, more = store(np.zeros((P, 12)))
    register = whole(Buffer(-1, (1, 1), "int32", Memory.register, "r"))
    memory |= {**more, register.buffer: np.array([[-2]], np.int32)}
    dst = out.slice(1, 0, 12, 2)
    instruction = AffineSelect(dst, [[-1, 6]], 1, data.permute((0, 2, 1)), -9.0, ALU["greater_equal"], register)
    assert rule(instruction) == ""
    execute(instruction, memory)
    x = random((P, 3, 2)).transpose(0, 2, 1).reshape(P, 6)
    want = np.where(np.arange(P)[:, None] - 2 >= np.arange(6), x, np.float32(-9))
    np.testing.assert_array_equal(load(dst, memory), want)
    assert not memory[out.buffer][:, 1::2].any()


def test_affine_select_traced_and_its_gradient():
    dst, data, memory = setup()
    instruction = AffineSelect(dst, [[-1, F]], 2, data, -5, ALU["greater_equal"], 1)
    execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory), np.where(INDEX >= 0, load(data, memory), -5))
    f = jax.grad(lambda x: jnp.sum(instruction.run(Reader({data: x}, {}))[0]))
    np.testing.assert_array_equal(f(jnp.asarray(load(data, memory))), INDEX >= 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_true_tile": tile((P, F), memory=psum)}, r"on_true_tile: on_true_tile must be in \['sbuf'\], got psum"),
        ({"dst": tile((P, F), memory=psum)}, r"dst: dst must be in \['sbuf'\], got psum"),
        ({"dst": tile((129, F)), "on_true_tile": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"on_true_tile": tile((P + 1, F))}, r"on_true_tile: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"on_true_tile": tile((P, 7))}, r"on_true_tile: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"dst": tile((P, F), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
        ({"cmp_op": ALU["add"]}, "cmp_op: must be a comparison, got add"),
        ({"cmp_op": max}, "cmp_op: must be a math operator of nki.language, got <built-in"),
        ({"on_false_value": tile((P, 1))}, "on_false_value: must be a number, got sbuf"),
        ({"pattern": [[1, 3]]}, r"pattern: must count the 6 free elements of dst, got \(\(1, 3\),\)"),
        ({"offset": 1.0}, "offset: must be a 32-bit integer or a register, got 1.0"),
        ({"channel_multiplier": None}, "channel_multiplier: must be a 32-bit integer, got None"),
    ],
)
def test_affine_select_rules(changes, message):
    legal = AffineSelect(tile((P, F)), [[1, F]], 1, tile((P, F)), 0.0)
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.affine_select " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize(("target", "n", "cycles"), [(TRN1, 2000, 2150), (TRN2, 2000, 2030), (TRN3, 2000, 2030)])
def test_affine_select_cost(target, n, cycles):
    data = tile((128, n))
    work = AffineSelect(data, [[1, n]], 1, data, 0.0).cycles(target)
    assert work == Work(pytest.approx(cycles), target.latency_cycles(Engine.gpsimd))
    small = tile((128, 2))
    want = 152 if target is TRN1 else 64
    assert AffineSelect(small, [[1, 2]], 1, small, 0.0).cycles(target).issue_cycles == want


# ---- tensor_copy_predicated


def with_predicate(dtype="float32", kind="uint8"):
    dst, src, memory = setup(dtype, dtype)
    predicate, more = store(np.abs(random((P, F), "int8", 3)) % 3, kind)
    return dst, src, predicate, {**memory, **more}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_copy_predicated_dtypes(dtype, reverse):
    dst, src, predicate, memory = with_predicate(dtype)
    before = load(dst, memory)
    execute(TensorCopyPredicated(dst, src, predicate, reverse), memory)
    chosen = (load(predicate, memory) != 0) != reverse
    np.testing.assert_array_equal(load(dst, memory), np.where(chosen, load(src, memory), before))


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32"])
def test_tensor_copy_predicated_predicates(kind):
    dst, src, predicate, memory = with_predicate(kind=kind)
    memory[predicate.buffer][0, 0] = dtypes.poison(kind)
    before = load(dst, memory)
    execute(TensorCopyPredicated(dst, src, predicate), memory)
    np.testing.assert_array_equal(load(dst, memory), np.where(load(predicate, memory), load(src, memory), before))


def test_tensor_copy_predicated_moves_and_keeps_bits():
    dst, src, predicate, memory = with_predicate()
    memory[src.buffer].view(np.uint32)[...] = 0x7FC01234
    memory[dst.buffer].view(np.uint32)[...] = 0x7FC05678
    execute(TensorCopyPredicated(dst, src, predicate), memory)
    want = np.where(load(predicate, memory) != 0, 0x7FC01234, 0x7FC05678)
    np.testing.assert_array_equal(memory[dst.buffer].view(np.uint32), want)


@pytest.mark.parametrize(
    ("dtype", "number", "stored"),
    [
        ("float32", 0.1, np.float32(0.1)),
        ("float32", 3, 3),
        ("bfloat16", 1.0 + 2**-9, 1),
        ("int32", 2**24 + 1, 2**24 + 1),
        ("int8", 2.5, 2),
        ("uint8", 300.0, 255),
        ("int8", -300, -128),
        ("uint32", 2**32 - 1, 2**32 - 1),
        ("bool", 2, True),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_tensor_copy_predicated_of_a_number(dtype, number, stored, traced):
    dst, _, predicate, memory = with_predicate(dtype)
    before = load(dst, memory)
    execute(TensorCopyPredicated(dst, number, predicate), memory, traced)
    want = np.where(load(predicate, memory) != 0, np.array(stored).astype(before.dtype), before)
    np.testing.assert_array_equal(load(dst, memory), want)


def test_8_8_tensor_copy_predicated_operands_of_different_rank():
    src, memory = store(random((P, 2, 3)))
    predicate, more = store(random((P, 3, 2), "uint8", 2) % 2, "uint8")
    out, rest = store(np.full((P, 12), 7))
    memory |= {**more, **rest}
    dst = out.slice(1, 1, 12, 2)
    execute(TensorCopyPredicated(dst, src, predicate.permute((0, 2, 1))), memory)
    chosen = memory[predicate.buffer].transpose(0, 2, 1).reshape(P, 6) != 0
    np.testing.assert_array_equal(load(dst, memory), np.where(chosen, random((P, 2, 3)).reshape(P, 6), 7))
    assert (memory[out.buffer][:, ::2] == 7).all()


def test_tensor_copy_predicated_reads_what_it_keeps():
    dst, src, predicate, _ = with_predicate()
    instruction = TensorCopyPredicated(dst, src, predicate)
    assert instruction.reads() == (dst, src, predicate) and instruction.writes() == (dst,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, F), memory=Memory.shared_hbm)}, "dst: dst must be in"),
        ({"src": tile((P, F), "bfloat16")}, "src: must have the dtype float32 of dst, got bfloat16"),
        ({"src": tile((P, 7))}, r"src: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"src": None}, "src: must be a tile or a number, got None"),
        ({"predicate": tile((P, 1), "uint8")}, r"predicate: must have the 6 free elements of dst, got \(4, 1\)"),
        ({"predicate": tile((2, F), "uint8")}, r"predicate: must have the 4 partitions of dst, got \(2, 6\)"),
        ({"predicate": tile((P, F), "int32")}, "predicate: must have one of the dtypes .*, got int32"),
        ({"predicate": tile((P, F), "float32")}, "predicate: must have one of the dtypes .*, got float32"),
        ({"predicate": tile((200, F), "uint8")}, "predicate partition dimension 200 exceeds maximum 128"),
        (
            {"src": tile((P, F), memory=psum), "predicate": tile((P, F), "uint8", psum)},
            "src, predicate: at most one of them may be in psum, got both in psum",
        ),
    ],
)
def test_tensor_copy_predicated_rules(changes, message):
    legal = TensorCopyPredicated(tile((P, F)), tile((P, F)), tile((P, F), "uint8"))
    assert rule(legal) == rule(replace(legal, src=1.0)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_copy_predicated " + message):
        replace(legal, **changes).check(TRN2)


def test_tensor_copy_predicated_cost():
    sbuf, mask = tile((128, 2000)), tile((128, 2000), "uint8")
    in_psum, mask_in_psum = tile((128, 2000), memory=psum), tile((128, 2000), "uint8", psum)

    def cost(target, src, predicate):
        work = TensorCopyPredicated(sbuf, src, predicate).cycles(target)
        assert work.latency_cycles == target.latency_cycles(Engine.vector)
        return work.issue_cycles

    assert cost(TRN1, sbuf, mask) == 4000
    assert cost(TRN1, in_psum, mask) == cost(TRN1, sbuf, mask_in_psum) == cost(TRN1, 1.0, mask) == 2000
    assert cost(TRN2, sbuf, mask) == cost(TRN3, in_psum, mask) == pytest.approx(2130)
    small, bits = tile((128, 3)), tile((128, 3), "uint8")
    assert TensorCopyPredicated(small, small, bits).cycles(TRN2).issue_cycles == 64
