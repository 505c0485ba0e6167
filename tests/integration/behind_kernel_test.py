"""Calls that do not wait for the GPU without rota do not wait under rota: a kernel may be waiting for what the calling
thread does next. Each call is made while such a kernel runs; waiting for rotad is allowed, and is over long before the
limit."""
import re
import tomllib

from harness import PROGRAMS, ROOT, ROTA, SHIMS, Case

PROGRAM = PROGRAMS / "behind_kernel"
EXPECTED = tomllib.loads((ROOT / "tests/data/behind_kernel.toml").read_text())


def base_name(symbol, policy):
    """cuMemAlloc for cuMemAlloc_v2, cuMemAllocAsync for cuMemAllocAsync_ptsz."""
    form = re.sub(r"_(ptsz|ptds)$", "", symbol)
    return form if form in policy else re.sub(r"_v\d+$", "", form)


class BehindKernel(Case):
    memory = "1G"

    def failing(self, expected, *prefix, every=1, **environment):
        """The rules that were tried, and those that fail, with what they say. One that is not expected to fail has a second
        try: on a busy machine a slow call may be given up on."""
        record = self.scratch / "record.tsv"
        self.call(*prefix, PROGRAM, "--jobs", "2", "--every", every, "--record", record, timeout=140, **environment)
        rows = [line.split("\t") for line in record.read_text().splitlines()]
        self.assertGreater(len(rows), 430 // every)
        failed = {f"{area}.{name}": why for area, name, result, why in rows if result != "ok"}
        for rule in [rule for rule in failed if rule not in expected]:
            if self.call(*prefix, PROGRAM, "--rule", rule, **environment).returncode == 0:
                del failed[rule]
        return [f"{area}.{name}" for area, name, *_ in rows], failed

    def check(self, way, *prefix, every=1, **environment):
        expected = EXPECTED["waits"][way]
        tried, failed = self.failing(expected, *prefix, every=every, **environment)
        self.assertEqual({rule: why for rule, why in failed.items() if rule not in expected}, {})
        mended = [rule for rule in expected if rule not in failed and (every == 1 or rule in tried)]
        self.assertEqual(mended, [], "mended: take them out of behind_kernel.toml")

    # ctest labels: unsanitized
    def test_every_function_that_may_not_block_is_called_or_left_out_with_a_reason(self):
        policy = tomllib.loads((ROOT / "cuda_headers/policy.toml").read_text())["driver"]
        listed = [line.split("\t") for line in self.checked(PROGRAM, "--list").stdout.splitlines()]
        called = {base_name(name, policy) for area, name, *_ in listed if area == "unwaiting"}
        left_out = [name for group in EXPECTED["left_out"].values() for name in group["functions"]]
        self.assertEqual(len(left_out), len(set(left_out)))
        self.assertEqual(called & set(left_out), set())
        self.assertEqual(called | set(left_out), {name for name, facts in policy.items() if not facts.get("may_block")})

    # ctest labels: unsanitized
    def test_no_fourth_call_waits_natively(self):
        self.assertEqual(self.failing({}, every=4)[1], {})

    # ctest labels: unsanitized thorough
    def test_no_call_waits_natively(self):
        self.assertEqual(self.failing({})[1], {})

    # ctest labels: unsanitized
    def test_no_fourth_call_waits_under_rota_run_with_native_memory(self):
        self.check("native", ROTA, "run", "--", every=4, ROTA_MEMORY="native")

    # ctest labels: unsanitized thorough
    def test_no_call_waits_under_rota_run_with_native_memory(self):
        self.check("native", ROTA, "run", "--", ROTA_MEMORY="native")

    # ctest labels: unsanitized
    def test_no_fourth_call_waits_under_rota_run_with_managed_memory(self):
        self.check("managed", ROTA, "run", "--", every=4, ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")

    # ctest labels: unsanitized thorough
    def test_no_call_waits_under_rota_run_with_managed_memory(self):
        self.check("managed", ROTA, "run", "--", ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")

    # ctest labels: unsanitized
    def test_no_fourth_call_waits_under_the_preload_alone_with_managed_memory(self):
        self.check("managed_without_rotad", every=4, LD_PRELOAD=str(SHIMS / "librota.so"), ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")

    # ctest labels: unsanitized thorough
    def test_no_call_waits_under_the_preload_alone_with_managed_memory(self):
        self.check("managed_without_rotad", LD_PRELOAD=str(SHIMS / "librota.so"), ROTA_MEMORY="managed", ROTA_MEMORY_SMALL="0")
