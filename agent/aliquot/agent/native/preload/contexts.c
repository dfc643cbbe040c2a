/*
 * Contexts cost device memory, hundreds of MiB on a large device, and so do the limits set in them. An estimate is
 * reserved before one is made; what it really takes is measured right after.
 */
#include <pthread.h>

#include "process.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* one creation at a time: each is measured */

static bool primary_is_active(CUdevice ordinal)
{
    unsigned flags;
    int active = 0;
    return driver()->DevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

static bool of_context(const struct entry *entry, const void *context)
{
    return entry->context == context && !entry->owner;
}

/* What was allocated in a context has gone with it. */
static void gone(CUcontext context, int device)
{
    struct entry entry;
    while (context && ledger_take_any(of_context, context, &entry))
        if (entry.space != MODULE)
            memory_credit(entry.device, entry.bytes);
    internal_forget_promises(device, context);
    internal_shrink(device, book_context_bytes(device));
    internal_settle(device);
}

static uint64_t internal_before; /* the creation that is under way */

static bool reserve(int device)
{
    internal_before = internal_bytes(device);
    return internal_grow(device, book_context_bytes(device));
}

/* True: it may stay. */
static bool created(int device, CUcontext context)
{
    context_seen(context, device);
    const bool fits = internal_settle(device);
    const uint64_t now = internal_bytes(device);
    if (now > internal_before)
        book_note_context(device, now - internal_before);
    return fits;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    const int device = device_of(ordinal);
    if (device == DEVICE_UNKNOWN || !context)
        return REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
    pthread_mutex_lock(&mutex);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (primary_is_active(ordinal)) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
        if (result == CUDA_SUCCESS)
            context_seen(*context, device);
    } else if (reserve(device)) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
        if (result != CUDA_SUCCESS) {
            internal_shrink(device, book_context_bytes(device));
        } else if (!created(device, *context)) {
            REAL(cuDevicePrimaryCtxRelease_v2)(ordinal);
            gone(*context, device);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult primary_ended(CUdevice ordinal, CUresult (*end)(CUdevice))
{
    CUcontext context = NULL;
    const int device = device_of(ordinal);
    if (device < 0)
        return end(ordinal);
    pthread_mutex_lock(&mutex);
    const bool was_active = primary_is_active(ordinal);
    if (was_active && REAL(cuDevicePrimaryCtxRetain)(&context, ordinal) == CUDA_SUCCESS) /* to learn which it is */
        REAL(cuDevicePrimaryCtxRelease_v2)(ordinal);
    const CUresult result = end(ordinal);
    if (result == CUDA_SUCCESS && was_active && !primary_is_active(ordinal))
        gone(context, device);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return primary_ended(ordinal, REAL(cuDevicePrimaryCtxRelease));
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    return primary_ended(ordinal, REAL(cuDevicePrimaryCtxRelease_v2));
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return primary_ended(ordinal, REAL(cuDevicePrimaryCtxReset));
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    return primary_ended(ordinal, REAL(cuDevicePrimaryCtxReset_v2));
}

/* A creation of any version, with the charge around it. */
#define CREATE(call)                                                                                                   \
    do {                                                                                                               \
        const int device_ = device_of(ordinal);                                                                        \
        if (device_ == DEVICE_UNKNOWN || !context)                                                                     \
            return call;                                                                                               \
        pthread_mutex_lock(&mutex);                                                                                    \
        CUresult result_ = reserve(device_) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;                                 \
        if (result_ == CUDA_SUCCESS) {                                                                                 \
            result_ = call;                                                                                            \
            if (result_ != CUDA_SUCCESS) {                                                                             \
                internal_shrink(device_, book_context_bytes(device_));                                                 \
            } else if (!created(device_, *context)) {                                                                  \
                REAL(cuCtxDestroy_v2)(*context);                                                                       \
                gone(*context, device_);                                                                               \
                result_ = CUDA_ERROR_OUT_OF_MEMORY;                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        pthread_mutex_unlock(&mutex);                                                                                  \
        return result_;                                                                                                \
    } while (0)

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    CREATE(REAL(cuCtxCreate)(context, flags, ordinal));
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    CREATE(REAL(cuCtxCreate_v2)(context, flags, ordinal));
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice ordinal)
{
    CREATE(REAL(cuCtxCreate_v3)(context, affinity, count, flags, ordinal));
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice ordinal)
{
    CREATE(REAL(cuCtxCreate_v4)(context, parameters, flags, ordinal));
}

static CUresult destroyed(CUcontext context, CUresult (*destroy)(CUcontext))
{
    pthread_mutex_lock(&mutex);
    const int device = context ? device_of_context(context) : DEVICE_UNKNOWN;
    const CUresult result = destroy(context);
    if (result == CUDA_SUCCESS && device >= 0)
        gone(context, device);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    return destroyed(context, REAL(cuCtxDestroy));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroyed(context, REAL(cuCtxDestroy_v2));
}

/* A part of a primary context, which it brings into being if need be. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice ordinal, unsigned flags)
{
    const int device = device_of(ordinal);
    if (device == DEVICE_UNKNOWN || !green)
        return REAL(cuGreenCtxCreate)(green, resources, ordinal, flags);
    pthread_mutex_lock(&mutex);
    const bool first = !primary_is_active(ordinal);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (device >= 0 && (!first || reserve(device))) {
        result = REAL(cuGreenCtxCreate)(green, resources, ordinal, flags);
        if (result != CUDA_SUCCESS && first) {
            internal_shrink(device, book_context_bytes(device));
        } else if (result == CUDA_SUCCESS && !internal_settle(device)) {
            driver()->GreenCtxDestroy(*green);
            internal_settle(device);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* What a limit may take beyond what it is now: stacks for every thread that can be resident, buffers as they are. */
static uint64_t limit_bytes(int limit, uint64_t value)
{
    CUdevice ordinal;
    int processors = 0, threads = 0;
    uint64_t bytes;
    if (limit == LIMIT_PRINTF_FIFO_SIZE || limit == LIMIT_MALLOC_HEAP_SIZE)
        return value;
    if (limit != LIMIT_STACK_SIZE || driver()->CtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return 0;
    driver()->DeviceGetAttribute(&processors, ATTRIBUTE_MULTIPROCESSORS, ordinal);
    driver()->DeviceGetAttribute(&threads, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, ordinal);
    if (__builtin_mul_overflow(value, (uint64_t)processors * (uint64_t)threads, &bytes) || bytes > INT64_MAX)
        return INT64_MAX;
    return bytes;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context = NULL;
    size_t present = 0;
    const int device = device_current(&context);
    if (device < 0 || driver()->CtxGetLimit(&present, limit) != CUDA_SUCCESS)
        return REAL(cuCtxSetLimit)(limit, value);
    const uint64_t before = limit_bytes(limit, present), after = limit_bytes(limit, value);
    const uint64_t more = after > before ? after - before : 0;
    if (more && !internal_grow(device, more))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_SUCCESS) {
        internal_shrink(device, more);
        return result;
    }
    /* The driver may take it only when a kernel needs it, so it stays promised. */
    internal_promise(device, context, more ? (int64_t)more : -(int64_t)(before - after));
    internal_settle(device);
    return result;
}

void contexts_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
