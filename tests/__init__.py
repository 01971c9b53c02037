"""The tests."""

# For `jax.jit(compiler_options=)` on a CPU: what `conftest` switches off.
SHIPPED = {"xla_cpu_use_fusion_emitters": True}
