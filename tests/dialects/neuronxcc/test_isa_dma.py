"""What moves are made of several instructions; `test_isa_data` has their numbers."""

import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.program import instructions

X = np.ones((8, 6), np.float32)


def recorded(kernel, *args):
    program = nkijax.trace(kernel, *args, rolled=False)
    return [type(i).__name__ for i in instructions(program.body)]


def adding(x, y):
    nisa.dma_copy(dst=x, src=y, dst_rmw_op=np.add)


def test_an_addition_in_hbm_is_one_instruction():
    assert recorded(adding, X, X) == ["DmaCompute"]


def summing(x, y):
    nisa._tiled_offloaded_fma(x, y, scales=[1.0, 2.0], dst=x)


def test_a_sum_loads_each_source_and_stores_once():
    assert recorded(summing, X, X) == ["DmaCopy", "DmaCopy", "TensorScalar", "ScalarTensorTensor", "DmaCopy"]


@pytest.mark.parametrize("dtype, n", [(np.uint8, 1), (np.int32, 1), (np.float32, 2)])
def test_flags_are_converted_only_where_they_must(dtype, n):
    def kernel(x, flags):
        tile, chosen = nl.load(x), nl.load(flags)
        nisa.tensor_copy_predicated(src=1.0, dst=tile, predicate=chosen)

    assert len(recorded(kernel, X, X.astype(dtype))) == 2 + n


def scattering(rows, values, out):
    at, j = nl.load(rows), nl.arange(6)[None, :]
    nisa.dma_copy(dst=out[at, j], src=nl.load(values), dst_rmw_op=np.add)


@pytest.mark.parametrize("named", [[3, 1, 0], [3, 1, 3], [2, 2, 2]], ids=str)
def test_an_indirect_addition(named):
    """A row that is named twice gets both."""
    rows, out = np.array(named, np.int32)[:, None], np.ones((5, 6), np.float32)
    values = np.arange(18, dtype=np.float32).reshape(3, 6)
    want = out.copy()
    np.add.at(want, named, values)
    nkijax.run(scattering, rows, values, out)
    np.testing.assert_array_equal(out, want)
