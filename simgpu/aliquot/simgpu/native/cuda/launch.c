/*
 * Kernels. But for a few that are known by their names (kernels.c) they compute nothing: a kernel takes the time that
 * its argument (for `spin`) or the scenario says on a device that runs nothing else; a process's kernels run one after
 * the other, and processes take turns (common/sharing.c). NVML's utilisation follows from it.
 */
#include "launch.h"

#include <string.h>
#include <time.h>

static __thread struct sim_account *counted; /* this process's account on the last launch's device */
static __thread struct CUctx_st *counted_for;
static __thread uint64_t counted_generation;

uint64_t cuda_time_ns(int ordinal)
{
    struct place place = cuda_place(ordinal);
    const uint64_t now_ns = monotonic_ns();
    machine_lock();
    share_out(&machine()->devices[place.device], now_ns);
    const struct sim_account *account = books_account(place, false);
    const uint64_t own_ns = account ? account_time_ns(account, now_ns) : now_ns;
    machine_unlock();
    return own_ns;
}

/* A process's own time is never faster than the clock: it is asleep at least until the moment could have come. */
void wait_until_ns(int ordinal, uint64_t moment_ns)
{
    enum { SHORTEST_NS = 20000 };
    uint64_t own_ns;
    while ((own_ns = cuda_time_ns(ordinal)) < moment_ns) {
        const uint64_t left_ns = moment_ns - own_ns < SHORTEST_NS ? SHORTEST_NS : moment_ns - own_ns;
        struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
        nanosleep(&left, NULL);
    }
}

void stream_queue(struct CUstream_st *stream, uint64_t duration_ns)
{
    struct place place = cuda_place(stream->context->ordinal);
    struct sim_device *device = cuda_device(stream->context->ordinal);
    const uint64_t now_ns = monotonic_ns();
    machine_lock();
    share_out(device, now_ns);
    struct sim_account *account = books_account(place, true);
    uint64_t start_ns = account ? account_time_ns(account, now_ns) : now_ns;
    if (start_ns < stream->busy_until_ns)
        start_ns = stream->busy_until_ns;
    if (account && start_ns < account->queued_ns)
        start_ns = account->queued_ns;
    stream->busy_until_ns = start_ns + duration_ns;
    if (account)
        account->queued_ns = stream->busy_until_ns;
    if (stream->context->busy_until_ns < stream->busy_until_ns)
        stream->context->busy_until_ns = stream->busy_until_ns;
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

const void *parameter(const struct parameters *parameters, size_t number, size_t offset, size_t bytes)
{
    if (parameters->each)
        return parameters->each[number];
    return offset + bytes <= parameters->bytes ? parameters->packed + offset : NULL;
}

/* The list that may stand in for the addresses of parameters: pairs of a tag and a value, up to a tag of 0. */
static struct parameters handed_over(void **arguments, void **extra)
{
    enum { END, BUFFER_POINTER, BUFFER_SIZE };
    struct parameters found = {.each = arguments};
    for (; extra && !arguments && (uintptr_t)*extra != END; extra += 2) {
        if ((uintptr_t)*extra == BUFFER_POINTER)
            found.packed = extra[1];
        else if ((uintptr_t)*extra == BUFFER_SIZE)
            memcpy(&found.bytes, extra[1], sizeof found.bytes);
        else
            break;
    }
    return found;
}

static CUresult launch(CUfunction function, CUstream handle, void **arguments, void **extra)
{
    NEED(function);
    NEED(!(arguments && extra));
    NEED_CONTEXT(context);
    struct parameters parameters = handed_over(arguments, extra);
    const void *stated = function->spins ? parameter(&parameters, 0, 0, sizeof(uint64_t)) : NULL;
    uint64_t duration_ns = cuda_device(context->ordinal)->kernel_ns;
    if (stated)
        memcpy(&duration_ns, stated, sizeof duration_ns);
    if (stream_capture(handle))
        return graph_capture_kernel(stream_capture(handle), duration_ns);
    CUresult result = function->kernel && addresses_backed() ? kernel_run(function->kernel, &parameters) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    count(context);
    if (duration_ns)
        stream_queue(stream_of(context, handle), duration_ns);
    return CUDA_SUCCESS;
}

/* What every architecture since Fermi takes: at most 1024 threads, 64 of them deep. */
static bool block_fits(unsigned x, unsigned y, unsigned z)
{
    return x <= 1024 && y <= 1024 && z <= 64 && (uint64_t)x * y * z <= 1024;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                               CUstream stream, void **arguments, void **extra)
{
    ENTER("cuda_launch");
    (void)shared_bytes;
    NEED(grid_x && grid_y && grid_z && block_x && block_y && block_z);
    NEED(block_fits(block_x, block_y, block_z));
    return launch(function, stream, arguments, extra);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    ENTER("cuda_launch");
    NEED(config && config->gridDimX && config->blockDimX);
    NEED(block_fits(config->blockDimX, config->blockDimY, config->blockDimZ));
    return launch(function, config->hStream, arguments, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          CUstream stream, void **arguments)
{
    ENTER("cuda_launch");
    (void)shared_bytes;
    NEED(grid_x && grid_y && grid_z && block_x && block_y && block_z);
    NEED(block_fits(block_x, block_y, block_z));
    return launch(function, stream, arguments, NULL);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument)
{
    ENTER("cuda_launch");
    NEED(function);
    NEED_CONTEXT(context);
    wait_until_ns(context->ordinal, stream_of(context, stream)->busy_until_ns);
    function(argument);
    return CUDA_SUCCESS;
}
ALIAS(cuLaunchKernel_ptsz, cuLaunchKernel);
ALIAS(cuLaunchKernelEx_ptsz, cuLaunchKernelEx);
ALIAS(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel);
ALIAS(cuLaunchHostFunc_ptsz, cuLaunchHostFunc);
