"""A client of rotad's that speaks the protocol by hand (scheduler/protocol/protocol.h), for tests of what a hostile one can do."""
import mmap
import os
import socket
import struct

HELLO, ADD_GPU, WANT, GIVE_BACK, USAGE, STATUS, STAY, ROOM, SESSION, RESERVE, STATE, HAND_OVER, GANG = range(1, 14)
WELCOME, ADDED = 101, 102
VERSION = 9
MAGIC = 0x41544f52
BODY = 248
PAGE = 20480
# A GPU's record in either page (scheduler/protocol/pages.h).
RECORD = 256
DEVICE, FIXED, FIXED_FOR_NOW, RESIDENT, SHORT, FREE, REFUSALS = range(0, 56, 8)
MOVED_OUT = 200
SUM_OUT = 8  # in the record before the first GPU's, which is -1


def become(user):
    """From now on this process is another user's, if it may be."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def packet(kind, body=b"", version=VERSION):
    return struct.pack("<IHH", MAGIC, version, kind) + body.ljust(BODY, b"\0")


def kind_of(message):
    return struct.unpack_from("<H", message, 6)[0]


def index_in(added):
    return struct.unpack_from("<I", added, 24)[0]


class RawClient:
    def __init__(self, path, timeout=None):
        self.usage = self.lease = None
        self.timeout = timeout
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(path)

    def send(self, kind, body=b"", version=VERSION, descriptors=(), wait=True):
        """Without `wait`, not what rotad has no place for now."""
        self.socket.settimeout(self.timeout if wait else 0)
        try:
            socket.send_fds(self.socket, [packet(kind, body, version)], list(descriptors))
        except BlockingIOError:
            if wait:
                raise
        finally:
            self.socket.settimeout(self.timeout)

    def hello(self, name, returns=False):
        """Whether rotad has taken it, and given it its pages. `returns`: it says that it has lost a rotad."""
        self.send(HELLO, struct.pack("<I64sI", VERSION, name, returns))
        _, pages, _, _ = socket.recv_fds(self.socket, 1024, 2)
        if len(pages) == 2:
            self.lease = mmap.mmap(pages[0], PAGE, prot=mmap.PROT_READ)
            self.usage = mmap.mmap(pages[1], PAGE)
        for page in pages:
            os.close(page)
        return self.usage is not None

    def grant(self, gpu=0):
        return struct.unpack_from("<I", self.lease, RECORD * (1 + gpu))[0]

    def use(self, gpu, field, value, form="<Q"):
        struct.pack_into(form, self.usage, RECORD * (1 + gpu) + field, value)

    def add_gpu(self, uuid, total, context=1, name=b"GPU", wait=True):
        self.send(ADD_GPU, struct.pack("<16sQQ64sII", uuid, total, context, name, 0, 0), wait=wait)

    def state(self, gpu, device, movable, fixed, swapped):
        self.send(STATE, struct.pack("<IIQQIIQQ", gpu, 0, device, movable, 0, 0, fixed, swapped))
