#!/usr/bin/env python3
"""Writes stubs of the C library's shared objects as an older glibc had them, for the linker: what is linked with them runs on
that glibc and on every later one.

    stubs.py --glibc 2.28 --compiler gcc FOLDER

No glibc ever drops a symbol, so that this machine's libc.so.6 and libm.so.6 say what an older one had: each symbol in the newest
version up to the wanted one. They do not say where it was: moved.txt lists what lay in libpthread.so.0 and others before they
became part of libc.so.6 (2.34). FOLDER then holds the stubs, and linker scripts for -lc, -lm, -lpthread, -ldl and -lrt.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# libc.so.6's own entries go into these as well, by moved.txt.
LINKED = {"libc.so.6": "c", "libm.so.6": "m", "libpthread.so.0": "pthread", "libdl.so.2": "dl", "librt.so.1": "rt"}


def fail(text):
    sys.exit(f"stubs.py: {text}")


def number(version):
    return tuple(int(part) for part in version.removeprefix("GLIBC_").split("."))


def symbols(path, newest):
    """Name: (version, the address of data or None, bytes, whether it is weak), in the newest version up to `newest`."""
    found = {}
    listed = subprocess.run(["readelf", "--wide", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        fields = line.split()
        match = re.fullmatch(r"(\w+)@@?(GLIBC_2[0-9.]*)", fields[7]) if len(fields) > 7 else None
        if match is None or fields[6] == "UND" or fields[4] not in ("GLOBAL", "WEAK") or number(match[2]) > newest:
            continue
        if match[1] not in found or number(found[match[1]][0]) < number(match[2]):
            found[match[1]] = (match[2], int(fields[1], 16) if fields[3] == "OBJECT" else None, int(fields[2], 0), fields[4] == "WEAK")
    return found


def moved():
    """Name: the library that had it."""
    found, library = {}, None
    for line in (HERE / "moved.txt").read_text(encoding="ascii").splitlines():
        if line.endswith(":"):
            library = line[:-1]
        elif not line.startswith("#"):
            found.update((name, library) for name in line.split())
    return found


def write_stub(folder, soname, entries, compiler):
    """The shared object, with nothing in it but names, versions and data's sizes. Names of one object (environ, __environ) stay
    names of one, weak where they are: a program that has a copy of it answers for all of them."""
    source, versions, last = [], sorted({entry[0] for entry in entries.values()}, key=number), None
    order = sorted(entries.items(), key=lambda item: (item[1][1] or 0, -item[1][2], item[0]))
    for index, (name, (version, address, size, weak)) in enumerate(order):
        local = f"stub_{index}"
        if address is None:
            source += [".text", f".type {local}, @function", f"{local}: .byte 0"]
        elif address == last:
            source += [f".type {local}, @object", f".set {local}, stub_data"]
        else:
            source += [".bss", ".balign 32", f".set stub_data, .", f".type {local}, @object", f"{local}: .skip {max(size, 1)}"]
        last = address
        source += [f".{'weak' if weak else 'globl'} {local}", f".size {local}, {max(size, 1) if address is not None else 1}",
                   f".symver {local}, {name}@@@{version}"]
    source.append('.section .note.GNU-stack, "", @progbits\n')
    (folder / "assembly").write_text("\n".join(source))
    script = "\n".join(f"{version} {{ }};" for version in versions[1:])
    (folder / "versions").write_text(f"{versions[0]} {{ local: stub_*; }};\n{script}\n")
    subprocess.run([compiler, "-shared", "-nostdlib", "-Wl,--strip-all", f"-Wl,-soname,{soname}",
                    f"-Wl,--version-script={folder / 'versions'}", "-o", folder / soname, "-x", "assembler", folder / "assembly"], check=True)


def file_of(compiler, name):
    path = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
    return path if "/" in path else fail(f"{compiler} has no {name}: install the C library's development files")


def write_all(scratch, folder, newest, compiler):
    """Into `scratch` what is going to lie in `folder`."""
    libraries = {soname: {} for soname in LINKED}
    elsewhere = moved()
    for soname in ("libc.so.6", "libm.so.6"):
        for name, entry in symbols(file_of(compiler, soname), newest).items():
            libraries.setdefault(elsewhere.get(name, soname), {})[name] = entry
    for soname in LINKED:
        if not libraries[soname]:
            fail(f"{soname} would be empty: this machine's glibc is older than 2.34, link with it as it is (-DROTA_GLIBC=OFF)")
        write_stub(scratch, soname, libraries[soname], compiler)
    loader = pathlib.Path(file_of(compiler, "ld-linux-x86-64.so.2"))
    write_stub(scratch, loader.name, symbols(loader, newest), compiler)
    static = file_of(compiler, "libc_nonshared.a")

    parts = " ".join(str(folder / name) for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1", loader.name))
    for soname, name in LINKED.items():
        also = f" {static} AS_NEEDED ( {parts} )" if name == "c" else ""
        (scratch / f"lib{name}.so").write_text(f"GROUP ( {folder / soname}{also} )\n")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--glibc", required=True)
    options.add_argument("--compiler", required=True)
    options.add_argument("folder", type=pathlib.Path)
    arguments = options.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rota-stubs-") as scratch:
        write_all(pathlib.Path(scratch), folder, number(arguments.glibc), arguments.compiler)
        for file in sorted(pathlib.Path(scratch).glob("*.so*")):
            place = folder / file.name
            if not place.exists() or place.read_bytes() != file.read_bytes():  # what is linked with it is linked again then
                shutil.move(file, place)


if __name__ == "__main__":
    main()
