"""What rota costs a program: pairs of processes side by side that take turns batch by batch, so that what the machine does otherwise
meets both."""
import json
import os
import pathlib
import statistics
import subprocess

from swap_rig import interval

BATCHES = 40
# The same few for both of a pair: which ones a process gets makes more difference than rota does.
PROCESSORS = sorted(os.sched_getaffinity(0))[:4]


class Steps:
    """A program that says "ready" and then does a batch for every line that it reads: it answers with a line of JSON, of times."""

    def __init__(self, command, environment, processors, stderr=subprocess.PIPE):
        self.process = subprocess.Popen(list(map(str, command)), env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=stderr, preexec_fn=lambda: os.sched_setaffinity(0, processors))

    def wait_until_ready(self):
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(line + (self.process.communicate()[1] or "")[-1500:])

    def move_to(self, processors):
        """All of its threads."""
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), processors)
            except ProcessLookupError:
                pass

    def batch(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def may_end(self):
        self.process.stdin.close()
        self.process.stdin = None

    def end(self):
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def ratios_of(one, other, batches, first_order):
    """By name of what is timed: the middle of the batches' ratios, since what else happens only ever disturbs one of the two."""
    both, taken = [one, other], []
    for number in range(batches):
        order = both if (number + first_order) % 2 == 0 else both[::-1]
        answers = {steps: steps.batch() for steps in order}
        taken.append([answers[steps] for steps in both])
    return {name: statistics.median(first[name] / second[name] for first, second in taken) for name in taken[0][0]}


def pairs_of(bench, first, second):
    """Step times under two builds of rota (None: natively): the mean of first over second, with its 95% interval, and the
    middle. Not judged: machines are noisy."""
    def steps(rota):
        command = bench.workload("torch_step_times")
        return Steps([rota, "run", "--", *command] if rota else command, bench.environment, PROCESSORS)

    ratios = {}
    for pair in range(bench.pairs):
        both = [steps(first), steps(second)]
        try:
            for each in both:
                each.wait_until_ready()
            for name, ratio in ratios_of(*both, BATCHES, pair).items():
                ratios.setdefault(name, []).append(ratio)
        finally:
            for each in both:
                each.end()
    said = []
    for name, values in ratios.items():
        mean, half = interval(values)
        said.append(f"{name} {mean:.3f} ± {half:.3f} (middle {statistics.median(values):.3f})")
    return f"{bench.pairs} pairs: " + ", ".join(said)
