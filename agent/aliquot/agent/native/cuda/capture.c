/*
 * Stream capture: what is queued on a stream becomes nodes of a graph. A capture stays on its stream; kernels,
 * allocations and frees are captured, copies are made at once.
 */
#include "launch.h"

enum { STATUS_NONE = 0, STATUS_ACTIVE = 1 };

CUgraph stream_capture(CUstream handle)
{
    return (uintptr_t)handle > 2 ? handle->capturing : NULL; /* 1: legacy default, 2: per-thread default */
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER("cuda_stream");
    NEED(mode >= 0 && mode <= 2);
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capturing)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->capturing = graph_new();
    return stream->capturing ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER("cuda_stream");
    NEED(graph);
    *graph = stream_capture(stream);
    if (!*graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->capturing = NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    ENTER("cuda_stream");
    NEED(status);
    *status = stream_capture(stream) ? STATUS_ACTIVE : STATUS_NONE;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2);
ALIAS(cuStreamEndCapture_ptsz, cuStreamEndCapture);
ALIAS(cuStreamIsCapturing_ptsz, cuStreamIsCapturing);
