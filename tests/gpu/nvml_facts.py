#!/usr/bin/env python3
"""For which process NVML counts memory that several have: one line of JSON for each state.

    python3 tests/gpu/nvml_facts.py

A process makes 512 MiB; another one imports it by a descriptor or opens it by a legacy IPC handle; the first frees it; the second lets it go. Each
line: MiB that the driver counts for the maker and for the importer beyond what they had before, and MiB less that are free. Without rota.
"""
import ctypes
import json
import os
import socket
import sys

SIZE = 512 << 20
MIB = 1 << 20


class Properties(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int), ("location", ctypes.c_int),
                ("metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 4)]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} answers {result}")

    def map(self, handle):
        address = ctypes.c_uint64()
        self("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(SIZE), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        self("cuMemMap", address, ctypes.c_size_t(SIZE), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self("cuMemSetAccess", address, ctypes.c_size_t(SIZE), ctypes.byref(Access(1, 0, 3)), ctypes.c_size_t(1))
        return address

    def unmap(self, address):
        self("cuMemUnmap", address, ctypes.c_size_t(SIZE))
        self("cuMemAddressFree", address, ctypes.c_size_t(SIZE))


def importer(end):
    driver = Driver()
    end.send(b"ready")
    kind = end.recv(16)
    if kind == b"descriptor":
        _, descriptors, _, _ = socket.recv_fds(end, 16, 1)
        handle = ctypes.c_uint64()
        driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptors[0]), 1)
        end.send(b"imported")
        end.recv(16)
        address = driver.map(handle)
        end.send(b"mapped")
        end.recv(16)
        driver.unmap(address)
        driver("cuMemRelease", handle)
        os.close(descriptors[0])
    else:
        address = ctypes.c_uint64()
        handle = (ctypes.c_ubyte * 64).from_buffer_copy(end.recv(64))
        wrapped = type("Handle", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_ubyte * 64)]}).from_buffer_copy(bytes(handle))
        driver("cuIpcOpenMemHandle_v2", ctypes.byref(address), wrapped, ctypes.c_uint(1))
        end.send(b"mapped")
        end.recv(16)
        driver("cuIpcCloseMemHandle", address)
    end.send(b"gone")
    end.recv(16)


class Seen:
    def __init__(self, child):
        import pynvml
        pynvml.nvmlInit()
        self.nvml, self.gpu, self.child, self.first = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0), child, None

    def now(self):
        counted = {each.pid: each.usedGpuMemory or 0 for each in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.gpu)}
        return [counted.get(os.getpid(), 0), counted.get(self.child, 0), -self.nvml.nvmlDeviceGetMemoryInfo(self.gpu).free]

    def say(self, kind, state):
        now = self.now()
        self.first = self.first or now
        maker, other, less = [round((value - before) / MIB) for value, before in zip(now, self.first)]
        print(json.dumps({"kind": kind, "state": state, "maker": maker, "importer": other, "less_free": less}), flush=True)


def states(kind):
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        mine.close()
        importer(theirs)
        os._exit(0)
    theirs.close()
    assert mine.recv(16) == b"ready"
    driver, seen = Driver(), Seen(child)
    seen.say(kind, "nothing yet")
    mine.send(kind.encode())
    if kind == "descriptor":
        properties = Properties(type=1, handle_types=1, location_type=1, location=0)
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
        driver("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(SIZE), ctypes.byref(properties), ctypes.c_uint64(0))
        address = driver.map(handle)
        driver("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
        seen.say(kind, "made")
        socket.send_fds(mine, [b"x"], [descriptor.value])
        assert mine.recv(16) == b"imported"
        seen.say(kind, "imported")
        mine.send(b"map")
    else:
        address, handle = ctypes.c_uint64(), (ctypes.c_ubyte * 64)()
        driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
        driver("cuIpcGetMemHandle", ctypes.byref(handle), address)
        seen.say(kind, "made")
        mine.send(bytes(handle))
    assert mine.recv(16) == b"mapped"
    seen.say(kind, "mapped by the other")
    if kind == "descriptor":
        driver.unmap(address)
        driver("cuMemRelease", handle)
        os.close(descriptor.value)
    else:
        driver("cuMemFree_v2", address)
    seen.say(kind, "freed by the maker")
    mine.send(b"let go")
    assert mine.recv(16) == b"gone"
    seen.say(kind, "let go by the other")
    mine.send(b"end")
    os.waitpid(child, 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        states(sys.argv[1])
    else:
        for each in ("descriptor", "ipc"):
            if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-B", __file__, each]) != 0:
                sys.exit(f"{each} did not end well")
