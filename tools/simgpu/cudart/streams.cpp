// Streams, events, callbacks and capture of the runtime API.
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

ROTA_CUDART_EXPORT int cudaStreamCreate(CUstream* stream) {
  return call(&Driver::cuStreamCreate, stream, 0U);
}
ROTA_FORWARD(2, cudaStreamCreateWithFlags, cuStreamCreate)
ROTA_FORWARD(3, cudaStreamCreateWithPriority, cuStreamCreateWithPriority)
ROTA_FORWARD(1, cudaStreamDestroy, cuStreamDestroy_v2)
ROTA_FORWARD_FORMS(1, cudaStreamSynchronize, cuStreamSynchronize)
ROTA_FORWARD_FORMS(1, cudaStreamQuery, cuStreamQuery)
ROTA_FORWARD_FORMS(3, cudaStreamWaitEvent, cuStreamWaitEvent)
ROTA_FORWARD_FORMS(4, cudaStreamAddCallback, cuStreamAddCallback)
ROTA_FORWARD_FORMS(3, cudaLaunchHostFunc, cuLaunchHostFunc)
ROTA_FORWARD_FORMS(4, cudaStreamAttachMemAsync, cuStreamAttachMemAsync)
ROTA_FORWARD_FORMS(2, cudaStreamGetPriority, cuStreamGetPriority)
ROTA_FORWARD_FORMS(2, cudaStreamGetFlags, cuStreamGetFlags)
ROTA_FORWARD_FORMS(2, cudaStreamGetId, cuStreamGetId)
ROTA_FORWARD_FORMS(2, cudaStreamGetDevice, cuStreamGetDevice)
ROTA_FORWARD_FORMS(2, cudaStreamCopyAttributes, cuStreamCopyAttributes)
ROTA_FORWARD_FORMS(3, cudaStreamGetAttribute, cuStreamGetAttribute)
ROTA_FORWARD_FORMS(3, cudaStreamSetAttribute, cuStreamSetAttribute)

ROTA_CUDART_EXPORT int cudaEventCreate(CUevent* event) {
  return call(&Driver::cuEventCreate, event, 0U);
}
ROTA_FORWARD(2, cudaEventCreateWithFlags, cuEventCreate)
ROTA_FORWARD_FORMS(2, cudaEventRecord, cuEventRecord)
ROTA_FORWARD_FORMS(3, cudaEventRecordWithFlags, cuEventRecordWithFlags)
ROTA_FORWARD(1, cudaEventQuery, cuEventQuery)
ROTA_FORWARD(1, cudaEventSynchronize, cuEventSynchronize)
ROTA_FORWARD(1, cudaEventDestroy, cuEventDestroy_v2)
ROTA_FORWARD(3, cudaEventElapsedTime, cuEventElapsedTime_v2)
ROTA_FORWARD(2, cudaIpcGetEventHandle, cuIpcGetEventHandle)
ROTA_FORWARD(2, cudaIpcOpenEventHandle, cuIpcOpenEventHandle)

ROTA_FORWARD(2, cudaStreamBeginCapture, cuStreamBeginCapture_v2)
ROTA_FORWARD(2, cudaStreamBeginCapture_ptsz, cuStreamBeginCapture_v2_ptsz)
ROTA_FORWARD_FORMS(6, cudaStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph)
ROTA_FORWARD_FORMS(2, cudaStreamEndCapture, cuStreamEndCapture)
ROTA_FORWARD_FORMS(2, cudaStreamIsCapturing, cuStreamIsCapturing)
ROTA_FORWARD(7, cudaStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3)
ROTA_FORWARD(7, cudaStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo_v3_ptsz)
ROTA_FORWARD(5, cudaStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2)
ROTA_FORWARD(5, cudaStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies_v2_ptsz)
ROTA_FORWARD_BARE(1, cudaThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)
