/* Contexts: each costs device memory, as it does on hardware, and the limits set in it may cost more. */
#include "internal.h"

#include <stdlib.h>

enum { STACK_DEPTH = 32 };

static __thread struct CUctx_st *stack[STACK_DEPTH];
static __thread int depth;
static __thread uint64_t stack_generation; /* contexts of a parent process are none of ours */

static const size_t default_limits[CU_LIMITS] = {1024, 7 << 20, 8 << 20, 2, 2048, 64, 0, 0};

static int *own_depth(void)
{
    if (stack_generation != runtime.generation) {
        stack_generation = runtime.generation;
        depth = 0;
    }
    return &depth;
}

struct CUctx_st *cuda_context(void)
{
    int top = *own_depth();
    return top && stack[top - 1] && stack[top - 1]->alive ? stack[top - 1] : NULL;
}

/* Exclusive modes: no context while another process has one, or at all. */
static bool mode_allows(int ordinal)
{
    enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
    struct sim_device *device = cuda_device(ordinal);
    if (device->lost || device->compute_mode == PROHIBITED)
        return false;
    if (device->compute_mode != EXCLUSIVE_PROCESS)
        return true;
    machine_lock();
    books_reap(device);
    bool free_of_others = true;
    for (uint32_t i = 0; i < device->account_count; i++)
        if (device->accounts[i].state && device->accounts[i].pid != machine_self()->pid)
            free_of_others = false;
    machine_unlock();
    return free_of_others;
}

static CUresult create(int ordinal, unsigned flags, bool primary, struct CUctx_st **created)
{
    struct sim_device *device = cuda_device(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!mode_allows(ordinal))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!mps_connect(ordinal))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct CUctx_st *context = primary && runtime.primary[ordinal] ? runtime.primary[ordinal] : calloc(1, sizeof *context);
    if (!context || !cuda_charge(ordinal, CHARGE_CONTEXT, device->context_bytes)) {
        if (context != runtime.primary[ordinal])
            free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *context = (struct CUctx_st){.ordinal = ordinal,
                                 .primary = primary,
                                 .alive = true,
                                 .flags = flags,
                                 .booked = device->context_bytes,
                                 .id = ++runtime.next_id};
    for (int i = 0; i < CU_LIMITS; i++)
        context->limits[i] = default_limits[i];
    *created = context;
    return CUDA_SUCCESS;
}

static bool belongs(struct allocation *entry, void *context)
{
    if (entry->context != context)
        return false;
    cuda_release_entry(entry);
    return true;
}

/* What was allocated in a context goes with it. The structure stays: another thread may have it on its stack. */
static void destroy(struct CUctx_st *context)
{
    registry_sweep(belongs, context);
    cuda_credit(context->ordinal, CHARGE_CONTEXT, context->booked + context->grown);
    pools_give_up(context->ordinal);
    context->alive = false;
    context->references = 0;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    ENTER("cuda_context");
    NEED(context);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    struct CUctx_st *primary = runtime.primary[ordinal];
    CUresult result = CUDA_SUCCESS;
    if (!primary || !primary->alive)
        result = create(ordinal, 0, true, &primary);
    if (result == CUDA_SUCCESS) {
        runtime.primary[ordinal] = primary;
        primary->references++;
        *context = primary;
    }
    cuda_unlock();
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    ENTER("cuda_context");
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    struct CUctx_st *primary = runtime.primary[ordinal];
    CUresult result = primary && primary->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && --primary->references == 0)
        destroy(primary);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    ENTER("cuda_context");
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    if (runtime.primary[ordinal] && runtime.primary[ordinal]->alive)
        destroy(runtime.primary[ordinal]);
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    ENTER("cuda_context");
    NEED(flags && active);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    const struct CUctx_st *primary = runtime.primary[ordinal];
    *active = primary && primary->alive;
    *flags = *active ? primary->flags : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    ENTER("cuda_context");
    (void)flags;
    return cuda_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult push(struct CUctx_st *context)
{
    int *top = own_depth();
    if (*top == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[(*top)++] = context;
    return CUDA_SUCCESS;
}

static CUresult create_current(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    struct CUctx_st *created = NULL;
    NEED(context);
    cuda_lock();
    CUresult result = create(ordinal, flags, false, &created);
    cuda_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    *context = created;
    return push(created);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    ENTER("cuda_context");
    return create_current(context, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice ordinal)
{
    ENTER("cuda_context");
    (void)affinity, (void)count;
    return create_current(context, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice ordinal)
{
    ENTER("cuda_context");
    (void)parameters;
    return create_current(context, flags, ordinal);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER("cuda_context");
    NEED(context);
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    int *top = own_depth();
    if (*top && stack[*top - 1] == context)
        (*top)--;
    cuda_lock();
    destroy(context);
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER("cuda_context");
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    return push(context);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER("cuda_context");
    int *top = own_depth();
    if (!*top)
        return CUDA_ERROR_INVALID_CONTEXT;
    (*top)--;
    if (context)
        *context = stack[*top];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER("cuda_context");
    if (context && !context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    int *top = own_depth();
    if (*top)
        (*top)--;
    return context ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER("cuda_context");
    NEED(context);
    *context = cuda_context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    ENTER("cuda_context");
    NEED(ordinal);
    NEED_CONTEXT(context);
    *ordinal = context->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext context)
{
    ENTER("cuda_context");
    NEED(ordinal);
    context = context ? context : cuda_context();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ordinal = context->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    ENTER("cuda_context");
    NEED(flags);
    NEED_CONTEXT(context);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    ENTER("cuda_context");
    NEED(id);
    context = context ? context : cuda_context();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    ENTER("cuda_context");
    NEED(version);
    (void)context;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER("cuda_context");
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

/* Memory that a limit takes beyond its default: stacks for every thread that can be resident, buffers as they are. */
static uint64_t limit_cost(const struct sim_device *device, int limit, size_t value)
{
    uint64_t beyond = value > default_limits[limit] ? value - default_limits[limit] : 0;
    uint64_t threads = (uint64_t)device->multiprocessors * 2048;
    if (limit == CU_LIMIT_STACK_SIZE)
        return beyond > UINT64_MAX / threads ? UINT64_MAX : beyond * threads;
    return limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE ? beyond : 0;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    ENTER("cuda_context");
    NEED_CONTEXT(context);
    if (limit < 0 || limit >= CU_LIMITS)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const struct sim_device *device = cuda_device(context->ordinal);
    CUresult result = CUDA_SUCCESS;
    cuda_lock();
    uint64_t before = limit_cost(device, limit, context->limits[limit]), after = limit_cost(device, limit, value);
    if (after > before) {
        if (cuda_charge(context->ordinal, CHARGE_CONTEXT, after - before))
            context->grown += after - before;
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (before > after) {
        cuda_credit(context->ordinal, CHARGE_CONTEXT, before - after);
        context->grown -= before - after;
    }
    if (result == CUDA_SUCCESS)
        context->limits[limit] = value;
    cuda_unlock();
    return result;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
    ENTER("cuda_context");
    NEED(value);
    NEED_CONTEXT(context);
    if (limit < 0 || limit >= CU_LIMITS)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);
ALIAS(cuCtxCreate, cuCtxCreate_v2);
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);
