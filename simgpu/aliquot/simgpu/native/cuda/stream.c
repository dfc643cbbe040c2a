/* Streams and events. All work is over at a known moment of the process's own time on the device. */
#include "launch.h"

#include <stdlib.h>

struct CUevent_st {
    uint64_t recorded_ns; /* when what was queued before it is done, in the process's own time; 0: never recorded */
    int ordinal;          /* where it was recorded */
};

static struct CUstream_st default_streams[DEVICES_MAX];

struct CUstream_st *stream_of(struct CUctx_st *context, CUstream handle)
{
    if ((uintptr_t)handle > 2) /* 1: legacy default, 2: per-thread default */
        return handle;
    struct CUstream_st *stream = &default_streams[context->ordinal];
    stream->context = context;
    return stream;
}

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
    NEED(stream);
    NEED_CONTEXT(context);
    struct CUstream_st *created = calloc(1, sizeof *created);
    if (!created)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cuda_lock();
    *created = (struct CUstream_st){
        .context = context, .flags = flags, .priority = priority, .id = ++runtime.next_id};
    cuda_unlock();
    *stream = created;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER("cuda_stream");
    return create(stream, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    ENTER("cuda_stream");
    return create(stream, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER("cuda_stream");
    NEED((uintptr_t)stream > 2);
    if (stream->capturing)
        graph_drop(stream->capturing);
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER("cuda_stream");
    NEED_CONTEXT(context);
    if (stream_capture(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    wait_until_ns(context->ordinal, stream_of(context, stream)->busy_until_ns);
    pools_synchronised();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    ENTER("cuda_stream");
    NEED_CONTEXT(context);
    if (stream_capture(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const uint64_t done_ns = stream_of(context, stream)->busy_until_ns;
    return done_ns > cuda_time_ns(context->ordinal) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *owner)
{
    ENTER("cuda_stream");
    NEED(owner);
    NEED_CONTEXT(context);
    *owner = stream_of(context, stream)->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    ENTER("cuda_stream");
    NEED(flags);
    NEED_CONTEXT(context);
    *flags = stream_of(context, stream)->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    ENTER("cuda_stream");
    NEED(priority);
    NEED_CONTEXT(context);
    *priority = stream_of(context, stream)->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    ENTER("cuda_stream");
    NEED(id);
    NEED_CONTEXT(context);
    *id = stream_of(context, stream)->id;
    return CUDA_SUCCESS;
}


EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER("cuda_stream");
    (void)flags;
    NEED(event);
    NEED_CONTEXT(context);
    struct CUstream_st *waiting = stream_of(context, stream);
    if (waiting->busy_until_ns < event->recorded_ns)
        waiting->busy_until_ns = event->recorded_ns;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER("cuda_stream");
    NEED_CONTEXT(context);
    wait_until_ns(context->ordinal, context->busy_until_ns);
    pools_synchronised();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    ENTER("cuda_stream");
    context = context ? context : cuda_context();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    wait_until_ns(context->ordinal, context->busy_until_ns);
    pools_synchronised();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    ENTER("cuda_stream");
    (void)flags;
    NEED(event);
    *event = calloc(1, sizeof **event);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER("cuda_stream");
    NEED(event);
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER("cuda_stream");
    NEED(event);
    NEED_CONTEXT(context);
    uint64_t now_ns = cuda_time_ns(context->ordinal), done_ns = stream_of(context, stream)->busy_until_ns;
    event->ordinal = context->ordinal;
    event->recorded_ns = done_ns > now_ns ? done_ns : now_ns;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    ENTER("cuda_stream");
    NEED(event);
    return event->recorded_ns > cuda_time_ns(event->ordinal) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    ENTER("cuda_stream");
    NEED(event);
    wait_until_ns(event->ordinal, event->recorded_ns);
    pools_synchronised();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER("cuda_stream");
    NEED(milliseconds && start && end);
    if (!start->recorded_ns || !end->recorded_ns)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)(int64_t)(end->recorded_ns - start->recorded_ns) / 1e6);
    return CUDA_SUCCESS;
}
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);
ALIAS(cuEventDestroy, cuEventDestroy_v2);
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);
ALIAS(cuStreamSynchronize_ptsz, cuStreamSynchronize);
ALIAS(cuStreamQuery_ptsz, cuStreamQuery);
ALIAS(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);
ALIAS(cuStreamGetCtx_ptsz, cuStreamGetCtx);
ALIAS(cuStreamGetFlags_ptsz, cuStreamGetFlags);
ALIAS(cuStreamGetPriority_ptsz, cuStreamGetPriority);
ALIAS(cuStreamGetId_ptsz, cuStreamGetId);
ALIAS(cuEventRecord_ptsz, cuEventRecord);
