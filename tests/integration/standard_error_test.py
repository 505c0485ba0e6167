"""rota writes its messages to the program's standard error, and not to a file that only happens to be descriptor 2."""
import os
import subprocess
import sys
import unittest

from harness import Case, PATIENCE, ROTA, SHIMS

# {deeds}: what the program does with its descriptors before its first CUDA call. At that call rota complains about ROTA_LOG.
PROGRAM = r"""
import ctypes, os, socket, sys
data = sys.argv[1]
def opened(path, flags, number):
    descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
{deeds}
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
open(data + ".descriptors", "w").write("\n".join(os.readlink("/proc/self/fd/" + name) if os.path.lexists("/proc/self/fd/" + name)
                                                 else "" for name in "012"))
"""
SAID = "rota: ROTA_LOG is 'loud': use error, warn, info or debug; warn is used\n"


class StandardError(Case):
    def run_program(self, deeds, **streams):
        self.data = self.scratch / "data"
        self.data.write_text("mine\n")
        streams.setdefault("stderr", subprocess.PIPE)
        child = subprocess.Popen([sys.executable, "-c", PROGRAM.replace("{deeds}", deeds), self.data],
                                 env=dict(self.environment, LD_PRELOAD=str(SHIMS / "librota.so"), ROTA_LOG="loud"), start_new_session=True,
                                 text=True, **streams)
        self.children.append(child)
        said = child.communicate(timeout=PATIENCE)[1]
        self.assertEqual(child.returncode, 0, said)
        return said

    # ctest labels: unsanitized
    def test_standard_error_is_what_the_process_began_with(self):
        self.assertEqual(self.run_program(""), SAID)
        with (self.scratch / "log").open("w") as log:
            self.run_program("", stderr=log)
        self.assertEqual((self.scratch / "log").read_text(), SAID)

    # ctest labels: unsanitized
    def test_nothing_in_a_file_is_replaced(self):
        for flags in ("r+", "a+"):
            with self.subTest(flags):
                data = self.scratch / "theirs"
                data.write_text("theirs\n" * 99)
                with data.open(flags) as stream:
                    self.run_program("", stderr=stream)
                self.assertEqual(data.read_text(), "theirs\n" * 99 + (SAID if flags == "a+" else ""))

    # ctest labels: unsanitized
    def test_lines_go_to_the_file_that_the_program_puts_at_descriptor_2(self):
        for deeds in ("opened(data, os.O_WRONLY | os.O_TRUNC, 1); os.dup2(1, 2)",
                      "r, w = os.pipe(); os.dup2(w, 2); import atexit; atexit.register(lambda: open(data, 'wb').write(os.read(r, 999)))"):
            with self.subTest(deeds):
                self.assertEqual(self.run_program(deeds), "")
                self.assertEqual(self.data.read_text(), SAID)

    # ctest labels: unsanitized
    def test_a_file_that_the_program_opens_after_closing_standard_error_is_not_written_to(self):
        for flags in ("os.O_RDWR", "os.O_WRONLY", "os.O_WRONLY | os.O_APPEND"):
            with self.subTest(flags):
                self.assertEqual(self.run_program(f"os.close(2); opened(data, {flags}, 2)"), "")
                self.assertEqual(self.data.read_text(), "mine\n")

    # ctest labels: unsanitized
    def test_if_a_process_began_without_standard_error_a_file_with_descriptor_2_is_not_written_to(self):
        for deeds in ("opened(data, os.O_RDWR, 2)", "r, w = os.pipe(); os.dup2(w, 2); os.set_blocking(r, False); got = None"):
            with self.subTest(deeds):
                self.run_program(deeds, preexec_fn=lambda: os.close(2))
                self.assertEqual(self.data.read_text(), "mine\n")

    # ctest labels: unsanitized
    def test_a_programs_own_connection_with_descriptor_2_is_not_written_to(self):
        self.run_program("""
near, far = socket.socketpair()
os.dup2(near.fileno(), 2)
far.setblocking(False)
import atexit
def silent():
    try:
        open(data, "ab").write(far.recv(999))
    except BlockingIOError:
        pass
atexit.register(silent)""")
        self.assertEqual(self.data.read_text(), "mine\n")

    # ctest labels: unsanitized
    def test_no_descriptor_of_rotas_has_a_number_that_the_program_closed(self):
        self.start_daemon()
        self.run_program("os.closerange(0, 3)")
        self.assertNotIn("socket", (self.scratch / "data.descriptors").read_text())

    # ctest labels: unsanitized
    def test_a_pipe_without_a_reader_ends_no_program_and_a_full_pipe_blocks_none(self):
        broken = "r, w = os.pipe(); os.dup2(w, 2); os.close(w); os.close(r); import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)"
        full = "r, w = os.pipe(); os.set_blocking(w, False)\ntry:\n    while True: os.write(w, b'x' * 4096)\nexcept BlockingIOError: pass\nos.set_blocking(w, True); os.dup2(w, 2)"
        for deeds in (broken, full):
            with self.subTest(deeds):
                self.run_program(deeds)


class Commands(Case):
    """A command whose output cannot be written says so by its status, and does not abort."""

    # ctest labels: unsanitized
    def test_output_that_cannot_be_written_is_an_error(self):
        self.start_daemon()
        for command in (["--help"], ["--version"], ["run", "--help"], ["status"], ["status", "--json"], ["doctor"], ["control", "quantum", "20ms"]):
            for state, prepare in (("full", lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)), ("closed", lambda: os.close(1)),
                                   ("both full", lambda: [os.dup2(os.open("/dev/full", os.O_WRONLY), number) for number in (1, 2)])):
                with self.subTest(command=command, state=state):
                    result = subprocess.run([ROTA, *command], env=self.environment, preexec_fn=prepare, stderr=subprocess.PIPE, text=True,
                                            timeout=PATIENCE, check=False)
                    self.assertEqual(result.returncode, 1, result.stderr)
                    if state != "both full":
                        self.assertIn("cannot write to standard output: ", result.stderr)


if __name__ == "__main__":
    unittest.main()
