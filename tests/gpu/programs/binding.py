"""cuda-python of an older release: its driver and runtime API bindings, `binding.py RELEASE`; prints what it got.

Found by PYTHONPATH; the same lines natively and under rota, whatever the release.
"""
import ctypes
import pathlib
import sys

from cuda import cuda, cudart

COUNT = 10_000
SAXPY = (pathlib.Path(__file__).parent / "releases.h").read_text().split('R"(')[1].split(')"')[0].encode()  # the C++ programs' kernel


def ok(answer):
    """The results behind the error code, which must be success."""
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def launch(function, data, stream):
    ok(cuda.cuLaunchKernel(function, (COUNT + 255) // 256, 1, 1, 256, 1, 1, 0, stream,
                           ((COUNT, 2.0, int(data), int(data)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p)), 0))


def driver():
    ok(cuda.cuInit(0))
    device = ok(cuda.cuDeviceGet(0))
    print("driver bindings", cuda.CUDA_VERSION, ok(cuda.cuDeviceGetName(64, device)).split(b"\0")[0].decode(), ok(cuda.cuDriverGetVersion()))
    context = ok(cuda.cuDevicePrimaryCtxRetain(device))
    ok(cuda.cuCtxSetCurrent(context))
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(SAXPY)), b"_Z5saxpyifPKfPf"))
    stream = ok(cuda.cuStreamCreate(0))
    host = (ctypes.c_float * COUNT)(*range(COUNT))
    data = ok(cuda.cuMemAlloc(ctypes.sizeof(host)))
    ok(cuda.cuMemcpyHtoDAsync(data, ctypes.addressof(host), ctypes.sizeof(host), stream))
    launch(function, data, stream)
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    launch(function, data, stream)
    graph = ok(cuda.cuStreamEndCapture(stream))
    if cuda.CUDA_VERSION >= 12000:
        executable = ok(cuda.cuGraphInstantiate(graph, 0))
    else:
        executable = ok(cuda.cuGraphInstantiate(graph, b"", 0))
        executable = executable[0] if isinstance(executable, tuple) else executable
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuMemcpyDtoHAsync(ctypes.addressof(host), data, ctypes.sizeof(host), stream))
    ok(cuda.cuStreamSynchronize(stream))
    print("driver API:", sum(host))
    managed = ok(cuda.cuMemAllocManaged(ctypes.sizeof(host), cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value))
    ok(cuda.cuMemsetD32(managed, 0x3f800000, COUNT))
    ok(cuda.cuMemAdvise(managed, ctypes.sizeof(host), cuda.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device))
    ok(cuda.cuMemPrefetchAsync(managed, ctypes.sizeof(host), device, stream))
    launch(function, managed, stream)
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(host), managed, ctypes.sizeof(host)))
    print("managed memory:", sum(host))
    ok(cuda.cuMemFree(managed)), ok(cuda.cuMemFree(data)), ok(cuda.cuStreamDestroy(stream))
    print("an invalid device:", cuda.cuDeviceGet(99)[0].name)


def runtime():
    print("runtime bindings", ok(cudart.cudaRuntimeGetVersion()), ok(cudart.cudaGetDeviceProperties(0)).multiProcessorCount, "multiprocessors")
    host = (ctypes.c_float * COUNT)(*range(COUNT))
    size = ctypes.sizeof(host)
    stream = ok(cudart.cudaStreamCreate())
    data, pooled = ok(cudart.cudaMalloc(size)), ok(cudart.cudaMallocAsync(size, stream))
    kinds = cudart.cudaMemcpyKind
    ok(cudart.cudaMemcpyAsync(data, ctypes.addressof(host), size, kinds.cudaMemcpyHostToDevice, stream))
    ok(cudart.cudaMemcpyAsync(pooled, data, size, kinds.cudaMemcpyDeviceToDevice, stream))
    ok(cudart.cudaMemsetAsync(data, 0, size, stream))
    ok(cudart.cudaMemcpyAsync(ctypes.addressof(host), pooled, size, kinds.cudaMemcpyDeviceToHost, stream))
    event = ok(cudart.cudaEventCreate())
    ok(cudart.cudaEventRecord(event, stream)), ok(cudart.cudaEventSynchronize(event))
    print("runtime API:", sum(host))
    ok(cudart.cudaFreeAsync(pooled, stream)), ok(cudart.cudaStreamSynchronize(stream))
    ok(cudart.cudaFree(data)), ok(cudart.cudaEventDestroy(event)), ok(cudart.cudaStreamDestroy(stream))
    print("an invalid pointer:", cudart.cudaFree(1)[0].name)


driver()
runtime()
version = f"{cuda.CUDA_VERSION // 1000}.{cuda.CUDA_VERSION % 1000 // 10}"
assert version == sys.argv[1], f"bindings of {version} were loaded from {cuda.__file__}"
print("ok")
