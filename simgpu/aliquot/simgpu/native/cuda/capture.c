/*
 * Stream capture: what is queued on a stream becomes nodes of a graph. A capture stays on its stream; kernels,
 * allocations and frees are captured, copies are made at once.
 */
#include "launch.h"

enum { STATUS_NONE = 0, STATUS_ACTIVE = 1 };

static __thread CUgraph captured_by_thread;

/* NULL: the legacy default stream, which can't be captured. */
static CUgraph *capture_of(CUstream handle)
{
    if (handle == STREAM_PER_THREAD)
        return &captured_by_thread;
    return (uintptr_t)handle > 2 ? &handle->capturing : NULL;
}

CUgraph stream_capture(CUstream handle)
{
    const CUgraph *capture = capture_of(handle);
    return capture ? *capture : NULL;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER("cuda_stream");
    NEED(mode >= 0 && mode <= 2);
    CUgraph *capture = capture_of(stream);
    if (!capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (*capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    *capture = graph_new();
    return *capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    return cuStreamBeginCapture_v2(stream ? stream : STREAM_PER_THREAD, mode);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER("cuda_stream");
    NEED(graph);
    *graph = stream_capture(stream);
    if (!*graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    *capture_of(stream) = NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(stream ? stream : STREAM_PER_THREAD, graph);
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    ENTER("cuda_stream");
    NEED(status);
    *status = stream_capture(stream) ? STATUS_ACTIVE : STATUS_NONE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream ? stream : STREAM_PER_THREAD, status);
}

/* The first interface of it: the identity of a capture is its graph's. */
EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id)
{
    ENTER("cuda_stream");
    NEED(status);
    const CUgraph graph = stream_capture(stream);
    *status = graph ? STATUS_ACTIVE : STATUS_NONE;
    if (graph && id)
        *id = (uintptr_t)graph;
    return CUDA_SUCCESS;
}
