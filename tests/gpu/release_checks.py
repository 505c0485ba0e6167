"""Programs and Python bindings of several CUDA releases under one rota: the same output, and in traces each call as the
program's own release has it."""
import os
import sys

import expected_calls
from bench import HERE, Skip

RELEASES = ["11.8", "12.4", "13.0"]
BINDINGS = ["11.8", "12.4", "12.9"]


def named(name, check):
    check.__name__ = name
    return check


def listing_of(bench, name, command, native, **environment):
    """The calls of a traced run whose output must be the native one."""
    folder = bench.scratch / f"trace-{name}"
    result = bench.checked([bench.rota, "trace", "--dir", folder, "--", *command], **environment)
    assert native in result.stdout, f"{result.stdout[-1500:]} natively {native}"
    listing = bench.checked([bench.rota, "trace", "show", "--lookups", folder]).stdout
    (bench.out / f"trace-{name}.txt").write_text(listing)
    return listing


def wants(listing, calls):
    missing = [line for line, pattern in calls if not pattern.search(listing)]
    assert not missing, f"not in the trace: {'; '.join(missing)}"


def program(bench, name):
    path = bench.releases / name
    if not path.exists():
        raise Skip(f"{name} in {bench.releases} (tests/gpu/build-releases)")
    return path


def driver_part(bench, release):
    """The part that needs no libcudart: also on simgpu, whatever it poses as."""
    command = [program(bench, f"program_{release}"), "driver"]
    native = bench.checked(command).stdout
    assert native.endswith("ok\n"), native
    got = bench.under_rota(command).stdout
    assert got == native, f"{got} natively {native}"
    wants(listing_of(bench, f"driver-{release}", command, native), expected_calls.DRIVER[release])


def release_check(release):
    def check(bench):
        driver_part(bench, release)
        command = [program(bench, f"program_{release}")]
        native = bench.checked(command).stdout
        assert native.endswith("ok\n"), native
        got = bench.under_rota(command).stdout
        assert got == native, f"{got} natively {native}"
        listing = listing_of(bench, f"program-{release}", command, native)
        wants(listing, expected_calls.DRIVER[release] + expected_calls.RUNTIME[release])
        return f"{len(native.splitlines())} lines the same, {listing.count(chr(10))} calls"

    return named(f"program_of_cuda_{release}_gives_the_same_and_is_traced_at_both_levels", check)


def launch_check(release):
    def check(bench):
        command = [program(bench, f"launch_{release}")]
        native = bench.checked(command).stdout
        assert native.endswith("6000.0\nok\n"), native
        got = bench.under_rota(command).stdout
        assert got == native, f"{got} natively {native}"
        wants(listing_of(bench, f"launch-{release}", command, native), expected_calls.LAUNCH)

    return named(f"program_of_cuda_{release}_launches_its_own_kernel_and_is_traced", check)


def majors_check(*releases):
    def check(bench):
        command = [program(bench, "two_majors"), *(program(bench, f"libprogram_{release}.so") for release in releases)]
        native = bench.checked(command).stdout
        assert native.endswith("ok\n"), native
        got = bench.under_rota(command).stdout
        assert got == native, f"{got} natively {native}"
        listing = listing_of(bench, f"majors-{'-'.join(releases)}", command, native)
        for release in releases:
            wants(listing, expected_calls.DRIVER[release] + expected_calls.RUNTIME[release])
        return f"{len(native.splitlines())} lines the same, {listing.count(chr(10))} calls"

    return named(f"one_process_with_libcudart_of_{'_and_'.join(releases)}", check)


def binding_check(release):
    def check(bench):
        folder = bench.bindings / release
        if not folder.exists():
            raise Skip(f"{folder} (pip install --no-deps --target {folder} cuda-python=={release}.*, or cuda-bindings)")
        command = [sys.executable, "-B", HERE / "programs/binding.py", release]
        environment = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        native = bench.checked(command, **environment).stdout
        assert native.endswith("ok\n"), native
        got = bench.under_rota(command, **environment).stdout
        assert got == native, f"{got} natively {native}"
        listing = listing_of(bench, f"binding-{release}", command, native, **environment)
        # Its runtime API is its own, on top of the driver's: there is no libcudart whose calls could be seen.
        wants(listing, expected_calls.BINDING)
        return f"{listing.count(chr(10))} calls"

    return named(f"cuda_python_{release}_gives_the_same_and_is_traced", check)


CHECKS = [*map(release_check, RELEASES), *map(launch_check, RELEASES), majors_check("12.4", "13.0"), majors_check(*RELEASES), *map(binding_check, BINDINGS)]
