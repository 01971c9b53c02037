"""The names of `neuronxcc.nki.language`."""

from nkijax.dialects.neuronxcc import language as nl

NAMES = """
arange mgrid ds par_dim ndarray zeros ones full zeros_like empty_like shared_constant shared_identity_matrix load
store load_transpose2d copy affine_range sequential_range static_range program_id num_programs program_ndim nc
spmd_dim iterators constants fp32 finfo static_cast broadcast_to transpose random_seed add multiply subtract divide
maximum minimum max min sum mean matmul exp log rsqrt sqrt square abs silu silu_dx floor mod where equal dropout
loop_reduce all_reduce rms_norm rand expand_dims device_print power fmod reciprocal negative sign trunc ceil sin cos
tan tanh arctan erf erf_dx sigmoid relu gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid softplus mish softmax
not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not bitwise_and
bitwise_or bitwise_xor invert left_shift right_shift prod var all gather_flattened atomic_rmw tile_size sbuf psum
hbm shared_hbm private_hbm float32 bfloat16 float16 float8_e4m3 float8_e5m2 int8 int16 int32 uint8 uint16 uint32
bool_
""".split()


def test_names():
    assert not [n for n in NAMES if not hasattr(nl, n)]
    assert nl.add.__name__ == "add" and nl.max.__name__ == "max" and nl.exp.__doc__
