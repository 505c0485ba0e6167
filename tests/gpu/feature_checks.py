"""What a program finds out about the driver: the same answers under rota as natively."""
import json
import re
import sys

from bench import Skip

# Every name that the file of the real driver holds, exported or not.
NAMES = """
import ctypes, re
ctypes.CDLL("libcuda.so.1")
paths = {line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line}
print(*{name.decode() for path in paths for name in re.findall(rb"(?<=\\0)cu[A-Z]\\w+(?=\\0)", open(path, "rb").read())})
"""
# Asked of the library as Triton and ctypes programs do (dlopen, dlsym), and of cuGetProcAddress at several versions.
ASK = """
import ctypes, json, sys
names = sys.stdin.read().split()
answers = {}
for file in ("libcuda.so.1", "libcuda.so"):
    try:
        library = ctypes.CDLL(file)
        answers[file] = [name for name in names if hasattr(library, name)]
    except OSError:  # no development link natively; rota answers to both names
        pass
cuda = ctypes.CDLL("libcuda.so.1")
for version in (11000, 12000, 12040, 13000) if hasattr(cuda, "cuGetProcAddress_v2") else ():
    for flags in (0, 2):
        found = []
        for base in sorted({name.removesuffix("_ptsz").removesuffix("_ptds") for name in names}):
            pointer, status = ctypes.c_void_p(), ctypes.c_int()
            result = cuda.cuGetProcAddress_v2(base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
            found.append([base, result, status.value, bool(pointer.value)])
        answers[f"{version} {flags}"] = found
print(json.dumps(answers))
"""


def every_name(bench):
    """All driver symbols that rota knows, of every release, all that the driver may have, and one that is none."""
    text = (bench.libraries / "librota.so").read_bytes()
    known = {name.decode() for name in re.findall(rb"(?<=\0)cu[A-Z]\w+(?=\0)", text)}
    assert len(known) > 700, known
    return sorted(known | set(bench.checked([sys.executable, "-c", NAMES]).stdout.split())) + ["cuNoSuchFunction"]


def a_function_that_the_driver_lacks_is_absent_to_dlsym(bench):
    names = every_name(bench)
    asked = [sys.executable, "-c", ASK]
    native = json.loads(bench.checked(asked, text=" ".join(names)).stdout)
    for way in (["run", "--"], ["trace", "--dir", bench.scratch / "trace-names", "--"]):
        output = bench.checked([bench.rota, *way, *asked], text=" ".join(names)).stdout
        got = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        for question in native:
            more = [answer for answer in got[question] if answer not in native[question]]
            less = [answer for answer in native[question] if answer not in got[question]]
            assert not more and not less, f"{way[0]}, {question}: only under rota {more[:20]}, only natively {less[:20]}"
    there = set(native["libcuda.so.1"])
    return f"{len(names)} names, {len(there)} of them there"


def rota_doctor_says_that_all_is_well(bench):
    if "doctor" not in bench.checked([bench.rota, "--help"]).stdout:
        raise Skip("`rota doctor` in this build")
    plain = bench.call([bench.rota, "doctor"])
    (bench.out / "doctor.txt").write_text(f"{plain.stdout}{plain.stderr}exit {plain.returncode}\n")
    result = bench.call([bench.rota, "doctor", "--json"])
    (bench.out / "doctor.json").write_text(result.stdout)
    json.loads(result.stdout)
    assert plain.returncode == 0 and result.returncode == 0, plain.stdout + plain.stderr
    return plain.stdout.strip().splitlines()[-1][:200]


CHECKS = [a_function_that_the_driver_lacks_is_absent_to_dlsym, rota_doctor_says_that_all_is_well]
