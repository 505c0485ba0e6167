"""What tests of allocations that wait for other programs' memory share."""
import json
import select
import sys

from harness import Case, PATIENCE, ROTA

# Allocates STEPS times MIB, says how many it got, the last answer and the time it took, and checks its memory once its standard input ends. With
# "pause" it waits for a line after the first, with "free" it frees all when told to. With "pinned" all of its memory stays on the GPU, since it calls
# a function of the driver that no header declares, "async": it allocates in a stream's order, "physical": it makes
# memory that it does not map. With "moved" its environment names another rotad by then.
GROWS = r"""
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
steps, mib = int(sys.argv[1]), int(sys.argv[2])
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
if "pinned" in sys.argv:
    cuda.cuMemGetAttribute(0, 0, 0, 0)
if "moved" in sys.argv:
    os.environ["ROTA_SOCKET"] = "/nowhere/rotad.sock"
addresses = []
begun = time.monotonic()
for step in range(steps):
    address = ctypes.c_uint64()
    size = ctypes.c_size_t(mib << 20)
    if "async" in sys.argv:
        result = cuda.cuMemAllocAsync(ctypes.byref(address), size, None)
    elif "physical" in sys.argv:
        what = (ctypes.c_int * 8)(1, 0, 1, 0)  # of GPU 0
        result = cuda.cuMemCreate(ctypes.byref(address), size, what, ctypes.c_ulonglong(0))
    else:
        result = cuda.cuMemAlloc_v2(ctypes.byref(address), size)
    if result != 0:
        break
    if "physical" not in sys.argv:
        check(cuda.cuMemsetD32_v2(address, step, ctypes.c_size_t(mib << 18)))
    addresses.append(address)
    if "pause" in sys.argv and step == 0:
        print("one", flush=True)
        sys.stdin.readline()
print(len(addresses), result, round(time.monotonic() - begun, 3), flush=True)
for line in sys.stdin:
    if line == "free\n":
        for address in addresses:
            check(cuda.cuMemFree_v2(address))
        print("freed", flush=True)
for number, address in enumerate(addresses):
    last = ctypes.c_uint32()
    if "free" not in sys.argv and "physical" not in sys.argv:
        check(cuda.cuMemcpyDtoH_v2(ctypes.byref(last), ctypes.c_uint64(address.value + (mib << 20) - 4), ctypes.c_size_t(4)))
        assert last.value == number
"""


class WaitCase(Case):
    def grower(self, steps, mib, *arguments, run=(), **environment):
        return self.start(ROTA, "run", *run, "--", sys.executable, "-c", GROWS, steps, mib, *arguments, **environment)

    def said(self, child):
        """(allocations, result of the last one, seconds)"""
        line = child.stdout.readline().split()
        self.assertEqual(len(line), 3, child.stderr.read() if child.poll() is not None else line)
        return int(line[0]), int(line[1]), float(line[2])

    def awaits(self, child):
        """Whether an allocation of the child's waits for memory."""
        return any(c["pid"] == child.pid and any(task["awaited_bytes"] for task in (c["use"] or {"gpus": {}})["gpus"].values()) for c in self.clients())

    def until_it_waits(self, child):
        self.eventually(lambda: self.awaits(child), lambda: f"its allocation waits for memory\n{json.dumps(self.status(), indent=1)}")

    def each_ends_well(self, children, how=None):
        """One after the other: each has its one allocation, and ends."""
        children = list(children)
        while children:
            ready, _, _ = select.select([child.stdout for child in children], [], [], PATIENCE)
            self.assertEqual(len(ready), 1, how)
            child = next(child for child in children if child.stdout is ready[0])
            self.assertEqual(self.said(child)[:2], (1, 0), how)
            self.assertEqual(self.finish(child).returncode, 0, how)
            children.remove(child)
