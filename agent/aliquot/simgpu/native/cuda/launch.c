/*
 * Kernels. They compute nothing: a kernel takes the time that its argument (for `spin`) or the scenario says, and
 * the device runs one after the other, whichever process they come from. So the time-slicing that programs see is
 * there, and NVML's utilisation follows from it.
 */
#include "launch.h"

#include <string.h>
#include <time.h>

static __thread struct sim_account *counted; /* this process's account on the last launch's device */
static __thread struct CUctx_st *counted_for;
static __thread uint64_t counted_generation;

void wait_until_ns(uint64_t moment_ns)
{
    struct timespec until = {.tv_sec = (time_t)(moment_ns / 1000000000u), .tv_nsec = (long)(moment_ns % 1000000000u)};
    while (moment_ns > monotonic_ns() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
}

void stream_queue(struct CUstream_st *stream, uint64_t duration_ns)
{
    struct place place = cuda_place(stream->context->ordinal);
    struct sim_device *device = cuda_device(stream->context->ordinal);
    uint64_t now_ns = monotonic_ns();
    machine_lock();
    struct sim_account *account = books_account(place, true);
    uint64_t start_ns = now_ns > stream->busy_until_ns ? now_ns : stream->busy_until_ns;
    if (start_ns < device->busy_until_ns && place.gpu_instance == NO_INSTANCE)
        start_ns = device->busy_until_ns;
    stream->busy_until_ns = start_ns + duration_ns;
    if (place.gpu_instance == NO_INSTANCE) /* MIG instances run beside each other */
        device->busy_until_ns = stream->busy_until_ns;
    if (stream->context->busy_until_ns < stream->busy_until_ns)
        stream->context->busy_until_ns = stream->busy_until_ns;
    if (account)
        account_busy(account, now_ns, duration_ns);
    machine_unlock();
}

/* The account doesn't move while the context lives, which is booked in it. */
static void count(struct CUctx_st *context)
{
    if (counted_for != context || counted_generation != runtime.generation) {
        machine_lock();
        counted = books_account(cuda_place(context->ordinal), true);
        machine_unlock();
        counted_for = context;
        counted_generation = runtime.generation;
    }
    if (counted)
        __atomic_add_fetch(&counted->launches, 1, __ATOMIC_RELAXED);
}

static CUresult launch(CUfunction function, CUstream handle, void **arguments)
{
    NEED(function);
    NEED_CONTEXT(context);
    uint64_t duration_ns = cuda_device(context->ordinal)->kernel_ns;
    if (function->spins && arguments && arguments[0])
        memcpy(&duration_ns, arguments[0], sizeof duration_ns);
    if (stream_capture(handle))
        return graph_capture_kernel(stream_capture(handle), duration_ns);
    count(context);
    if (duration_ns)
        stream_queue(stream_of(context, handle), duration_ns);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                               CUstream stream, void **arguments, void **extra)
{
    ENTER("cuda_launch");
    (void)shared_bytes, (void)extra;
    NEED(grid_x && grid_y && grid_z && block_x && block_y && block_z);
    return launch(function, stream, arguments);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    ENTER("cuda_launch");
    (void)extra;
    NEED(config && config->gridDimX && config->blockDimX);
    return launch(function, config->hStream, arguments);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          CUstream stream, void **arguments)
{
    ENTER("cuda_launch");
    (void)shared_bytes;
    NEED(grid_x && grid_y && grid_z && block_x && block_y && block_z);
    return launch(function, stream, arguments);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument)
{
    ENTER("cuda_launch");
    NEED(function);
    NEED_CONTEXT(context);
    wait_until_ns(stream_of(context, stream)->busy_until_ns);
    function(argument);
    return CUDA_SUCCESS;
}
ALIAS(cuLaunchKernel_ptsz, cuLaunchKernel);
ALIAS(cuLaunchKernelEx_ptsz, cuLaunchKernelEx);
ALIAS(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel);
ALIAS(cuLaunchHostFunc_ptsz, cuLaunchHostFunc);
