#!/usr/bin/env python3
"""What the driver makes of copies between the memory of two GPUs that have no access to each other's, and of copies and sets with
another GPU's context current: by itself, without rota.

    tests/gpu/across.py

For plain memory (cuMemAlloc) and mapped memory (cuMemCreate, which only its own GPU may access, as rota's swapped memory is) prints a
line of JSON per call and current context: the driver's error (0: none), and whether the bytes then are what they should be. A few
kilobytes per call; the simulated driver does as well (ROTA_SIM_GPUS=2).
"""
import ctypes
import itertools
import json
import sys

BYTES = 4096
SIZE = 2 << 20
u64, size_t, c_int, c_void_p, byref = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.byref
cuda = ctypes.CDLL("libcuda.so.1")


class Copy2D(ctypes.Structure):
    _fields_ = [("srcX", size_t), ("srcY", size_t), ("srcType", c_int), ("srcHost", c_void_p), ("srcDevice", u64), ("srcArray", c_void_p), ("srcPitch", size_t),
                ("dstX", size_t), ("dstY", size_t), ("dstType", c_int), ("dstHost", c_void_p), ("dstDevice", u64), ("dstArray", c_void_p), ("dstPitch", size_t),
                ("width", size_t), ("height", size_t)]


class Copy3DPeer(ctypes.Structure):
    _fields_ = [(f"src{name}", kind) for name, kind in (("X", size_t), ("Y", size_t), ("Z", size_t), ("LOD", size_t), ("Type", c_int), ("Host", c_void_p),
                                                        ("Device", u64), ("Array", c_void_p), ("Context", c_void_p), ("Pitch", size_t), ("Height", size_t))] + [
        (f"dst{name}", kind) for name, kind in (("X", size_t), ("Y", size_t), ("Z", size_t), ("LOD", size_t), ("Type", c_int), ("Host", c_void_p),
                                                ("Device", u64), ("Array", c_void_p), ("Context", c_void_p), ("Pitch", size_t), ("Height", size_t))] + [
        ("width", size_t), ("height", size_t), ("depth", size_t)]


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Attributes(ctypes.Structure):
    _fields_ = [("order", c_int), ("hints", Location * 2), ("flags", ctypes.c_uint)]


class Pointer(ctypes.Structure):  # one of the two forms of CUmemcpy3DOperand, which is as long as the other
    _fields_ = [("type", c_int), ("address", u64), ("row", size_t), ("layer", size_t), ("hint", Location)]


class Rows(ctypes.Structure):
    _fields_ = [("source", Pointer), ("target", Pointer), ("extent", size_t * 3), ("order", c_int), ("flags", ctypes.c_uint)]


def check(result):
    if result != 0:
        sys.exit(f"the driver refuses what everything needs: error {result}")


def plain(device):
    address = u64()
    check(cuda.cuMemAlloc_v2(byref(address), size_t(SIZE)))
    return address.value


def mapped(device):
    handle, address = u64(), u64()
    check(cuda.cuMemCreate(byref(handle), size_t(SIZE), byref(Properties(type=1, location=Location(1, device))), u64(0)))
    check(cuda.cuMemAddressReserve(byref(address), size_t(SIZE), size_t(0), u64(0), u64(0)))
    check(cuda.cuMemMap(address, size_t(SIZE), size_t(0), handle, u64(0)))
    check(cuda.cuMemSetAccess(address, size_t(SIZE), byref(Access(Location(1, device), 3)), size_t(1)))
    return address.value


def managed():
    address = u64()
    check(cuda.cuMemAllocManaged(byref(address), size_t(SIZE), ctypes.c_uint(1)))
    return address.value


def pinned():
    """Host memory that every context knows."""
    address = u64()
    check(cuda.cuMemHostAlloc(byref(address), size_t(SIZE), ctypes.c_uint(1)))
    return address.value


def calls(contexts, source, target, host, known):
    """Each call fills `target` from `source` or from the memory behind `target`, or copies between host memory and one of them. `known`: a managed and a
    pinned address, of memory that the driver knows and that belongs to no GPU."""
    device = dict(srcType=2, srcDevice=source, dstType=2, dstDevice=target, srcPitch=BYTES, dstPitch=BYTES, width=BYTES, height=1)
    peer = Copy3DPeer(srcContext=contexts[0], dstContext=contexts[1], srcHeight=1, dstHeight=1, depth=1, **device)
    deep = Copy3DPeer(srcHeight=1, dstHeight=1, depth=1, **device)  # CUDA_MEMCPY3D, which has nothing in place of the contexts
    here = ctypes.addressof(host)
    row = BYTES // 4
    rows = dict(device, srcPitch=row, dstPitch=row, width=row, height=4)
    from_host, to_host = Copy2D(**dict(rows, srcType=1, srcHost=here)), Copy2D(**dict(rows, dstType=1, dstHost=here))
    within = target + BYTES

    def batch(origin):
        return cuda.cuMemcpyBatchAsync_v2(byref(u64(target)), byref(u64(origin)), byref(size_t(BYTES)), size_t(1), byref(Attributes(order=1)), byref(size_t(0)), size_t(1), c_void_p(2))

    def rows_of(origin, destination=target):
        return byref(Rows(Pointer(1, origin, 0, 0), Pointer(1, destination, 0, 0), (size_t * 3)(BYTES, 1, 1), 1, 0))

    def with_attributes(origin):
        return cuda.cuMemcpyWithAttributesAsync(u64(target), u64(origin), size_t(BYTES), byref(Attributes(order=1)), None)

    def unowned(kind, address):
        """Between it and the GPUs' memory, with the forms that take addresses of GPU memory. From the target, and into it again: right if both copies are."""
        into, out_of = (u64(target), u64(address)), (u64(address), u64(within))
        forms = {
            "DtoD": lambda to, origin: cuda.cuMemcpyDtoD_v2(to, origin, size_t(BYTES)),
            "DtoDAsync": lambda to, origin: cuda.cuMemcpyDtoDAsync_v2(to, origin, size_t(BYTES), None),
            "Unified": lambda to, origin: cuda.cuMemcpy(to, origin, size_t(BYTES)),
            "PeerFirst": lambda to, origin: cuda.cuMemcpyPeer(to, contexts[0], origin, contexts[0], size_t(BYTES)),
            "PeerFirstAsync": lambda to, origin: cuda.cuMemcpyPeerAsync(to, contexts[0], origin, contexts[0], size_t(BYTES), None),
            "PeerBoth": lambda to, origin: cuda.cuMemcpyPeer(to, contexts[1], origin, contexts[0], size_t(BYTES)),
        }
        return {f"{kind}{name}": lambda form=form: form(*out_of) or cuda.cuCtxSynchronize() or form(*into) for name, form in forms.items()}

    return {
        **unowned("managed", known[0]),
        **unowned("pinned", known[1]),
        "cuMemcpy3DBatchAsync": lambda: cuda.cuMemcpy3DBatchAsync_v2(size_t(1), rows_of(source), u64(0), c_void_p(2)),
        "cuMemcpy3DBatchWithinAsync": lambda: cuda.cuMemcpy3DBatchAsync_v2(size_t(1), rows_of(within), u64(0), c_void_p(2)),
        "cuMemcpy3DBatchHtoDAsync": lambda: cuda.cuMemcpy3DBatchAsync_v2(size_t(1), rows_of(here), u64(0), c_void_p(2)),
        **({  # drivers from CUDA 13.1 on
            "cuMemcpyAttributesAsync": lambda: with_attributes(source),
            "cuMemcpyAttributesWithinAsync": lambda: with_attributes(within),
            "cuMemcpyAttributesHtoDAsync": lambda: with_attributes(here),
            "cuMemcpy3DAttributesAsync": lambda: cuda.cuMemcpy3DWithAttributesAsync(rows_of(source), u64(0), None),
            "cuMemcpy3DAttributesWithinAsync": lambda: cuda.cuMemcpy3DWithAttributesAsync(rows_of(within), u64(0), None),
            "cuMemcpy3DAttributesHtoDAsync": lambda: cuda.cuMemcpy3DWithAttributesAsync(rows_of(here), u64(0), None),
        } if hasattr(cuda, "cuMemcpyWithAttributesAsync") else {}),
        "cuMemcpyDtoD": lambda: cuda.cuMemcpyDtoD_v2(u64(target), u64(source), size_t(BYTES)),
        "cuMemcpyDtoDAsync": lambda: cuda.cuMemcpyDtoDAsync_v2(u64(target), u64(source), size_t(BYTES), None),
        "cuMemcpy": lambda: cuda.cuMemcpy(u64(target), u64(source), size_t(BYTES)),
        "cuMemcpyAsync": lambda: cuda.cuMemcpyAsync(u64(target), u64(source), size_t(BYTES), None),
        "cuMemcpyPeer": lambda: cuda.cuMemcpyPeer(u64(target), contexts[1], u64(source), contexts[0], size_t(BYTES)),
        "cuMemcpyPeerAsync": lambda: cuda.cuMemcpyPeerAsync(u64(target), contexts[1], u64(source), contexts[0], size_t(BYTES), None),
        "cuMemcpy2D": lambda: cuda.cuMemcpy2D_v2(byref(Copy2D(**rows))),
        "cuMemcpy2DAsync": lambda: cuda.cuMemcpy2DAsync_v2(byref(Copy2D(**rows)), None),
        "cuMemcpy2DHtoD": lambda: cuda.cuMemcpy2D_v2(byref(from_host)),
        "cuMemcpy2DHtoDAsync": lambda: cuda.cuMemcpy2DAsync_v2(byref(from_host), None),
        "cuMemcpy2DDtoH": lambda: cuda.cuMemcpy2D_v2(byref(to_host)),
        "cuMemcpy2DDtoHAsync": lambda: cuda.cuMemcpy2DAsync_v2(byref(to_host), None),
        "cuMemcpy3D": lambda: cuda.cuMemcpy3D_v2(byref(deep)),
        "cuMemcpy3DAsync": lambda: cuda.cuMemcpy3DAsync_v2(byref(deep), None),
        "cuMemcpyBatchAsync": lambda: batch(source),
        "cuMemcpy3DPeer": lambda: cuda.cuMemcpy3DPeer(byref(peer)),
        "cuMemcpy3DPeerAsync": lambda: cuda.cuMemcpy3DPeerAsync(byref(peer), None),
        # Within the target's GPU, and between it and the host.
        "cuMemcpyDtoDWithin": lambda: cuda.cuMemcpyDtoD_v2(u64(target), u64(within), size_t(BYTES)),
        "cuMemcpyDtoDWithinAsync": lambda: cuda.cuMemcpyDtoDAsync_v2(u64(target), u64(within), size_t(BYTES), None),
        "cuMemcpyWithin": lambda: cuda.cuMemcpy(u64(target), u64(within), size_t(BYTES)),
        "cuMemcpyWithinAsync": lambda: cuda.cuMemcpyAsync(u64(target), u64(within), size_t(BYTES), None),
        "cuMemcpyBatchWithinAsync": lambda: batch(within),
        "cuMemcpyBatchHtoDAsync": lambda: batch(here),
        "cuMemcpyUnifiedHtoD": lambda: cuda.cuMemcpy(u64(target), u64(here), size_t(BYTES)),
        "cuMemcpyUnifiedHtoDAsync": lambda: cuda.cuMemcpyAsync(u64(target), u64(here), size_t(BYTES), None),
        "cuMemcpyUnifiedDtoH": lambda: cuda.cuMemcpy(u64(here), u64(source), size_t(BYTES)),
        "cuMemcpyUnifiedDtoHAsync": lambda: cuda.cuMemcpyAsync(u64(here), u64(source), size_t(BYTES), None),
        "cuMemcpyDtoH": lambda: cuda.cuMemcpyDtoH_v2(host, u64(source), size_t(BYTES)),
        "cuMemcpyDtoHAsync": lambda: cuda.cuMemcpyDtoHAsync_v2(host, u64(source), size_t(BYTES), None),
        "cuMemcpyHtoD": lambda: cuda.cuMemcpyHtoD_v2(u64(target), host, size_t(BYTES)),
        "cuMemcpyHtoDAsync": lambda: cuda.cuMemcpyHtoDAsync_v2(u64(target), host, size_t(BYTES), None),
        "cuMemsetD8": lambda: cuda.cuMemsetD8_v2(u64(target), ctypes.c_ubyte(77), size_t(BYTES)),
        "cuMemsetD8Async": lambda: cuda.cuMemsetD8Async(u64(target), ctypes.c_ubyte(77), size_t(BYTES), None),
    }


def main():
    check(cuda.cuInit(0))
    count = c_int()
    check(cuda.cuDeviceGetCount(byref(count)))
    if count.value < 2:
        print("skipped: one GPU")
        return
    contexts = [c_void_p(), c_void_p()]
    memory = {plain: [], mapped: []}
    host = (ctypes.c_ubyte * BYTES)()
    for device, context in enumerate(contexts):
        check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
        check(cuda.cuCtxSetCurrent(context))
        for make, made in memory.items():
            made.append(make(device))

    def fill(device, address, value):
        check(cuda.cuCtxSetCurrent(contexts[device]))
        check(cuda.cuMemsetD8_v2(u64(address), ctypes.c_ubyte(value), size_t(BYTES)))
        check(cuda.cuCtxSynchronize())

    def value(device, address):
        read = (ctypes.c_ubyte * BYTES)()
        check(cuda.cuCtxSetCurrent(contexts[device]))
        check(cuda.cuMemcpyDtoH_v2(read, u64(address), size_t(BYTES)))
        return set(read)

    check(cuda.cuCtxSetCurrent(contexts[0]))
    known = managed(), pinned()
    for kind, current in itertools.product(memory, (0, 1)):
        source, target = memory[kind]
        for name, call in calls(contexts, source, target, host, known).items():
            fill(0, source, 77)
            fill(1, target + BYTES, 77)
            fill(1, target, 1)
            ctypes.memset(host, 77 if "HtoD" in name else 1, BYTES)
            check(cuda.cuCtxSetCurrent(contexts[current]))
            error = call()
            after = cuda.cuCtxSynchronize()
            check(after)
            right = set(host) == {77} if "DtoH" in name else value(1, target) == {77}
            print(json.dumps({"memory": kind.__name__, "source": 0, "target": 1, "current": current, "call": name, "error": error, "right": right}), flush=True)


if __name__ == "__main__":
    main()
