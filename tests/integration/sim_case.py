"""What the tests of `rota sim` share: short programs and private machines."""
import json
import sys

from harness import ROTA, Case

# A short CUDA program: queries the driver, or does what the test wants, and prints the result as JSON.
PRELUDE = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    return getattr(cuda, name)(*arguments)
def context():
    assert call("cuInit", 0) == 0
    handle = ctypes.c_void_p()
    result = call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), 0)
    return result or call("cuCtxSetCurrent", handle)
def allocate(size):
    address = ctypes.c_uint64()
    return call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size)), address
"""


def program(body):
    return [sys.executable, "-B", "-c", PRELUDE + body]


class SimCase(Case):
    def setUp(self):
        super().setUp()
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()
        self.environment = {name: value for name, value in self.environment.items()
                            if not name.startswith("ROTA_SIM_") and name not in ("LD_LIBRARY_PATH", "ROTA_REAL_LIBCUDA", "ROTA_SOCKET")}
        self.environment.update(TMPDIR=str(self.temporary))

    def sim(self, *arguments, **environment):
        result = self.call(ROTA, "sim", *arguments, **environment)
        self.assertEqual(list(self.temporary.iterdir()), [], "something was left behind")
        return result

    def refused(self, named, *options, **environment):
        touched = self.scratch / "touched"
        result = self.sim(*options, "--", "touch", touched, **environment)
        self.assertEqual(result.returncode, 125, result.stderr)
        self.assertIn(named, result.stderr)
        self.assertFalse(touched.exists())
        return result

    def asked(self, options, body):
        result = self.sim(*options, "--", *program(body))
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)
