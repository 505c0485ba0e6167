"""What the built shims ask of a machine and what they show to a program, read with readelf and objdump."""
import os
import re
import subprocess
import tempfile
import unittest

SHIMS = os.environ["ROTA_SHIM_DIRECTORY"]
SOURCE = os.environ["ROTA_SOURCE_DIRECTORY"]
THIN = os.path.join(SHIMS, "librota.so")
NVML = os.path.join(SHIMS, "librota-nvml.so")
CORE = os.path.join(SHIMS, "librota-core.so")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(path):
    """(name, version, defined) of every dynamic symbol that others can see: aarch64's linker lists its sections, too."""
    found = []
    for line in output("objdump", "-T", path).splitlines():
        match = re.match(r"[0-9a-f]{16} [^l].{6} (\S+)\s+[0-9a-f]{16}\s+(?:\(?([\w.]+)\)?\s+)?(?:\.\w+ )?(\S+)$", line)
        if match:
            found.append((match[3], match[2] or "", match[1] != "*UND*"))
    return found


def exported(path):
    return {name for name, _, defined in symbols(path) if defined}


def listed():
    with open(os.path.join(SOURCE, "generated", "driver_symbols.inc"), encoding="ascii") as lines:
        return set(re.findall(r"(?m)^ROTA_SYMBOL\((\w+)\)", lines.read()))


def spares(library=THIN):
    """The thunks that wait for the names of functions that rota does not know, in their order."""
    return sorted(name for name in exported(library) if re.match(r"rota_spare_[0-9a-f]{2}_", name))


def newest_glibc(path):
    versions = re.findall(r"GLIBC_([0-9.]+)", output("objdump", "-T", path) + output("readelf", "-VW", path))
    return max(tuple(int(part) for part in version.split(".")) for version in versions)


def recorded(name):
    with open(os.path.join(SOURCE, "tests", "data", name), encoding="ascii") as lines:
        return {line.strip() for line in lines if line.strip() and not line.startswith(("#", "cudbg"))}


class EveryProcessLoadsIt:
    """What holds for each library that `rota run` preloads into every process."""

    def test_it_needs_no_glibc_newer_than_2_28(self):
        self.assertLessEqual(newest_glibc(self.library), (2, 28))

    def test_it_needs_the_c_library_alone(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", self.library))
        self.assertEqual(needed, ["libc.so.6"])

    def test_nothing_of_it_runs_at_exit_and_at_load_no_more_than_it_says(self):
        dynamic = output("readelf", "-dW", self.library)
        self.assertIsNone(re.search(r"\((INIT|FINI|FINI_ARRAY|PREINIT_ARRAY)\)", dynamic))
        constructors = re.search(r"\(INIT_ARRAYSZ\) +(\d+) ", dynamic)
        self.assertEqual(int(constructors[1]) // 8 if constructors else 0, self.constructors)
        self.assertNotIn("TEXTREL", dynamic)

    def test_its_soname_is_that_of_the_library_it_stands_in_front_of(self):
        self.assertIn(f"soname: [{self.soname}]", output("readelf", "-dW", self.library))

    def test_its_stack_is_not_executable(self):
        self.assertRegex(output("readelf", "-lW", self.library), r"GNU_STACK .* RW ")

    def test_every_copy_carries_the_mark(self):
        self.assertRegex(output("readelf", "-nW", self.library), r"(?m)^\s+rota\s")


class Thin(EveryProcessLoadsIt, unittest.TestCase):
    library, soname, constructors = THIN, "libcuda.so.1", 2  # running_test.cpp, core_library.cpp

    def test_it_shows_the_drivers_names_dlopen_and_reserved_names_and_nothing_else(self):
        self.assertEqual(exported(THIN), listed() | {"dlopen"} | set(spares()))
        # Long enough to take the name of any function to come: the longest that rota knows has 48 characters.
        self.assertGreater(min(map(len, spares())), max(map(len, listed())) + 16)

    def test_every_name_of_the_recorded_driver_is_there(self):
        self.assertEqual(recorded("libcuda-580.159-exports.txt") - exported(THIN), set())


class Nvml(EveryProcessLoadsIt, unittest.TestCase):
    library, soname, constructors = NVML, "libnvidia-ml.so.1", 1  # core_library.cpp

    def test_it_shows_the_recorded_librarys_names_and_reserved_ones_and_nothing_else(self):
        names = recorded("libnvidia-ml-580.159-exports.txt")
        self.assertEqual(exported(NVML), names | set(spares(NVML)))
        self.assertEqual(len(spares(NVML)), 128)
        # Long enough to take the name of any function to come.
        self.assertGreater(min(map(len, spares(NVML))), max(map(len, names)) + 16)


class Core(unittest.TestCase):
    def test_it_shows_what_the_other_shims_call_and_nothing_else(self):
        self.assertEqual(exported(CORE), {"rota_core_attach", "rota_core_choose_gpus", "rota_core_gpu_memory", "rota_core_test", "rota_core_trace"})

    @unittest.skipIf(os.environ.get("ROTA_SANITIZED"), "a sanitized core needs the sanitizer's libraries")
    def test_it_brings_its_own_standard_library(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", CORE))
        self.assertEqual([name for name in needed if name.startswith(("libstdc++", "libfmt"))], [])
        # The unwinder alone is the process's: with a second one a thread that is cancelled in a call aborts the program.
        self.assertIn("libgcc_s.so.1", needed)


class OtherProcessor(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("ROTA_CLANG"), "no clang to assemble for aarch64")
    def test_the_thunks_assemble_for_aarch64_at_their_stride(self):
        self.assertEqual(len(spares()), 128)
        self.check("cuda", sorted(listed()) + spares())
        self.check("nvml", sorted(recorded("libnvidia-ml-580.159-exports.txt")) + spares(NVML))

    def check(self, part, names):
        with tempfile.TemporaryDirectory(prefix="rota-interpose-") as folder:
            built = os.path.join(folder, "thunks.o")
            source = os.path.join(SOURCE, "runtime", "preload", part, "thunks.S")
            output(os.environ["ROTA_CLANG"], "--target=aarch64-linux-gnu", "-I", SOURCE, "-c", source, "-o", built)
            places = {}
            for line in output("readelf", "-sW", built).splitlines():
                words = line.split()
                if len(words) == 8 and words[3] == "FUNC" and words[4] == "GLOBAL":
                    places[words[7]] = int(words[1], 16)
            self.assertEqual([places[name] for name in names], [32 * index for index in range(len(names))])


if __name__ == "__main__":
    unittest.main()
