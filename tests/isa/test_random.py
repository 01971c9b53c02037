"""Random numbers: reproducible, uniform, independent of how they are drawn; rule by rule; and their exact cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.random import STATE_WORDS, Dropout, Rand2, RandGetState, RandSetState, Rng, SetRngSeed
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import View
from tests.isa.harness import Reader, buffer, execute, fresh, load, random, reference_cast, rule, store, tile, whole

V, G = Engine.vector, Engine.gpsimd
PSUM, STATE = Memory.psum, Memory.state
INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
DTYPES = [
    *("float32", "bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]
SEED = 1234


class Generator:
    """One engine's generator, and a memory that has it."""

    def __init__(self, engine=V, seed: int | None = SEED):
        words = STATE_WORDS[engine]
        self.engine, self.words = engine, words
        self.all = whole(buffer((128, words), "uint32", STATE))
        self.memory = {self.all.buffer: np.zeros((128, words), np.uint32)}
        if seed is not None:
            state = np.random.default_rng(seed).integers(0, 2**32, (128, words), np.uint32)
            state[:, -1] = 0
            self.memory[self.all.buffer] = state

    def lanes(self, n: int) -> View:
        return self.all.slice(0, 0, n)

    def put(self, values, dtype="float32"):
        view, more = store(values, dtype)
        self.memory |= more
        return view

    def new(self, *shape: int, dtype="uint32") -> View:
        view = tile(shape, dtype)
        self.memory[view.buffer] = fresh(view.buffer)
        return view

    def draw(self, p: int, n: int, dtype="uint32", traced=False) -> np.ndarray:
        dst = self.new(p, n, dtype=dtype)
        execute(Rng(dst, self.engine, self.lanes(p)), self.memory, traced)
        return load(dst, self.memory)

    def uniform(self, p: int, n: int, low, high, dtype="float32") -> np.ndarray:
        dst = self.new(p, n, dtype=dtype)
        execute(Rand2(dst, low, high, self.lanes(p)), self.memory)
        return load(dst, self.memory)

    def drop(self, data: View, prob) -> np.ndarray:
        dst = self.new(*data.shape, dtype=data.dtype)
        execute(Dropout(dst, data, prob, self.lanes(data.partitions)), self.memory)
        return load(dst, self.memory)

    def seed(self, value, dtype="uint32") -> None:
        execute(SetRngSeed(self.put([[value]], dtype), self.all), self.memory)


# ---- sequences


@pytest.mark.parametrize("engine", [V, G])
def test_same_state_gives_the_same_sequence(engine):
    first, again, other = Generator(engine), Generator(engine), Generator(engine, SEED + 1)
    drawn = [g.draw(128, 16) for g in (first, again, other)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).mean() > 0.99
    assert len(np.unique(drawn[0])) == drawn[0].size


def test_seed_starts_the_sequence_again():
    g = Generator()
    g.seed(7)
    first = g.draw(8, 16)
    assert (g.draw(8, 16) != first).all()
    g.seed(7)
    np.testing.assert_array_equal(g.draw(8, 16), first)
    g.seed(8)
    assert (g.draw(8, 16) != first).all()


@pytest.mark.parametrize("dtype, value", [("int32", -5), ("uint32", 2**32 - 5), ("float32", np.float32(1.5))])
def test_seed_counts_with_all_its_bits(dtype, value):
    g, bits = Generator(), np.array([[value]], dtypes.storage(dtype)).view(np.uint32)
    g.seed(value, dtype)
    state = g.memory[g.all.buffer]
    assert (state[:, 0] == bits[0, 0]).all() and not state[:, 1:].any()
    assert rule(SetRngSeed(tile((1, 1), dtype, PSUM), g.all), TRN1) == ""


def test_sequences_do_not_depend_on_how_many_are_drawn_at_once():
    whole_row, parts = Generator(), Generator()
    want = whole_row.draw(8, 32)
    got = [parts.draw(8, n, traced=n > 16) for n in (8, 24)]
    np.testing.assert_array_equal(np.concatenate(got, axis=1), want)


def test_lanes_are_independent_of_each_other():
    a, b = Generator(), Generator()
    first, want = a.draw(8, 16), b.draw(128, 16)
    np.testing.assert_array_equal(first, want[:8])
    np.testing.assert_array_equal(a.draw(128, 16)[8:], want[8:])
    zero = Generator(seed=None)
    assert len(np.unique(zero.draw(128, 16))) == 128 * 16, "lanes of a fresh generator differ too"


@pytest.mark.parametrize("engine", [V, G])
def test_every_word_of_a_state_counts(engine):
    g = Generator(engine)
    start = g.memory[g.all.buffer].copy()
    want = g.draw(8, 16)[0]
    for word in range(g.words):
        g.memory[g.all.buffer] = start.copy()
        g.memory[g.all.buffer][0, word] += 8
        assert (g.draw(8, 16)[0] != want).all(), word


@pytest.mark.parametrize("engine", [V, G])
def test_a_stored_state_resumes(engine):
    g = Generator(engine)
    g.draw(128, 16)
    saved = g.new(128, g.words)
    execute(RandGetState(saved, engine, g.all), g.memory)
    want = g.draw(128, 16)
    execute(RandSetState(saved, engine, g.all), g.memory, traced=True)
    np.testing.assert_array_equal(g.draw(128, 16), want)
    some = g.new(32, g.words)
    execute(RandGetState(some, engine, g.lanes(32)), g.memory)
    np.testing.assert_array_equal(load(some, g.memory), g.memory[g.all.buffer][:32])


# ---- values


@pytest.mark.parametrize("dtype", INTEGERS)
def test_rng_truncates_to_the_least_significant_bits(dtype):
    words, kind = Generator().draw(8, 16), np.dtype(dtype)
    got = Generator().draw(8, 16, dtype)
    np.testing.assert_array_equal(got.view(f"u{kind.itemsize}"), words.astype(f"u{kind.itemsize}"))


def test_rng_writes_part_of_a_tile():
    g = Generator()
    out = g.new(9, 2, 16)
    execute(Rng(out.slice(0, 1, 9).slice(2, 0, 16, 2), V, g.lanes(8)), g.memory)
    want = fresh(out.buffer)
    want[1:, :, ::2] = Generator().draw(8, 16).reshape(8, 2, 8)
    np.testing.assert_array_equal(g.memory[out.buffer], want)


def test_bits_are_fair():
    bits = np.unpackbits(Generator().draw(128, 16).view(np.uint8).reshape(-1, 4), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float8_e4m3fn", "bool")])
def test_rand2_is_uniform_and_cast(dtype):
    exact = Generator().uniform(128, 16, -3.0, 5.0)
    assert exact.min() >= -3 and exact.max() <= 5
    assert abs(exact.mean() - 1) < 5 * 8 / np.sqrt(12 * exact.size)
    assert abs(exact.var() - 64 / 12) < 0.5
    want = tfloat32(exact) if dtype == "tfloat32" else reference_cast(exact, dtype)
    np.testing.assert_array_equal(Generator().uniform(128, 16, -3.0, 5.0, dtype), want)


def tfloat32(x):
    """Rounded to 11 significant bits."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11)


def test_rand2_takes_words_in_order():
    words = Generator().draw(8, 16)
    want = (words >> 8).astype(np.float32) * np.float32(2.0**-24)
    np.testing.assert_array_equal(Generator().uniform(8, 16, 0, 1), want)


PARTS = {  # of a (12, 25) tile, each (8, 12)
    "slice": lambda t: t.slice(0, 3, 11).slice(1, 1, 13),
    "stride": lambda t: t.slice(0, 3, 11).slice(1, 1, 25, 2),
    "select": lambda t: t.slice(0, 3, 11).slice(1, 1, 25).reshape_dim(1, (2, 12)).select(1, 1),
    "permute": lambda t: t.slice(0, 3, 11).slice(1, 1, 25, 2).reshape_dim(1, (3, 4)).permute((0, 2, 1)),
}


@pytest.mark.parametrize("part", PARTS)
def test_rand2_writes_part_of_a_tile(part):
    g = Generator()
    out, bounds = g.new(12, 25, dtype="float32"), g.put(np.arange(12)[:, None] + [[-1, 9, 3]])
    dst, low = PARTS[part](out), bounds.slice(0, 3, 11).slice(1, 0, 1)
    execute(Rand2(dst, low, bounds.slice(0, 3, 11).slice(1, 2, 3), g.lanes(8)), g.memory, traced=part == "permute")
    want = load(low, g.memory) + Generator().uniform(8, 12, 0, 4)  # exact, fused or not
    np.testing.assert_array_equal(load(dst, g.memory), want)
    assert np.isfinite(g.memory[out.buffer]).sum() == want.size, "nothing else is written"


def test_rand2_bounds_for_each_partition():
    g = Generator()
    low, high = np.array([[0], [-10], [100], [3]] * 2, np.float32), np.array([[1], [-9], [200], [3]] * 2, np.float32)
    x = g.uniform(8, 16, g.put(low), g.put(high))
    assert (x >= low).all() and (x <= high).all() and (x[3] == 3).all() and x[2].std() > 10


def test_rand2_gradients_of_the_bounds():
    g, dst = Generator(), tile((8, 16))
    low, high = tile((8, 1)), tile((8, 1))
    instruction = Rand2(dst, low, high, g.lanes(8))
    state = jnp.asarray(load(instruction.state, g.memory))

    def total(a, b):
        return instruction.run(Reader({low: a, high: b, instruction.state: state}, {}))[0].mean(axis=1).sum()

    for grad in jax.grad(total, (0, 1))(jnp.zeros((8, 1)), jnp.ones((8, 1))):
        assert (np.abs(np.asarray(grad) - 0.5) < 0.3).all()


# ---- dropout


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_of_0_keeps_bits_and_of_1_zeros_all(dtype):
    g = Generator()
    data = g.put(random((8, 16), dtype), dtype)
    if dtype == "float32":
        g.memory[data.buffer].view(np.uint32)[0, 0] = 0x7FA00001  # a NaN with a payload
    same = g.drop(data, 0.0)
    np.testing.assert_array_equal(same.view(np.uint8), g.memory[data.buffer].view(np.uint8))
    assert not g.drop(data, 1).view(np.uint8).any()


def test_trap_27_dropout_does_not_rescale():
    g = Generator()
    data = g.put(np.full((128, 16), 3.0), "bfloat16")
    x = g.drop(data, 0.25).astype(np.float32)
    assert set(np.unique(x)) == {0.0, 3.0}
    assert abs((x == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / x.size)


def test_dropout_drops_where_a_uniform_number_is_below_prob():
    u = Generator().uniform(8, 16, 0, 1)
    g = Generator()
    prob = np.linspace(0, 1, 8, dtype=np.float32).reshape(8, 1)
    data = random((8, 16)) + 100
    got = g.drop(g.put(data), g.put(prob))
    np.testing.assert_array_equal(got, np.where(u < prob, 0, data))


def test_dropout_of_a_part_in_place():
    g = Generator()
    data = g.put(random((9, 2, 16)) + 100)
    part = data.slice(0, 1, 9).slice(2, 0, 16, 2)
    execute(Dropout(part, part, 0.5, g.lanes(8)), g.memory)
    want = random((9, 2, 16)) + 100
    keep = Generator().uniform(8, 16, 0, 1).reshape(8, 2, 8) >= 0.5
    want[1:, :, ::2] *= keep
    np.testing.assert_array_equal(g.memory[data.buffer], want)


def test_case_6_a_fully_dropped_row_is_zero_with_finite_gradients():
    """Softmax first, dropout after."""
    g = Generator()
    data, dst = tile((8, 16)), tile((8, 16))
    prob = g.put([[1.0], [0.5], [0.0], [0.5]] * 2)
    instruction = Dropout(dst, data, prob, g.lanes(8))
    tiles = {prob: jnp.asarray(load(prob, g.memory)), instruction.state: jnp.asarray(load(g.lanes(8), g.memory))}

    def dropped(x):
        return instruction.run(Reader({**tiles, data: jax.nn.softmax(x, axis=1)}, {}))[0]

    x = jnp.asarray(random((8, 16)))
    grad = jax.jit(jax.grad(lambda x: (dropped(x) ** 2).sum()))(x)
    assert not dropped(x)[0].any() and np.isfinite(grad).all() and not grad[0].any() and grad[2].any()


# ---- rules

D, I8, WIDE = tile((4, 8)), tile((4, 8), "int8"), tile((256, 8), "int8")
COLUMN = tile((4, 1))
VEC, POOL = (whole(buffer((128, n), "uint32", STATE)).slice(0, 0, 4) for n in (24, 6))
ALL = whole(VEC.buffer)
WORDS24, WORDS6 = tile((4, 24), "uint32"), tile((4, 6), "uint32")

RULES = [
    (Rng(I8, Engine.scalar, VEC), TRN2, r"rng engine: must be one of \['vector', 'gpsimd'\], got scalar"),
    (Rng(I8, 5, VEC), TRN2, r"rng engine: must be a member of nki\.isa\.engine, got 5"),
    (Rng(I8, G, POOL), TRN1, r"rng engine\.gpsimd: needs gen3 or later, got trn1"),
    (Rng(tile((4, 8), "int8", PSUM), G, POOL), TRN2, "dst: the gpsimd engine cannot access psum, got a psum tile"),
    (Rng(tile((4, 8), "int8", Memory.private_hbm), V, VEC), TRN2, "dst must be in .*, got private_hbm"),
    (Rng(WIDE, V, VEC), TRN2, "rng dst partition dimension 256 exceeds maximum 128"),
    (Rng(D, V, VEC), TRN2, r"rng dst: must have one of the dtypes \('int8', .*\), got float32"),
    (Rng(tile((4, 8), "bool"), V, VEC), TRN2, r"dst: must have one of the dtypes .*, got bool"),
    (Rng(I8), TRN2, r"rng state: must be \(4, 24\) of uint32 state, got None"),
    (Rng(I8, V, POOL), TRN2, r"rng state: must be \(4, 24\) of uint32 state"),
    (Rng(I8, G, WORDS6), TRN2, r"rng state: must be \(4, 6\) of uint32 state"),
    (Rand2(D, 0, 1, VEC), TRN2, "rand2 rand2: needs gen4 or later, got trn2"),
    (Rand2(tile((4, 8), memory=Memory.private_hbm), 0, 1, VEC), TRN3, "dst must be in .*, got private_hbm"),
    (Rand2(WIDE, 0, 1, VEC), TRN3, "dst partition dimension 256 exceeds maximum 128"),
    (Rand2(tile((4, 8), "float8_e4m3fn"), 0, 1, VEC), TRN3, r"dst: must have one of the dtypes .*, got float8_e4m3fn"),
    (Rand2(D, D, 1, VEC), TRN3, r"min: must be a number or a \(4, 1\) tile, got \(4, 8\)"),
    (Rand2(D, 0, tile((4, 1), "bfloat16"), VEC), TRN3, r"max: must be one of \['float32'\], got bfloat16"),
    (Rand2(D, 0, None, VEC), TRN3, r"max: must be a number or a \(P, 1\) tile, got None"),
    (Rand2(D, 1.0, 1, VEC), TRN3, r"min, max: min must be less than max, got 1\.0 and 1"),
    (Rand2(D, 0, 1, ALL), TRN3, r"state: must be \(4, 24\) of uint32 state"),
    (Dropout(D, tile((4, 8), memory=Memory.private_hbm), 0.5, VEC), TRN2, "data must be in .*, got private_hbm"),
    (Dropout(D, tile((2, 16)), 0.5, VEC), TRN2, r"data: must have the 4 partitions of dst, got \(2, 16\)"),
    (Dropout(D, tile((4, 9)), 0.5, VEC), TRN2, r"data: must have the 8 free elements of dst, got \(4, 9\)"),
    (Dropout(D, I8, 0.5, VEC), TRN2, "dst: must have the dtype int8 of data, got float32"),
    (Dropout(*[tile((4, 8), "float8_e5m2_x4")] * 2, 0.5, VEC), TRN2, "data: packed x4 types take no arithmetic"),
    (Dropout(D, D, 1.5, VEC), TRN2, r"prob: must be a \(P, 1\) tile or a number from 0 to 1, got 1\.5"),
    (Dropout(D, D, None, VEC), TRN2, r"prob: must be a \(P, 1\) tile or a number from 0 to 1, got None"),
    (Dropout(D, D, D, VEC), TRN2, r"prob: must be a number or a \(4, 1\) tile, got \(4, 8\)"),
    (Dropout(D, D, tile((4, 1), "int32"), VEC), TRN2, r"prob: must be one of \['bfloat16', .*\], got int32"),
    (Dropout(I8, I8, tile((4, 1), "bfloat16"), VEC), TRN2, r"prob: must be one of \['float32'\], got bfloat16"),
    (Dropout(D, D, 0.5), TRN2, r"dropout state: must be \(4, 24\) of uint32 state, got None"),
    (SetRngSeed(COLUMN, ALL), TRN2, r"set_rng_seed src_seeds: must be \(1, 1\), got \(4, 1\)"),
    (SetRngSeed(tile((1, 1), "int16"), ALL), TRN2, r"src_seeds: must have one of the dtypes .*, got int16"),
    (SetRngSeed(tile((1, 1), memory=Memory.private_hbm), ALL), TRN2, "src_seeds must be in .*, got private_hbm"),
    (SetRngSeed(tile((1, 1)), VEC), TRN2, r"set_rng_seed state: must be \(128, 24\) of uint32 state"),
    (RandSetState(WORDS6, G, POOL), TRN1, r"engine\.gpsimd: needs gen3 or later, got trn1"),
    (RandSetState(WORDS24, V, VEC), TRN2, r"engine\.vector: needs gen4 or later, got trn2"),
    (RandSetState(WORDS6, Engine.unknown, POOL), TRN3, r"engine: must be one of \['vector', 'gpsimd'\], got unknown"),
    (RandSetState(WORDS6, "gpsimd", POOL), TRN3, r"engine: must be one of \['vector', 'gpsimd'\], got 'gpsimd'"),
    (RandSetState(tile((4, 24), "uint32", PSUM), V, VEC), TRN3, r"src_seeds must be in \['sbuf'\], got psum"),
    (
        RandSetState(WORDS24, G, POOL),
        TRN3,
        r"src_seeds: must be \(P, 6\) of uint32 for engine\.gpsimd, got uint32 \(4,",
    ),
    (RandSetState(tile((4, 2, 3), "uint32"), G, POOL), TRN3, r"must be \(P, 6\) of uint32 .*, got uint32 \(4, 2, 3\)"),
    (RandSetState(tile((4, 6), "int32"), G, POOL), TRN3, r"must be \(P, 6\) of uint32 for engine\.gpsimd, got int32"),
    (RandSetState(tile((256, 6), "uint32"), G, POOL), TRN3, "src_seeds partition dimension 256 exceeds maximum 128"),
    (RandSetState(WORDS6, G), TRN3, r"rand_set_state state: must be \(4, 6\) of uint32 state, got None"),
    (RandGetState(tile((4, 6), "uint32", PSUM), G, POOL), TRN3, r"dst must be in \['sbuf'\], got psum"),
    (RandGetState(WORDS24, V, VEC), TRN2, r"rand_get_state engine\.vector: needs gen4 or later, got trn2"),
    (RandGetState(WORDS6, V, VEC), TRN3, r"dst: must be \(P, 24\) of uint32 for engine\.vector, got uint32 \(4, 6\)"),
]


@pytest.mark.parametrize("instruction, target, message", RULES)
def test_rules(instruction, target, message):
    assert rule(instruction, target)
    with pytest.raises(AssertionError, match=message):
        instruction.check(target)


@pytest.mark.parametrize(
    "instruction, target",
    [
        (Rng(I8, V, VEC), TRN1),
        (Rng(tile((4, 8), "uint32", PSUM), Engine.unknown, VEC), TRN1),
        (Rng(I8, G, POOL), TRN2),
        (Rand2(tile((4, 8), "int8", PSUM), COLUMN, -1, VEC), TRN3),
        (Dropout(I8, tile((4, 2, 4), "int8", PSUM), COLUMN, VEC), TRN1),
        (Dropout(D, D, tile((4, 1), "float8_e5m2"), VEC), TRN1),
        (RandSetState(WORDS6, G, POOL), TRN2),
        (RandSetState(WORDS24, V, VEC), TRN3),
        (RandGetState(WORDS6, G, POOL), TRN2),
        (RandGetState(tile((4, 24), "uint32", PSUM), V, VEC), TRN3),
    ],
)
def test_legal(instruction, target):
    assert rule(instruction, target) == ""


# ---- cost


@pytest.mark.parametrize("n", [8, 1024])
@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cost(n, target):
    vector, pool = target.latency_cycles(V), target.latency_cycles(G)
    bits, data = tile((4, n), "int8"), tile((4, n), "bfloat16")
    assert Rng(bits, V, VEC).cycles(target) == Work(max(64, n), vector)
    assert Rng(bits, G, POOL).cycles(target) == Work(max(64, n), pool)
    assert Rand2(data, 0, 1, VEC).cycles(target) == Work(max(64, n / 4), vector)
    assert Dropout(data, data, 0.5, VEC).cycles(target) == Work(max(64, n), vector)
    strided = tile((4, 16 * n), "bfloat16").slice(1, 0, 16 * n, 16)
    assert Dropout(strided, data, 0.5, VEC).cycles(target) == Work(max(64, 2 * n), vector)
    assert SetRngSeed(tile((1, 1)), ALL).cycles(target) == Work(64, vector)
    assert (
        RandSetState(WORDS6, G, POOL).cycles(target) == RandGetState(WORDS6, G, POOL).cycles(target) == Work(64, pool)
    )
    assert RandGetState(WORDS24, V, VEC).cycles(target) == Work(64, vector)


def test_queues():
    assert (
        Rng(I8, Engine.unknown, VEC).queue is Rand2(D, 0, 1).queue is Dropout(D, D, 0).queue is SetRngSeed(D).queue is V
    )
    assert Rng(I8, G).queue is RandGetState(WORDS6).queue is RandSetState(WORDS6).queue is G


def test_the_state_is_read_and_written():
    for instruction in (Rng(I8, V, VEC), Rand2(D, 0, 1, VEC), Dropout(D, D, 0.5, VEC)):
        assert VEC in instruction.reads() and instruction.writes()[1] == VEC
    assert RandGetState(WORDS24, V, VEC).reads() == RandSetState(WORDS24, V, VEC).writes() == (VEC,)
