"""A client of rotad's that does whatever may hurt others, at random, until it is killed.

hostile_client.py SOCKET UUID SEED USER: the GPU that honest programs use. Prints what other users' names it has seen.
"""
import os
import random
import socket
import struct
import sys
import time

import raw_client as raw
from raw_client import ADDED, ADD_GPU, GIVE_BACK, HAND_OVER, RESERVE, ROOM, SESSION, STATE, STATUS, STAY, USAGE, VERSION, WANT

SECRET = b"memhog"
WORDS = [0, 1, 4096, 1 << 20, 1 << 28, 1 << 30, 1 << 36, 1 << 47, (1 << 63) - 1, (1 << 64) - 1]


class Client(raw.RawClient):
    def __init__(self, path):
        super().__init__(path, timeout=5)
        self.number = 0
        self.gpus = []

    def send(self, kind, body=b"", version=VERSION, descriptors=(), wait=False):
        super().send(kind, body, version, descriptors, wait)  # rotad may have read enough of it for now

    def read(self):
        """All that has come, and what it says of others."""
        self.socket.setblocking(False)
        try:
            while True:
                message = self.socket.recv(1024)
                if not message:
                    raise ConnectionError
                if SECRET in message:
                    print(f"seen: {message}", flush=True)
                if raw.kind_of(message) == ADDED:
                    self.gpus.append(raw.index_in(message))
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(self.timeout)


def uuid_of(real, chance):
    return real if chance.random() < 0.6 else chance.randbytes(16)


def act(client, real, chance):
    gpu = chance.choice(client.gpus) if client.gpus else chance.randrange(64)
    word = lambda: chance.choice(WORDS)
    action = chance.randrange(14)
    times = chance.choice([1, 1, 1, 20, 200])
    if action == 0:
        total = chance.choice([1 << 20, 1 << 33, 1 << 47])
        client.send(ADD_GPU, struct.pack("<16sQQ64s", uuid_of(real, chance), total, word(), b"\xff\x1b[31mGPU"))
    elif action == 1:
        client.send(SESSION, struct.pack("<64sQQ", chance.choice([b"mine", chance.randbytes(20)]), word(), word()))
    elif action == 2:
        for _ in range(times):
            client.number += 1
            client.send(RESERVE, struct.pack("<IIQQQQ", gpu, client.number, word(), word(), word(), word()))
    elif action == 3:
        for _ in range(times):
            client.send(STATE, struct.pack("<IIQQIIQQ", gpu, client.number, word(), word(), chance.choice([0, 1 << 31]), 0, word(), word()))
    elif action == 4:
        for _ in range(times):
            struct.pack_into("<Q", client.usage, 8 * chance.randrange(1, raw.RECORD * 9 // 8), word())
        client.send(USAGE)
    elif action == 5:
        for _ in range(times):
            task = chance.choice([0, 1 << gpu, 3, chance.getrandbits(64), (1 << 64) - 1])
            client.send(WANT, struct.pack("<QIIIIQ", chance.choice([0, 1 << gpu, (1 << 64) - 1]), chance.randrange(2), 0, chance.randrange(2),
                                          chance.randrange(2), task))
    elif action == 6:
        client.send(GIVE_BACK, struct.pack("<II", chance.choice([client.grant(), 1, 0]), chance.choice([gpu, word() & 0xffffffff])))
    elif action == 7:
        for _ in range(times):
            client.send(ROOM, struct.pack("<IIQ", gpu, 0, word()))
    elif action == 8:
        for _ in range(times):
            client.send(STATUS)
    elif action == 9:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        event = os.eventfd(0)
        for _ in range(min(times, 20)):
            client.send(chance.choice([HAND_OVER, USAGE, STAY]), struct.pack("<IIQ", gpu, 0, word()),
                        descriptors=[chance.choice([event, ends[0].fileno(), 0])])
        os.close(event)
        for end in ends:
            end.close()
    elif action == 10:
        client.send(chance.randrange(0, 120), chance.randbytes(240), version=chance.randrange(0, 10))
    elif action == 11:
        for _ in range(times):
            client.send(ADD_GPU, struct.pack("<16sQQ64s", real, 1 << 33, 1, b"GPU"))
    elif action == 12:
        client.use(gpu % 64, raw.SHORT, 1 << 30)  # it lacks memory
        client.use(gpu % 64, raw.REFUSALS, chance.randrange(1 << 30), "<I")
        client.send(USAGE)
    else:
        client.read()


def main():
    path, real, seed, user = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    raw.become(user)
    chance = random.Random(seed)
    clients = []
    while True:
        time.sleep(chance.choice([0, 0.001, 0.01, 0.05]))
        try:
            if not clients or (len(clients) < 50 and chance.random() < 0.1):
                client = Client(path)
                if chance.random() < 0.1:
                    client.send(STATUS)  # and does not read it
                elif client.hello(b"hostile"):
                    clients.append(client)
                continue
            client = chance.choice(clients)
            act(client, real, chance)
        except (ConnectionError, TimeoutError, socket.timeout, OSError):
            pass
        if clients and chance.random() < 0.05:
            clients.pop(chance.randrange(len(clients))).socket.close()


if __name__ == "__main__":
    main()
