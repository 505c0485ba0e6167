#!/usr/bin/env python3
"""NVIDIA's CUDA samples, programs that nobody here has written, natively and under `rota run`.

    tests/gpu/samples.py --collect EXAMPLES --samples DIR      copies what can be built and run without a display or further libraries
    tests/gpu/samples.py --build BUILD --samples DIR [--out LOGS] [--beside] [--only REGEX] [--jobs 16] [--budget 480]

EXAMPLES is the folder with Common and Samples in it, of the release for CUDA 11.8 (Debian's package nvidia-cuda-samples, in contrib).
nvcc of a newer release builds them in DIR-built, where the executables stay for a further call; programs/cuda11.h supplies what CUDA 13
has no longer. Those that end with 0 natively and do not print FAILED then run under rota, each limited to 1 GiB, and once more, alone,
with 4 GiB if it ran out of memory. --beside: concurrently with two programs that check every word of --size GiB each, on a GPU that a
ballast fills, so that memory is evicted with every turn.

No sample begins after --budget seconds, and those that run then are ended; the last line says which were not run. It is JSON; the exit
status is 1 if a sample or a checker failed that should pass, and 77 where there is no GPU.
"""
import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from swap_rig import GIB, await_line, driver_library, served
from swap_switches import Said

BUILD_SECONDS, NATIVE_SECONDS, ROTA_SECONDS = 120, 60, 120
MOST_LOGGED = 20_000
GRAPHICS = re.compile(r"#\s*include\s*[<\"](GL/|helper_gl|rendercheck_|EGL/|GLES|GLFW|X11/|vulkan/|d3d|mpi\.h|FreeImage|(UtilNPP/)?ImageIO|nvsci|nvmedia|cudla|boost/)", re.I)
SOURCE = re.compile(r"^\S+\.o *:(?!=) *(\S+)", re.M)  # in a Makefile
SUFFIXES = (".cu", ".cpp", ".c", ".h", ".hpp", ".cuh")
NOT_WANTED = shutil.ignore_patterns("doc", "*.md", "*.xml", "*.pdf", "*.doc*", "*.vcxproj*", "*.sln", "*.flo", "*_2_18*", "*1280x720.nv12")  # no sample reads these
NOT_LINKED = ("-lomp", "-lcudart")  # the compiler and nvcc link their own
OUT_OF_MEMORY = re.compile(r"out of memory|MemoryAllocation|OUT_OF_MEMORY|ALLOC_FAILED|bad_alloc|code=2\b", re.I)
HEADER = pathlib.Path(__file__).resolve().parent / "programs/cuda11.h"


class Runner:
    """Runs programs until the time is over or it is told to stop, and ends all that they have started."""

    def __init__(self, seconds):
        self.deadline = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.live = set()
        self.stopped = False

    def run(self, command, folder, log, seconds, environment=None):
        """(exit status, seconds, what it said), with "late" as status of one that took too long; None where the time was over."""
        begun = time.monotonic()
        limit = min(seconds, self.deadline - begun)
        with open(log, "wb") as said, self.lock:
            if self.stopped or limit <= 0:
                return None
            program = subprocess.Popen(list(map(str, command)), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            self.live.add(program.pid)
        code = "late"
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = program.wait(limit)
        finally:
            with self.lock:
                self.end(program.pid)
                self.live.discard(program.pid)
            program.wait()
        text = pathlib.Path(log).read_text(errors="replace")
        pathlib.Path(log).write_text(text[-MOST_LOGGED:])
        if self.stopped or (code == "late" and limit < seconds):
            return None
        return code, time.monotonic() - begun, text

    @staticmethod
    def end(group):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)

    def stop(self):
        with self.lock:
            self.stopped = True
            for group in self.live:
                self.end(group)


def passed(outcome):
    """rota's own lines say nothing of the sample."""
    return outcome[0] == 0 and not any("FAILED" in line for line in outcome[2].splitlines() if not line.startswith("rota"))


def collect(examples, samples):
    """Copies the samples that need neither a display nor libraries that are not CUDA's, nor to be preloaded."""
    shutil.copytree(examples / "Common", samples / "Common", ignore=NOT_WANTED, dirs_exist_ok=True)
    copied = 0
    for makefile in sorted((examples / "Samples").glob("*/*/Makefile")):
        files = [file for file in makefile.parent.rglob("*") if file.suffix in SUFFIXES]
        if not all((makefile.parent / each).exists() for each in SOURCE.findall(makefile.read_text())):  # not every package has all of them
            continue
        if any(GRAPHICS.search(file.read_text(errors="replace")) for file in files) or re.search("D3D|GLES|cuHook", makefile.parent.name):
            continue
        shutil.copytree(makefile.parent, samples / makefile.parent.relative_to(examples), ignore=NOT_WANTED, dirs_exist_ok=True)
        copied += 1
    print(f"{copied} samples, {sum(file.stat().st_size for file in samples.rglob('*') if file.is_file()) >> 20} MiB")


def toolkits(nvcc):
    """Where CUDA's headers and libraries may be: nvcc's own, and this Python's packages with libraries that nvcc has come without."""
    packages = importlib.util.find_spec("nvidia")
    return [nvcc.parents[1], *(found for each in (packages.submodule_search_locations if packages else []) for found in pathlib.Path(each).glob("cu1?"))]


def linked(flag, roots):
    """How a library is named to nvcc: those of packages have no name without a version."""
    name = flag.removeprefix("-l")
    folders = [root / each for root in roots for each in ("lib64", "lib64/stubs", "lib", "lib/stubs")]
    if any((each / f"lib{name}{suffix}").exists() for each in folders[:4] for suffix in (".so", ".a")):
        return [flag]
    found = next((file for each in folders for file in sorted(each.glob(f"lib{name}.so.*"))), None)
    if found is None:
        return ["-l:libcuda.so.1" if name == "cuda" else flag]
    return [f"-L{found.parent}", f"-l:{found.name}"]


def commands(folder, nvcc):
    """The commands of nvcc that the sample's Makefile would run, by the file that each makes."""
    makefile = (folder / "Makefile").read_text()
    roots = toolkits(nvcc)
    common = [nvcc, "-std=c++17", "-arch=sm_90", "-I", folder.parents[2] / "Common"]
    common += ["-I", folder.parents[2] / "Common/UtilNPP", "-I", folder, "-I", folder / "inc", *(f"-isystem={root}/include" for root in roots[1:])]
    flags = sorted(set(re.findall(r"-maxrregcount=\d+|-ftz=true", makefile)))
    flags += ["-rdc=true"] if re.search(r"(?<!\S)-dc\b", makefile) else []
    flags += [f"-Xcompiler={flag}" for flag in ("-fopenmp", "-fpermissive") if flag in makefile]
    flags += [] if list(folder.glob("*dynlink*")) else ["-include", HEADER]  # that one declares the driver's functions itself
    libraries = [each for line in re.findall(r"^\s*LIBRARIES *\+=(.*)", makefile, re.M) for each in re.findall(r"(?<!\S)-l\w+", line)]
    if "-lcufft_static" not in libraries:  # its callbacks need that one
        libraries = [each.removesuffix("_static") for each in libraries if each != "-lculibos"]
    libraries = [word for each in dict.fromkeys(libraries) if each not in NOT_LINKED for word in linked(each, roots)]
    sources = SOURCE.findall(makefile)
    made = {folder.name: [*common, *flags, "-O2", "-o", folder.name, *sources, *libraries, "-lpthread", "-ldl",
                          *(f"-Xlinker=-rpath={root}/{each}" for root in roots for each in ("lib64", "lib"))]}
    for variable, file in re.findall(r"^(FATBIN_FILE|PTX_FILE) *:= *(\S+)", makefile, re.M):
        file = file.replace("${TARGET_SIZE}", "64")
        kernel = re.search(rf"^\$\({variable}\) *: *(\S+)", makefile, re.M)[1]
        made[file] = [*common, "-fatbin" if variable == "FATBIN_FILE" else "-ptx", "-o", file, kernel]
    return made


def built(runner, folder, nvcc, out):
    """None, or what the compiler had against it."""
    if "cooperative_groups" in (folder / "Makefile").read_text():  # NVRTC looks for them next to the kernel
        for name in ("cooperative_groups", "cooperative_groups.h"):
            if not (folder / name).exists():
                (folder / name).symlink_to(nvcc.parents[1] / "include" / name)
    for file, command in commands(folder, nvcc).items():
        if (folder / file).exists():
            continue
        outcome = runner.run(command, folder, out / f"build-{folder.name}.log", BUILD_SECONDS)
        if outcome is None or outcome[0] != 0:
            (folder / file).unlink(missing_ok=True)
            errors = re.findall(r".*\b(?:error|fatal|undefined reference|cannot find)\b.*", outcome[2]) if outcome else []
            return "not begun or not ended in time" if outcome is None else (errors or [f"ended with {outcome[0]}"])[0][-200:]
    return None


def built_and_run(runner, options, nvcc, work):
    """(why each was not built, the outcome of each that was), several at once."""
    folders = [file.parent for file in sorted(work.glob("Samples/*/*/Makefile")) if re.search(options.only, file.parent.name)]
    not_built, outcomes = {}, {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as compilers, concurrent.futures.ThreadPoolExecutor(4) as runners:
        try:
            building = {compilers.submit(built, runner, folder, nvcc, options.out): folder for folder in folders}
            running = {}
            for each in concurrent.futures.as_completed(building):
                folder = building[each]
                if each.result() is not None:
                    not_built[folder.name] = each.result()
                    continue
                running[folder] = runners.submit(runner.run, [folder / folder.name], folder, options.out / f"native-{folder.name}.log", NATIVE_SECONDS)
            print(f"{len(running)} of {len(folders)} built; not: {' '.join(sorted(not_built))}", flush=True)
            for folder, each in running.items():
                outcomes[folder] = each.result()
        except BaseException:
            runner.stop()
            raise
    return not_built, outcomes


def under_rota(runner, options, environment, folder, limit="1G"):
    limited = dict(environment, ROTA_LOG="warn", ROTA_GPU_MEM_LIMIT=limit)
    command = [options.build / "bin/rota", "run", "--memory", "auto", "--", folder / folder.name]
    return runner.run(command, folder, options.out / f"rota-{folder.name}.log", ROTA_SECONDS, limited)


def all_under_rota(runner, options, folders):
    """(the outcome of each, the names of those that had 4 GiB, what the checkers said)."""
    outcomes, retried, checked = {}, [], []
    options.room = options.room if options.beside else None
    with served(options) as rig:
        checkers = [rig.start(f"checker{number}", [options.build / "tests/programs/memhog", "--bytes", int(options.size * GIB), "--hold", "--ahead", 20])
                    for number in range(2 if options.beside else 0)]
        for each in checkers:
            await_line(each, "ready")
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as runners:
            try:
                running = {folder: runners.submit(under_rota, runner, options, rig.environment, folder) for folder in folders}
                for folder, each in running.items():
                    outcomes[folder] = each.result()
            except BaseException:
                runner.stop()
                raise
        for folder, outcome in outcomes.items():
            if outcome and not passed(outcome) and OUT_OF_MEMORY.search(outcome[2]):
                outcomes[folder] = under_rota(runner, options, rig.environment, folder, "4G")
                retried.append(folder.name)
        for number, each in enumerate(checkers):
            said = {}
            with contextlib.suppress(subprocess.TimeoutExpired, json.JSONDecodeError):
                said = json.loads((each.communicate(timeout=30)[0].splitlines() or ["{}"])[-1])
            outs = [left for _, _, left, _ in Said(rig.said(f"checker{number}")).outs if left]
            checked.append({"rounds": said.get("rounds"), "wrong": said.get("wrong"), "exit": each.poll(), "moved_out": len(outs), "out_bytes": sum(outs)})
    return outcomes, retried, checked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--samples", type=pathlib.Path, required=True)
    parser.add_argument("--collect", type=pathlib.Path, metavar="EXAMPLES")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for what the compiler, the samples and rotad say")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--only", default="", help="only samples whose name matches")
    parser.add_argument("--jobs", type=int, default=16, help="compilers at a time")
    parser.add_argument("--at-once", type=int, default=2, help="samples at a time under rota")
    parser.add_argument("--budget", type=float, default=480, help="seconds")
    parser.add_argument("--room", type=float, default=8.5, help="GiB that the ballast leaves free")
    parser.add_argument("--size", type=float, default=4, help="GiB of each checker; two of them and all contexts do not fit into that")
    parser.add_argument("--mode", default="exclusive")
    parser.add_argument("--quantum", default="60ms")
    parser.add_argument("--trust", default="user")
    options = parser.parse_args()
    if options.collect:
        return collect(options.collect, options.samples)
    begun = time.monotonic()
    runner = Runner(options.budget)
    driver_library()
    found = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if found is None:
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = options.samples.resolve().with_name(options.samples.resolve().name + "-built")
    shutil.copytree(options.samples, work, dirs_exist_ok=True, symlinks=True)
    options.build = options.build.resolve()
    options.out = (options.out or work / "logs").resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.logs = options.out
    not_built, native = built_and_run(runner, options, pathlib.Path(found).resolve(), work)
    right = sorted((outcome[1], folder) for folder, outcome in native.items() if outcome and passed(outcome))
    print(f"{len(right)} of {len(native)} pass natively after {time.monotonic() - begun:.0f} s", flush=True)
    outcomes, retried, checked = all_under_rota(runner, options, [folder for _, folder in right])  # the quick ones first
    failed = {folder.name: {"exit": outcome[0], "said": outcome[2][-300:]} for folder, outcome in outcomes.items() if outcome and not passed(outcome)}
    bad_checkers = sum(each["exit"] != 0 or each["wrong"] != 0 for each in checked)
    print(json.dumps({
        "part": "samples", "beside": options.beside, "built": len(native), "not_built": not_built, "native_passed": len(right),
        "native_failed": {folder.name: outcome[0] for folder, outcome in sorted(native.items()) if outcome and not passed(outcome)},
        "rota_passed": sum(outcome is not None and passed(outcome) for outcome in outcomes.values()), "failed": failed, "with_4g": sorted(retried),
        "not_run": sorted(folder.name for folder, outcome in [*native.items(), *outcomes.items()] if outcome is None),
        "moved_out": sum(each["moved_out"] for each in checked), "wrong": sum(each["wrong"] or 0 for each in checked), "checkers": checked,
        "seconds": round(time.monotonic() - begun)}), flush=True)
    nothing_tried = not right or (options.beside and not any(each["moved_out"] for each in checked))
    return int(bool(failed) or bad_checkers > 0 or nothing_tried)


if __name__ == "__main__":
    sys.exit(main())
