"""JAX as its users know it; see parts.py. XLA reads its settings once: each needs a process of its own."""
import parts
from parts import part


def normal(*shape, seed=6):
    import jax
    return jax.random.normal(jax.random.PRNGKey(seed), shape)


@part()
def program():
    import jax
    import jax.numpy as jnp
    assert jax.default_backend() == "gpu", jax.default_backend()

    @jax.jit
    def step(x):
        return jnp.tanh(x @ x.T * 0.01) + x
    x = normal(256, 256)
    gradient = jax.jit(jax.grad(lambda x: step(x).sum()))
    for _ in range(5):
        x = step(x)
    return x.sum() + gradient(x).sum() * 1e-3


@part()
def control_flow():
    import jax
    import jax.numpy as jnp
    x = normal(64)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, v: v * 1.01 + i, x))(x)
    scanned, _ = jax.jit(lambda x: jax.lax.scan(lambda carry, v: (carry + v, carry), jnp.zeros(()), x))(x)
    branched = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))(x)
    waited = jax.jit(lambda x: jax.lax.while_loop(lambda v: v.sum() < 100, lambda v: v + 1, x))(x)
    return looped.sum() + scanned + branched.sum() + waited.sum()


@part()
def operations():
    import jax
    import jax.numpy as jnp
    x = normal(128, 128)
    return sum(jnp.float32(value.sum()) for value in (
        jnp.sort(x), jax.lax.top_k(x, 4)[0], jnp.cumsum(x, 0), jnp.argmax(x, 1), jax.vmap(jnp.dot)(x, x), x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16),
        jnp.fft.rfft2(x).real, jnp.linalg.svd(x)[1], jnp.linalg.cholesky(x @ x.T + 500 * jnp.eye(128)), jnp.linalg.eigh(x + x.T)[0],
        jnp.linalg.solve(x, x), jnp.linalg.qr(x)[1].__abs__(), jax.random.permutation(jax.random.PRNGKey(0), 1000),
        jax.lax.conv(normal(2, 3, 32, 32), normal(8, 3, 3, 3), (1, 1), "SAME"),
        jax.nn.dot_product_attention(normal(2, 16, 4, 64), normal(2, 16, 4, 64), normal(2, 16, 4, 64))))


@part()
def attention_by_cudnn():
    import jax
    import jax.numpy as jnp
    q = normal(2, 128, 4, 64).astype(jnp.bfloat16)
    return jax.jit(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"))(q).astype(jnp.float32).sum()


@part()
def placement():
    import jax
    import jax.numpy as jnp
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(numpy.array(jax.devices()), ("all",))
    x = jax.device_put(numpy.arange(1 << 16, dtype=numpy.float32), NamedSharding(mesh, PartitionSpec("all")))
    pinned = jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))
    back = jax.device_put(pinned, x.sharding)
    donated = jax.jit(lambda v: v + 1, donate_argnums=0)(back)
    back = None
    total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v.sum(), "all"), mesh=mesh, in_specs=PartitionSpec("all"),
                                  out_specs=PartitionSpec()))(x)
    assert jax.devices()[0].memory_stats()["bytes_in_use"] > 0
    return donated.sum() + total + numpy.asarray(pinned).sum()


@part()
def callbacks():
    import jax
    import jax.numpy as jnp
    import numpy
    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    doubled = jax.jit(lambda x: jax.pure_callback(lambda v: numpy.asarray(v) * 2, shape, x))(jnp.arange(16.0))
    return doubled.sum()


@part()
def exchange_with_torch():
    import jax
    import torch
    return jax.numpy.from_dlpack(torch.arange(100, dtype=torch.float32, device="cuda")).sum()


@part("pallas")
def pallas():
    import jax
    from jax.experimental import pallas

    def kernel(x, y, out):
        out[...] = x[...] * 2 + y[...]
    x = normal(256)
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, x).sum()


def stepped():
    import jax
    import jax.numpy as jnp
    step = jax.jit(lambda x: jnp.tanh(x @ x * 0.01) + jnp.sort(x) + jnp.sin(x).sum() + jax.lax.fori_loop(0, 3, lambda i, v: v * 1.01 + i, x))
    x = normal(128, 128)
    for _ in range(4):
        x = step(x)
    return x.sum()


@part("command_buffers", XLA_FLAGS="--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN")
def command_buffers():
    return stepped()


@part("command_buffer_loops", XLA_FLAGS="--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUBLAS,WHILE,CONDITIONAL")
def command_buffer_loops():
    return stepped()


@part("platform_allocator", XLA_PYTHON_CLIENT_ALLOCATOR="platform")
def platform_allocator():
    return (normal(128, 128) @ normal(128, 128)).sum()


@part("cuda_async_allocator", TF_GPU_ALLOCATOR="cuda_malloc_async", XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async")
def cuda_async_allocator():
    return (normal(128, 128) @ normal(128, 128)).sum()


@part("vmm_allocator", XLA_PYTHON_CLIENT_ALLOCATOR="vmm")
def vmm_allocator():
    return (normal(128, 128) @ normal(128, 128)).sum()


@part("profiler")
def profiler():
    import tempfile
    import jax
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            value = (normal(64, 64) @ normal(64, 64)).sum().block_until_ready()
    return value


if __name__ == "__main__":
    parts.main("jax", "jaxlib", "jax-cuda13-plugin")
