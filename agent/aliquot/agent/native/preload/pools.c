/*
 * Stream-ordered memory. A pool keeps what is freed into it, so what counts is not the single allocations but what the
 * pool has taken from the device: the driver says that for each pool, and a pool is charged with it. An allocation is
 * reserved in full before it is made; afterwards the charge is set to what the pool really holds.
 */
#include <pthread.h>
#include <stdlib.h>

#include "process.h"

struct pool {
    CUmemoryPool handle;
    int device;
    uint64_t charged;
    uint64_t outstanding; /* allocations that live */
    bool destroyed;       /* its memory goes with the last of them */
    struct pool *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;

/* All of these want the mutex. */

static struct pool *find(CUmemoryPool handle)
{
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->handle == handle && !pool->destroyed)
            return pool;
    return NULL;
}

static struct pool *find_or_add(CUmemoryPool handle, int device)
{
    struct pool *pool = find(handle);
    if (pool)
        return pool;
    pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (struct pool){.handle = handle, .device = device, .next = pools};
    pools = pool;
    return pool;
}

static void drop(struct pool *gone)
{
    struct pool **link = &pools;
    while (*link && *link != gone)
        link = &(*link)->next;
    if (*link)
        *link = gone->next;
    book_credit(gone->device, gone->charged);
    free(gone);
}

static uint64_t attribute(const struct pool *pool, int which, uint64_t otherwise)
{
    uint64_t value = 0;
    return driver()->MemPoolGetAttribute(pool->handle, which, &value) == CUDA_SUCCESS ? value : otherwise;
}

/* Charges a pool with what it holds now; `spare` bytes are reserved for it already. False: it holds more than fits. */
static bool settle(struct pool *pool, uint64_t spare)
{
    const uint64_t holds = attribute(pool, POOL_RESERVED_CURRENT, pool->charged + spare), has = pool->charged + spare;
    bool fits = true;
    if (holds > has) {
        fits = book_charge(pool->device, holds - has);
        if (!fits)
            book_force(pool->device, holds - has);
    } else if (holds < has) {
        book_credit(pool->device, has - holds);
    }
    pool->charged = holds;
    return fits;
}

static void refresh(int device, bool trim)
{
    for (struct pool *pool = pools; pool; pool = pool->next) {
        if (pool->device != device || pool->destroyed)
            continue;
        if (trim)
            REAL(cuMemPoolTrimTo)(pool->handle, 0);
        settle(pool, 0);
    }
}

/* How much to reserve for an allocation: all of it, unless that doesn't fit and free memory of the pool may serve. */
static bool reserve(struct pool *pool, uint64_t bytes, uint64_t *reserved)
{
    settle(pool, 0);
    *reserved = bytes;
    if (book_charge(pool->device, bytes))
        return true;
    const uint64_t used = attribute(pool, POOL_USED_CURRENT, pool->charged);
    const uint64_t slack = pool->charged > used ? pool->charged - used : 0;
    *reserved = bytes > slack ? bytes - slack : 0;
    if (slack && (!*reserved || book_charge(pool->device, *reserved)))
        return true;
    refresh(pool->device, true);
    *reserved = bytes;
    return book_charge(pool->device, bytes);
}

void pools_refresh(int device, bool trim)
{
    pthread_mutex_lock(&mutex);
    refresh(device, trim);
    pthread_mutex_unlock(&mutex);
}

void pool_pointer_freed(const struct entry *entry)
{
    struct pool *pool = entry->owner;
    pthread_mutex_lock(&mutex);
    if (pool->outstanding)
        pool->outstanding--;
    if (pool->destroyed && !pool->outstanding)
        drop(pool);
    pthread_mutex_unlock(&mutex);
}

/* The call behind an allocation, of either kind and variant. */
struct request {
    CUmemoryPool pool;
    size_t bytes;
    CUstream stream;
    CUresult (*allocate)(CUdeviceptr *pointer, const struct request *request);
    CUresult (*release)(CUdeviceptr pointer, CUstream stream);
};

/* In a capture nothing is allocated yet: it becomes a node of a graph. */
static bool captured(CUstream stream)
{
    int status = 0;
    return driver()->StreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == 1;
}

static CUresult allocate_charged(CUdeviceptr *pointer, const struct request *request, struct pool *pool)
{
    uint64_t reserved;
    if (!reserve(pool, round_up(request->bytes, CHUNK), &reserved))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = request->allocate(pointer, request);
    const bool fits = settle(pool, reserved);
    if (result != CUDA_SUCCESS)
        return result;
    const struct entry entry = {.space = POINTER, .key = *pointer, .device = pool->device, .owner = pool};
    if (fits && memory_record(entry)) {
        pool->outstanding++;
        return CUDA_SUCCESS;
    }
    request->release(*pointer, request->stream);
    refresh(pool->device, true);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_captured(CUdeviceptr *pointer, const struct request *request, int device)
{
    if (!graph_captures(request->stream, device, request->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = request->allocate(pointer, request);
    if (result != CUDA_SUCCESS)
        graph_captured_less(request->stream, device, request->bytes);
    return result;
}

static CUresult allocate(CUdeviceptr *pointer, const struct request *request, int device)
{
    if (device == DEVICE_UNKNOWN || !pointer || !request->bytes)
        return request->allocate(pointer, request);
    if (device == DEVICE_FOREIGN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (device == DEVICE_HOST)
        return request->allocate(pointer, request);
    if (captured(request->stream))
        return allocate_captured(pointer, request, device);
    pthread_mutex_lock(&mutex);
    struct pool *pool = find_or_add(request->pool, device);
    const CUresult result = pool ? allocate_charged(pointer, request, pool) : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&mutex);
    return result;
}

static int device_of_stream(CUstream stream)
{
    CUcontext context;
    if ((uintptr_t)stream <= 2) /* the default streams, of whichever context is current */
        return device_current(NULL);
    return driver()->StreamGetCtx(stream, &context) == CUDA_SUCCESS ? device_of_context(context) : device_current(NULL);
}

/* Pools we didn't see being created are some device's own. */
static int device_of_default_pool(CUmemoryPool handle)
{
    CUmemoryPool pool;
    int count = 0;
    driver()->DeviceGetCount(&count);
    for (CUdevice ordinal = 0; ordinal < count; ordinal++)
        if (driver()->DeviceGetDefaultMemPool(&pool, ordinal) == CUDA_SUCCESS && pool == handle)
            return device_of(ordinal);
    return DEVICE_FOREIGN;
}

static int device_of_pool(CUmemoryPool handle)
{
    pthread_mutex_lock(&mutex);
    const struct pool *pool = find(handle);
    const int device = pool ? pool->device : DEVICE_UNKNOWN;
    pthread_mutex_unlock(&mutex);
    return device == DEVICE_UNKNOWN ? device_of_default_pool(handle) : device;
}

struct freed {
    int device;
    uint64_t bytes;
};

static void credit_freed(void *argument)
{
    struct freed *freed = argument;
    memory_credit(freed->device, freed->bytes);
    free(freed);
}

/* Memory of cuMemAlloc may be freed on a stream too: it is held until the stream gets there. Where the driver can't tell
 * us when that is, it stays charged. */
static void credit_in_turn(const struct entry *entry, CUstream stream,
                           CUresult (*launch)(CUstream, void (*)(void *), void *))
{
    struct freed *freed = malloc(sizeof *freed);
    if (!freed)
        return;
    *freed = (struct freed){.device = entry->device, .bytes = entry->bytes};
    if (launch(stream, credit_freed, freed) != CUDA_SUCCESS)
        free(freed);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, CUresult (*real)(CUdeviceptr, CUstream),
                           CUresult (*launch)(CUstream, void (*)(void *), void *))
{
    struct entry entry;
    if (captured(stream))
        return real(pointer, stream); /* it becomes a node, and frees nothing yet */
    const bool ours = ledger_take(POINTER, pointer, &entry);
    const CUresult result = real(pointer, stream);
    if (ours && result != CUDA_SUCCESS)
        memory_record(entry);
    else if (ours && entry.owner)
        pool_pointer_freed(&entry);
    else if (ours)
        credit_in_turn(&entry, stream, launch);
    return result;
}

#define VARIANT(suffix, default_stream)                                                                                \
    static CUresult plain##suffix(CUdeviceptr *pointer, const struct request *request)                                 \
    {                                                                                                                  \
        return REAL(cuMemAllocAsync##suffix)(pointer, request->bytes, request->stream);                                \
    }                                                                                                                  \
    static CUresult from_pool##suffix(CUdeviceptr *pointer, const struct request *request)                             \
    {                                                                                                                  \
        return REAL(cuMemAllocFromPoolAsync##suffix)(pointer, request->bytes, request->pool, request->stream);         \
    }                                                                                                                  \
    EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUstream stream)                       \
    {                                                                                                                  \
        stream = stream ? stream : (default_stream);                                                                   \
        struct request request = {                                                                                     \
            .bytes = bytes, .stream = stream, .allocate = plain##suffix, .release = REAL(cuMemFreeAsync##suffix)};     \
        int device = device_of_stream(stream);                                                                         \
        if (device >= 0 && driver()->DeviceGetMemPool(&request.pool, ordinal_of(device)) != CUDA_SUCCESS)              \
            device = DEVICE_UNKNOWN;                                                                                   \
        return allocate(pointer, &request, device);                                                                    \
    }                                                                                                                  \
    EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,             \
                                                    CUstream stream)                                                   \
    {                                                                                                                  \
        stream = stream ? stream : (default_stream);                                                                   \
        struct request request = {.pool = pool,                                                                        \
                                  .bytes = bytes,                                                                      \
                                  .stream = stream,                                                                    \
                                  .allocate = from_pool##suffix,                                                       \
                                  .release = REAL(cuMemFreeAsync##suffix)};                                            \
        return allocate(pointer, &request, device_of_pool(pool));                                                      \
    }                                                                                                                  \
    EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr pointer, CUstream stream)                                       \
    {                                                                                                                  \
        return free_async(pointer, stream ? stream : (default_stream), REAL(cuMemFreeAsync##suffix),                   \
                          driver()->LaunchHostFunc##suffix);                                                           \
    }

VARIANT(, NULL)
VARIANT(_ptsz, STREAM_PER_THREAD)

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    int device = properties ? device_of_location(&properties->location) : DEVICE_HOST;
    if (device == DEVICE_HOST && properties && properties->allocType == ALLOCATION_MANAGED)
        device = device_current(NULL); /* managed memory goes where it is used, which is here as a rule */
    if (device == DEVICE_UNKNOWN && properties->allocType == ALLOCATION_MANAGED)
        return CUDA_ERROR_OUT_OF_MEMORY; /* nobody would be charged */
    const CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    const bool known = find_or_add(*pool, device) != NULL;
    pthread_mutex_unlock(&mutex);
    if (known)
        return result;
    REAL(cuMemPoolDestroy)(*pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    pthread_mutex_lock(&mutex);
    struct pool *pool = find(handle);
    const CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (pool && result == CUDA_SUCCESS) {
        pool->destroyed = true; /* the handle may come again, for another pool */
        if (!pool->outstanding)
            drop(pool);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    const CUresult result = REAL(cuMemPoolTrimTo)(handle, keep);
    pthread_mutex_lock(&mutex);
    struct pool *pool = find(handle);
    if (pool && pool->device >= 0)
        settle(pool, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

void pools_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    while (pools) {
        struct pool *next = pools->next;
        free(pools);
        pools = next;
    }
}
