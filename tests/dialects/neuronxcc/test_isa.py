"""Every documented instruction can be imported; the modules `isa_*` are tested by name."""

import inspect

import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.jit import jit

# The documented parameters of Neuron 2.26.
SIGNATURES = {
    "activation": "op data bias scale reduce_op reduce_res reduce_cmd mask dtype",
    "activation_reduce": "op data reduce_op reduce_res bias scale mask dtype",
    "affine_select": "pred on_true_tile on_false_value mask dtype",
    "bn_aggr": "data mask dtype",
    "bn_stats": "data mask dtype",
    "dma_copy": "dst src mask dst_rmw_op oob_mode dge_mode",
    "dma_transpose": "src axes mask dtype",
    "dropout": "data prob mask dtype",
    "get_nc_version": "",
    "iota": "expr dtype mask",
    "local_gather": "src_buffer index num_elem_per_idx num_valid_indices mask",
    "max8": "src mask dtype",
    "memset": "shape value dtype mask engine",
    "nc_find_index8": "data vals mask dtype",
    "nc_match_replace8": "data vals imm dst_idx mask dtype",
    "nc_matmul": "stationary moving is_stationary_onezero is_moving_onezero is_transpose tile_position tile_size mask",
    "nc_stream_shuffle": "src dst shuffle_mask dtype mask",
    "nc_transpose": "data mask dtype engine",
    "range_select": "on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res reduce_op range_start "
    "on_false_value mask dtype",
    "reciprocal": "data dtype mask",
    "scalar_tensor_tensor": "data op0 operand0 op1 operand1 reverse0 reverse1 dtype mask",
    "select_reduce": "dst predicate on_true on_false reduce_res reduce_cmd reduce_op reverse_pred mask dtype",
    "sequence_bounds": "segment_ids dtype",
    "tensor_copy": "src mask dtype engine",
    "tensor_copy_dynamic_dst": "dst src mask dtype engine",
    "tensor_copy_dynamic_src": "src mask dtype engine",
    "tensor_copy_predicated": "src dst predicate reverse_pred mask dtype",
    "tensor_partition_reduce": "op data mask dtype",
    "tensor_reduce": "op data axis mask dtype negate keepdims",
    "tensor_scalar_cumulative": "src dst op0 op1 imm0 imm1 reduce_cmd mask dtype",
    "tensor_scalar": "data op0 operand0 reverse0 op1 operand1 reverse1 dtype mask engine",
    "tensor_scalar_reduce": "data op0 operand0 reduce_op reduce_res reverse0 dtype mask",
    "tensor_tensor": "data1 data2 op dtype mask engine",
    "tensor_tensor_scan": "data0 data1 initial op0 op1 reverse0 reverse1 dtype mask",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    ours = inspect.signature(getattr(nisa, name)).parameters
    missing = [p for p in SIGNATURES[name].split() if p not in ours]
    assert not missing


def versions(x):
    assert nisa.get_nc_version() == (nisa.nc_version.gen3 if x.shape[0] == 2 else nisa.nc_version.gen2)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out


def test_get_nc_version_follows_the_target(monkeypatch):
    nkijax.trace(versions, np.ones((1, 1), np.float32))
    nkijax.trace(versions, np.ones((2, 1), np.float32), target="trn2")
    jit(versions, platform_target="trn2")(np.ones((2, 1), np.float32))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    nkijax.trace(versions, np.ones((2, 1), np.float32))
