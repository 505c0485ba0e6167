#!/usr/bin/env python3
"""What the driver answers to legacy IPC of memory: one line of JSON for each question, to be compared between native
runs, `rota run --memory ...` and simgpu. Needs a GPU and nothing else; takes less than 100 MiB of it.

    python3 tests/gpu/ipc_facts.py
"""
import ctypes
import json
import subprocess
import sys
import time

KIB = 1024
MIB = 1024 * KIB
LAZY_PEER = 1
ATTRIBUTES = {"memory_type": (2, ctypes.c_uint), "sync_memops": (6, ctypes.c_uint), "is_managed": (8, ctypes.c_uint),
              "device": (9, ctypes.c_int), "mapped": (13, ctypes.c_uint), "range_start": (11, ctypes.c_uint64),
              "range_size": (12, ctypes.c_size_t), "legacy_ipc": (10, ctypes.c_uint),
              "handle_types": (14, ctypes.c_uint64), "access": (16, ctypes.c_uint), "pool": (17, ctypes.c_uint64)}


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    def hex(self):
        return bytes(self.bytes).hex()


def handle_of(text):
    return Handle.from_buffer_copy(bytes.fromhex(text))


class Driver:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.must("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        return getattr(self.cuda, name)(*arguments)

    def must(self, name, *arguments):
        result = self.call(name, *arguments)
        if result != 0:
            sys.exit(f"{name} answers {result}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address):
        return self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address):
        handle = Handle()
        return self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address)), handle.hex()

    def open(self, handle, flags=LAZY_PEER):
        address = ctypes.c_uint64()
        result = self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle_of(handle), flags)
        return result, address.value

    def close(self, address):
        return self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def write(self, address, word):
        value = ctypes.c_uint(word)
        return self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.byref(value), ctypes.c_size_t(4))

    def read(self, address):
        value = ctypes.c_uint()
        result = self.call("cuMemcpyDtoH_v2", ctypes.byref(value), ctypes.c_uint64(address), ctypes.c_size_t(4))
        return [result, value.value if result == 0 else None]

    def range(self, address):
        """Where the allocation begins, from the address, and how long it is."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        result = self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return [result, base.value - address if result == 0 else None, size.value if result == 0 else None]

    def attributes(self, address):
        said = {}
        for name, (number, kind) in ATTRIBUTES.items():
            value = kind()
            result = self.call("cuPointerGetAttribute", ctypes.byref(value), number, ctypes.c_uint64(address))
            told = value.value - address if name == "range_start" else value.value
            said[name] = told if result == 0 else f"error {result}"
        return said

    def free_memory(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


# --- the importer: calls by name from standard input, answers to standard output

class Importer(Driver):
    def second_context(self, handle):
        """Opens in another context as well: the result, and whether the address is the same."""
        _, first = self.open(handle)
        other = ctypes.c_void_p()
        self.must("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
        result, second = self.open(handle)
        closed = [self.close(second)] if result == 0 else []
        self.must("cuCtxDestroy_v2", other)
        self.must("cuCtxSetCurrent", self.context)
        return [result, second == first if result == 0 else None, *closed, self.close(first)]

    def ended_context(self, handle):
        """Opens in a context that is then destroyed: what closing it answers."""
        other = ctypes.c_void_p()
        self.must("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
        result, address = self.open(handle)
        self.must("cuCtxDestroy_v2", other)
        self.must("cuCtxSetCurrent", self.context)
        return [result, self.close(address)]

    def taken(self, handle):
        """The bytes that are no longer free once it is open."""
        before = self.free_memory()
        _, address = self.open(handle)
        after = self.free_memory()
        self.close(address)
        return before - after

    def milliseconds(self, handle):
        start = time.perf_counter()
        _, address = self.open(handle)
        opened = time.perf_counter()
        self.close(address)
        return [round((opened - start) * 1e3, 3), round((time.perf_counter() - opened) * 1e3, 3)]


def serve():
    importer = Importer()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(importer, name)(*arguments)), flush=True)


class Other:
    """A process that opens what this one exports, or exports for it."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-B", __file__, "--serve"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the other process ended at {what}")
        return json.loads(line)

    def end(self, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def say(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


# --- the questions

def exporting(driver, memory, small):
    result, handle = driver.export(memory)
    say("exporting 4 MiB", result)
    say("exporting again gives the same bytes", driver.export(memory)[1] == handle)
    result, inside = driver.export(memory + MIB)
    say("exporting an interior address: result, same bytes", [result, inside == handle])
    say("legacy IPC as an attribute: 4 MiB, interior, 4 KiB",
        [driver.attributes(each)["legacy_ipc"] for each in (memory, memory + MIB, small)])
    say("opening in the exporter", driver.open(handle)[0])
    say("no place for the handle", driver.call("cuIpcGetMemHandle", None, ctypes.c_uint64(memory)))
    return handle


def opening(driver, other, memory, handle):
    driver.write(memory, 70)
    result, address = other.ask("open", handle)
    say("opening", result)
    if result != 0:
        return
    say("its first word, which is 70", other.ask("read", address))
    say("the importer's range", other.ask("range", address + 4096))
    say("the importer's attributes", other.ask("attributes", address))
    say("the address modulo 2 MiB", address % (2 * MIB))
    say("opening again: result, same address", [(again := other.ask("open", handle))[0], again[1] == address])
    say("closing once, reading", [other.ask("close", address), other.ask("read", address)])
    say("closing inside", other.ask("close", address + 4096))
    say("freeing what is open", other.ask("free", address))
    say("exporting what is open", other.ask("export", address)[0])
    say("closing, closing again, reading",
        [other.ask("close", address), other.ask("close", address), other.ask("read", address)])
    say("flags 0 and 2", [other.ask("open", handle, 0)[0], other.ask("open", handle, 2)[0]])
    say("a handle of zeros, and one with its last bytes inverted",
        [other.ask("open", "00" * 64)[0], other.ask("open", handle[:-8] + "5a" * 4)[0]])
    say("in a second context: result, same address, closing each", other.ask("second_context", handle))
    say("closing after the opening context ended", other.ask("ended_context", handle))
    say("bytes that opening takes", other.ask("taken", handle))
    say("milliseconds to open and close", other.ask("milliseconds", handle))


def neighbours(driver, other, small):
    """Allocations of 4 KiB: what an importer of one can see of the next."""
    for index, each in enumerate(small):
        driver.write(each, 100 + index)
    handles = [driver.export(each) for each in small]
    say("exporting small ones", [result for result, _ in handles])
    say("different handles", len({handle for _, handle in handles}))
    say("distance in the exporter", small[1] - small[0])
    one = other.ask("open", handles[0][1])
    two = other.ask("open", handles[1][1])
    if one[0] != 0 or two[0] != 0:
        say("opening small ones", [one[0], two[0]])
        return
    say("opened: distance", two[1] - one[1])
    say("opened: range of each", [other.ask("range", one[1]), other.ask("range", two[1])])
    say("opened: first words, which are 100 and 101", [other.ask("read", one[1]), other.ask("read", two[1])])
    say("reading the neighbour through the first", other.ask("read", one[1] + small[1] - small[0]))
    say("closing", [other.ask("close", one[1]), other.ask("close", two[1])])


def lifetimes(driver, other):
    memory = driver.allocate(4 * MIB)
    driver.write(memory, 71)
    _, handle = driver.export(memory)
    result, address = other.ask("open", handle)
    if result != 0:
        return
    say("freeing while it is open", driver.free(memory))
    say("the importer reads what was freed", other.ask("read", address))
    say("opening what was freed, while open", other.ask("open", handle)[0])
    say("closing what was freed", other.ask("close", address))
    say("opening what was freed", other.ask("open", handle)[0])

    exporter = Other()
    theirs = exporter.ask("allocate", 4 * MIB)
    exporter.ask("write", theirs, 72)
    _, handle = exporter.ask("export", theirs)
    result, address = driver.open(handle)
    exporter.end(kill=True)
    say("exporter killed: opened before, reading", [result, driver.read(address)])
    say("exporter killed: opening again, closing", [driver.open(handle)[0], driver.close(address)])
    say("exporter killed: opening, closed before", driver.open(handle)[0])


def main():
    driver = Driver()
    memory = driver.allocate(4 * MIB)
    small = [driver.allocate(4 * KIB) for _ in range(2)]
    other = Other()
    handle = exporting(driver, memory, small[0])
    opening(driver, other, memory, handle)
    neighbours(driver, other, small)
    lifetimes(driver, other)
    other.end()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
