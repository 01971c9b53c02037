"""A kernel for one signature: how long it took until it could run."""

import jax
import numpy as np

from nkijax import api
from nkijax.call import Call
from tests import kernels


def test_seconds_until_it_can_run():
    x = np.ones((4, 8), np.float32)
    call = Call(api.as_kernel(kernels.double), (x,), {})
    compiled = api._compile(call, api.Options().resolve(), api.Options())
    recorded_s = compiled.compile_s
    jax.eval_shape(compiled, x)
    assert compiled.compile_s == recorded_s > 0, "a tracer compiles nothing"
    np.testing.assert_array_equal(compiled(x).outputs[0], 2 * x)
    compiled_s = compiled.compile_s
    assert compiled_s > recorded_s
    compiled(x)
    assert compiled.compile_s == compiled_s, "compiled once"


def test_the_call_itself_compiles_nothing(monkeypatch):
    x = np.ones((4, 16), np.float32)
    events: list[str] = []
    listen = lambda name, seconds, **_: events.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        kernels.double(x)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(events) == 1
