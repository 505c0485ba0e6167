"""Programs that have opened all that they may (`ulimit -n`), as a busy server does, and a rotad that is restarted."""
import sys
import unittest

from harness import Case, ROTA

# Once told, it uses up its descriptors (and says so); once told again it closes them, if it is to, and fills its memory and
# reads it, three times.
PROGRAM = """
import ctypes, os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
call("cuInit", 0)
context, memory, size = ctypes.c_void_p(), ctypes.c_uint64(), int(sys.argv[3]) << 20
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
call("cuMemsetD8_v2", memory, ctypes.c_ubyte(9), ctypes.c_size_t(size))
call("cuCtxSynchronize")
print("ready", flush=True)
sys.stdin.readline()
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("used up", flush=True)
sys.stdin.readline()
if sys.argv[2] == "close":
    for each in opened:
        os.close(each)
text = ctypes.create_string_buffer(1 << 20)
for value in (1, 2, 3):
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(value), ctypes.c_size_t(size))
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH_v2", text, ctypes.c_uint64(memory.value + size - len(text)), ctypes.c_size_t(len(text)))
    assert text.raw == bytes([value]) * len(text)
print("right", flush=True)
sys.stdin.readline()
"""


class Descriptors(Case):
    def two(self, most, then, mib):
        program = self.scratch / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        both = [self.start(ROTA, "run", "--", sys.executable, "-B", program, str(most), then, str(mib)) for _ in range(2)]
        for child in both:
            self.hears(child, "ready")
        for child in both:
            self.tell(child)
        for child in both:
            self.hears(child, "used up")
        return both

    def hears(self, child, line):
        said = child.stdout.readline().strip()
        if said != line:
            self.fail(f"{said!r} instead of {line!r}: {self.finish(child).stderr}")

    def tell(self, child):
        child.stdin.write("\n")
        child.stdin.flush()

    def restart(self, daemon):
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        return self.start_daemon()

    def check_right(self, both):
        for child in both:
            self.tell(child)
        for child in both:
            self.hears(child, "right")
        for child in both:
            self.assertEqual(self.finish(child).returncode, 0)

    # ctest labels: unsanitized
    def test_programs_that_have_used_up_their_descriptors_follow_a_rotad_that_is_restarted(self):
        daemon = self.start_daemon()
        # They fit together: the simulated driver has a descriptor for each piece of memory, and could not bring any back.
        both = self.two(256, "keep", 100)
        pids = {child.pid for child in both}
        for _ in range(2):
            daemon = self.restart(daemon)
            self.eventually(lambda: {row["pid"] for row in self.clients() if row["gpus"]} >= pids, "both are served again")
        self.check_right(both)

    # ctest labels: unsanitized
    def test_a_program_with_no_descriptor_to_spare_says_so_once_and_follows_when_it_has_closed_some(self):
        daemon = self.start_daemon()
        both = self.two(60, "close", 150)
        self.restart(daemon)
        for child in both:
            line = child.stderr.readline()
            while "descriptor" not in line:
                self.assertNotEqual(line, "", "its standard error output is over")
                line = child.stderr.readline()
            self.assertEqual(line, "rota: no descriptor is left to reach rotad: raise the program's limit (`ulimit -n`), or let it close some\n")
        for child in both:
            self.tell(child)
        for child in both:
            self.hears(child, "right")
        for child in both:
            self.assertNotIn("descriptor", self.finish(child).stderr)


if __name__ == "__main__":
    unittest.main()
