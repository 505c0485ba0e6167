"""Swap memory that stays on a GPU. If it is pinned temporarily, because work of its program may still run, a program that needs the memory waits for a while, and is not out of memory. If it stays for good, programs that no longer fit next to it take no turns from the others."""
import pathlib
import re
import shutil
import signal
import threading
import sys
import textwrap
import time
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD

BEGIN = textwrap.dedent(r"""
    import ctypes, sys, time
    cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
    MIB = 1 << 20
    def check(result):
        assert result == 0, result
    def allocate(size):
        address = word()
        result = cuda.cuMemAlloc_v2(ctypes.byref(address), word(size))
        if result == 0:
            check(cuda.cuMemsetD8_v2(address, 7, word(size)))
        return result, address
    def right(address):
        byte = ctypes.c_ubyte()
        check(cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), address, word(1)))
        return byte.value == 7
    def say(*what):
        print(*what, flush=True)
    context, module, spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"\x7fELF"))
    check(cuda.cuModuleGetFunction(ctypes.byref(spin), module, b"_Z4spinm"))
    def run_for(seconds):
        length = word(int(seconds * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
        check(cuda.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
""")

# One kernel that takes longer than rotad waits for it; no further call until stdin says so.
LONG_KERNEL = BEGIN + textwrap.dedent("""
    result, address = allocate(150 * MIB)
    check(result)
    run_for(float(sys.argv[1]))
    say("ready")
    sys.stdin.readline()
    say("right", right(address))
""")

GROWS = BEGIN + textwrap.dedent("""
    check(allocate(20 * MIB)[0])
    say("ready")
    sys.stdin.readline()
    begun = time.monotonic()
    result, address = allocate(100 * MIB)
    say("allocated", result)
    if result == 0:
        say("right", right(address))
""")


# Memory that other processes can access stays where it is. In pieces, since each leaves as a whole: what takes long to leave counts as
# staying, too, and rotad does not say whose that is.
PINS = BEGIN + textwrap.dedent("""
    pieces, address, descriptor, what = [word() for _ in range(15)], word(), ctypes.c_int(), (ctypes.c_int * 8)(1, 1, 1, 0)  # GPU 0's, with descriptors
    size, piece = word(120 * MIB), word(8 * MIB)
    check(cuda.cuMemAddressReserve(ctypes.byref(address), size, word(0), word(0), word(0)))
    for index, handle in enumerate(pieces):
        check(cuda.cuMemCreate(ctypes.byref(handle), piece, what, word(0)))
        check(cuda.cuMemMap(word(address.value + index * piece.value), piece, word(0), handle, word(0)))
    check(cuda.cuMemSetAccess(address, size, (ctypes.c_int * 3)(1, 0, 3), word(1)))
    check(cuda.cuMemsetD8_v2(address, 7, size))
    say("ready")
    sys.stdin.readline()
    for handle in pieces:
        check(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, word(0)))
    say("pinned")
    sys.stdin.read()
    say("right", right(address))
""")


# What it is told is free, and what comes of one byte more in MiB and of that.
ASKS = BEGIN + textwrap.dedent("""
    check(allocate(20 * MIB)[0])
    free, total = word(), word()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    mib = free.value // MIB
    begun = time.monotonic()
    say(mib, allocate((mib + 1) * MIB)[0], round(time.monotonic() - begun), allocate((mib // 2) * MIB)[0])
""")

# Then loads a library.
LOADS = BEGIN + textwrap.dedent("""
    result, address = allocate(120 * MIB)
    check(result)
    if sys.argv[2:] == ["probes"]:
        import _ctypes
        _ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)
    say("ready")
    sys.stdin.readline()
    try:
        ctypes.CDLL(sys.argv[1])
        say("loaded")
    except OSError:
        say("not loaded")
    sys.stdin.read()
    say("right", right(address))
""")


class Stays(Case):
    grace = "30s"
    quantum = "50ms"

    def rotad(self, *options):
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                            "--mode", "exclusive", "--quantum", self.quantum, "--grace", self.grace, *options, ROTA_SIM_TIME_SCALE="1")
        self.eventually(lambda: self.status() is not None, "rotad answers")
        return daemon

    def python(self, program, *arguments, **variables):
        return self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", program, *map(str, arguments),
                          ROTA_SIM_TIME_SCALE="1", ROTA_LOG="debug", **variables)

    def ready(self, child):
        line = child.stdout.readline()
        self.assertEqual(line, "ready\n", "" if line else self.finish(child).stderr[-3000:])

    def client(self, child):
        [client] = [client for client in self.clients() if client["pid"] == child.pid]
        return client

    def on_gpus(self, child, what):
        return sum(gpu[what] for gpu in self.client(child)["use"]["gpus"].values())

    def say(self, child):
        child.stdin.write("\n")
        child.stdin.flush()


class ForNow(Stays):
    grace = "100ms"  # which the kernel outlasts

    # ctest labels: unsanitized
    def test_an_allocation_that_needs_room_of_a_program_whose_kernel_outlasted_its_turn_waits_until_the_kernel_has_ended(self):
        self.rotad()
        long = self.python(LONG_KERNEL, 3)
        self.ready(long)
        grows = self.python(GROWS)
        self.ready(grows)
        self.assertEqual([client["overrun"] for client in self.clients()], [True, False])
        self.eventually(lambda: self.on_gpus(long, "fixed_for_now_bytes"), "its memory is known to stay for now")
        self.say(grows)
        result = self.finish(grows)
        self.assertEqual(result.stdout, "allocated 0\nright True\n", result.stderr[-3000:])
        said = re.findall(r".*an allocation waits for memory on GPU 0.*", result.stderr)
        self.assertEqual(len(said), 1, result.stderr[-3000:])
        self.assertIn(f"pid {long.pid} ", said[0])
        self.assertEqual(self.finish(long).stdout, "right True\n")

    # ctest labels: unsanitized
    def test_a_signal_in_that_wait_has_to_wait_as_well_and_a_line_says_how_to_end_the_program(self):
        self.rotad()
        long = self.python(LONG_KERNEL, 60)
        self.ready(long)
        grows = self.python(GROWS)
        self.ready(grows)
        self.eventually(lambda: self.on_gpus(long, "fixed_for_now_bytes"), "its memory is known to stay for now")
        self.say(grows)
        next(line for line in grows.stderr if "an allocation waits for memory on GPU 0" in line)
        # Again and again, as people do: one that comes just before the wait begins is not noticed.
        said = threading.Event()
        presses = threading.Thread(target=lambda: [grows.send_signal(signal.SIGINT) for _ in iter(lambda: said.wait(0.05), True)])
        presses.start()
        try:
            line = next(line for line in grows.stderr if "a signal has come" in line)
        finally:
            said.set()
            presses.join()
        self.assertIn(f"`kill -9 {grows.pid}` ends the program at once", line)


class WithHogs(Stays):
    def hog(self, share):
        hog = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", share, "--hold", "--ahead", "20",
                         ROTA_SIM_TIME_SCALE="1")
        self.ready(hog)
        return hog


class ForGood(WithHogs):
    # ctest labels: unsanitized
    def test_memory_that_no_longer_fits_beside_what_stays_is_not_offered_and_is_refused_unless_it_waits(self):
        self.rotad("--memory-wait", "0")
        pins = self.python(PINS)
        self.ready(pins)
        self.say(pins)
        self.assertEqual(pins.stdout.readline(), "pinned\n")
        # 120 of 256 MiB stay; contexts take 16 each.
        self.eventually(lambda: self.on_gpus(pins, "fixed_bytes") >= 120 << 20, "rotad knows what stays")
        asks = self.python(ASKS)
        free, more, seconds, half = map(int, self.finish(asks).stdout.split())
        self.assertTrue(60 <= free <= 256 - 120 - 2 * 16 - 20, free)
        self.assertEqual((more, half), (2, 0))
        self.assertLess(seconds, 10)
        self.assertEqual(self.finish(pins).stdout, "right True\n")

    # ctest labels: unsanitized
    def test_a_program_that_no_longer_fits_beside_what_stays_takes_no_turns_from_others_says_why_and_runs_once_that_has_gone(self):
        daemon = self.rotad()
        large = self.hog("0.5")
        pins = self.python(PINS)
        self.ready(pins)
        small = self.hog("0.1")
        self.say(pins)
        self.assertEqual(pins.stdout.readline(), "pinned\n")
        # 128 MiB and 120, with contexts of 16 each, of 256.
        self.eventually(lambda: self.on_gpus(large, "lacks_bytes") and self.client(large)["waits"], "it is passed over")
        grants = self.status()["daemon"]["grants"]
        self.assertRegex(self.checked(ROTA, "status").stdout, r"is passed over: \d+ MiB of its memory do not fit next to what cannot be evicted")
        until = time.monotonic() + 2
        while time.monotonic() < until:
            self.assertEqual((self.client(small)["holds"], self.status()["daemon"]["grants"]), (True, grants))
        # It says so 10 s after it came to the gate.
        said = next(line for line in large.stderr if "waiting for memory on GPU 0" in line)
        self.assertRegex(said, rf"\d+ MiB of this program's memory do not fit next to what cannot be evicted: pid {pins.pid} \(python3, \S+\) 120 MiB; "
                               "since the program has that memory already, no call is refused for it")
        self.assertEqual(self.finish(pins).stdout, "right True\n")
        self.eventually(lambda: self.client(large)["holds"], "it has a turn")
        for hog in large, small:
            result = self.finish(hog)
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertIn('"wrong":0', result.stdout)
        daemon.terminate()
        said = re.findall(r"\(memhog, pid \d+\) is passed over on GPU 0 .*", self.finish(daemon).stderr)
        self.assertEqual(len(said), 1, said)
        self.assertIn(f"(memhog, pid {large.pid}) ", said[0])
        self.assertRegex(said[0], rf"pid {pins.pid} \(python3\) has 120 MiB of that")


class Libraries(WithHogs):
    """A library by whose means a program hands memory to a video engine, which asks for it without any call that rota sees."""
    quantum = "2s"  # so that evicted memory is evicted for a while

    def after_loading(self, library, *arguments, is_back=True, **variables):
        """Of a program that loads it while its memory is evicted."""
        self.rotad()
        loads = self.python(LOADS, library, *arguments, **variables)
        self.ready(loads)
        hog = self.hog("0.7")
        self.assertLess(self.client(loads)["resident_bytes"], 120 << 20)
        self.say(loads)
        said = loads.stdout.readline()
        self.assertEqual(self.client(loads)["resident_bytes"] == 120 << 20, is_back, said)
        return loads, hog, said

    def ends_right(self, loads, hog):
        self.assertEqual(self.finish(loads).stdout, "right True\n")
        self.assertIn('"wrong":0', self.finish(hog).stdout)

    def library(self):
        library = self.scratch / "libnvcuvid.so.1"
        own = re.search(r"(/\S*/libm\.so\.6)$", pathlib.Path("/proc/self/maps").read_text(), re.M)[1]
        shutil.copy(own, library)
        return library

    # ctest labels: unsanitized
    def test_memory_is_back_before_a_library_that_uses_it_privately_is_loaded_and_stays(self):
        loads, hog, said = self.after_loading(self.library())
        self.assertEqual(said, "loaded\n")
        self.eventually(lambda: self.on_gpus(loads, "fixed_bytes") == 120 << 20, "it is known to stay")
        [gpu] = self.client(loads)["use"]["gpus"].values()
        self.assertEqual((gpu["pinned_bytes"]["process"], gpu["pinned_bytes"]["process_reason"]), (120 << 20, "reached_from_outside"))
        self.assertIn("120 MiB: a device, a library or a debugger may reach all of it", self.checked(ROTA, "status").stdout)
        self.ends_right(loads, hog)

    # ctest labels: unsanitized
    def test_a_library_that_was_loaded_and_closed_before_is_waited_for_like_any_other(self):
        loads, hog, said = self.after_loading(self.library(), "probes")
        self.assertEqual(said, "loaded\n")
        self.eventually(lambda: self.on_gpus(loads, "fixed_bytes") == 120 << 20, "it is known to stay")
        self.ends_right(loads, hog)

    # ctest labels: unsanitized
    def test_a_constructor_that_loads_such_a_library_waits_for_nothing_since_it_holds_the_loaders_lock(self):
        loads, hog, said = self.after_loading(PROGRAMS / "libloads_when_loaded.so", is_back=False, ROTA_TEST_LOADS=str(self.library()))
        self.assertEqual(said, "loaded\n")
        self.eventually(lambda: self.on_gpus(loads, "fixed_bytes") == 120 << 20, "it is found a little later")
        self.ends_right(loads, hog)

    # ctest labels: unsanitized
    def test_where_such_a_library_is_not_there_after_all_memory_leaves_again(self):
        loads, hog, said = self.after_loading("libnvcuvid.so.none")  # wherever the loader may look for it
        self.assertEqual(said, "not loaded\n")
        self.eventually(lambda: self.client(loads)["resident_bytes"] < 120 << 20, "its memory leaves")
        self.assertEqual(self.on_gpus(loads, "fixed_bytes"), 0)
        self.ends_right(loads, hog)


if __name__ == "__main__":
    unittest.main()
