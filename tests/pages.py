#!/usr/bin/env python3
"""Reads the documentation and fails where a page is too long, a link leads nowhere or to a page that is not installed, or the
page about configuration does not name just the options and variables that the code knows.

    tests/pages.py            what is wrong, one line each; exit code 1 if anything is
    tests/pages.py --words    how many words each page has
"""
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_WORDS = 2200  # two pages
# Tables that scripts write between two marks do not count: nobody reads them from the beginning to the end.
WRITTEN = re.compile(r"^<!-- (?!end of )[^>]*?-->\n.*?^<!-- end of .*?-->$", re.MULTILINE | re.DOTALL)

INSTALLED = "cmake/pages.cmake"
CONFIGURATION = "scheduler/CONFIGURATION.md"
TEMPLATE = "tools/package/deb/rotad.toml"
CONFIGURATION_PARSER = "scheduler/server/config.cpp"
SIMGPU = "tools/simgpu/README.md"
VARIABLES = "tools/rota/doctor/judge_daemon.cpp"
# For rota's own build and tests. Pages name them in a sentence, since users do not set them.
OWN_VARIABLES = {"ROTA_BUILD", "ROTA_CLANG", "ROTA_CHECK_REACHED", "ROTA_SIM_MUTATIONS"}

CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def pages():
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def words(name):
    return len(WRITTEN.sub("", (ROOT / name).read_text()).split())


def long_pages(names):
    for name in names:
        if words(name) > MOST_WORDS:
            yield f"{name}: {words(name)} words; beyond {MOST_WORDS} shorten it, or give a part of it a page of its own"


def anchors(text):
    """As GitHub makes them of headings."""
    found = set()
    for heading in HEADING.findall(CODE_BLOCK.sub("", text)):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, unique = 0, anchor
        while unique in found:
            number += 1
            unique = f"{anchor}-{number}"
        found.add(unique)
    return found


def broken_links(names):
    for name in names:
        text = (ROOT / name).read_text()
        # With the same lines, so that complaints have the right number.
        shown = CODE.sub("", CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text))
        for match in LINK.finditer(shown):
            target, _, anchor = match[1].partition("#")
            where = f"{name}:{shown.count(chr(10), 0, match.start()) + 1}"
            if "://" in target or target.startswith("mailto:"):
                continue
            path = (ROOT / name).parent / target if target else ROOT / name
            if not path.exists():
                yield f"{where}: {match[1]} leads nowhere"
            elif anchor and anchor not in anchors(path.read_text()):
                yield f"{where}: {match[1]} names no heading of that page"


def uninstalled(names):
    """Installed pages have to lead to pages that are installed too."""
    text = (ROOT / INSTALLED).read_text()
    installed = set(re.search(r"set\(ROTA_PAGES (.*?)\)", text, re.DOTALL)[1].split())
    for name in sorted(installed - {"LICENSE"} - set(names)):
        yield f"{INSTALLED}: {name} is no page"
    for name in sorted(installed & set(names)):
        for link in LINK.findall(CODE.sub("", CODE_BLOCK.sub("", (ROOT / name).read_text()))):
            target = link.partition("#")[0]
            if target.endswith(".md") and "://" not in target:
                page = str(((ROOT / name).parent / target).resolve().relative_to(ROOT))
                if page not in installed:
                    yield f"{name}: leads to {page}, which {INSTALLED} does not install"


def section(text, heading):
    """The text below a heading, up to the next one of the same depth."""
    depth = heading.split()[0]
    begin = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^{depth} ", text[begin:], re.MULTILINE)
    return text[begin:begin + end.start()] if end else text[begin:]


def first_cells(table):
    """The names in backquotes that stand in the first column of the rows of a table."""
    names = []
    for row in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE):
        names += re.findall(r"`([^`]+)`", row)
    return names


def parsed_options():
    """What the parser of rotad.toml compares keys with, with the tables that they are in."""
    text = (ROOT / CONFIGURATION_PARSER).read_text()
    keys = {}
    for name, body in re.findall(r"^\w[\w:<>, ]* (\w+)\(const toml::\w+& \w+\) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        keys[name] = re.findall(r'\bkey == "(\w+)"', body)
    tables = {"config_of": "", "all_limits": "limits.", "limits_of": "limits.*.", "metrics_of": "metrics."}
    for name in keys:
        if keys[name] and name not in tables:
            raise LookupError(f"tests/pages.py does not know which table of rotad.toml {name} of {CONFIGURATION_PARSER} reads")
    return {prefix + key for name, prefix in tables.items() for key in keys[name]} - {"limits", "metrics"}


def known_variables():
    text = (ROOT / VARIABLES).read_text()
    return set(re.findall(r'"(ROTA_\w+)"', re.search(r"kVariables = \{(.*?)\};", text, re.DOTALL)[1]))


def read_variables():
    """(file, variable) of each that the code asks the environment for by name."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "grep", "-lE", r'getenv\("ROTA_', "--", "runtime", "scheduler", "tools"], cwd=ROOT,
                            capture_output=True, text=True).stdout.split()
    for name in listed:
        for variable in re.findall(r'getenv\("(ROTA_\w+)"', (ROOT / name).read_text()):
            yield name, variable


def compared(page, documented, known, what, where):
    for name in sorted(set(documented) - known):
        yield f"{page}: {name} is none of the {what} that {where} knows"
    for name in sorted(known - set(documented)):
        yield f"{page}: {name} is missing; {where} knows it"
    for name in sorted({name for name in documented if documented.count(name) > 1}):
        yield f"{page}: {name} has two rows"


def template():
    """The deb's rotad.toml with all its keys: a comment begins with a space, a key does not."""
    return re.sub(r"^#(?=[\[\w\"])", "", (ROOT / TEMPLATE).read_text(), flags=re.MULTILINE)


def keys_of(table, prefix=""):
    for key, value in table.items():
        if prefix == "limits." and key in ("users", "cgroups"):
            yield prefix + key
            for each in value.values():
                yield from keys_of(each, "limits.*.")
        elif isinstance(value, dict):
            yield from [prefix + key] if prefix else []
            yield from keys_of(value, "limits.*." if prefix else f"{key}.")
        else:
            yield prefix + key


def wrong_template():
    yield from compared(TEMPLATE, sorted(set(keys_of(tomllib.loads(template())))), parsed_options(), "options", CONFIGURATION_PARSER)
    if tomllib.loads((ROOT / TEMPLATE).read_text()):
        yield f"{TEMPLATE}: all keys are to be commented"


def wrong_configuration():
    text = (ROOT / CONFIGURATION).read_text()
    options = first_cells(section(text, "## rotad.toml"))
    yield from compared(CONFIGURATION, options, parsed_options(), "options", CONFIGURATION_PARSER)
    known = known_variables()
    for name, variable in read_variables():
        if variable not in known:
            yield f"{name}: reads {variable}, which {VARIABLES} does not know"
    simulated = {name for name in known if name.startswith("ROTA_SIM_")}
    variables = first_cells(section(text, "## Environment variables"))
    yield from compared(CONFIGURATION, variables, known - simulated - OWN_VARIABLES, "variables", VARIABLES)
    variables = first_cells(section((ROOT / SIMGPU).read_text(), "## Environment"))
    yield from compared(SIMGPU, variables, simulated - OWN_VARIABLES, "variables of the simulated GPU", VARIABLES)


def main():
    names = pages()
    if sys.argv[1:] == ["--words"]:
        for name in names:
            print(f"{words(name):6} {name}")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    complaints = [*long_pages(names), *broken_links(names), *uninstalled(names), *wrong_configuration(), *wrong_template()]
    if complaints:
        sys.exit("\n".join(complaints))
    print(f"{len(names)} pages: of at most {MOST_WORDS} words, with links that lead somewhere, and the options that the code knows")


if __name__ == "__main__":
    main()
