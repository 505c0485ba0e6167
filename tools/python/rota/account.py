"""What this process used of the GPUs, by librota-core.so's account of it (runtime/account/test_interface.h)."""
import ctypes
import os

_VERSION = 1
BEGINS, ENDS = 0, 1


class _Account(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "used_bytes", "peak_bytes", "allocations", "live", "launches", "copies", "copied_bytes", "synchronizations", "calls", "errors",
        "waited_ns", "busy_ns")]


class Account:
    """The core is there from the first CUDA call of the process on, so it is looked for until then."""

    def __init__(self):
        self._function = None

    def mark(self, what, name):
        """Tells the core that the test begins or ends; the numbers, or None where the process has none."""
        if self._function is None:
            try:
                library = ctypes.CDLL("librota-core.so", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
            except OSError:
                return None
            try:
                self._function = library.rota_core_test
            except AttributeError:
                return None
            self._function.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.POINTER(_Account)]
            self._function.restype = ctypes.c_int
        account = _Account()
        answer = self._function(_VERSION, what, name.encode("utf-8", "replace"), ctypes.byref(account))
        if answer == 2:
            raise RuntimeError("librota-core.so is of another version of rota than the Python package: install both from the same one")
        if answer != 0:
            return None
        return {field: getattr(account, field) for field, _ in _Account._fields_}


def has_handler(number):
    """Whether a signal is handled by anything, C code included, of which the signal module does not know."""
    current = (ctypes.c_char * 1024)()  # struct sigaction, larger than anywhere; the handler comes first
    if ctypes.CDLL(None, use_errno=True).sigaction(number, None, current) != 0:
        raise OSError(ctypes.get_errno(), f"signal {number} cannot be handled")
    return ctypes.c_void_p.from_buffer(current).value not in (None, 0, 1)
