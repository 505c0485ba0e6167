#!/usr/bin/env python3
"""What moving Unified Memory to the host costs by each way that there is, without oversubscribing the GPU.

    tests/gpu/move_out.py [--mib 1024] [--rounds 5]

By ctypes, on the real driver, with no rota in between; one range of --mib MiB at a time and never more, so that all of it
together stays below 4 GiB. Prints one line of JSON: GB/s, the median of the rounds, for

    out_one        one prefetch of the whole range to the host: what rota does before it gives a lease back
    out_2m         the same in prefetches of 2 MiB each
    out_faults     the processor touches every page: moving by faults
    in_one         one prefetch of the range from the host to the GPU: what rota does at the beginning of a turn
    in_2m          the same in prefetches of 2 MiB each
    in_behind_out  --mib MiB prefetched in while the other half goes out, in two streams: whether the two overlap
    call_us        what a prefetch call itself takes, in microseconds, for one of the whole range

The driver's own eviction can only be seen on a GPU that is oversubscribed, which this does not do: compare
`ROTA_MOVE_OUT=1` and `=0` (two programs of 0.6 of the GPU each, in turns) where that is allowed. Moving out first pays if
out_one is no slower than that.

Exits 77 where there is no NVIDIA GPU, or one without concurrent managed access.
"""
import argparse
import ctypes
import json
import statistics
import sys
import time

MIB = 1 << 20
HOST = -1
PIECE = 2 * MIB
CONCURRENT_MANAGED_ACCESS = 89


class Driver:
    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            self.skip("no libcuda.so.1")
        if self.library.cuInit(0) != 0:
            self.skip("no GPU")
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), CONCURRENT_MANAGED_ACCESS, 0)
        if value.value == 0:
            self.skip("no concurrent managed access")
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    @staticmethod
    def skip(why):
        print(f"skipped: {why}")
        sys.exit(77)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        assert result == 0, (name, result)

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def managed(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), 1)
        self.call("cuMemAdvise", address, ctypes.c_size_t(size), 3, 0)  # preferred location: the GPU
        return address.value

    def prefetch(self, address, size, to, stream, piece=None):
        piece = piece or size
        for offset in range(0, size, piece):
            self.call("cuMemPrefetchAsync", ctypes.c_uint64(address + offset), ctypes.c_size_t(min(piece, size - offset)),
                      to, stream)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not 4 <= options.mib <= 3072 or options.rounds < 1:
        parser.error("--mib is 4 to 3072: all of it has to stay below 4 GiB; --rounds is 1 or more")
    driver = Driver()
    size = options.mib * MIB // (2 * PIECE) * 2 * PIECE
    one, other = driver.stream(), driver.stream()
    address = driver.managed(size)

    def seconds(work):
        began = time.perf_counter()
        work()
        driver.call("cuCtxSynchronize")
        return time.perf_counter() - began

    def to(place, piece=None):
        return lambda: driver.prefetch(address, size, place, one, piece)

    def touch():
        ctypes.memset(address, 7, size)  # every page, as the processor does

    def both():
        half = size // 2
        driver.prefetch(address, half, HOST, one)
        driver.prefetch(address + half, half, 0, other)

    figures = {name: [] for name in ("out_one", "out_2m", "out_faults", "in_one", "in_2m", "in_behind_out", "call_us")}
    seconds(to(0))
    driver.call("cuMemsetD8_v2", ctypes.c_uint64(address), 1, ctypes.c_size_t(size))
    for _ in range(options.rounds):
        began = time.perf_counter()
        to(HOST)()
        figures["call_us"].append((time.perf_counter() - began) * 1e6)
        driver.call("cuCtxSynchronize")
        for way_out, piece_out, piece_in, way_in in (("out_one", None, None, "in_one"), ("out_2m", PIECE, PIECE, "in_2m")):
            seconds(to(0))
            figures[way_out].append(size / seconds(to(HOST, piece_out)) / 1e9)
            figures[way_in].append(size / seconds(to(0, piece_in)) / 1e9)
        figures["out_faults"].append(size / seconds(touch) / 1e9)
        seconds(to(HOST))
        seconds(lambda: driver.prefetch(address, size // 2, 0, one))
        figures["in_behind_out"].append(size / seconds(both) / 1e9)
    data = ctypes.string_at(address, 1)
    assert data == b"\x07", data
    print(json.dumps({name: round(statistics.median(values), 2) for name, values in figures.items()} | {"mib": size // MIB}))


if __name__ == "__main__":
    main()
