"""Programs with swap memory that take all there is of a GPU, alone and together: what they were granted they can use."""
import pathlib
import re
import shutil
import unittest

from harness import ROTA, Case
from sim_case import program

USES = """
M = 1 << 20
def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value
def use(address, size, value):
    assert call("cuMemsetD8_v2", address, ctypes.c_ubyte(value), ctypes.c_size_t(size)) == 0
    assert call("cuCtxSynchronize") == 0
def holds(address, size, value):
    back = ctypes.create_string_buffer(size)
    assert call("cuMemcpyDtoH_v2", back, address, ctypes.c_size_t(size)) == 0
    return back.raw == bytes([value]) * size
def meet(said):
    print(said, flush=True)
    assert sys.stdin.readline()
assert context() == 0
"""

ALL_THAT_IS_FREE = USES + """
size = free_bytes()
result, address = allocate(size)
assert result == 0, result
use(address, size, 7)
assert allocate(1)[0] == 2
use(address, size, 8)
"""

UNTIL_REFUSED = USES + """
small, first = allocate(100)
size = free_bytes() - 6 * M
result, address = allocate(size)
assert (small, result) == (0, 0)
rest = []
while True:
    result, more = allocate(64 << 10)
    if result != 0:
        break
    rest.append(more)
assert result == 2 and len(rest) > 50, (result, len(rest))
use(address, size, 7)
for each in rest:
    use(each, 64 << 10, 3)
use(first, 100, 1)
"""

# A pool keeps nothing by default once the program has waited.
FREED_IN_STREAM_ORDER = USES + """
before = free_bytes()
for size in (80, 40, 5):
    pieces = []
    for _ in range(160 // size):
        address = ctypes.c_uint64()
        assert call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size * M), None) == 0
        pieces.append(address)
    assert free_bytes() <= before - 160 * M
    for each in pieces[1:]:
        assert call("cuMemFreeAsync", each, None) == 0
    assert call("cuCtxSynchronize") == 0
    assert before - size * M - 2 * M <= free_bytes() <= before - size * M, (before, free_bytes(), size)
    assert call("cuMemFreeAsync", pieces[0], None) == 0
    assert call("cuCtxSynchronize") == 0
    assert before - 2 * M <= free_bytes() <= before, (before, free_bytes(), size)
"""

IN_TWO_CONTEXTS = USES + """
one, two = ctypes.c_void_p(), ctypes.c_void_p()
for each in one, two:
    assert call("cuCtxCreate_v2", ctypes.byref(each), 0, 0) == 0
half = free_bytes() // 2 // (2 * M) * 2 * M
result, in_two = allocate(half)
assert result == 0
assert call("cuCtxSetCurrent", one) == 0
size = free_bytes()
result, in_one = allocate(size)
assert result == 0 and size > 64 * M, (result, size)
use(in_one, size, 1)
assert call("cuCtxSetCurrent", two) == 0
use(in_two, half, 2)
assert call("cuCtxDestroy_v2", two) == 0
assert call("cuCtxSetCurrent", one) == 0
assert free_bytes() >= half
"""

# Of the simulated GPU's 256 MiB, two contexts take 32: natively each has half of the rest. What rota keeps in a context may not be paid by the other.
HALF = USES + """
size = 112 * M
meet("context")
result, address = allocate(size)
assert result == 0, result
meet("allocated")
for value in range(5):
    use(address, size, value)
    assert holds(address, size, value)
meet("used")
"""

# A library that reaches memory without calls pins all that the program has, and has from then on.
PINNED = USES + """
ctypes.CDLL(sys.argv[1])
result, address = allocate(40 * M)
assert result == 0, result
use(address, 40 * M, 1)
meet("pinned")
print("more", allocate(40 * M)[0], flush=True)
sys.stdin.readline()
"""

BESIDE = USES + """
size = 150 * M
result, address = allocate(size)
assert result == 0, result
use(address, size, 5)
meet("used")
assert holds(address, size, 5)
print("holds", flush=True)
"""


class FilledGpu(Case):
    def begin(self, body, *arguments, **environment):
        return self.start(ROTA, "run", "--memory", "swap", "--", *program(body), *arguments, **environment)

    def ends_well(self, child):
        result = self.finish(child)
        self.assertEqual(result.returncode, 0, result.stderr)

    def alone(self, body):
        self.start_daemon()
        self.ends_well(self.begin(body))

    def together(self, children, said):
        """Each says it, and goes on once all have."""
        for child in children:
            line = child.stdout.readline().strip()
            self.assertEqual(line, said, "" if line else child.stderr.read())
        for child in children:
            self.tell(child)

    def tell(self, child):
        child.stdin.write("go on\n")
        child.stdin.flush()

    # ctest labels: unsanitized
    def test_a_program_can_use_all_that_is_called_free(self):
        self.alone(ALL_THAT_IS_FREE)

    # ctest labels: unsanitized
    def test_a_program_can_use_what_it_had_until_it_was_refused(self):
        self.alone(UNTIL_REFUSED)

    # ctest labels: unsanitized
    def test_what_was_freed_in_stream_order_is_called_free_once_the_program_has_waited(self):
        self.alone(FREED_IN_STREAM_ORDER)

    # ctest labels: unsanitized
    def test_a_program_can_use_all_that_is_called_free_in_two_contexts(self):
        self.alone(IN_TWO_CONTEXTS)

    # ctest labels: unsanitized
    def test_a_gpu_of_which_a_part_is_kept_free_beside_others_can_be_filled(self):
        self.environment["ROTA_SIM_MEMORY"] = "2G"
        self.alone(ALL_THAT_IS_FREE)

    # ctest labels: unsanitized
    def test_two_that_fit_by_the_books_and_not_by_the_driver_both_work(self):
        self.start_daemon()
        both = [self.begin(HALF) for _ in range(2)]
        for said in "context", "allocated", "used":
            self.together(both, said)
        for child in both:
            self.ends_well(child)

    # ctest labels: unsanitized
    def test_a_pinned_program_gets_no_more_than_leaves_the_others_room_to_come_back(self):
        library = self.scratch / "libnvcuvid.so.1"  # any library by that name
        shutil.copy(re.search(r"(/\S*/libm\.so\.6)$", pathlib.Path("/proc/self/maps").read_text(), re.M)[1], library)
        self.start_daemon("--memory-wait", "0")
        pinned = self.begin(PINNED, library)
        self.assertEqual(pinned.stdout.readline().strip(), "pinned")
        beside = self.begin(BESIDE)
        self.assertEqual(beside.stdout.readline().strip(), "used")
        self.tell(pinned)
        self.assertEqual(pinned.stdout.readline().strip(), "more 2")
        self.tell(beside)
        self.ends_well(beside)
        self.tell(pinned)
        self.ends_well(pinned)


if __name__ == "__main__":
    unittest.main()
