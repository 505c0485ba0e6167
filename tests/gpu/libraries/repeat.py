"""`use_X.py NAME… --repeat BYTES`: the parts again and again, next to this many bytes of other memory, the *weight*, while others take the
GPU (swap_tables.py).

Two passes by themselves say what each part's number is; then "ready". After a line of standard input the parts go on until another
comes. The last line says how often each pass was compared: {"parts": […], "unable": {…}, "unsteady": […], "rounds": …, "exact": …,
"close": …, "wrong": […], "failed": {…}, "wrong_count": …, "weight_wrong": …}. What fails in the first two passes is `unable` and is not
tried again. `exact` numbers are those of before bit for bit; `close` ones differ by less than a relative 1e-4, which sums in another
order do; what already differed by more between the first two passes is `unsteady` and is not compared. The weight is compared and written
anew with every part; it lies in pieces of 2 MiB, which are evicted after all else (runtime/memory/swap/eviction_order.cpp): so if any of it is
evicted, the library's memory was evicted before.
"""
import ctypes
import gc
import json
import math
import os
import sys
import threading
import traceback

PIECE = 2 << 20


class Weight:
    def __init__(self, size):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.pieces = [ctypes.c_uint64() for _ in range(size // PIECE)]
        self.value = self.wrong = 0
        self.word = ctypes.c_uint()
        with self:
            for piece in self.pieces:
                self.call("cuMemAlloc_v2", ctypes.byref(piece), ctypes.c_size_t(PIECE))
            self.write()

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        assert result == 0, f"{name}: CUDA error {result}"

    def __enter__(self):
        self.call("cuCtxPushCurrent_v2", self.context)

    def __exit__(self, *_):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def write(self):
        self.value += 1
        for number, piece in enumerate(self.pieces):
            self.call("cuMemsetD32_v2", piece, ctypes.c_uint(self.value * 1000003 + number), ctypes.c_size_t(PIECE // 4))
        self.call("cuCtxSynchronize")

    def renew(self):
        """A word of each piece is compared: another each time."""
        with self:
            for number, piece in enumerate(self.pieces):
                at = self.value * 4099 * 4 % PIECE
                self.call("cuMemcpyDtoH_v2", ctypes.byref(self.word), ctypes.c_uint64(piece.value + at), ctypes.c_size_t(4))
                self.wrong += self.word.value != (self.value * 1000003 + number) & 0xffffffff
            self.write()


def once(function):
    """(number, None) or (None, why not)."""
    try:
        value = function()
        return (None if value is None else float(value)), None
    except Exception as error:
        return None, "".join(traceback.format_exception_only(error)).strip()[:300]
    finally:
        gc.collect()  # a part's rest is not left to the next part's forked children: PyTorch's memory cannot be freed there


def line_of_input():
    """Waits for one. sys.stdin has a lock, and a process that is forked while a thread waits with it cannot close its own sys.stdin, which
    multiprocessing's do (PyTorch's DataLoader): they hang, and so do those that wait for them."""
    while os.read(0, 1) not in (b"\n", b""):
        pass


def agree(one, other):
    if one is None or other is None:
        return one is other
    return one == other or math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(one) and math.isnan(other))


def repeat(functions, weight_bytes, rounds=300):
    first = {each.__name__: once(each) for each in functions}
    second = {each.__name__: once(each) for each in functions}
    unable = {name: why or second[name][1] for name, (_, why) in first.items() if why or second[name][1]}
    unsteady = [name for name in first if name not in unable and not agree(first[name][0], second[name][0])]
    steady = [each for each in functions if each.__name__ not in unable]
    weight = Weight(weight_bytes)
    print("ready", flush=True)
    line_of_input()
    end = threading.Event()
    threading.Thread(target=lambda: (line_of_input(), end.set()), daemon=True).start()
    said = {"parts": [each.__name__ for each in functions], "unable": unable, "unsteady": unsteady, "rounds": 0, "exact": 0, "close": 0, "wrong": [], "failed": {}}
    while steady and said["rounds"] < rounds:
        for function in steady:
            if end.is_set() and said["rounds"]:  # once in any case
                break
            name = function.__name__
            value, why = once(function)
            weight.renew()
            if why:
                said["failed"].setdefault(name, why)
            elif name not in unsteady:
                wanted = second[name][0]
                said["exact"] += value == wanted
                if value != wanted and agree(value, wanted):
                    said["close"] += 1
                elif value != wanted:
                    said["wrong"].append([name, value, wanted])
        else:
            said["rounds"] += 1
            continue
        break
    end.wait()
    weight.renew()
    print(json.dumps({**said, "wrong": said["wrong"][:5], "wrong_count": len(said["wrong"]), "weight_wrong": weight.wrong}), flush=True)
