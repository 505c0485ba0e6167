"""The preload is fitted to the driver: functions that the driver lacks are absent however a program looks them up, and
functions that rota does not know are present. preload_cache_test.py tests the cache of the copies made for that."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from harness import Case, POSED_DRIVERS, ROOT, ROTA, SHIMS, SIM_DRIVER

PLAIN = SHIMS / "librota.so"

# What a framework does to find the available functions: of the names in a file, those that exist, for each way to look
# them up.
ASK = r"""
import ctypes, json, os, sys
names = json.load(open(sys.argv[1]))
own = ctypes.CDLL(None)
own.dlsym.restype = ctypes.c_void_p
own.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
own.dlopen.restype = ctypes.c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
handle = ctypes.c_void_p(own.dlopen(b"libcuda.so", 2))
def found(library):
    return [name for name in names if own.dlsym(library, name.encode())]
print(json.dumps({
    "default": found(None),
    "libcuda.so": found(handle),
    "hasattr": [name for name in names if hasattr(cuda, name)],
    "preload": ":".join(path for path in os.environ["LD_PRELOAD"].split(":") if not path.endswith("/librota-nvml.so"))}))
"""

# Twice calls a function that no rota knows, and prints where the driver's own address for its name is.
CALL = r"""
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
answer = ctypes.c_int(0)
for _ in range(2):
    assert cuda.cuRotaSimFutureCall(ctypes.byref(answer)) == 0
pointer, status = ctypes.c_void_p(0), ctypes.c_int(99)
ask = cuda.cuGetProcAddress_v2
ask.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
def file_of(name):
    assert ask(name, ctypes.byref(pointer), 14000, 0, ctypes.byref(status)) == 0
    for line in open("/proc/self/maps"):
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if begin <= pointer.value < end:
            return os.path.realpath(line.split()[-1])
print(answer.value, file_of(b"cuRotaSimFutureCall"), status.value, file_of(b"cuMemAlloc"), status.value)
"""

DIRECT = r"""
#include <stdio.h>
int cuInit(unsigned);
int cuRotaSimFutureCall(int*);
int main(void) {
  int answer = 0;
  int started = cuInit(0);
  int called = cuRotaSimFutureCall(&answer);
  printf("%d %d %d\n", started, called, answer);
  return 0;
}
"""


# Linked with a function that came with CUDA 12.8, and asks for it by name as well.
LATER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cuInit(unsigned);
int cuStreamGetDevice(void*, int*);
int main(void) {
  int device = 99;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  printf("%d %d ", cuInit(0), cuStreamGetDevice((void*)0, &device));
  printf("%d %d\n", dlsym(RTLD_DEFAULT, "cuStreamGetDevice") != NULL, dlsym(driver, "cuStreamGetDevice") != NULL);
  return 0;
}
"""


def exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


class Fitted(Case):
    def setUp(self):
        super().setUp()
        self.cache = pathlib.Path(self.environment["ROTA_CACHE"])
        # Every driver function that rota knows, those that no driver has yet, and one that does not exist.
        self.names = self.scratch / "names.json"
        known = [name for name in exports(PLAIN) if name.startswith("cu")]
        self.names.write_text(json.dumps(known + ["cuRotaSimFutureCall", "cuRotaSimFutureFillAsync", "cuNothing"]))

    def pose(self, version):
        self.environment["ROTA_REAL_LIBCUDA"] = str(POSED_DRIVERS / version / "libcuda.so.1")
        self.environment["LD_LIBRARY_PATH"] = f"{POSED_DRIVERS / version}:{SHIMS / 'simgpu'}"

    def asked(self, *prefix, **environment):
        """What a program under `rota run` finds, and the library that it was given to load."""
        result = self.checked(*(prefix or (ROTA, "run", "--")), sys.executable, "-c", ASK, self.names, **environment)
        found = json.loads(result.stdout)
        return {way: set(names) for way, names in found.items() if way != "preload"}, pathlib.Path(found["preload"]), result.stderr

    def given(self, *prefix, **environment):
        """The library that a program under `rota run` is given."""
        result = self.checked(*prefix, ROTA, "run", "--", "printenv", "LD_PRELOAD", **environment)
        return pathlib.Path(result.stdout.strip().split(":")[0])

    def shows_exactly(self, found, driver):
        has = {name for name in exports(driver) if name.startswith("cu")}
        for way, names in found.items():
            with self.subTest(way=way, driver=driver):
                self.assertEqual(names, has)

    def entries(self):
        return sorted(entry for entry in self.cache.iterdir()) if self.cache.exists() else []

    def fitted_at(self, cache):
        self.pose("12.4")
        return self.asked(ROTA_CACHE=str(cache))[1]

    def fitted_once(self, **environment):
        """Fits the preload to a driver; returns the library."""
        self.pose("12.4")
        _, library, _ = self.asked(**environment)
        self.assertEqual(library.parent.parent, self.cache)
        return library


class Absence(Fitted):
    def test_a_program_sees_the_drivers_functions_and_no_others_however_it_asks(self):
        for version in ("11.2", "12.4", "14.0"):
            self.pose(version)
            found, library, _ = self.asked()
            self.assertEqual(library.parent.parent, self.cache)
            self.shows_exactly(found, POSED_DRIVERS / version / "libcuda.so.1")

    def test_the_driver_is_the_one_that_the_program_will_find(self):
        folders = [self.scratch / name for name in ("link", "copy", "text", "other")]
        for folder in folders:
            folder.mkdir()
        (folders[0] / "libcuda.so.1").symlink_to(PLAIN)
        shutil.copy(PLAIN, folders[1] / "libcuda.so.1")
        (folders[2] / "libcuda.so.1").write_text("INPUT(-lcuda)")
        shutil.copy(SHIMS / "librota-cudart.so", folders[3] / "libcuda.so.1")  # a library, and no driver
        driver = POSED_DRIVERS / "12.2/libcuda.so.1"
        del self.environment["ROTA_REAL_LIBCUDA"]
        path = ":".join(str(folder) for folder in [*folders, driver.parent, POSED_DRIVERS / "14.0"])
        found, _, _ = self.asked(LD_LIBRARY_PATH=path)
        self.shows_exactly(found, driver)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler on this machine")
    def test_under_nvidias_driver_580_159_a_program_sees_its_functions_and_not_the_debuggers(self):
        # A library with the recorded exports; nothing in it is called.
        lines = (ROOT / "tests/data/libcuda-580.159-exports.txt").read_text().splitlines()
        recorded = {line for line in lines if line and not line.startswith("#")}
        debuggers = {name for name in recorded if name.startswith("cudbg")}
        self.assertGreater(len(debuggers), 10)
        source, driver = self.scratch / "exports.s", self.scratch / "libcuda.so.1"
        source.write_text("".join(f".globl {name}\n.type {name}, %function\n{name}: ret\n" for name in sorted(recorded)))
        subprocess.run(["cc", "-shared", "-nostdlib", "-o", driver, source], check=True)
        self.names.write_text(json.dumps(sorted(recorded | set(json.loads(self.names.read_text())))))
        found, library, _ = self.asked(ROTA_REAL_LIBCUDA=str(driver))
        self.assertEqual(library.parent.parent, self.cache)
        for way, names in found.items():
            self.assertEqual(names, recorded - debuggers, way)

    def test_a_traced_program_sees_the_same(self):
        self.pose("11.2")
        result = self.checked(ROTA, "trace", "--dir", self.scratch / "trace", "--", sys.executable, "-c", ASK, self.names)
        self.shows_exactly({"traced": set(json.loads(result.stdout)["hasattr"])}, POSED_DRIVERS / "11.2/libcuda.so.1")

    def test_the_shim_as_installed_shows_all_it_knows(self):
        # Otherwise the test above would prove nothing.
        self.pose("11.2")
        found, _, _ = self.asked("env", f"LD_PRELOAD={PLAIN}")
        self.assertIn("cuGetProcAddress_v2", found["hasattr"])
        self.assertNotIn("cuRotaSimFutureCall", found["hasattr"])

    def test_a_driver_of_rotas_own_age_needs_no_copy(self):
        self.environment["ROTA_REAL_LIBCUDA"] = str(SIM_DRIVER)
        found, library, _ = self.asked()
        self.assertEqual(library, PLAIN)
        self.shows_exactly(found, SIM_DRIVER)
        self.assertEqual(self.entries(), [])

    def test_without_a_driver_the_preload_is_the_installed_one(self):
        _, library, errors = self.asked(ROTA_REAL_LIBCUDA=str(self.scratch / "nothing"))
        self.assertEqual((library, errors), (PLAIN, ""))

    def test_children_and_what_they_start_see_the_same(self):
        self.pose("11.2")
        shell = '"$0" -c "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))" "$0" "$@"'
        found, _, _ = self.asked(ROTA, "run", "--", "sh", "-c", shell)
        self.shows_exactly(found, POSED_DRIVERS / "11.2/libcuda.so.1")

    # ctest labels: unsanitized
    def test_rota_run_within_rota_run_fits_the_preload_anew(self):
        self.pose("11.2")
        inner = POSED_DRIVERS / "14.0/libcuda.so.1"
        found, library, _ = self.asked(ROTA, "run", "--", "env", f"ROTA_REAL_LIBCUDA={inner}", ROTA, "run", "--")
        self.shows_exactly(found, inner)
        self.assertEqual(str(library).count("librota.so"), 1)  # and not the outer one's behind it


class Unknown(Fitted):
    # ctest labels: unsanitized
    def test_a_call_that_rota_does_not_know_is_said_once_and_pins_memory_first(self):
        self.pose("14.0")
        result = self.checked(ROTA, "run", "--", sys.executable, "-c", CALL, ROTA_LOG="info")
        driver = os.path.realpath(POSED_DRIVERS / "14.0/libcuda.so.1")
        answer, asked, status, known, known_status = result.stdout.split()
        # cuGetProcAddress still returns the driver's own address for a function that rota does not know.
        self.assertEqual((answer, asked, status, known_status), ("1", driver, "0", "0"))
        self.assertEqual(os.path.basename(known), "librota.so")
        said = [line for line in result.stderr.splitlines() if "cuRotaSimFutureCall is unknown to rota and passes through" in line]
        self.assertEqual(len(said), 1, result.stderr)
        self.assertLess(result.stderr.index("cannot see every use"), result.stderr.index("passes through"))

    # ctest labels: unsanitized
    @unittest.skipUnless(shutil.which("cc"), "no C compiler on this machine")
    def test_a_program_linked_with_a_function_that_rota_does_not_know_runs(self):
        self.pose("14.0")
        driver = POSED_DRIVERS / "14.0/libcuda.so.1"
        source, program = self.scratch / "direct.c", self.scratch / "direct"
        source.write_text(DIRECT)
        subprocess.run(["cc", "-o", program, source, driver], check=True)
        self.assertEqual(self.checked(ROTA, "run", "--", program).stdout, "0 0 1\n")
        bound = self.checked(ROTA, "run", "--", program, LD_BIND_NOW="1")
        self.assertEqual(bound.stdout, "0 0 1\n")

    # ctest labels: unsanitized
    @unittest.skipUnless(shutil.which("cc"), "no C compiler on this machine")
    def test_a_program_linked_with_what_the_driver_lacks_starts_and_reaches_it_in_a_child_with_a_newer_driver(self):
        newer = POSED_DRIVERS / "13.0/libcuda.so.1"
        source, program = self.scratch / "later.c", self.scratch / "later"
        source.write_text(LATER)
        subprocess.run(["cc", "-o", program, source, newer], check=True)
        self.pose("12.4")
        for environment in ({}, {"LD_BIND_NOW": "1"}):
            old = self.checked(ROTA, "run", "--", program, **environment)
            self.assertEqual((old.stdout, old.stderr), ("0 801 0 0\n", ""))
            new = self.checked(ROTA, "run", "--", "env", f"ROTA_REAL_LIBCUDA={newer}", program, **environment)
            alone = self.checked(ROTA, "run", "--", program, ROTA_REAL_LIBCUDA=str(newer), **environment)
            self.assertEqual(new.stdout.split()[:2], alone.stdout.split()[:2])
            self.assertNotEqual(new.stdout.split()[1], "801")

    # ctest labels: unsanitized
    def test_without_the_core_such_a_call_goes_to_the_driver_all_the_same(self):
        library = self.fitted_once()
        self.pose("14.0")
        _, library, _ = self.asked()
        (library.parent / "librota-core.so").unlink()
        self.assertTrue(self.checked(sys.executable, "-c", CALL, LD_PRELOAD=str(library)).stdout.startswith("1 "))

    # ctest labels: unsanitized
    def test_a_copy_fitted_to_another_driver_answers_that_the_function_is_not_there(self):
        self.pose("14.0")
        _, library, _ = self.asked()
        self.pose("12.4")
        script = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); print(c.cuInit(0), c.cuRotaSimFutureCall(None))"
        self.assertEqual(self.checked(sys.executable, "-c", script, LD_PRELOAD=str(library)).stdout, "0 801\n")


if __name__ == "__main__":
    unittest.main()
