"""Numba's CUDA target; see parts.py."""
import parts
from parts import part


@part()
def kernels():
    import numpy
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # numba 0.68 still asks NumPy 2.5 for it
    from numba import cuda

    @cuda.jit
    def add(x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    x = cuda.to_device(numpy.arange(1000, dtype=numpy.float32), stream=stream)
    out = cuda.device_array_like(x)
    begin.record(stream)
    add[4, 256, stream](x, x, out)
    end.record(stream)
    end.synchronize()
    assert cuda.event_elapsed_time(begin, end) >= 0
    with cuda.pinned(numpy.ones(10)):
        pass
    mapped = cuda.mapped_array(100, dtype=numpy.float32)
    mapped[:] = 1
    add[1, 128](mapped, mapped, mapped)
    cuda.synchronize()
    managed = cuda.managed_array(100, dtype=numpy.float32)
    managed[:] = 2
    add[1, 128](managed, managed, managed)
    cuda.synchronize()
    cuda.current_context().get_memory_info()
    total = float(out.copy_to_host().sum()) + float(mapped.sum()) + float(managed.sum())
    cuda.close()
    return total


if __name__ == "__main__":
    parts.main("numba", "numba-cuda")
