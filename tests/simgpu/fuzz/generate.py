#!/usr/bin/env python3
"""Writes calls.inc: for every function of the driver API, how the fuzzer makes its arguments and what it learns from a call.

    generate.py GENERATED_FOLDER calls.inc

The types and names come from generated/driver_functions.h and driver_types.h. Handles are taken from what earlier calls
gave (or are stale, or garbage); enumerators mostly are real ones; pointers lead to buffers of the machine (machine.h) that
are large enough for every count this file lets a call have. Struct fields are filled one by one, so no pointer in them is
garbage; where a tag says which member of a union is meant, both are chosen together.
"""
import pathlib
import re
import sys

# Structs whose tag decides about a union: tag field, and member of the union by enumerator. Without an entry the tag stays
# as it is and the union zero.
TAGGED = {
    "CUgraphNodeParams": ("type", {
        "CU_GRAPH_NODE_TYPE_KERNEL": "kernel", "CU_GRAPH_NODE_TYPE_MEMCPY": "memcpy", "CU_GRAPH_NODE_TYPE_MEMSET": "memset",
        "CU_GRAPH_NODE_TYPE_HOST": "host", "CU_GRAPH_NODE_TYPE_GRAPH": "graph",
        "CU_GRAPH_NODE_TYPE_WAIT_EVENT": "eventWait", "CU_GRAPH_NODE_TYPE_EVENT_RECORD": "eventRecord",
        "CU_GRAPH_NODE_TYPE_MEM_ALLOC": "alloc", "CU_GRAPH_NODE_TYPE_MEM_FREE": "free",
        "CU_GRAPH_NODE_TYPE_BATCH_MEM_OP": "memOp", "CU_GRAPH_NODE_TYPE_CONDITIONAL": "conditional"}),
    "CUDA_RESOURCE_DESC": ("resType", {
        "CU_RESOURCE_TYPE_ARRAY": "res.array", "CU_RESOURCE_TYPE_MIPMAPPED_ARRAY": "res.mipmap",
        "CU_RESOURCE_TYPE_LINEAR": "res.linear", "CU_RESOURCE_TYPE_PITCH2D": "res.pitch2D"}),
    "CUmemcpy3DOperand": ("type", {
        "CU_MEMCPY_OPERAND_TYPE_POINTER": "op.ptr", "CU_MEMCPY_OPERAND_TYPE_ARRAY": "op.array"}),
    "CUlaunchAttribute": ("id", {
        "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": "value.cooperative", "CU_LAUNCH_ATTRIBUTE_PRIORITY": "value.priority",
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": "value.clusterDim",
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT": "value.programmaticEvent",
        "CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT": "value.launchCompletionEvent",
        "CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW": "value.accessPolicyWindow",
        "CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY": "value.syncPolicy"}),
}
# Unions where any member may be meant, whatever a tag says: no member holds a pointer or an address.
FREE_UNIONS = {"CUlaunchAttributeValue": ["cooperative", "priority", "clusterDim", "syncPolicy", "programmaticEvent"],
               "CUstreamBatchMemOpParams": ["waitValue", "writeValue", "flushRemoteWrites", "memoryBarrier"],
               "CUexecAffinityParam": ["param"]}
INTEGER_HANDLES = {"CUmemGenericAllocationHandle", "CUtexObject", "CUsurfObject", "CUgraphConditionalHandle"}
# Structs by which one call names what another gave.
REMEMBERED = {"CUipcMemHandle", "CUipcEventHandle", "CUmemPoolPtrExportData", "CUuuid"}
# Structs in which a call says which address it gave.
ALLOCATED = {"CUDA_MEM_ALLOC_NODE_PARAMS": "{0}->dptr",
             "CUgraphNodeParams": "{0}->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? {0}->alloc.dptr : 0"}
INTEGERS = {"int", "unsigned int", "size_t", "unsigned long long", "long long", "unsigned short", "unsigned char", "char",
            "cuuint32_t", "cuuint64_t", "unsigned", "short", "signed char", "long", "unsigned long", "uint64_t", "uint32_t",
            "uint8_t"}
COUNT_NAME = re.compile(r"^(num[A-Z]|count$|numElements)|Count$|^n[A-Z]")


class Types:
    def __init__(self, text):
        text = re.sub(r"//.*", "", text)
        self.aliases = dict(re.findall(r"^using (\w+) = ([^;(]+);", text, re.M))
        self.callbacks = set(re.findall(r"^using (\w+) = [^;]*\(\*\)", text, re.M))
        self.enums = {}
        for name, body in re.findall(r"^enum (\w+) : [\w ]+ \{(.*?)^\};", text, re.M | re.S):
            self.enums[name] = re.findall(r"^\s+(\w+) =", body, re.M)
        self.structs = {}
        for kind, name, body in re.findall(r"^(struct|union) (\w+) \{\n(.*?)^\};", text, re.M | re.S):
            self.structs[name] = (kind, parse_fields(body.splitlines()))

    def resolve(self, name):
        seen = name
        while seen in self.aliases and "*" not in self.aliases[seen]:
            seen = self.aliases[seen].strip()
        return seen

    def is_handle(self, name):
        final = self.resolve(name)
        target = self.aliases.get(final, "")
        return target.endswith("*") and self.resolve(target[:-1].strip()) not in self.structs


def parse_fields(lines):
    """[(type, name, extent)]; a nested struct or union is ((kind, fields), name or '', None)."""
    fields = []
    stack = []
    for line in lines:
        line = line.strip()
        if opened := re.match(r"(struct|union)(?: \w+)? \{$", line):
            stack.append((opened.group(1), fields))
            fields = []
        elif closed := re.match(r"\}\s*(\w*);$", line):
            kind, outer = stack.pop()
            outer.append(((kind, fields), closed.group(1), None))
            fields = outer
        elif field := re.match(r"(.+?)\s*\b(\w+)((?:\[\d+\])*);$", line):
            fields.append((field.group(1), field.group(2), field.group(3) or None))
    return fields


class Writer:
    def __init__(self, types):
        self.types = types
        self.fills = {}  # by struct's final name: text, in order of need
        self.function = ""

    # ---- values -----------------------------------------------------------------------------------------------------

    def value(self, spelling, name, hint):
        """A C++ expression of that type. hint: how large numbers may be."""
        types = self.types
        plain = spelling.replace("const ", "").strip()
        final = types.resolve(plain)
        if plain.endswith("*"):
            return self.pointer(spelling, name, hint)
        if plain in types.callbacks:
            return f"m.callback<{plain}>()"
        if types.is_handle(plain):
            return f"m.handle<{plain}>()"
        if plain.startswith("CUdeviceptr"):
            return f"static_cast<{plain}>(m.device_pointer())"
        if plain in INTEGER_HANDLES:
            return f"m.integer_handle(Machine::{plain}_pool)"
        if plain == "CUdevice":
            return "m.device()"
        if final in types.enums:
            return f"m.choice<{plain}>({{{', '.join(types.enums[final])}}})"
        if final in types.structs:
            self.need(final)
            return f"m.filled<{plain}>([&]({plain}& each) {{ fill_{final}(m, each); }})"
        if final in INTEGERS or plain in INTEGERS:
            if COUNT_NAME.search(name):
                return f"m.number<{plain}>(Range::kCount)"
            return f"m.number<{plain}>(Range::{self.range_of(name, hint)})"
        if plain in ("float", "double"):
            return f"m.real<{plain}>()"
        if plain == "void":
            raise AssertionError(spelling)
        return f"{plain}{{}}"

    @staticmethod
    def range_of(name, hint):
        lower = name.lower()
        if "flag" in lower:
            return "kFlags"
        if lower in ("griddimx", "griddimy", "griddimz", "blockdimx", "blockdimy", "blockdimz"):
            return "kDimension"
        return hint

    def pointer(self, spelling, name, hint):
        target = spelling.strip()[:-1].strip()
        plain = target.replace("const ", "").strip()
        if target in ("const char", "char const"):
            return "m.text()"
        if plain == "char":
            return "m.out_text()"
        if plain == "void":
            if target.startswith("const"):
                if name in ("image", "code", "fatCubin", "data"):
                    return "m.image()"
                return "static_cast<const void*>(m.data())"
            if self.function.startswith(("cuMemHost", "cuMemFreeHost")):  # looked up, not followed
                return "m.host_memory()"
            if name in ("osHandle", "handle", "shareableHandle_in"):
                return "m.file_as_pointer()"
            return "m.data()"
        if plain.replace(" ", "") == "void*":
            if name == "kernelParams":
                return "m.kernel_parameters()"
            if name == "extra":
                return "m.kernel_extra()"
            return "m.pointers()" if not target.startswith("const") else "const_cast<const void**>(m.pointers())"
        if plain.endswith("*"):
            return f"m.array<{target}>([&]({target.replace('const ', 'const ')}& each) {{ each = nullptr; }})"
        value = self.value(plain, name, hint)
        if self.types.resolve(plain) in self.types.structs:
            final = self.types.resolve(plain)
            fill = f"m.fill_or_remember(each, [&] {{ fill_{final}(m, each); }});"
        elif plain in INTEGERS:  # often how many elements another pointer leads to
            fill = f"each = m.number<{plain}>(Range::{'kBytes' if 'izes' in name else 'kCount'});"
        else:
            fill = f"each = {value};"
        return f"m.array<{plain}>([&]({plain}& each) {{ {fill} }})"

    # ---- structs ----------------------------------------------------------------------------------------------------

    def need(self, final):
        if final in self.fills:
            return
        self.fills[final] = ""
        kind, fields = self.types.structs[final]
        lines = []
        known = [alias for alias in [final, *self.types.aliases] if self.types.resolve(alias) == final]
        tagged = next((TAGGED[alias] for alias in known if alias in TAGGED), None)
        free = next((FREE_UNIONS[alias] for alias in known if alias in FREE_UNIONS), None)
        if kind == "union":
            self.union(lines, fields, "s", free)
        else:
            untagged = [field for field in fields if not tagged or field[1] != tagged[0]]
            self.fields(lines, untagged, "s", free, self.hint_of(final))
        if tagged:
            self.tag(lines, fields, tagged)
        self.fills[final] = (f"[[maybe_unused]] static void fill_{final}(Machine& m, {final}& s) {{\n"
                             "  m.clear(s);\n" + "".join(f"  {line}\n" for line in lines) + "}\n")

    @staticmethod
    def hint_of(final):
        return "kSide" if re.search(r"memcpy|offset3d|extent3d", final, re.I) else "kPlain"

    def fields(self, lines, fields, place, free, hint):
        for spelling, name, extent in fields:
            if isinstance(spelling, tuple):
                kind, inner = spelling
                inside = f"{place}.{name}" if name else place
                if kind == "struct":
                    self.fields(lines, inner, inside, free, hint)
                elif free and name in free:
                    self.union(lines, inner, inside, None)
                elif not name and all(not isinstance(each[0], tuple) and each[0] in INTEGERS for each in inner):
                    self.fields(lines, inner[-1:], inside, free, hint)
                continue
            target = f"{place}.{name}"
            if name.startswith(("reserved", "pad", "padding", "asBytes")):
                continue
            if extent:
                if "*" not in spelling and self.types.resolve(spelling) in INTEGERS:
                    lines.append(f"m.bytes({target}, sizeof {target});")
                continue
            lines.append(f"{target} = {self.value(spelling, name, hint)};")

    def union(self, lines, fields, place, members):
        chosen = [field for field in fields if field[1] and (members is None or field[1] in members)
                  and not field[1].startswith(("pad", "reserved", "asBytes"))]
        if not chosen:
            return
        lines.append(f"switch (m.below({len(chosen)})) {{")
        for index, field in enumerate(chosen):
            inner = []
            self.fields(inner, [field], place, None, "kPlain")
            lines.append(f"  case {index}: {' '.join(inner)} break;")
        lines.append("}")

    def tag(self, lines, fields, tagged):
        tag, members = tagged
        lines.append(f"s.{tag} = m.choice_exact<decltype(s.{tag})>({{{', '.join(members)}}});")
        lines.append(f"switch (s.{tag}) {{")
        for enumerator, path in members.items():
            current = fields
            place = "s"
            for step in path.split("."):
                current, place = self.step(current, place, step)
            inner = []
            self.fields(inner, [current], place, None, "kSide")
            lines.append(f"  case {enumerator}: {' '.join(inner)} break;")
        lines.append("  default: break;")
        lines.append("}")

    def step(self, fields, place, step):
        """One name down: what it leads to, and the place that holds it."""
        if isinstance(fields, tuple):  # a field found before: look inside it
            kind = fields[0]
            inner = kind[1] if isinstance(kind, tuple) else self.types.structs[self.types.resolve(kind)][1]
            return self.step(inner, f"{place}.{fields[1]}", step)
        for field in fields:
            if field[1] == step:
                return field, place
            if not field[1] and isinstance(field[0], tuple):
                for inner in field[0][1]:
                    if inner[1] == step:
                        return inner, place
        raise AssertionError(step)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call(self, name, parameters):
        self.function = name
        lines = []
        learn = []
        for index, (spelling, parameter) in enumerate(parameters):
            plain = spelling.replace("const ", "").strip()
            expression = self.value(spelling, parameter, self.number_hint(name, parameters, parameter))
            if parameter == "summaryGranularity":  # one element of the answer for each so many bytes of the size before it
                expression = f"std::max<{spelling}>({expression}, a{index - 1} / Machine::kElements + 1)"
            lines.append(f"auto a{index} = {expression};")
            if spelling.endswith("*") and not spelling.startswith("const"):
                target = plain[:-1].strip()
                if self.types.is_handle(target) and not target.endswith("*"):
                    learn.append(f"m.learn(a{index});")
                elif target.startswith("CUdeviceptr"):
                    learn.append(f"m.learn_address(a{index});")
                elif target in INTEGER_HANDLES:
                    learn.append(f"m.learn_integer(Machine::{target}_pool, a{index});")
                elif target in REMEMBERED:
                    learn.append(f"m.remember(a{index});")
                elif target in ALLOCATED:
                    learn.append(f"if (a{index} != nullptr) m.learn_allocated({ALLOCATED[target].format(f'a{index}')});")
                elif target == "void*" and name.startswith(("cuMemAllocHost", "cuMemHostAlloc")):
                    learn.append(f"m.learn_host(a{index});")
                elif target == "void" and "ToShareableHandle" in name:
                    learn.append(f"m.learn_file(a{index});")
        arguments = "".join(f", a{index}" for index in range(len(parameters)))
        body = "".join(f"  {line}\n" for line in lines)
        learned = f"  if (result == CUDA_SUCCESS) {{ {' '.join(learned for learned in learn)} }}\n" if learn else ""
        return (f"static void call_{name}(Machine& m) {{\n{body}"
                f"  [[maybe_unused]] CUresult result = m.call<{name}_fn>(Symbol::k_{name}{arguments});\n{learned}}}\n")

    @staticmethod
    def number_hint(function, parameters, name):
        """How large a number may be: what a host pointer's buffer allows, where one is given as well."""
        if name == "planeIdx":
            return "kCount"
        if function.startswith("cuMemcpy"):
            return "kPlain" if re.search("DtoD|HtoD|DtoH", function) and "DtoA" not in function else "kBytes"
        if function.startswith(("cuMemHostRegister", "cuDeviceGetPCIBusId")):
            return "kBytes"
        host = any("void*" in spelling.replace(" ", "") or spelling in ("char*",) for spelling, _ in parameters)
        if host and not function.startswith(("cuMemAllocHost", "cuMemHostAlloc", "cuLaunch")):
            return "kBytes"
        return "kPlain"


def main():
    folder = pathlib.Path(sys.argv[1])
    types = Types((folder / "driver_types.h").read_text())
    writer = Writer(types)
    calls = []
    names = []
    for name, parameters in re.findall(r"^using (\w+)_fn = CUresult\((.*)\);", (folder / "driver_functions.h").read_text(),
                                       re.M):
        if re.search("GL|VDPAU", name):
            continue  # types of other libraries; not simulated
        parsed = []
        for parameter in filter(None, parameters.split(", ")):
            spelling, own = re.match(r"(.*?)\s*(\w+)$", parameter).groups()
            parsed.append((spelling.strip(), own))
        calls.append(writer.call(name, parsed))
        names.append(name)
    fills = list(writer.fills)
    with open(sys.argv[2], "w") as out:
        out.write("// Written by tests/simgpu/fuzz/generate.py.\n")
        for final in fills:
            out.write(f"static void fill_{final}(Machine& m, {final}& s);\n")
        out.write("".join(writer.fills[final] for final in fills))
        out.write("".join(calls))
        out.write("static constexpr Call kCalls[] = {\n")
        out.write("".join(f"    {{Symbol::k_{name}, &call_{name}}},\n" for name in names))
        out.write("};\n")


if __name__ == "__main__":
    main()
