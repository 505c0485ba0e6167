"""An installed prefix works by itself, and ldconfig over it makes nobody's libcuda.so.1 or libnvidia-ml.so.1 ours."""
import shutil
import subprocess
import unittest

from harness import BUILD, Case, PROGRAMS


class Installed(Case):
    def setUp(self):
        super().setUp()
        self.prefix = self.scratch / "prefix"
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(self.prefix)], check=True, capture_output=True)

    def test_programs_run_from_an_installed_prefix(self):
        simgpu = self.prefix / "lib/rota/simgpu"
        self.assertTrue((simgpu / "libcuda.so.1").exists(), sorted(map(str, self.prefix.rglob("*"))))
        self.assertTrue((self.prefix / "lib/rota/librota-nvml.so").exists())
        result = self.checked(self.prefix / "bin/rota", "run", "--", PROGRAMS / "saxpy", ROTA_LOG="info",
                              ROTA_REAL_LIBCUDA=str(simgpu / "libcuda.so.1"), LD_LIBRARY_PATH=str(simgpu),
                              ROTA_SIM_KERNELS=str(simgpu / "libsimkernels.so"))
        self.assertNotIn("without rota", result.stderr)
        traced = self.checked(self.prefix / "bin/rota", "trace", "--dir", self.scratch / "trace", "--", PROGRAMS / "saxpy",
                              ROTA_REAL_LIBCUDA=str(simgpu / "libcuda.so.1"),
                              ROTA_SIM_KERNELS=str(simgpu / "libsimkernels.so"))
        self.assertIn("cuLaunchKernel", traced.stdout + traced.stderr)
        older = self.scratch / "older/libcuda.so.1"
        self.checked(simgpu / "simgpu-driver", "--version", "11.2", "-o", older)
        self.assertIn("ok", self.checked(self.prefix / "bin/rota", "run", "--", PROGRAMS / "saxpy",
                                         ROTA_REAL_LIBCUDA=str(older)).stdout)

    def test_ldconfig_over_the_prefix_makes_no_link_to_a_shim(self):
        library_folder = next(path.parent for path in self.prefix.rglob("rota") if path.parent.name.startswith("lib"))
        ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
        configuration = self.scratch / "ld.so.conf"
        configuration.write_text(f"{library_folder}\n")
        subprocess.run([ldconfig, "-f", str(configuration), "-C", str(self.scratch / "cache")], check=True, capture_output=True)
        self.assertEqual([path for path in library_folder.iterdir() if path.name.startswith(("libcuda", "libnvidia"))], [])
        printed = subprocess.run([ldconfig, "-p", "-C", str(self.scratch / "cache")], check=True, capture_output=True, text=True)
        self.assertNotIn(str(library_folder / "rota"), printed.stdout)


if __name__ == "__main__":
    unittest.main()
