"""The surface of `nki.isa`: signatures are facts, stored here as data; names that are missing say so."""

import enum
import importlib
import inspect
import pkgutil
import types

import pytest

import nkijax
import nkijax.dialects.nki as nki
import nkijax.dialects.nki.isa as nisa
import nkijax.isa
from nkijax import KernelError
from nkijax.program import Instruction

# Names, order and defaults of NKI 0.6; after `|` what nkijax accepts beside them, because kernels pass it.
SIGNATURES = """
dma_copy(dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown, engine=engine.unknown, name=None)
dma_compute(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=oob_mode.error, name=None)
tensor_copy(dst, src, engine=engine.unknown, name=None | dtype=None)
memset(dst, value, engine=engine.unknown, name=None)
tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None)
nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False,
    accumulate=None, tile_position=(), tile_size=(), perf_mode=matmul_perf_mode.none, name=None)
nc_matmul_mx(dst, stationary, moving, stationary_scale, moving_scale, tile_position=None, tile_size=None,
    accumulate=None, name=None)
quantize_mx(dst, src, dst_scale, name=None)
nc_transpose(dst, data, engine=engine.unknown, name=None)
dma_transpose(dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown, oob_mode=oob_mode.error, name=None)
tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None)
tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False,
    engine=engine.unknown, name=None)
scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None | dtype=None)
tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None)
reciprocal(dst, data, name=None)
activation(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=reduce_cmd.idle, name=None)
activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None)
iota(dst, pattern, offset=0, channel_multiplier=0, name=None)
affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, name=None)
tensor_partition_reduce(dst, op, data, name=None)
tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce, name=None)
tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False,
    reduce_cmd=reduce_cmd.reset_reduce, reduce_init=None, reduce_res_negate=False, name=None)
exponential(dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, reduce_init=0.0, name=None)
select_reduce(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=reduce_cmd.idle, reduce_op=maximum,
    reverse_pred=False, name=None)
range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reduce_cmd.reset_reduce,
    reduce_res=None, reduce_op=maximum, range_start=0, on_false_value=-3.4028234663852886e+38, name=None)
activate2(dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, reverse1=False, reduce_op=None,
    reduce_res=None, reduce_cmd=reduce_cmd.idle, name=None)
bn_stats(dst, data, name=None)
bn_aggr(dst, data, name=None)
tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None)
max8(dst, src, name=None)
nc_find_index8(dst, data, vals, name=None)
nc_match_replace8(dst, data, vals, imm, dst_idx=None, name=None)
topk(val_dst, idx_dst, src, n, name=None)
nc_stream_shuffle(dst, src, shuffle_mask, name=None)
local_gather(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None)
nc_n_gather(dst, data, indices, name=None)
sequence_bounds(dst, segment_ids, name=None)
nonzero_with_count(dst, src, index_offset=0, padding_val=-1, name=None)
rng(dst, engine=engine.vector, name=None)
rand2(dst, min, max, name=None)
dropout(dst, data, prob, name=None)
set_rng_seed(src_seeds, name=None)
rand_set_state(src_seeds, engine=engine.gpsimd, name=None)
rand_get_state(dst, engine=engine.gpsimd, name=None)
register_alloc(x=None)
register_move(dst, src)
register_load(dst, src)
register_store(dst, src)
sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma_engine.dma, name=None)
core_barrier(data, cores, engine=engine.gpsimd, name=None)
get_nc_version()
get_nc_sub_version()
"""
ENUMS = {
    "engine": {"tensor": 1, "vector": 5, "scalar": 2, "gpsimd": 3, "dma": 4, "sync": 6, "unknown": 0},
    "reduce_cmd": {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3, "load_reduce": 4},
    "dge_mode": {"unknown": 0, "swdge": 1, "hwdge": 2, "none": 3},
    "oob_mode": {"error": 0, "skip": 1},
    "matmul_perf_mode": {"none": "none", "double_row": "double_row"},
    "nc_version": {"gen2": 2, "gen3": 3, "gen4": 4},
    "dma_engine": {"dma": 1, "gpsimd_dma": 2},
}


SIGNATURE = {
    line.partition("(")[0]: [a.strip() for a in line.partition("(")[2][:-1].replace("|", ",").split(",") if a.strip()]
    for line in SIGNATURES.replace("\n    ", " ").strip().splitlines()
}


def _default(value):
    """A default as the table spells it."""
    for name in ENUMS:
        if isinstance(value, getattr(nisa, name)):
            return f"{name}.{value.name}"
    return value.__name__ if isinstance(value, types.FunctionType) else repr(value)


def _spelled(function):
    parameters = inspect.signature(function).parameters.values()
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return [p.name if p.default is p.empty else f"{p.name}={_default(p.default)}" for p in parameters]


@pytest.mark.parametrize("name", SIGNATURE)
def test_signature(name):
    assert _spelled(getattr(nisa, name)) == SIGNATURE[name]


def test_every_function_is_in_the_table():
    functions = {n for n, f in vars(nisa).items() if isinstance(f, types.FunctionType) and not n.startswith("_")}
    assert functions - {"active_target"} == set(SIGNATURE)


def test_every_instruction_of_the_shelf_has_a_name():
    for module in pkgutil.iter_modules(nkijax.isa.__path__, "nkijax.isa."):
        importlib.import_module(module.name)
    shelf = [cls for cls in Instruction.__subclasses__() if cls.__module__.startswith("nkijax.isa.")]
    apis = [cls.api for cls in shelf if isinstance(cls.api, str)]
    assert shelf and {api.removeprefix("nki.isa.") for api in apis if api.startswith("nki.isa.")} <= set(SIGNATURE)


@pytest.mark.parametrize("name", ENUMS)
def test_enums(name):
    assert issubclass(getattr(nisa, name), enum.Enum)
    assert {m.name: m.value for m in getattr(nisa, name)} == ENUMS[name]
    assert getattr(nisa.constants, name) is getattr(nisa, name)


def test_deprecated_engine_names():
    for name in ("tensor_engine", "vector_engine", "scalar_engine", "gpsimd_engine", "unknown_engine"):
        assert getattr(nisa, name) is nisa.engine[name.removesuffix("_engine")] is getattr(nisa.constants, name)


def test_trap_3_the_version_follows_the_target_and_compares_with_ints(monkeypatch):
    seen = []
    for target in ("trn1", "trn2", "trn3"):
        nkijax.trace(lambda: seen.append(nisa.get_nc_version()), target=target)
    assert seen == [nisa.nc_version.gen2, nisa.nc_version.gen3, nisa.nc_version.gen4]
    assert seen[1] >= 3 and seen[1] >= nisa.nc_version.gen3 and seen[1] == 3 and seen[1] < nisa.nc_version.gen4
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "inf2")
    assert nisa.get_nc_version() is nisa.nc_version.gen2
    assert nisa.get_nc_sub_version() == 0


def test_what_is_missing():
    assert len(SIGNATURE) == 52, "functions of NKI 0.6: 50 instructions, 2 for the target"
    with pytest.raises(
        AttributeError, match=r"module 'nki.isa' has no attribute 'tensor_tenser'; did you mean tensor_tensor"
    ):
        _ = nisa.tensor_tenser
    with pytest.raises(AttributeError, match="'nki.isa' has no attribute 'qqq'$"):
        _ = nisa.qqq
    assert not hasattr(nisa, "tensor_copy_dynamic_src")


def test_names():
    assert nisa.NkiValidationError is KernelError and nki.isa is nisa
    assert issubclass(nisa.NkiValidationError, AssertionError)
    assert nisa.VirtualRegister.__name__ == "VirtualRegister"
