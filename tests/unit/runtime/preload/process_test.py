"""Processes under librota.so, with a driver of a handful of functions (driver.cpp) in the place of NVIDIA's.

Each test starts real processes with LD_PRELOAD and compares what the probe (probe.cpp) saw.
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SHIMS = os.environ["ROTA_SHIM_DIRECTORY"]
BUILT = os.environ["ROTA_TEST_DIRECTORY"]
SHIM = os.path.join(SHIMS, "librota.so")
PROBE = os.path.join(BUILT, "probe", "interpose_probe")
BYSTANDER = os.path.join(BUILT, "probe", "interpose_bystander")
DRIVER = os.path.join(BUILT, "driver", "libcuda.so.1")

NO_DEVICE, NOT_INITIALIZED, NOT_SUPPORTED, INVALID_VALUE, NOT_FOUND = 100, 3, 801, 1, 500


class Preloaded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rota-interpose-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *command, shim=SHIM, driver=DRIVER, folder=None, **variables):
        """Runs a command under the preload; returns (stdout, stderr) of a process that ended with 0."""
        environment = {"PATH": os.environ["PATH"], "ROTA_SOCKET": os.path.join(self.folder, "none.sock")}
        if shim:
            environment["LD_PRELOAD"] = shim
        if driver:
            environment["ROTA_REAL_LIBCUDA"] = driver
        environment.update(variables)
        done = subprocess.run(command, env=environment, cwd=folder or self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout.strip(), done.stderr.strip()

    def probe(self, *words, **options):
        return self.start(PROBE, *words, **options)[0]

    def copy_of_shim(self, *names):
        """A folder with copies of the built libraries."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name in names:
            shutil.copy(os.path.join(SHIMS, name), folder)
        return folder


class Calls(Preloaded):
    def test_every_argument_arrives_on_the_first_call_and_on_later_ones(self):
        self.assertEqual(self.probe("arguments"), "4242 4242")

    def test_whole_vectors_and_a_result_in_memory_pass_the_first_call_and_later_ones(self):
        once = [number for part in range(1, 9) for number in (str(part), str(-part))]
        self.assertEqual(self.probe("vectors").split(), once * 2)

    def test_many_threads_may_make_the_first_call_at_once(self):
        for _ in range(10):
            self.assertEqual(self.probe("threads", "24"), "24")

    def test_the_core_is_found_through_a_link_to_the_preload(self):
        link = os.path.join(self.folder, "libcuda.so.1")
        os.symlink(SHIM, link)
        self.assertTrue(self.probe("address", "cuInit", "12000", "0", shim=link).startswith("0 0 cuInit "))

    def test_a_function_that_the_driver_lacks_answers_not_supported(self):
        self.assertEqual(self.probe("call", "cuMulticastCreate"), f"cuMulticastCreate {NOT_SUPPORTED}")

    def test_calls_go_on_in_the_child_of_a_fork(self):
        self.assertEqual(self.probe("fork").split(), ["7", "4242", "7"])

    def test_a_library_that_calls_cuda_while_it_is_loaded_does_not_hang_the_first_call(self):
        library = os.path.join(BUILT, "constructor", "libconstructor.so")
        for _ in range(10):
            self.assertEqual(self.probe("constructor", library), "4242 0")


class UnusableCore(Preloaded):
    """Calls go straight to the driver, and one line a process says why."""

    def setUp(self):
        super().setUp()
        self.shims = self.copy_of_shim("librota.so", "librota-core.so")
        self.core = os.path.join(self.shims, "librota-core.so")

    def replace_in_core(self, old, new):
        with open(self.core, "rb") as file:
            content = file.read()
        self.assertIn(old, content)
        with open(self.core, "wb") as file:
            file.write(content.replace(old, new))

    def said(self, *words, answer="4242 4242", **variables):
        """What is on stderr after the calls have been answered by the driver."""
        out, said = self.start(PROBE, *words, shim=os.path.join(self.shims, "librota.so"), **variables)
        self.assertEqual(out, answer)
        return said

    def expect(self, why, remedy):
        self.assertEqual(self.said("arguments"), f"rota: {self.core} cannot be loaded, so CUDA calls go to the driver without rota: "
                                                 f"{why}; {remedy}")

    def test_a_missing_file_is_named(self):
        os.unlink(self.core)
        self.expect(f"{self.core}: cannot open shared object file: No such file or directory", "install rota again (rota doctor says more)")

    def test_a_damaged_file_is_named(self):
        with open(self.core, "w", encoding="ascii") as broken:
            broken.write("no library")
        self.expect(f"{self.core}: file too short", "install rota again (rota doctor says more)")

    def test_a_missing_unwinder_is_named_with_its_package(self):
        self.replace_in_core(b"libgcc_s.so.1", b"libgcc_x.so.1")
        self.expect("libgcc_x.so.1: cannot open shared object file: No such file or directory", "install rota again (rota doctor says more)")
        self.replace_in_core(b"libgcc_x.so.1", b"libgcc_s.so.x")
        self.expect("libgcc_s.so.x: cannot open shared object file: No such file or directory",
                    "install the compiler's run-time library (libgcc-s1 or libgcc)")

    def test_a_glibc_that_is_too_old_is_named_with_what_runs_there(self):
        version = min(set(re.findall(rb"\0(GLIBC_2\.[0-9.]+)(?=\0)", pathlib.Path(self.core).read_bytes())))
        newer = version.replace(b"GLIBC_2", b"GLIBC_9")
        self.replace_in_core(b"\0" + version + b"\0", b"\0" + newer + b"\0")
        said = self.said("arguments")
        self.assertIn(f"version `{newer.decode()}' not found", said)
        self.assertTrue(said.endswith("; this rota was built for a newer system: use rota's package, which runs from glibc 2.28 on"), said)

    def test_a_library_that_is_no_core_is_named(self):
        shutil.copy(DRIVER, self.core)
        self.expect("it has no rota_core_attach", "install rota again (rota doctor says more)")

    def test_every_process_says_it_once(self):
        os.unlink(self.core)
        self.assertEqual(self.said("threads", "24", answer="24").count("cannot be loaded"), 1)
        # A child that has made the first call itself, and the parent with a child that finds it made.
        self.assertEqual(self.said("fork", answer="7 4242 7").count("cannot be loaded"), 2)

    def test_it_is_a_warning_and_off_is_silent(self):
        os.unlink(self.core)
        self.assertEqual(self.said("arguments", ROTA_LOG="error"), "")
        self.assertEqual(self.said("arguments", ROTA_OFF="1"), "")
        self.assertEqual(self.said("arguments", ROTA_LOG="warn").count("cannot be loaded"), 1)
        self.assertEqual(self.said("arguments", ROTA_LOG="loud").count("cannot be loaded"), 1)


class RunningTest(Preloaded):
    """What the core is told of the test that the process belongs to, by a core that only says it."""

    def told(self, *words, **variables):
        shims = self.copy_of_shim("librota.so")
        shutil.copy(os.path.join(BUILT, "core", "librota-core.so"), shims)
        _, said = self.start(PROBE, *(words or ("call", "cuInit")), shim=os.path.join(shims, "librota.so"), **variables)
        return said

    def test_bazels_target_shard_and_attempt_and_pytests_test_are_told(self):
        bazel = {"ROTA_REPORT": self.folder, "TEST_TARGET": "//gpu:all_test"}
        pytest = {"ROTA_REPORT": self.folder, "PYTEST_CURRENT_TEST": "tests/a.py::test_x[1 (2)] (call)"}
        self.assertEqual(self.told(**bazel), "<bazel //gpu:all_test>")
        sharded = dict(bazel, TEST_SHARD_INDEX="1", TEST_TOTAL_SHARDS="3", TEST_RUN_NUMBER="2")
        self.assertEqual(self.told(**sharded), "<bazel //gpu:all_test shard 1 of 3 attempt 2>")
        self.assertEqual(self.told(**pytest), "<pytest tests/a.py::test_x[1 (2)]>")
        self.assertEqual(self.told(**bazel, **{k: v for k, v in pytest.items() if k != "ROTA_REPORT"}),
                         "<bazel //gpu:all_test\npytest tests/a.py::test_x[1 (2)]>")

    def test_without_a_report_or_a_test_it_is_nothing(self):
        self.assertEqual(self.told(TEST_TARGET="//gpu:all_test", PYTEST_CURRENT_TEST="a.py::b (call)"), "<>")
        self.assertEqual(self.told(ROTA_REPORT="", TEST_TARGET="//gpu:all_test"), "<>")
        self.assertEqual(self.told(ROTA_REPORT=self.folder, TEST_TARGET="", PYTEST_CURRENT_TEST=""), "<>")

    def test_a_long_name_is_cut_off(self):
        self.assertEqual(self.told(ROTA_REPORT=self.folder, TEST_TARGET="/" * 4000), f"<bazel {'/' * 505}>")

    def test_it_is_read_before_the_program_changes_its_environment(self):
        self.assertEqual(self.told("call-after-setenv", "cuInit", ROTA_REPORT=self.folder, TEST_TARGET="//gpu:all_test"), "<bazel //gpu:all_test>")


class Dlopen(Preloaded):
    """Every way to ask for a driver, one a test."""

    def answered(self, *words, **options):
        file, result = self.probe("open", *words, **options).split()
        return os.path.basename(file), int(result)

    def test_libcuda_so_1_is_the_shim(self):
        self.assertEqual(self.answered("libcuda.so.1"), ("librota.so", 0))

    def test_also_with_deepbind(self):
        self.assertEqual(self.answered("libcuda.so.1", "deepbind"), ("librota.so", 0))

    def test_libcuda_so_is_the_shim(self):
        # nvshare opened "libcuda.so", which only development machines have: here it is not even on the disk.
        self.assertEqual(self.answered("libcuda.so"), ("librota.so", 0))

    def test_a_path_to_a_driver_is_the_shim(self):
        self.assertEqual(self.answered(DRIVER), ("librota.so", 0))
        versioned = os.path.join(self.folder, "libcuda.so.580.159.04")
        os.symlink(DRIVER, versioned)
        self.assertEqual(self.answered(versioned), ("librota.so", 0))

    def test_a_path_to_nothing_fails_as_without_rota(self):
        nothing = os.path.join(self.folder, "libcuda.so.1")
        under = self.probe("open", nothing)
        self.assertEqual(under, self.probe("open", nothing, shim=None))
        self.assertIn("cannot open shared object file", under)

    def test_other_names_that_begin_alike_are_left_alone(self):
        other = os.path.join(self.folder, "libcuda.so.1.backup")
        shutil.copy(DRIVER, other)
        self.assertEqual(self.answered(other), ("libcuda.so.1.backup", 0))

    def test_noload_loads_nothing(self):
        self.assertTrue(self.probe("open", os.path.join(BUILT, "constructor", "libconstructor.so"), "noload").startswith("null"))
        self.assertEqual(self.answered("libcuda.so.1", "noload"), ("librota.so", 0))

    def test_a_directly_linked_program_gets_the_shim(self):
        program = os.path.join(BUILT, "probe", "interpose_direct")
        out, _ = self.start(program)
        self.assertEqual(out, f"0 0 1 {SHIM}")

    def test_the_callers_origin_is_kept(self):
        # Both look-ups go by RUNPATH=$ORIGIN/…: of the program, and of the plug-in that opens another library.
        self.assertEqual(self.probe("plugin", "libinterpose_plugin.so"), "found 1")


class FindingTheDriver(Preloaded):
    def test_the_loaders_path_is_searched_and_the_shim_never_taken_for_the_driver(self):
        # First in the path: links to the shim, a copy of it, another machine's library, a text file. Then the driver.
        folders = []
        for index in range(4):
            folder = os.path.join(self.folder, str(index))
            os.mkdir(folder)
            folders.append(folder)
        os.symlink(SHIM, os.path.join(folders[0], "libcuda.so.1"))
        shutil.copy(SHIM, os.path.join(folders[1], "libcuda.so.1"))
        self.write_for_another_processor(os.path.join(folders[2], "libcuda.so.1"))
        with open(os.path.join(folders[3], "libcuda.so.1"), "w", encoding="ascii") as file:
            file.write("INPUT(-lcuda)")
        path = ":".join(folders + ["", "relative", os.path.dirname(DRIVER)])
        self.assertEqual(self.probe("arguments", driver=None, LD_LIBRARY_PATH=path), "4242 4242")

    def write_for_another_processor(self, path):
        with open(DRIVER, "rb") as file:
            image = bytearray(file.read())
        image[18:20] = (40).to_bytes(2, "little")  # e_machine: 32-bit ARM
        with open(path, "wb") as file:
            file.write(image)

    def test_a_relative_choice_is_taken_from_where_the_program_stands(self):
        name = os.path.basename(DRIVER)
        self.assertEqual(self.probe("arguments", driver=name, folder=os.path.dirname(DRIVER)), "4242 4242")

    def test_without_a_driver_programs_see_no_gpu_and_go_on(self):
        # nvshare ended the program when cuInit failed.
        for driver in ("/nonexistent/libcuda.so.1", SHIM):
            with self.subTest(driver=driver):
                out = self.probe("call", "cuInit", "cuDeviceGetCount", "cuInit", driver=driver)
                self.assertEqual(out.split("\n"), [f"cuInit {NO_DEVICE}", f"cuDeviceGetCount {NOT_INITIALIZED}", f"cuInit {NO_DEVICE}"])

    def refusal(self, driver):
        _, errors = self.start(PROBE, "call", "cuInit", "cuInit", driver=driver)
        self.assertEqual(len(errors.split("\n")), 1, errors)
        self.assertTrue(errors.startswith(f"rota: ROTA_REAL_LIBCUDA is {driver}: "), errors)
        self.assertIn("unset it", errors)
        return errors

    def test_a_missing_choice_is_named_in_one_line(self):
        self.assertIn("no such file", self.refusal("/nonexistent/libcuda.so.1"))

    def test_a_foreign_choice_is_named_in_one_line(self):
        self.assertIn("no cuInit", self.refusal(os.path.join(BUILT, "foreign", "libforeign.so")))

    def test_the_shim_as_choice_is_named_in_one_line(self):
        self.assertIn("rota's own", self.refusal(SHIM))

    def test_a_choice_for_another_processor_is_named_in_one_line(self):
        path = os.path.join(self.folder, "libcuda.so.1")
        self.write_for_another_processor(path)
        self.assertIn("another processor architecture", self.refusal(path))

    def test_a_choice_that_is_no_library_is_named_in_one_line(self):
        self.assertIn("not a shared library", self.refusal(__file__))


class LoadingDriver(Preloaded):
    """libcuda.so.1 is a loader that opens the driver proper by its path, as under WSL."""

    def first_calls(self, name="libcuda.so.1", **variables):
        driver = os.path.join(BUILT, "loading_driver", name)
        return self.probe("call", "cuInit", "cuDeviceGetCount", driver=driver, **variables).split("\n")

    def test_a_driver_that_opens_another_in_its_first_call_gets_that_one(self):
        self.assertEqual(self.first_calls(), ["cuInit 0", "cuDeviceGetCount 0"])

    def test_a_driver_that_opens_another_while_it_is_loaded_gets_that_one(self):
        self.assertEqual(self.first_calls(TEST_LOADS_EARLY="1"), ["cuInit 0", "cuDeviceGetCount 0"])

    def test_so_does_one_under_a_name_of_its_own(self):
        for variables in ({}, {"TEST_LOADS_EARLY": "1"}):
            with self.subTest(variables):
                self.assertEqual(self.first_calls("libdriver.so", **variables), ["cuInit 0", "cuDeviceGetCount 0"])

    def test_the_same_path_still_gives_a_program_the_shim(self):
        driver = os.path.join(BUILT, "loading_driver", "libcuda.so.1")
        self.assertEqual(os.path.basename(self.probe("open", DRIVER, driver=driver).split()[0]), "librota.so")


class ProcAddress(Preloaded):
    def test_the_shims_own_pointers_come_back_by_version_and_flag(self):
        out = self.probe("address", "cuInit", "12000", "0", "cuGetProcAddress", "12000", "0", "cuNothing", "12000", "0",
                         "cuInit", "99000", "0", "cuProfilerStart", "12000", "2")
        shim = os.path.basename(SHIM)
        rows = [[row[0], row[1], row[2], os.path.basename(row[3])] for row in (line.split() for line in out.split("\n"))]
        self.assertEqual(rows, [["0", "0", "cuInit", shim], ["0", "0", "cuGetProcAddress_v2", shim], ["0", "1", "-", "-"],
                                ["1", "99", "-", "-"], ["0", "0", "cuProfilerStart", shim]])

    def test_null_outputs_flags_and_unknown_results_pass_through(self):
        self.assertEqual(self.probe("nulls"), "0 0 123452")

    def test_the_form_with_four_arguments_comes_back_as_itself(self):
        self.assertEqual(self.probe("first-form", "cuInit", "11040"), "0 cuInit")
        driver = os.path.join(BUILT, "driver_11", "libcuda.so.1")
        self.assertEqual(self.probe("first-form", "cuGetProcAddress", "11040", driver=driver), "0 cuGetProcAddress")

    def test_a_driver_with_the_first_form_only_serves_the_second(self):
        driver = os.path.join(BUILT, "driver_11", "libcuda.so.1")
        out = self.probe("address", "cuInit", "11040", "0", "cuNothing", "11040", "0", "cuInit", "12000", "0", driver=driver)
        self.assertEqual([line.split()[:3] for line in out.split("\n")], [["0", "0", "cuInit"], ["0", "1", "-"], ["1", "99", "-"]])

    def test_a_driver_without_any_form_works(self):
        driver = os.path.join(BUILT, "driver_old", "libcuda.so.1")
        out = self.probe("address", "cuInit", "11000", "0", "cuNothing", "11000", "0", "cuInit", "12000", "0",
                         "cuMemAlloc", "11000", "0", driver=driver)
        self.assertEqual([line.split()[:3] for line in out.split("\n")],
                         [["0", "0", "cuInit"], ["0", "1", "-"], ["1", "99", "-"], ["0", "2", "-"]])
        out, errors = self.start(PROBE, "first-form", "cuNothing", "11000", driver=driver, ROTA_LOG="info")
        self.assertEqual(out, f"{NOT_FOUND} -")
        self.assertIn(f"rota: the driver {driver} is older than CUDA 11.3; rota answers cuGetProcAddress in its place", errors)
        self.assertEqual(self.start(PROBE, "first-form", "cuNothing", "11000", driver=driver)[1], "")

    def test_without_a_driver_pointers_are_given_and_answer_no_device(self):
        out = self.probe("address", "cuInit", "2000", "0", "cuGetProcAddress", "12000", "0", driver="/nonexistent/libcuda.so.1")
        self.assertEqual([line.split()[:3] for line in out.split("\n")], [["0", "0", "cuInit"], ["0", "0", "cuGetProcAddress_v2"]])

    def test_an_unknown_function_is_left_alone_and_reported_once(self):
        out, errors = self.start(PROBE, "future", ROTA_LOG="info")
        self.assertEqual(out, "77")
        self.assertEqual(errors.count("does not know the function that the driver returned"), 1, errors)
        self.assertIn("cuFromTheFuture", errors)
        self.assertEqual(errors.count("cannot see every use"), 1, errors)

    def test_a_function_that_no_header_declares_marks_the_process_at_its_first_call(self):
        out, errors = self.start(PROBE, "call", "cuMemGetAttribute", "cuMemGetAttribute", ROTA_LOG="info")
        self.assertEqual(out, "cuMemGetAttribute 1234\ncuMemGetAttribute 1234")
        self.assertEqual(errors.count("cannot see every use"), 1, errors)
        self.assertEqual(errors.count("the driver's function cuMemGetAttribute is unknown"), 1, errors)
        out, errors = self.start(PROBE, "call", "cuInit", "cuDeviceGetCount", ROTA_LOG="info")
        self.assertNotIn("cannot see every use", errors)

    def test_export_tables_are_the_drivers_own(self):
        self.assertEqual(self.probe("table"), f"0 1 {DRIVER}")


class Bystanders(Preloaded):
    def test_a_program_without_cuda_sees_nothing(self):
        out, errors = self.start(BYSTANDER, ROTA_LOG="debug")
        self.assertIn("librota.so", out)
        self.assertNotIn("librota-core.so", out)
        self.assertNotIn("libstdc++", out)
        self.assertEqual(errors, "")

    def test_a_program_that_only_opens_cuda_gets_neither_core_nor_message(self):
        out, errors = self.start(BYSTANDER, "libcuda.so.1", ROTA_LOG="debug")
        self.assertIn("librota.so", out)
        self.assertNotIn("librota-core.so", out)
        self.assertEqual(errors, "")

    def test_names_of_our_own_do_not_collide_with_the_programs(self):
        # nvshare exported global_mutex, strlcpy and others into every program.
        self.assertEqual(self.probe("internals"), "- -")

    def test_a_bad_log_level_is_named_once(self):
        _, errors = self.start(PROBE, "call", "cuInit", "cuInit", ROTA_LOG="loud")
        self.assertEqual(errors.count("ROTA_LOG is 'loud'"), 1, errors)


if __name__ == "__main__":
    unittest.main()
