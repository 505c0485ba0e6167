#!/usr/bin/env python3
"""What the driver makes of asynchronous copies and sets in a stream of another GPU than their memory's, of graphs that one GPU's stream
captured and another's launches, of copies of arrays that lie on another GPU, and of cuMemcpyPeer with contexts that are not the
memory's: by itself, without rota.

    tests/gpu/across_streams.py [WORD]
    tests/gpu/across_streams.py --together

For plain and for mapped memory (see across.py) prints a line of JSON per case: the errors of the call and of what follows it (0: none),
and whether the bytes then are what they should be. Each case runs in a process of its own, since some of them end a context; with a
word, only those whose names contain it; with --together, all in one process (where none ends a context). The simulated driver does as well (ROTA_SIM_GPUS=2).
"""
import concurrent.futures
import ctypes
import itertools
import json
import subprocess
import sys

from across import BYTES, Copy2D, Copy3DPeer, byref, c_int, c_void_p, check, cuda, mapped, plain, size_t, u64

NON_BLOCKING, RELAXED = 1, 2
KINDS = {"plain": plain, "mapped": mapped}


class ArrayDescription(ctypes.Structure):
    _fields_ = [("width", size_t), ("height", size_t), ("format", c_int), ("channels", ctypes.c_uint)]


class ArrayDescription3D(ctypes.Structure):
    _fields_ = [("width", size_t), ("height", size_t), ("depth", size_t), ("format", c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]


class Machine:
    """Of two GPUs: contexts, streams, memory (two times 4096 bytes, of 1 and of 77), arrays (4096 bytes of 77), arrays with rows and levels of
    such, and a host buffer."""

    def __init__(self, make):
        check(cuda.cuInit(0))
        count = c_int()
        check(cuda.cuDeviceGetCount(byref(count)))
        if count.value < 2:
            sys.exit(3)
        self.contexts, self.streams, self.memory, self.arrays, self.planes, self.levels = [], [], [], [], [], []
        self.host = (ctypes.c_ubyte * BYTES)()
        self.ended = 0  # what the end of the case's capture answered
        for device in range(2):
            context, stream, array, plane, mipmapped, level = (c_void_p() for _ in range(6))
            check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
            check(cuda.cuCtxSetCurrent(context))
            check(cuda.cuStreamCreate(byref(stream), NON_BLOCKING))
            check(cuda.cuArrayCreate_v2(byref(array), byref(ArrayDescription(BYTES, 0, 1, 1))))
            check(cuda.cuArrayCreate_v2(byref(plane), byref(ArrayDescription(BYTES, 2, 1, 1))))
            check(cuda.cuMipmappedArrayCreate(byref(mipmapped), byref(ArrayDescription3D(2 * BYTES, 4, 0, 1, 1, 0)), ctypes.c_uint(2)))
            check(cuda.cuMipmappedArrayGetLevel(byref(level), mipmapped, ctypes.c_uint(1)))
            self.contexts.append(context)
            self.streams.append(stream)
            self.arrays.append(array)
            self.planes.append(plane)
            self.levels.append(level)
            self.memory.append(make(device))

    def fill(self):
        self.ended = 0
        ctypes.memset(self.host, 77, BYTES)
        for context, arrays, memory in zip(self.contexts, zip(self.arrays, self.planes, self.levels), self.memory):
            check(cuda.cuCtxSetCurrent(context))
            for array in arrays:
                check(cuda.cuMemcpyHtoA_v2(array, size_t(0), self.host, size_t(BYTES)))
            for offset, value in ((0, 1), (BYTES, 77)):
                check(cuda.cuMemsetD8_v2(u64(memory + offset), ctypes.c_ubyte(value), size_t(BYTES)))
            check(cuda.cuCtxSynchronize())

    def value(self, device):
        check(cuda.cuCtxSetCurrent(self.contexts[device]))
        check(cuda.cuMemcpyDtoH_v2(self.host, u64(self.memory[device]), size_t(BYTES)))
        return set(self.host)

    def array_value(self, device, array):
        check(cuda.cuCtxSetCurrent(self.contexts[device]))
        check(cuda.cuMemcpyAtoH_v2(self.host, array, size_t(0), size_t(BYTES)))
        return set(self.host)


def work(machine, name, stream):
    """Fills the memory of GPU 1 with 77."""
    target = machine.memory[1]
    host = ctypes.addressof(machine.host)
    rows = dict(srcPitch=1024, dstPitch=1024, width=1024, height=4)
    shapes = {"Within": Copy2D(srcType=2, srcDevice=target + BYTES, dstType=2, dstDevice=target, **rows),
              "HtoD": Copy2D(srcType=1, srcHost=host, dstType=2, dstDevice=target, **rows)}
    return {
        "set": lambda: cuda.cuMemsetD8Async(u64(target), ctypes.c_ubyte(77), size_t(BYTES), stream),
        "DtoDWithin": lambda: cuda.cuMemcpyDtoDAsync_v2(u64(target), u64(target + BYTES), size_t(BYTES), stream),
        "UnifiedWithin": lambda: cuda.cuMemcpyAsync(u64(target), u64(target + BYTES), size_t(BYTES), stream),
        "HtoD": lambda: cuda.cuMemcpyHtoDAsync_v2(u64(target), machine.host, size_t(BYTES), stream),
        "DtoH": lambda: cuda.cuMemcpyDtoHAsync_v2(machine.host, u64(target + BYTES), size_t(BYTES), stream),
        "2DWithin": lambda: cuda.cuMemcpy2DAsync_v2(byref(shapes["Within"]), stream),
        "2DHtoD": lambda: cuda.cuMemcpy2DAsync_v2(byref(shapes["HtoD"]), stream),
        "DtoD": lambda: cuda.cuMemcpyDtoDAsync_v2(u64(target), u64(machine.memory[0] + BYTES), size_t(BYTES), stream),
        "Unified": lambda: cuda.cuMemcpyAsync(u64(target), u64(machine.memory[0] + BYTES), size_t(BYTES), stream),
        "Peer": lambda: cuda.cuMemcpyPeerAsync(u64(target), machine.contexts[1], u64(machine.memory[0] + BYTES), machine.contexts[0], size_t(BYTES), stream),
    }[name]


WORKS = ("set", "DtoDWithin", "UnifiedWithin", "HtoD", "DtoH", "2DWithin", "2DHtoD", "DtoD", "Unified", "Peer")


def in_stream(machine, name, current, stream):
    check(cuda.cuCtxSetCurrent(machine.contexts[current]))
    return work(machine, name, machine.streams[stream])(), lambda: target_right(machine, name)


def target_right(machine, name):
    return set(machine.host) == {77} if name == "DtoH" else machine.value(1) == {77}


def captured(machine, name, capturing, launching, current):
    """By a stream of one GPU while a context is current, launched in a stream of the other GPU, or of the same one."""
    graph, executable, stream = c_void_p(), c_void_p(), machine.streams[capturing]
    check(cuda.cuCtxSetCurrent(machine.contexts[current]))
    check(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
    error = work(machine, name, stream)()
    ended = cuda.cuStreamEndCapture(stream, byref(graph))
    machine.ended = ended
    error = error or ended or cuda.cuGraphInstantiateWithFlags(byref(executable), graph, u64(0))
    check(cuda.cuCtxSetCurrent(machine.contexts[launching]))
    error = error or cuda.cuGraphLaunch(executable, machine.streams[launching])
    return error, lambda: target_right(machine, name)


def of_arrays(machine, name, current, array, memory):
    """Between an array on one GPU and memory on one, or the host."""
    handle, address, host = machine.arrays[array], machine.memory[memory], ctypes.addressof(machine.host)
    flat = dict(width=BYTES, height=1)
    from_array = Copy2D(srcType=3, srcArray=handle, dstType=2, dstDevice=address, dstPitch=BYTES, **flat)
    to_array = Copy2D(srcType=2, srcDevice=address, srcPitch=BYTES, dstType=3, dstArray=handle, **flat)
    from_host = Copy2D(srcType=1, srcHost=host, srcPitch=BYTES, dstType=3, dstArray=handle, **flat)
    own, others = machine.contexts[array], machine.contexts[memory]
    named = Copy3DPeer(srcType=3, srcArray=handle, srcContext=own, dstType=2, dstDevice=address, dstContext=others, dstPitch=BYTES, dstHeight=1, depth=1, **flat)
    named_back = Copy3DPeer(srcType=2, srcDevice=address, srcPitch=BYTES, srcHeight=1, srcContext=others, dstType=3, dstArray=handle, dstContext=own, depth=1, **flat)
    stream = machine.streams[current]
    reads = {"AtoD": lambda: cuda.cuMemcpyAtoD_v2(u64(address), handle, size_t(0), size_t(BYTES)),
             "AtoDPlane": lambda: cuda.cuMemcpyAtoD_v2(u64(address), machine.planes[array], size_t(0), size_t(BYTES)),
             "AtoDLevel": lambda: cuda.cuMemcpyAtoD_v2(u64(address), machine.levels[array], size_t(0), size_t(BYTES)),
             "2DAtoD": lambda: cuda.cuMemcpy2D_v2(byref(from_array)),
             "2DAtoDAsync": lambda: cuda.cuMemcpy2DAsync_v2(byref(from_array), stream),
             "PeerAtoD": lambda: cuda.cuMemcpy3DPeer(byref(named))}
    writes = {"DtoA": lambda: cuda.cuMemcpyDtoA_v2(handle, size_t(0), u64(address), size_t(BYTES)),
              "DtoAPlane": lambda: cuda.cuMemcpyDtoA_v2(machine.planes[array], size_t(0), u64(address), size_t(BYTES)),
              "DtoALevel": lambda: cuda.cuMemcpyDtoA_v2(machine.levels[array], size_t(0), u64(address), size_t(BYTES)),
              "2DDtoA": lambda: cuda.cuMemcpy2D_v2(byref(to_array)),
              "2DDtoAAsync": lambda: cuda.cuMemcpy2DAsync_v2(byref(to_array), stream),
              "2DHtoA": lambda: cuda.cuMemcpy2D_v2(byref(from_host)),
              "HtoA": lambda: cuda.cuMemcpyHtoA_v2(handle, size_t(0), machine.host, size_t(BYTES)),
              "PeerDtoA": lambda: cuda.cuMemcpy3DPeer(byref(named_back))}
    ctypes.memset(machine.host, 1, BYTES)
    check(cuda.cuCtxSetCurrent(machine.contexts[current]))
    if name in reads:
        return reads[name](), lambda: machine.value(memory) == {77}
    written = machine.planes[array] if name.endswith("Plane") else machine.levels[array] if name.endswith("Level") else handle
    return writes[name](), lambda: machine.array_value(array, written) == {1}


ARRAYS = ("AtoD", "AtoDPlane", "AtoDLevel", "DtoAPlane", "DtoALevel", "2DAtoD", "2DAtoDAsync", "PeerAtoD", "DtoA", "2DDtoA", "2DDtoAAsync", "2DHtoA", "HtoA", "PeerDtoA")


def by_contexts(machine, current, target, source):
    """cuMemcpyPeer from GPU 0 to GPU 1 with these contexts."""
    check(cuda.cuCtxSetCurrent(machine.contexts[current]))
    error = cuda.cuMemcpyPeer(u64(machine.memory[1]), machine.contexts[target], u64(machine.memory[0] + BYTES), machine.contexts[source], size_t(BYTES))
    return error, lambda: machine.value(1) == {77}


def cases():
    """By name: the function, and what it takes."""
    gpus = (0, 1)
    found = {}
    for name, current, stream in itertools.product(WORKS, gpus, gpus):
        found[f"{name} current={current} stream={stream}"] = (in_stream, (name, current, stream))
        found[f"{name} captured={current} launched={stream}"] = (captured, (name, current, stream, current))
        found[f"{name} current={1 - current} captured={current} launched={stream}"] = (captured, (name, current, stream, 1 - current))
    for name, current, array, memory in itertools.product(ARRAYS, gpus, gpus, gpus):
        if name not in ("HtoA", "2DHtoA") or memory == 0:
            found[f"{name} current={current} array={array} memory={memory}"] = (of_arrays, (name, current, array, memory))
    for current, target, source in itertools.product(gpus, gpus, gpus):
        found[f"cuMemcpyPeer current={current} target={target} source={source}"] = (by_contexts, (current, target, source))
    return found


def one(machine, kind, case):
    function, details = cases()[case]
    machine.fill()
    error, right = function(machine, *details)
    after = 0
    for context in machine.contexts:
        check(cuda.cuCtxSetCurrent(context))
        after = after or cuda.cuCtxSynchronize()
    print(json.dumps({"memory": kind, "case": case, "error": error, "capture": machine.ended, "after": after, "right": after == 0 and right()}))


def run(kind_and_case):
    kind, case = kind_and_case
    ended = subprocess.run([sys.executable, __file__, "--one", kind, case], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode == 3:
        return "skipped: one GPU"
    return ended.stdout.strip() or json.dumps({"memory": kind, "case": case, "ended": ended.returncode})


def main():
    if sys.argv[1:2] == ["--one"]:
        kind, case = sys.argv[2:]
        one(Machine(KINDS[kind]), kind, case)
        return
    if sys.argv[1:] == ["--together"]:
        for kind, make in KINDS.items():
            machine = Machine(make)
            for case in cases():
                one(machine, kind, case)
        return
    wanted = [case for case in cases() if not sys.argv[1:] or sys.argv[1] in case]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for line in pool.map(run, itertools.product(KINDS, wanted)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
