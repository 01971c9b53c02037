"""nc_matmul against NumPy, rule by rule, its accumulation, and its exact cost."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.matmul import MatmulPerfMode, NcMatmul, matmul_instructions
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Target, Work
from nkijax.program import Instruction
from nkijax.trace import Recorder
from nkijax.view import Buffer, View
from tests.isa.harness import Reader, execute, fresh, rule, store, tile

PSUM = Memory.psum
FLOATS = ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"]
DOUBLE = MatmulPerfMode.double_row


def psum(*shape: int, dtype: str = "float32") -> View:
    return tile(shape, dtype, PSUM)


def small_integers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values whose products and sums are exact in every float dtype."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def recorder(target: Target = TRN2) -> Recorder:
    return Recorder("test", target)


# ---- values


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "left, right", [*((a, b) for a in FLOATS for b in FLOATS), ("float32",) * 2, ("tfloat32",) * 2]
)
def test_product(left, right, backend, monkeypatch):
    """On whatever JAX calls its backend; what is multiplied there is `test_what_a_gpu_multiplies`."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    s, x = small_integers((8, 6)), small_integers((8, 10), 1)
    stationary, memory = store(s, left)
    moving, more = store(x, right)
    dst = psum(6, 10)
    memory |= more | {dst.buffer: fresh(dst.buffer)}
    execute(NcMatmul(dst, stationary, moving), memory)
    np.testing.assert_array_equal(memory[dst.buffer], s.T @ x)


def test_products_are_exact_and_summed_in_float32():
    rng = np.random.default_rng(0)
    s, x = (rng.standard_normal((128, n)).astype(dtypes.storage("bfloat16")) for n in (128, 512))
    stationary, memory = store(s, "bfloat16")
    moving, more = store(x, "bfloat16")
    dst = psum(128, 512)
    memory |= more | {dst.buffer: fresh(dst.buffer)}
    execute(NcMatmul(dst, stationary, moving), memory)
    np.testing.assert_allclose(memory[dst.buffer], s.astype(np.float64).T @ x.astype(np.float64), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "left, right, stored, multiplied",
    [
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("float16", "float8_e4m3", None, "float16"),
        ("float8_e5m2", "bfloat16", None, "bfloat16"),
        ("float8_e4m3", "float8_e4m3", None, "bfloat16"),
        ("float16", "bfloat16", None, "float32"),
        ("float32", "float32", None, "float32"),
        ("bfloat16", "bfloat16", "float32", "float32"),  # NKI_PRECISE_FP=0
    ],
)
def test_what_a_gpu_multiplies(left, right, stored, multiplied, monkeypatch):
    """The narrowest operands that are exact, float32 results, never TF32; the CPU's operands are float32."""
    stationary, moving = tile((8, 3), left), tile((8, 4), right)

    def product(s, x):
        return NcMatmul(psum(3, 4), stationary, moving).run(Reader({stationary: s, moving: x}, {}))

    shapes = [jax.ShapeDtypeStruct(v.shape, dtypes.storage(stored or v.dtype)) for v in (stationary, moving)]
    for backend, kind in (("gpu", multiplied), ("cpu", "float32")):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        (dot,) = (e for e in jax.make_jaxpr(lambda *x: product(*x))(*shapes).eqns if e.primitive.name == "dot_general")
        assert [v.aval.dtype for v in dot.invars] == [dtypes.storage(kind)] * 2
        assert dot.outvars[0].aval.dtype == np.float32
        assert dot.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


def test_8_8_parts_and_three_dimensions_are_flattened():
    s, x = small_integers((16, 2, 3)), small_integers((16, 6, 8), 1)
    stationary, memory = store(s)
    moving, more = store(x)
    dst = psum(8, 4, 5)
    memory |= more | {dst.buffer: np.zeros((8, 4, 5), np.float32)}
    out = dst.slice(0, 2, 8).slice(1, 0, 4, 2).slice(2, 1, 5)
    window = moving.slice(0, 4, 12).slice(1, 1, 5, 2).slice(2, 0, 8, 2)
    execute(NcMatmul(out, stationary.slice(0, 4, 12), window), memory, traced=True)
    want = np.zeros((8, 4, 5), np.float32)
    product = s[4:12].reshape(8, 6).T @ x[4:12, 1:5:2, ::2].reshape(8, 8)
    want[2:8, ::2, 1:5] = product.reshape(6, 2, 4)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_double_row_sums_both_rows():
    s, x = small_integers((16, 2, 6)), small_integers((16, 2, 5), 1)
    stationary, memory = store(s, "float8_e4m3")
    moving, more = store(x, "float8_e5m2")
    dst = psum(6, 5)
    memory |= more | {dst.buffer: fresh(dst.buffer)}
    execute(NcMatmul(dst, stationary, moving, perf_mode=DOUBLE), memory)
    np.testing.assert_array_equal(memory[dst.buffer], np.einsum("kjm,kjn->mn", s, x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3"])
def test_transpose_moves_bits(dtype):
    kind = dtypes.storage(dtype)
    raw = np.random.default_rng(0).integers(0, 256, 8 * 5 * kind.itemsize, np.uint8).view(kind).reshape(8, 5)
    data, memory = store(np.zeros((8, 5)), dtype)
    identity, more = store(np.eye(8), "bfloat16" if dtype != "float32" else dtype)
    wide = "bfloat16" if dtype == "float8_e4m3" else dtype
    dst = psum(5, 8, dtype=wide)
    memory = {data.buffer: raw, **more, dst.buffer: fresh(dst.buffer)}
    instruction = NcMatmul(dst, data, identity, is_transpose=True)
    assert rule(instruction) == ""
    execute(instruction, memory)
    got = memory[dst.buffer].view(f"u{dtypes.size(wide)}")
    np.testing.assert_array_equal(got, raw.view(f"u{kind.itemsize}").T)


def test_bfloat16_destination_adds_in_float32():
    stationary, memory = store(np.full((4, 2), 1), "bfloat16")
    moving, more = store(np.full((4, 3), 0.0625), "bfloat16")
    dst = psum(2, 3, dtype="bfloat16")
    memory |= more | {dst.buffer: np.full((2, 3), 127.5, dtypes.storage("bfloat16"))}
    instruction = NcMatmul(dst, stationary, moving, accumulate=True, addend=dst)
    assert rule(instruction, TRN3) == "" and not instruction.contracting()
    execute(instruction, memory)
    assert (memory[dst.buffer] == np.float32(127.75).astype(dtypes.storage("bfloat16"))).all()


def test_gradients():
    s, x, old = (jnp.asarray(small_integers(shape)) for shape in [(8, 3), (8, 4), (3, 4)])
    stationary, moving, dst = tile((8, 3)), tile((8, 4)), psum(3, 4)
    flags = tile((3, 4), "bool", Memory.state)
    written = np.arange(12).reshape(3, 4) % 2 == 0
    instruction = NcMatmul(dst, stationary, moving, accumulate=True, addend=dst, written=flags)

    def total(s, x, old):
        return instruction.run(Reader({stationary: s, moving: x, dst: old, flags: jnp.asarray(written)}, {}))[0].sum()

    ones = jnp.ones((3, 4))
    grads = jax.grad(total, (0, 1, 2))(s, x, jnp.where(written, old, jnp.nan))
    for got, want in zip(grads, (x @ ones.T, s @ ones, written), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- accumulation


def test_contracts_over_any_number_of_partitions():
    s, x, old = small_integers((512, 6)), small_integers((512, 10), 1), small_integers((6, 10), 2)
    stationary, moving, dst = tile((128, 6)), tile((128, 10)), psum(6, 10)
    instruction = NcMatmul(dst, stationary, moving, accumulate=True, addend=dst)
    assert instruction.contracting() and instruction.contracts == ("stationary", "moving")
    (result,) = instruction.run(Reader({stationary: s, moving: x, dst: old}, {}))
    np.testing.assert_array_equal(result, old + s.T @ x)
    flags = tile((6, 10), "bool", Memory.state)
    for other in (NcMatmul(dst, stationary, moving), replace(instruction, written=flags)):
        assert not other.contracting()


def run_all(r: Recorder, instructions: tuple[Instruction, ...], memory: dict[Buffer, np.ndarray]) -> None:
    for instruction in instructions:
        r.emit(instruction)
        for view in (*instruction.reads(), *instruction.writes()):
            if view.buffer not in memory:
                memory[view.buffer] = fresh(view.buffer)
                if view.buffer in r.zeros:
                    memory[view.buffer][...] = 0
        execute(instruction, memory)


def test_overlapping_windows_mix_overwriting_and_adding():
    """Case 19: ones, K = 128, into columns 0:4 and then 2:6."""
    ones, memory = store(np.ones((128, 4)), "bfloat16")
    column, more = store(np.ones((128, 1)), "bfloat16")
    memory |= more
    dst, r = psum(1, 6), recorder()
    for start in (0, 2):
        run_all(r, matmul_instructions(r, dst.slice(1, start, start + 4), column, ones), memory)
    np.testing.assert_array_equal(memory[dst.buffer], [[128, 128, 256, 256, 128, 128]])


def test_steps_of_a_whole_tile_are_one_instruction():
    s, x, dst, r = tile((128, 128)), tile((128, 512)), psum(128, 512), recorder()
    steps = [matmul_instructions(r, dst, s, x) for _ in range(3)]
    assert len({step[-1].token() for step in steps}) == 1 and all(len(step) == 1 for step in steps)
    assert steps[0][0].contracting() and r.zeros == {dst.buffer}
    assert steps[0][0].reads() == (s, x, dst) and steps[0][0].writes() == (dst,)


def test_first_step_of_a_part_overwrites():
    s, x, dst, r = tile((128, 128)), tile((128, 512)), psum(128, 2, 512).select(1, 1), recorder()
    first, second, third = (matmul_instructions(r, dst, s, x)[0] for _ in range(3))
    assert (first.accumulate, second.accumulate) == (False, True) and second.token() == third.token()
    assert dst not in first.reads() and not r.zeros


def test_transposes_overwrite_and_only_later_cores_have_them():
    data, identity, dst, r = tile((8, 5)), tile((8, 8)), psum(5, 8), recorder()
    for _ in range(2):
        (instruction,) = matmul_instructions(r, dst, data, identity, is_transpose=True)
        assert instruction.is_transpose and not instruction.accumulate
    (instruction,) = matmul_instructions(recorder(TRN1), dst, data, identity, is_transpose=True)
    assert not instruction.is_transpose and not instruction.accumulate
    assert rule(instruction, TRN1) == ""


def test_perf_mode_by_name():
    a = tile((8, 2, 4), "float8_e5m2")
    for given in ("double_row", DOUBLE):
        (instruction,) = matmul_instructions(recorder(), psum(4, 4), a, a, perf_mode=given, name="mm")
        assert instruction.perf_mode is DOUBLE and instruction.name == "mm" and rule(instruction) == ""
    (instruction,) = matmul_instructions(recorder(), psum(4, 4), a, a, perf_mode="fast")
    assert "perf_mode: must be a member of nki.isa.matmul_perf_mode, got 'fast'" in rule(instruction)


# ---- rules

S, X, D = tile((8, 6)), tile((8, 10)), psum(6, 10)
F8, FN = tile((8, 6), "float8_e4m3"), tile((8, 10), "float8_e4m3fn")
R8, C8 = tile((8, 2, 6), "float8_e4m3"), tile((8, 2, 10), "float8_e4m3")
EYE = tile((8, 8))

RULES = [
    (NcMatmul(tile((6, 10)), S, X), TRN2, r"nc_matmul dst: dst must be in \['psum'\], got sbuf"),
    (NcMatmul(D, psum(8, 6), X), TRN2, r"stationary: stationary must be in \['sbuf'\], got psum"),
    (NcMatmul(D, tile((256, 6)), X), TRN2, "stationary: Matmul contraction dimension 256 exceeds pmax=128"),
    (NcMatmul(D, S, tile((256, 10))), TRN2, "moving: Matmul contraction dimension 256 exceeds pmax=128"),
    (
        NcMatmul(D, tile((128, 6)), tile((64, 10))),
        TRN2,
        r"Matmul contraction dimension mismatch: stationary\[0\]=128 != moving\[0\]=64",
    ),
    (
        NcMatmul(psum(256, 10), tile((8, 256)), X),
        TRN2,
        "Matmul stationary free dimension 256 exceeds gemm_stationary_fmax=128",
    ),
    (NcMatmul(psum(6, 513), S, tile((8, 513))), TRN2, "Matmul moving free dimension 513 exceeds gemm_moving_fmax=512"),
    (NcMatmul(psum(6, 4097), S, tile((8, 4097))), TRN3, "moving free dimension 4097 exceeds gemm_moving_fmax=4096"),
    (NcMatmul(psum(10, 6), S, X), TRN2, r"dst: must be \(6, 10\), stationary's by moving's free size, got \(10, 6\)"),
    (
        NcMatmul(psum(6, 10, dtype="bfloat16"), S, X),
        TRN2,
        "dst: must be float32, or bfloat16 from gen4 on, got bfloat16",
    ),
    (NcMatmul(psum(6, 10, dtype="float16"), S, X), TRN3, "from gen4 on, got float16 on trn3"),
    (NcMatmul(D, tile((8, 6), "int8"), X), TRN2, r"stationary: must be one of \[.*\] on trn2, got int8"),
    (NcMatmul(D, F8, FN), TRN2, r"moving: must be one of \[.*\] on trn2, got float8_e4m3fn"),
    (NcMatmul(D, F8, FN), TRN3, "stationary, moving: float8_e4m3 does not mix with float8_e4m3fn"),
    (NcMatmul(D, F8, X), TRN2, r"float32 and tfloat32 mix only with each other, got \('float8_e4m3', 'float32'\)"),
    (NcMatmul(psum(6, 8), S, EYE, is_transpose=True), TRN1, "is_transpose: needs gen3 or later, got trn1"),
    (
        NcMatmul(psum(6, 8, dtype="bfloat16"), S, EYE, is_transpose=True),
        TRN2,
        "dst: must have the dtype float32 of stationary with is_transpose, got bfloat16",
    ),
    (NcMatmul(D, S, X, is_transpose=True), TRN2, r"moving: must be an identity with is_transpose, got \(8, 10\)"),
    (
        NcMatmul(psum(6, 8), S, EYE, is_transpose=True, accumulate=True),
        TRN2,
        "accumulate: a transpose overwrites its destination, got True",
    ),
    (NcMatmul(D, R8, C8, perf_mode="double_row"), TRN2, r"must be a member of nki\.isa\.matmul_perf_mode, got 'double"),
    (NcMatmul(D, R8, C8, perf_mode=DOUBLE), TRN1, r"perf_mode\.double_row: needs gen3 or later, got trn1"),
    (NcMatmul(D, tile((8, 2, 6), "bfloat16"), C8, perf_mode=DOUBLE), TRN2, "stationary: must be fp8 with perf_mode"),
    (NcMatmul(D, R8, tile((8, 20), "float8_e4m3"), perf_mode=DOUBLE), TRN2, r"moving: must be \(K, 2, \.\.\.\) with"),
    (
        NcMatmul(D, R8, C8, tile_position=(0, 64), tile_size=(128, 64), perf_mode=DOUBLE),
        TRN2,
        r"perf_mode: double_row excludes is_transpose and column tiles, got tile_size \(128, 64\)",
    ),
    (
        NcMatmul(D, S, X, tile_size=(64, 64)),
        TRN2,
        r"tile_position, tile_size: give both or neither, got \(\) and \(64, 64",
    ),
    (NcMatmul(D, S, X, tile_position=(0,), tile_size=(64,)), TRN2, r"must each be \(row, column\), got \(0,\) and"),
    (NcMatmul(D, S, X, tile_position=(0, 0), tile_size=(32, 64)), TRN1, "tile_size of 32 rows: needs gen3 or later"),
    (
        NcMatmul(D, S, X, tile_position=(32, 0), tile_size=(64, 64)),
        TRN2,
        "the row tile must start at a multiple of its",
    ),
    (NcMatmul(D, S, X, tile_position=(0, 128), tile_size=(64, 64)), TRN2, "the column tile must start at a multiple"),
    (
        NcMatmul(D, S, X, tile_position=(0, 0), tile_size=(64, 4)),
        TRN2,
        "tile_size: the column tile must hold 6 columns",
    ),
]


@pytest.mark.parametrize("instruction, target, message", RULES)
def test_rules(instruction, target, message):
    assert rule(instruction, target)
    with pytest.raises(AssertionError, match=message):
        instruction.check(target)


@pytest.mark.parametrize(
    "instruction, target",
    [
        (NcMatmul(D, S, X), TRN1),
        (NcMatmul(D, S, tile((8, 10), "tfloat32")), TRN1),
        (NcMatmul(D, tile((8, 6), "float8_e5m2"), tile((8, 10), "bfloat16")), TRN1),
        (NcMatmul(D, tile((8, 6), "float8_e4m3fn"), FN), TRN3),
        (NcMatmul(psum(6, 4096), S, tile((8, 4096))), TRN3),
        (NcMatmul(psum(6, 8192, dtype="bfloat16"), S, tile((8, 8192))), TRN3),
        (NcMatmul(psum(6, 2, 5), tile((8, 2, 3)), tile((8, 5, 2))), TRN2),
        (NcMatmul(D, S, X, tile_position=(32, 96), tile_size=(32, 32)), TRN2),
        (NcMatmul(D, S, X, tile_position=(0, 0), tile_size=(48, 128)), TRN2),
        (NcMatmul(D, R8, C8, perf_mode=DOUBLE, tile_position=(0, 0), tile_size=(128, 128)), TRN2),
    ],
)
def test_legal(instruction, target):
    assert rule(instruction, target) == ""


# ---- cost


@pytest.mark.parametrize("m, n", [(128, 512), (128, 1), (16, 8), (128, 64)])
@pytest.mark.parametrize("target", [TRN1, TRN2])
def test_cost(m, n, target):
    def cycles(dtype: str, **options) -> Work:
        return NcMatmul(psum(m, n), tile((128, m), dtype), tile((128, n), dtype), **options).cycles(target)

    service, latency = max(min(64, m), n), target.latency_cycles(Engine.tensor)
    for dtype in ("bfloat16", "float16", "float8_e5m2", "tfloat32"):
        assert cycles(dtype) == Work(service, latency)
    assert cycles("float32") == Work(4 * service, latency)
    assert cycles("float32", is_moving_onezero=True) == Work(2 * service, latency)
    assert cycles("float32", is_transpose=True) == Work(2 * service, latency)
    rows = [tile((128, 2, k), "float8_e4m3") for k in (m, n)]
    assert NcMatmul(psum(m, n), *rows, perf_mode=DOUBLE).cycles(target) == Work(service, latency)


def test_the_published_issue_time_of_a_float32_matmul():
    work = NcMatmul(psum(128, 512), tile((128, 128)), tile((128, 512))).cycles(TRN2)
    assert work.issue_cycles / TRN2.ghz(Engine.tensor) == pytest.approx(860, rel=0.01)  # ns, measured
    assert NcMatmul(D, S, X).queue is Engine.tensor
