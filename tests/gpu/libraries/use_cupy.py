"""CuPy as its users know it, its bindings of the runtime API included; see parts.py."""
import parts
from parts import part

SOURCE = r"""
extern "C" __constant__ float factor[1];
extern "C" __device__ float offset;
extern "C" __global__ void square(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * x[i];
}
extern "C" __global__ void affine(float* x, int n) {
  extern __shared__ float scratch[];
  int i = blockIdx.x * blockDim.x + threadIdx.x; scratch[threadIdx.x] = factor[0]; __syncthreads();
  if (i < n) x[i] = x[i] * scratch[threadIdx.x] + offset;
}
extern "C" __global__ void fetch(cudaTextureObject_t image, float* out, int width, int height) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < width * height) out[i] = tex2D<float>(image, i % width + 0.5f, i / width + 0.5f);
}
extern "C" __global__ void store(cudaSurfaceObject_t image, int width, int height) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < width * height) surf2Dwrite(float(i), image, (i % width) * 4, i / width);
}
"""


def numbers(count=100_000):
    import cupy
    return cupy.arange(count, dtype=cupy.float32)


@part()
def kernels():
    import cupy
    x = numbers()
    y = cupy.empty_like(x)
    module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
    square, affine = module.get_function("square"), module.get_function("affine")
    square(((100_000 + 255) // 256,), (256,), (x, y, 100_000))
    module_factor = cupy.ndarray((1,), cupy.float32, module.get_global("factor"))
    module_factor[...] = 2
    cupy.ndarray((1,), cupy.float32, module.get_global("offset"))[...] = 1
    affine.max_dynamic_shared_size_bytes = 64 << 10
    affine(((100_000 + 255) // 256,), (256,), (x, 100_000), shared_mem=60 << 10)
    assert affine.num_regs > 0 and affine.attributes["max_threads_per_block"] > 0
    scaled = cupy.ElementwiseKernel("float32 x", "float32 z", "z = x * 2", "scaled")(x)
    total = cupy.ReductionKernel("float32 x", "float32 s", "x", "a + b", "s = a", "0", "total")(y)
    return float(y[:100].sum()) + float(scaled[:100].sum()) + float(total) * 1e-12


@part()
def cooperative_and_fused():
    import cupy
    kernel = cupy.RawKernel('extern "C" __global__ void both(float* x) { x[blockIdx.x] = 1; }', "both", enable_cooperative_groups=True)
    x = cupy.zeros(4, dtype=cupy.float32)
    kernel((4,), (1,), (x,))

    @cupy.fuse()
    def fused(a):
        return cupy.sin(a) * 2 + a
    return float(x.sum()) + float(fused(numbers(100)).sum())


@part()
def streams_and_graphs():
    import cupy
    from cupy.cuda import Event, Stream, get_elapsed_time, runtime
    begin, end = Event(), Event()
    stream, other = Stream(non_blocking=True), Stream(priority=-1)
    seen = []
    with stream:
        begin.record()
        x = numbers() * 2
        stream.launch_host_func(lambda _: seen.append(1), None)
        end.record()
    other.wait_event(end)
    stream.synchronize(), end.synchronize(), other.done, end.done
    assert get_elapsed_time(begin, end) >= 0 and seen
    with stream:
        y = cupy.empty_like(x)
        cupy.multiply(x, 2, out=y)
        stream.begin_capture()
        cupy.multiply(x, 3, out=y)
        cupy.add(y, 1, out=y)
        graph = stream.end_capture()
        graph.upload(stream)
        graph.launch(stream)
    stream.synchronize()
    with Stream.ptds:
        z = numbers(100) + 1
    runtime.streamQuery(stream.ptr)
    return float(y.sum()) * 1e-6 + float(z.sum())


@part()
def memory():
    import cupy
    import numpy
    from cupy.cuda import runtime
    free, total = runtime.memGetInfo()
    managed = cupy.ndarray((1 << 16,), cupy.float32, cupy.cuda.malloc_managed(4 << 16))
    runtime.memAdvise(managed.data.ptr, managed.nbytes, runtime.cudaMemAdviseSetReadMostly, 0)
    runtime.memPrefetchAsync(managed.data.ptr, managed.nbytes, 0, 0)
    managed[...] = 1
    pinned = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(4096), numpy.float32)
    pinned[:] = 3
    x = cupy.empty(1024, cupy.float32)
    x.set(pinned, stream=cupy.cuda.Stream.null)
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    host = numpy.ones(4096, numpy.float32)
    runtime.hostRegister(host.ctypes.data, host.nbytes, 0)
    device = numbers(4096)
    runtime.memcpy2DAsync(host.ctypes.data, 256, device.data.ptr, 256, 128, 16, runtime.memcpyDeviceToHost, 0)
    runtime.deviceSynchronize()
    runtime.hostUnregister(host.ctypes.data)
    attributes = runtime.pointerGetAttributes(device.data.ptr)
    assert attributes.device == 0
    raw = runtime.malloc(1 << 20)
    runtime.memset(raw, 1, 1 << 20)
    runtime.free(raw)
    return float(managed.sum()) + float(x[:10].sum()) + float(host[:10].sum())


@part()
def stream_ordered_memory():
    import cupy
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        value = float(numbers().sum())
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        value += float((numbers() * 2).sum())
        pool.used_bytes(), pool.total_bytes(), pool.free_all_blocks()
    return value


@part()
def textures():
    import cupy
    from cupy.cuda import runtime
    from cupy.cuda.texture import (ChannelFormatDescriptor, CUDAarray, ResourceDescriptor, SurfaceObject, TextureDescriptor, TextureObject)
    width, height = 32, 16
    image = CUDAarray(ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat), width, height, 0, runtime.cudaArraySurfaceLoadStore)
    image.copy_from(numbers(width * height).reshape(height, width))
    resource = ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=image)
    texture = TextureObject(resource, TextureDescriptor((runtime.cudaAddressModeClamp,) * 2, runtime.cudaFilterModePoint, runtime.cudaReadModeElementType))
    module = cupy.RawModule(code=SOURCE)
    out = cupy.empty(width * height, cupy.float32)
    module.get_function("fetch")((2,), (256,), (texture, out, width, height))
    before = float(out.sum())
    module.get_function("store")((2,), (256,), (SurfaceObject(resource), width, height))
    back = cupy.empty((height, width), cupy.float32)
    image.copy_to(back)
    return before + float(back.sum())


@part()
def array_operations():
    import cupy
    x = numbers(4096).reshape(64, 64) / 4096
    random = cupy.random.RandomState(1)
    return sum(float(value) for value in (
        (x @ x).sum(), cupy.sort(-x, axis=None)[0], cupy.argsort(x, axis=None).sum(), cupy.unique(x.astype(cupy.int32)).sum(),
        random.standard_normal(1000).sum(), random.randint(0, 9, 1000).sum(), cupy.random.default_rng(1).random(1000).sum(),
        cupy.fft.fft2(x).real.sum(), cupy.linalg.svd(x)[1].sum(), cupy.einsum("ij,jk->ik", x, x).sum(), cupy.nonzero(x)[0].sum(),
        cupy.cumsum(x).sum(), cupy.histogram(x, 10)[0].sum(), cupy.percentile(x, 40), x[::2, ::3].copy().sum()))


@part()
def device():
    import cupy
    from cupy.cuda import runtime
    with cupy.cuda.Device(0) as device:
        device.synchronize()
        runtime.getDeviceProperties(0), runtime.driverGetVersion(), runtime.runtimeGetVersion()
        runtime.deviceGetLimit(0), runtime.deviceGetPCIBusId(0) if hasattr(runtime, "deviceGetPCIBusId") else None
        runtime.deviceGetDefaultMemPool(0)
        cupy.cuda.profiler.start(), cupy.cuda.profiler.stop()
        return len(device.attributes) > 0


@part("ipc")
def ipc_handle():
    import cupy
    raw = cupy.cuda.runtime.malloc(1 << 20)
    return len(cupy.cuda.runtime.ipcGetMemHandle(raw))


if __name__ == "__main__":
    parts.main("cupy-cuda13x")
