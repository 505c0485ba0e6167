"""cuda-python: its driver and runtime bindings and cuda.core; see parts.py."""
import parts
from parts import part

KERNEL = """extern "C" __global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }"""


@part()
def core():
    import numpy
    from cuda import core
    if not hasattr(core, "Device"):
        from cuda.core import experimental as core
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    program = core.Program(KERNEL, code_type="c++", options=core.ProgramOptions(arch=f"sm_{device.arch}"))
    kernel = program.compile("cubin").get_kernel("twice")
    buffer = device.allocate(4096, stream=stream)
    host = core.LegacyPinnedMemoryResource().allocate(4096)
    numbers = numpy.from_dlpack(host).view(numpy.float32)
    numbers[:] = 1
    buffer.copy_from(host, stream=stream)
    core.launch(stream, core.LaunchConfig(grid=4, block=256), kernel, buffer, numpy.int32(1024))
    buffer.copy_to(host, stream=stream)
    event = stream.record()
    event.sync()
    value = numbers.sum()
    buffer.close(stream), host.close(), stream.close()
    return value


def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


@part()
def runtime_bindings():
    from cuda.bindings import runtime
    ok(runtime.cudaSetDevice(0))
    memory, stream = ok(runtime.cudaMalloc(4096)), ok(runtime.cudaStreamCreate())
    ok(runtime.cudaMemsetAsync(memory, 1, 4096, stream))
    ok(runtime.cudaStreamSynchronize(stream))
    ok(runtime.cudaFree(memory))
    ok(runtime.cudaStreamDestroy(stream))
    return ok(runtime.cudaGetDeviceProperties(0)).multiProcessorCount


if __name__ == "__main__":
    parts.main("cuda-bindings", "cuda-core")
