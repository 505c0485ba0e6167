"""What a hostile client says of itself keeps no memory from an honest program next to it: claims beyond anything that it has been granted, a limit of its
own, a GPU of the wrong size, contexts on many connections."""
import os
import sys
import unittest

from harness import PROGRAMS, ROTA, Case, kill

# LIES in turn, then it stays until its input ends.
LIAR = """
import struct, sys
import raw_client as raw
path, uuid, lie, total = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3], int(sys.argv[4])
raw.become(54321)

class Client(raw.RawClient):
    def add(self, total, context=1):
        self.add_gpu(uuid, total, context)
        while True:
            message = self.socket.recv(1024)
            if raw.kind_of(message) == raw.ADDED:
                return raw.index_in(message)

clients = [Client(path) for _ in range(20 if lie == "contexts" else 1)]
for client in clients:
    assert client.hello(b"liar")
    gpu = client.add({"small": 1 << 20, "large": 1 << 47}.get(lie, total), total if lie in ("context", "contexts") else 1)
one = clients[0]
if lie == "fixed":
    one.state(gpu, total, 0, total, 0)
elif lie == "swapped":
    one.state(gpu, total, total, 0, total)
elif lie == "movable":
    one.state(gpu, 1 << 47, 1 << 47, 0, 0)
elif lie == "session":
    one.send(raw.SESSION, struct.pack("<64sQQ", b"private-project-x", 0, 0))
    one.state(gpu, total, total, 0, 0)
elif lie in ("usage fixed", "usage resident"):
    one.use(gpu, raw.DEVICE, total)
    one.use(gpu, raw.FIXED if lie == "usage fixed" else raw.RESIDENT, total)
    one.send(raw.USAGE)
one.add(total)  # its answer comes after all of that has been read
print("said", flush=True)
sys.stdin.read()
"""

LIES = "context", "contexts", "fixed", "swapped", "movable", "session", "usage fixed", "usage resident", "small", "large"
MIB = 1 << 20


class HostileClaims(Case):
    def liar(self, uuid, lie):
        child = self.start(sys.executable, "-B", "-c", LIAR, self.environment["ROTA_SOCKET"], uuid, lie, 256 * MIB,
                           PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(child.stdout.readline(), "said\n", f"{lie}: {child.poll()}")
        return child

    def with_a_liar(self, memory):
        self.scratch.chmod(0o755)
        self.start_daemon()
        hog = [ROTA, "run", "--memory", memory, "--", PROGRAMS / "memhog", "--rounds", "2", "--bytes"]
        first = self.start(*hog, "8M", "--hold")
        self.assertTrue(first.stdout.readline().startswith("ready"))
        uuid = self.status()["gpus"][0]["uuid"].removeprefix("GPU-").replace("-", "")
        self.finish(first)
        for lie in LIES:
            with self.subTest(lie=lie):
                liar = self.liar(uuid, lie)
                # 16 MiB are for its own context, and as much for the one that the liar may have.
                result = self.call(*hog, "200M")
                kill(liar)
                self.eventually(lambda: not self.clients(), "the liar is gone")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn('"wrong":0', result.stdout)
                self.assertNotIn("out of memory", result.stderr)
                self.assertNotIn("private-project-x", result.stderr)

    def test_a_liar_keeps_no_swap_memory_from_an_honest_program(self):
        self.with_a_liar("swap")

    def test_a_liar_keeps_no_native_memory_from_an_honest_program(self):
        self.with_a_liar("native")

    def test_a_liar_keeps_no_unified_memory_from_an_honest_program(self):
        self.with_a_liar("managed")


if __name__ == "__main__":
    unittest.main()
