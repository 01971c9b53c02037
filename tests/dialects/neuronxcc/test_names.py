"""Every name that public kernels and the documentation use can be imported, or says why it cannot."""

import importlib

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import ops
from nkijax.imports import installed
from nkijax.isa.operators import Activation, AluOp

NAMES = {
    "neuronxcc.nki": """
        FrameworkKernel baremetal benchmark compiler isa jit language profile simulate_kernel tensor trace
        typing
        """,
    "neuronxcc.nki.compiler": """
        allocation_scope enable_stack_allocator force_auto_alloc multi_buffer no_reorder psum.alloc
        psum.auto_alloc psum.mod_alloc sbuf.alloc sbuf.auto_alloc sbuf.mod_alloc
        skip_middle_end_transformations
        """,
    "neuronxcc.nki.compiler.backends.neuron.indexing": "TileIndex",
    "neuronxcc.nki.compiler.backends.neuron.tensor": "local_tile",
    "neuronxcc.nki.isa": """
        _tiled_offloaded_fma _tiled_offloaded_memcpy activation activation_reduce affine_select bn_aggr
        bn_stats builtin_custom_op constants dge_mode.hwdge dge_mode.swdge dma_copy dma_transpose dropout
        engine fp32.min get_nc_version gpsimd_engine iota local_gather max8 memset nc_find_index8
        nc_match_replace8 nc_matmul nc_stream_shuffle nc_transpose nc_version.gen2 nc_version.gen3
        oob_mode.error oob_mode.skip range_select reciprocal reduce_cmd.idle reduce_cmd.reduce
        reduce_cmd.reset reduce_cmd.reset_reduce scalar_engine scalar_tensor_tensor select_reduce
        sequence_bounds tensor_copy tensor_copy_dynamic_dst tensor_copy_dynamic_src tensor_copy_predicated
        tensor_engine tensor_partition_reduce tensor_reduce tensor_scalar tensor_scalar_reduce tensor_tensor
        tensor_tensor_scan unknown_engine vector_engine
        """,
    "neuronxcc.nki.isa.constants": "oob_mode.error oob_mode.skip",
    "neuronxcc.nki.isa.neuron_isa": "dma_copy",
    "neuronxcc.nki.language": """
        abs add affine_range all all_reduce arange arctan atomic_rmw bfloat16 bfp16.min bitwise_and bitwise_or
        bitwise_xor bool_ broadcast_to ceil constants copy cos device_print divide dropout ds empty_like equal
        erf erf_dx exp expand_dims finfo float16 float32 float8_e4m3 float8_e5m2 floor fmod fp32.min full
        gather_flattened gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx gemm_grid gemm_stationary_grid
        greater greater_equal hbm int16 int32 int8 invert iterators left_shift less less_equal load
        load_transpose2d log logical_and logical_not logical_or logical_xor loop_reduce matmul max maximum
        mean mgrid min minimum mish mod multiply nc ndarray negative not_equal num_programs ones par_dim power
        private_hbm prod program_id program_ndim psum rand random_seed reciprocal relu right_shift rms_norm
        rsqrt sbuf sequential_range shared_constant shared_hbm shared_identity_matrix sigmoid sign silu
        silu_dx sin softmax softplus spmd_dim sqrt square static_cast static_range store subtract sum tan tanh
        tfloat32 tile_size.bn_stats_fmax tile_size.gemm_moving_fmax tile_size.gemm_stationary_fmax
        tile_size.pmax tile_size.psum_fmax transpose trunc uint16 uint32 uint8 var where zeros zeros_like
        """,
    "neuronxcc.nki.language.constants": "sizeinbytes",
    "neuronxcc.nki.language.iterators": "sync_program",
    "neuronxcc.nki.nccl": "all_gather all_reduce collective_permute reduce_scatter",
    "neuronxcc.nki.nccl.collectives": "collective_permute_implicit",
    "neuronxcc.nki._private.private_api": """
        attention_kernel cc_div column_tiled_mm_kernel core_barrier do_while mlp_fused_add_kernel mlp_kernel
        qkv_fused_add_kernel qkv_kernel row_tiled_mm_kernel sendrecv
        """,
    "neuronxcc.nki._private_kernels": "NormType.NO_NORM NormType.RMS_NORM",
    "neuronxcc.nki._private_kernels.RoPE": "RoPE_sbuf",
    "neuronxcc.nki._private_kernels.qkv": "rmsnorm_qkv_isa_kernel",
    "neuronxcc.nki.typing": "mutable mutable_tensor scalar tensor",
    "neuronxcc.starfish.support.util": "allclose",
    "torch_neuronx": "nki_jit",
    "torch_neuronx.xla_impl.ops": "nki_jit",
    "jax_neuronx": "nki_call",
}
OPERATORS = "add multiply max min subtract maximum sum amax minimum equal"
FUNCTIONS = "exp square copy"


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    with installed():
        found = importlib.import_module(module)
        missing = []
        for name in NAMES[module].split():
            x = found
            for part in name.split("."):
                x = getattr(x, part, None)
            if x is None:
                missing.append(name)
    assert not missing


def test_operators_of_numpy():
    assert all(isinstance(ops.alu(getattr(np, n)), AluOp) for n in OPERATORS.split())
    assert all(isinstance(ops.activation_function(getattr(np, n)), Activation) for n in FUNCTIONS.split())


def test_grids_that_are_only_listed():
    with installed():
        nl = importlib.import_module("neuronxcc.nki.language")
    for name in ("gemm_grid", "gemm_stationary_grid"):
        with pytest.raises(Unsupported, match=f"nl.{name}"):
            getattr(nl, name)()


REEXPORTS = [
    ("neuronxcc.nki.kernels.attention", "nki_samples.reference.attention"),
    ("neuronxcc.nki.kernels.vision", "nki_samples.reference.vision"),
    (
        "neuronxcc.nki.docs.examples.layernorm.layernorm_nki_kernel",
        "nki_samples.tutorials.layernorm.layernorm_nki_kernel",
    ),
]


@pytest.mark.parametrize("name, of", REEXPORTS)
def test_re_exports_are_those_of_a_checkout_of_the_samples(name, of, tmp_path, monkeypatch):
    with installed(), pytest.raises(ImportError, match=f"{name} re-exports kernels of .* so that {of} can be imported"):
        importlib.import_module(name)
    folder = tmp_path.joinpath(*of.split(".")[:-1])
    folder.mkdir(parents=True)
    (folder / (of.rpartition(".")[2] + ".py")).write_text("kernel = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with installed():
            assert importlib.import_module(name).kernel == 3
    finally:
        for key in [k for k in importlib.sys.modules if k.partition(".")[0] == "nki_samples"]:
            del importlib.sys.modules[key]
