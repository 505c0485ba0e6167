"""Programs that open each other's memory by legacy IPC handles, step by step as a test says."""
import json
import sys
import textwrap

from harness import Case, ROTA, ROTAD, SHIMS

BEGIN = textwrap.dedent(r"""
    import ctypes, json, sys, threading, time
    cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
    KIB, MIB = 1 << 10, 1 << 20
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]
    def check(result):
        assert result == 0, result
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    def allocate(size):
        address = word()
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), word(size)))
        return address.value
    def try_to_allocate(size):
        address = word()
        return cuda.cuMemAlloc_v2(ctypes.byref(address), word(size)), address.value
    def try_to_allocate_on(gpu, size):
        other = ctypes.c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(other), gpu))
        check(cuda.cuCtxSetCurrent(other))
        return try_to_allocate(size)
    def may_allocate(size):
        address = word()
        return cuda.cuMemAlloc_v2(ctypes.byref(address), word(size)) == 0 and cuda.cuMemFree_v2(address) == 0
    def free(address):
        return cuda.cuMemFree_v2(word(address))
    def fill(address, size, value):
        check(cuda.cuMemsetD8_v2(word(address), value, word(size)))
        check(cuda.cuCtxSynchronize())
    def all_are(address, size, value):
        bytes = (ctypes.c_ubyte * size)()
        check(cuda.cuMemcpyDtoH_v2(bytes, word(address), word(size)))
        return bytearray(bytes).count(value) == size
    def is_readable(address):
        return cuda.cuMemcpyDtoH_v2(ctypes.byref(ctypes.c_ubyte()), word(address), word(1)) == 0
    def export(address):
        handle = Handle()
        return cuda.cuIpcGetMemHandle(ctypes.byref(handle), word(address)), bytearray(handle.bytes).hex()
    def open_handle(text, flags=1):
        address = word()
        result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), Handle.from_buffer_copy(bytes.fromhex(text)), flags)
        return result, address.value
    def close(address):
        return cuda.cuIpcCloseMemHandle(word(address))
    threads, ended = {}, {}
    def begin(key, name, *arguments):
        def run():
            check(cuda.cuCtxSetCurrent(context))
            ended[key] = seconds_of(name, *arguments)
        threads[key] = threading.Thread(target=run)
        threads[key].start()
    def begin_together(count, name, *arguments):
        barrier = threading.Barrier(count)
        def run(key):
            check(cuda.cuCtxSetCurrent(context))
            barrier.wait()
            ended[key] = seconds_of(name, *arguments)
        for key in range(count):
            threads[key] = threading.Thread(target=run, args=[key])
            threads[key].start()
    def has_ended(key):
        return key in ended
    def end(key):
        threads.pop(key).join()
        return ended.pop(key)
    def seconds_of(name, *arguments):
        begun = time.monotonic()
        return globals()[name](*arguments), time.monotonic() - begun
    def range_of(address):
        base, size = word(), word()
        check(cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), word(address)))
        return base.value - address, size.value
    contexts = []
    def begin_context():
        contexts.append(ctypes.c_void_p())
        check(cuda.cuCtxCreate_v2(ctypes.byref(contexts[-1]), 0, 0))
    def end_context():
        check(cuda.cuCtxDestroy_v2(contexts.pop()))
        check(cuda.cuCtxSetCurrent(context))
    def ended_context(text):
        other = ctypes.c_void_p()
        check(cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0))
        result, address = open_handle(text)
        check(cuda.cuCtxDestroy_v2(other))
        check(cuda.cuCtxSetCurrent(context))
        return result, close(address)
    stream = ctypes.c_void_p()
    def free_async(address):
        return cuda.cuMemFreeAsync(word(address), None)
    def begin_capture():
        check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
        check(cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(2))))
        return cuda.cuStreamBeginCapture_v2(stream, 2)
    def end_capture():
        return cuda.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p()))
    def descriptor():
        handle, number = word(), ctypes.c_int()
        check(cuda.cuMemCreate(ctypes.byref(handle), word(4 * MIB), (ctypes.c_int * 8)(1, 1, 1, 0), word(0)))
        return cuda.cuMemExportToShareableHandle(ctypes.byref(number), handle, 1, word(0))
    def allocate_async(size):
        address = word()
        check(cuda.cuMemAllocAsync(ctypes.byref(address), word(size), None))
        return address.value
    def tokens(address):
        return cuda.cuPointerGetAttribute((word * 2)(), 5, word(address))
    def write_value(address):
        return cuda.cuStreamWriteValue32_v2(None, word(address), 1, 0)
    def dma_buf(address, size):
        return cuda.cuMemGetHandleForAddressRange(ctypes.byref(ctypes.c_int()), word(address), word(size), 1, word(0))
    def launch(name, *parameters):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), b"\x7fELF"))
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
        places = (ctypes.c_void_p * len(parameters))(*(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in parameters))
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, places, None))
    def run_until_stored(address):  # does not wait for it
        launch(b"_Z10spin_untilPj", word(address))
    def store(address, value):
        launch(b"_Z4pokePjj", word(address), ctypes.c_uint(value))
    def synchronize():
        return cuda.cuCtxSynchronize()
    def attribute(address, number):
        value = ctypes.c_uint()
        check(cuda.cuPointerGetAttribute(ctypes.byref(value), number, word(address)))
        return value.value
""")

# Does what it is told, one line of JSON for each: the name of one of the functions above, and its arguments.
SERVES = BEGIN + textwrap.dedent("""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), flush=True)
""")

KIB, MIB = 1 << 10, 1 << 20
LEGACY_IPC, MAPPED = 10, 13


class Ipc(Case):
    nvml = False  # whether rotad can measure
    memory_wait = "60s"
    options = ()  # of rotad

    def setUp(self):
        super().setUp()
        self.prepare()
        if self.nvml:
            self.environment["LD_LIBRARY_PATH"] += f":{SHIMS / 'simgpu/nvml'}"
        self.daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                                 "--mode", "exclusive", "--quantum", "50ms", "--memory-wait", self.memory_wait, *self.options,
                                 ROTA_SIM_TIME_SCALE="1")
        self.eventually(lambda: self.status() is not None, "rotad answers")

    def prepare(self):
        """What a test has to arrange before rotad starts."""

    def program(self, memory="swap", **variables):
        return self.start(ROTA, "run", "--memory", memory, "--", sys.executable, "-c", SERVES, ROTA_SIM_TIME_SCALE="1", **variables)

    def ask(self, program, *what):
        program.stdin.write(json.dumps(what) + "\n")
        program.stdin.flush()
        line = program.stdout.readline()
        if not line:
            self.fail(f"it ended at {what}: {self.finish(program).stderr[-3000:]}")
        return json.loads(line)

    def ends_well(self, *programs):
        for program in programs:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])

    def exported(self, exporter, size, value):
        address = self.ask(exporter, "allocate", size)
        self.ask(exporter, "fill", address, size, value)
        result, handle = self.ask(exporter, "export", address)
        self.assertEqual(result, 0)
        return address, handle

    def opened(self, importer, handle):
        result, address = self.ask(importer, "open_handle", handle)
        self.assertEqual(result, 0)
        return address
