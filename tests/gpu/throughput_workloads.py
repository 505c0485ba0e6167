"""Programs whose throughput swap_throughput.py compares: `throughput_workloads.py NAME [SECONDS]`.

Each says "ready", then does a batch for every line that it reads, and answers with microseconds: `step`, of a step as usual, in
which memory is allocated and freed through the framework; `fresh`, of one that begins with nothing kept, so that the driver
allocates (torch, cupy). With SECONDS it works for so long by itself and ends. Plain device memory, less than 1 GiB.
"""
import ctypes
import json
import sys
import time


def torch_program():
    import torch
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    inputs = [torch.randn(16, length, 512, device="cuda") for length in (64, 128, 96, 112)]

    def step():
        for data in inputs:  # of several lengths: blocks of many sizes
            optimizer.zero_grad()
            layer(data).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()

    return step, torch.cuda.empty_cache


def jax_program():
    import jax
    import jax.numpy as jnp
    assert jax.default_backend() == "gpu", jax.default_backend()
    weights = [jax.random.normal(jax.random.PRNGKey(number), (1024, 1024)) * 0.03 for number in range(8)]
    data = jax.random.normal(jax.random.PRNGKey(9), (1024, 1024))

    def loss(weights, data):
        for each in weights:
            data = jnp.tanh(data @ each)
        return jnp.square(data).mean()

    update = jax.jit(lambda weights, data: [each - 0.01 * slope for each, slope in zip(weights, jax.grad(loss)(weights, data))])
    state = [weights]

    def step():
        for _ in range(8):
            state[0] = update(state[0], data)
        jax.block_until_ready(state[0])

    return step, None


def cupy_program():
    import cupy
    pool = cupy.get_default_memory_pool()
    if sys.argv[1] == "cupy_async":
        pool = cupy.cuda.MemoryAsyncPool()
        cupy.cuda.set_allocator(pool.malloc)
    data = cupy.linspace(0, 1, 1 << 20, dtype=cupy.float32)
    matrix = cupy.ones((1024, 1024), dtype=cupy.float32) * 0.001

    def step():
        for length in (1 << 20, 3 << 18, 1 << 19, 5 << 17):
            x = cupy.sqrt(data[:length] * 3 + 1)
            x = cupy.tanh(x) - x.mean()
            x = matrix @ matrix + x.sum()
            del x
        cupy.cuda.runtime.deviceSynchronize()

    return step, pool.free_all_blocks


def driver_program():
    """By the driver API alone: also on simgpu."""
    from swap_rig import MIB, Driver
    driver = Driver()

    def step():
        kept = []
        for size in (64 << 10, 2 * MIB, 5 * MIB, 1 * MIB):
            piece = driver.allocate(size)
            driver.call("cuMemsetD32Async", piece, ctypes.c_uint(7), ctypes.c_size_t(size // 4), None)
            kept.append(piece)
        driver.call("cuCtxSynchronize")
        for piece in kept:
            driver.call("cuMemFree_v2", piece)

    return step, None


def timed(work, count):
    begun = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - begun) / count * 1e6


def main():
    step, forget = {"torch": torch_program, "jax": jax_program, "cupy": cupy_program, "cupy_async": cupy_program, "driver": driver_program}[sys.argv[1]]()
    count = max(1, round(0.03e6 / timed(step, 3)))  # the first steps compile and load
    count = max(1, round(0.1e6 / timed(step, count)))

    def fresh():
        forget()
        step()

    def batch():
        taken = {"step": timed(step, count)}
        if forget:
            taken["fresh"] = timed(fresh, max(1, count // 4))
        return taken

    if len(sys.argv) > 2:
        until, done = time.monotonic() + float(sys.argv[2]), 0
        batch()
        while time.monotonic() < until:
            step()
            done += 1
        return print(json.dumps({"steps": done}))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(batch()), flush=True)


if __name__ == "__main__":
    main()
