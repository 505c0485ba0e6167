"""The calls that programs/releases_*.cpp must leave in a trace, above all those whose signature differs between releases.

Written as `rota trace show` prints them: `?` stands for one argument's value, `…` for anything.
"""
import re


def calls(text):
    """[(line, compiled pattern)] of a text with a call a line."""
    made = []
    for line in filter(None, map(str.strip, text.splitlines())):
        pattern = re.escape(line).replace(re.escape("?"), r"[^,()]+").replace("…", ".*")
        made.append((line, re.compile(r"(?<![\w])" + pattern)))
    return made


DRIVER = {
    "11.8": calls("""
        cuDeviceGetUuid(uuid=?, dev=0)
        cuGetProcAddress(symbol="cuMemAlloc", pfn=?, cudaVersion=11080, flags=CU_GET_PROC_ADDRESS_DEFAULT)
        cuCtxCreate_v2(pctx=?, flags=CU_CTX_SCHED_AUTO, dev=0)
        cuMemAdvise(devPtr=?, count=40000, advice=CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device=0)
        cuMemPrefetchAsync(devPtr=?, count=40000, dstDevice=0, hStream=?)
        cuStreamGetCaptureInfo(hStream=?, captureStatus_out=?, id_out=?)
        cuGraphAddKernelNode(
        cuGraphInstantiate_v2(phGraphExec=?, hGraph=?, phErrorNode=?, logBuffer=?, bufferSize=0)
        cuEventElapsedTime(
        cuMemAlloc_v2(dptr=?, bytesize=40000)
        cuLaunchKernel(kernel="saxpy(int, float, float const*, float*)" grid=(40,1,1) block=(256,1,1)
        """),
    "12.4": calls("""
        cuDeviceGetUuid(uuid=?, dev=0)
        cuGetProcAddress_v2(symbol="cuMemAlloc", pfn=?, cudaVersion=12040, flags=CU_GET_PROC_ADDRESS_DEFAULT, symbolStatus=?)
        cuCtxCreate_v2(pctx=?, flags=CU_CTX_SCHED_AUTO, dev=0)
        cuMemAdvise(devPtr=?, count=40000, advice=CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device=0)
        cuMemPrefetchAsync(devPtr=?, count=40000, dstDevice=0, hStream=?)
        cuStreamGetCaptureInfo_v2(…*numDependencies_out=1
        cuGraphAddKernelNode_v2(
        cuGraphInstantiateWithFlags(phGraphExec=?, hGraph=?, flags=0)
        cuEventElapsedTime(
        cuMemAlloc_v2(dptr=?, bytesize=40000)
        cuLaunchKernel(kernel="saxpy(int, float, float const*, float*)" grid=(40,1,1) block=(256,1,1)
        """),
    "13.0": calls("""
        cuDeviceGetUuid_v2(uuid=?, dev=0)
        cuGetProcAddress_v2(symbol="cuMemAlloc", pfn=?, cudaVersion=13000, flags=CU_GET_PROC_ADDRESS_DEFAULT, symbolStatus=?)
        cuCtxCreate_v4(pctx=?, ctxCreateParams=…numExecAffinityParams=0…flags=CU_CTX_SCHED_AUTO, dev=0)
        cuMemAdvise_v2(devPtr=?, count=40000, advice=CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location={type=CU_MEM_LOCATION_TYPE_DEVICE, id=0})
        cuMemPrefetchAsync_v2(devPtr=?, count=40000, location={type=CU_MEM_LOCATION_TYPE_DEVICE, id=0}, flags=0, hStream=?)
        cuStreamGetCaptureInfo_v3(…edgeData_out=…*numDependencies_out=1
        cuGraphAddKernelNode_v2(
        cuGraphInstantiateWithFlags(phGraphExec=?, hGraph=?, flags=0)
        cuEventElapsedTime_v2(
        cuMemAlloc_v2(dptr=?, bytesize=40000)
        cuLaunchKernel(kernel="saxpy(int, float, float const*, float*)" grid=(40,1,1) block=(256,1,1)
        """),
}

RUNTIME_OF_ALL = calls("""
    cudaMalloc(devPtr=?, size=40000)
    cudaMallocAsync(devPtr=?, size=40000, hStream=?)
    cudaMalloc3D(pitchedDevPtr=?, extent={width=200, height=64, depth=2})
    cudaMemset3DAsync(pitchedDevPtr={ptr=…, pitch=…}, value=0, extent={width=200, height=64, depth=2}, stream=?)
    cudaCreateChannelDesc(x=32, y=0, z=0, w=0, f=cudaChannelFormatKindFloat)
    cudaMemcpy(dst=?, src=?, count=4, kind=77) = cudaErrorInvalidMemcpyDirection
    cudaSetDevice(device=99) = cudaErrorInvalidDevice
    cudaGraphLaunch(
    cudaFreeAsync(
    cudaLaunchHostFunc(
    cudaGetErrorString(error=cudaErrorInvalidMemcpyDirection) = "invalid copy direction for memcpy"
    """)
RUNTIME = {
    "11.8": RUNTIME_OF_ALL + calls("""
        cudaGetDeviceProperties(
        cudaMemAdvise(devPtr=?, count=40000, advice=cudaMemAdviseSetPreferredLocation, device=0)
        cudaMemPrefetchAsync(devPtr=?, count=40000, dstDevice=0, stream=?)
        cudaMemPrefetchAsync(devPtr=?, count=40000, dstDevice=-1, stream=?)
        cudaGraphInstantiate(pGraphExec=?, graph=?, pErrorNode=?, pLogBuffer=?, bufferSize=0)
        cudaGraphExecUpdate(hGraphExec=?, hGraph=?, hErrorNode_out=?, updateResult_out=?)
        cudaStreamGetCaptureInfo_v2(…*numDependencies_out=1
        cudaGetDriverEntryPoint(symbol="cuLaunchKernel", funcPtr=?, flags=?)
        cudaGraphAddDependencies(graph=?, from=…, to=…, numDependencies=1)
        """),
    "12.4": RUNTIME_OF_ALL + calls("""
        cudaGetDeviceProperties_v2(
        cudaMemAdvise(devPtr=?, count=40000, advice=cudaMemAdviseSetPreferredLocation, device=0)
        cudaMemPrefetchAsync(devPtr=?, count=40000, dstDevice=0, stream=?)
        cudaMemPrefetchAsync(devPtr=?, count=40000, dstDevice=-1, stream=?)
        cudaMemAdvise_v2(devPtr=?, count=40000, advice=cudaMemAdviseSetAccessedBy, location={type=cudaMemLocationTypeDevice, id=0})
        cudaMemPrefetchAsync_v2(devPtr=?, count=40000, location={type=cudaMemLocationTypeDevice, id=0}, flags=0, stream=?)
        cudaGraphInstantiate(pGraphExec=?, graph=?, flags=0)
        cudaGraphExecUpdate(hGraphExec=?, hGraph=?, resultInfo=?)
        cudaStreamGetCaptureInfo_v2(…*numDependencies_out=1
        cudaGetDriverEntryPoint(symbol="cuLaunchKernel", funcPtr=?, flags=?, driverStatus=?)
        cudaGraphAddDependencies(graph=?, from=…, to=…, numDependencies=1)
        """),
    "13.0": RUNTIME_OF_ALL + calls("""
        cudaGetDeviceProperties(
        cudaMemAdvise(devPtr=?, count=40000, advice=cudaMemAdviseSetPreferredLocation, location={type=cudaMemLocationTypeDevice, id=0})
        cudaMemPrefetchAsync(devPtr=?, count=40000, location={type=cudaMemLocationTypeDevice, id=0}, flags=0, stream=?)
        cudaMemPrefetchAsync(devPtr=?, count=40000, location={type=cudaMemLocationTypeHost, id=0}, flags=0, stream=?)
        cudaGraphInstantiate(pGraphExec=?, graph=?, flags=0)
        cudaGraphExecUpdate(hGraphExec=?, hGraph=?, resultInfo=?)
        cudaStreamGetCaptureInfo(…edgeData_out=…*numDependencies_out=1
        cudaGetDriverEntryPointByVersion(symbol="cuLaunchKernel", funcPtr=?, cudaVersion=4000, flags=?, driverStatus=?)
        cudaGraphAddDependencies(graph=?, from=…, to=…, edgeData=null, numDependencies=1)
        cudaLaunchKernel(…40…256
        """),
}

LAUNCH = calls("""
    __cudaRegisterFunction(…twice
    __cudaPushCallConfiguration(
    cudaLaunchKernel(…twice(float*, int)…(8,1,1)…(128,1,1)
    cuLaunchKernel
    """)
BINDING = calls("""
    cuMemAdvise(devPtr=?, count=40000, advice=CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device=0)
    cuMemPrefetchAsync(devPtr=?, count=40000, dstDevice=0, hStream=?)
    cuMemAllocAsync(dptr=?, bytesize=40000, hStream=?)
    cuGraphLaunch(
    cuLaunchKernel(kernel="saxpy(int, float, float const*, float*)" grid=(40,1,1) block=(256,1,1)
    """)
