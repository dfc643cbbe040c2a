/*
 * Stream-ordered memory. A pool books what it needs on the device and keeps freed memory for its next allocation,
 * until work is synchronised and more than its threshold is unused, somebody trims it, or the device runs short.
 */
#include "launch.h"

#include <stdlib.h>

enum pool_attribute {
    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, REUSE_ALLOW_OPPORTUNISTIC = 2, REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    RELEASE_THRESHOLD = 4, RESERVED_CURRENT = 5, RESERVED_HIGH = 6, USED_CURRENT = 7, USED_HIGH = 8,
};

enum { LOCATION_DEVICE = 1, ALLOCATION_PINNED = 1 };

struct CUmemPoolHandle_st {
    int ordinal;
    bool on_host;   /* takes nothing of a device */
    bool destroyed; /* and only waits for its allocations to be freed */
    uint64_t reserved, used, reserved_high, used_high, threshold, most;
    int reuse[4];
    struct CUmemPoolHandle_st *next;
};

static struct CUmemPoolHandle_st *pools;
static CUmemoryPool default_pools[DEVICES_MAX], current_pools[DEVICES_MAX], graph_pools[DEVICES_MAX];

static CUmemoryPool new_pool(int ordinal)
{
    struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (struct CUmemPoolHandle_st){.ordinal = ordinal, .reuse = {0, 1, 1, 1}, .next = pools};
    pools = pool;
    return pool;
}

static CUmemoryPool kept(CUmemoryPool *of_device, int ordinal)
{
    if (!of_device[ordinal])
        of_device[ordinal] = new_pool(ordinal);
    return of_device[ordinal];
}

CUmemoryPool pool_of_graphs(int ordinal)
{
    CUmemoryPool pool = kept(graph_pools, ordinal);
    if (pool)
        pool->threshold = UINT64_MAX; /* graphs keep their memory until it is trimmed */
    return pool;
}

static CUmemoryPool current(int ordinal)
{
    return current_pools[ordinal] ? current_pools[ordinal] : kept(default_pools, ordinal);
}

static bool shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t target = pool->used > keep ? pool->used : keep;
    if (pool->reserved <= target)
        return false;
    if (!pool->on_host)
        cuda_credit(pool->ordinal, CHARGE_MEMORY, pool->reserved - target);
    pool->reserved = target;
    return true;
}

bool pools_give_up(int ordinal)
{
    bool gave = false;
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->ordinal == ordinal && !pool->on_host)
            gave |= shrink(pool, 0);
    return gave;
}

void pools_synchronised(void)
{
    cuda_lock();
    later_settle();
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        shrink(pool, pool->threshold);
    cuda_unlock();
}

static bool grow(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t wanted = pool->used + bytes;
    if (wanted <= pool->reserved)
        return true;
    if (!pool->on_host && !cuda_charge_once(pool->ordinal, CHARGE_MEMORY, wanted - pool->reserved))
        return false;
    pool->reserved = wanted;
    return true;
}

bool pool_take(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->most && (bytes > pool->most || pool->used > pool->most - bytes))
        return false;
    if (!grow(pool, bytes) && !(pools_give_up(pool->ordinal) && grow(pool, bytes)))
        return false;
    pool->used += bytes;
    if (pool->used_high < pool->used)
        pool->used_high = pool->used;
    if (pool->reserved_high < pool->reserved)
        pool->reserved_high = pool->reserved;
    return true;
}

static void drop_if_over(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used)
        return;
    shrink(pool, 0);
    for (struct CUmemPoolHandle_st **link = &pools; *link; link = &(*link)->next)
        if (*link == pool) {
            *link = pool->next;
            free(pool);
            return;
        }
}

void pool_return(CUmemoryPool pool, uint64_t bytes)
{
    pool->used -= bytes;
    if (pool->destroyed)
        shrink(pool, 0);
    drop_if_over(pool);
}

void pools_forget(void)
{
    while (pools) {
        CUmemoryPool next = pools->next;
        free(pools);
        pools = next;
    }
    for (int i = 0; i < DEVICES_MAX; i++)
        default_pools[i] = current_pools[i] = graph_pools[i] = NULL;
}

static bool known(CUmemoryPool wanted)
{
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool == wanted && !pool->destroyed)
            return true;
    return false;
}

/* Runs the rest of the block with the lock held and the pool known to exist. */
#define LOCK_POOL(pool)                            \
    do {                                           \
        cuda_lock();                               \
        if (!known(pool)) {                        \
            cuda_unlock();                         \
            return CUDA_ERROR_INVALID_VALUE;       \
        }                                          \
    } while (0)

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    NEED(pointer);
    NEED_CONTEXT(context);
    if (stream_capture(stream))
        return graph_capture_allocation(stream_capture(stream), context->ordinal, bytes, pointer);
    cuda_lock();
    pool = pool ? pool : current(context->ordinal);
    CUresult result = pool && known(pool) ? cuda_allocate(context, bytes, ALLOCATION_POOL, pool, pointer)
                                          : CUDA_ERROR_INVALID_VALUE;
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    ENTER("cuda_alloc");
    return allocate(pointer, bytes, NULL, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    ENTER("cuda_alloc");
    NEED(pool);
    return allocate(pointer, bytes, pool, stream);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    ENTER("cuda_free");
    if (stream_capture(stream))
        return graph_capture_free(stream_capture(stream), pointer);
    cuda_lock();
    const struct CUctx_st *context = cuda_context();
    const struct allocation *found = registry_find(pointer);
    struct allocation entry;
    CUresult result = CUDA_SUCCESS;
    if (context && found && (found->kind == ALLOCATION_DEVICE || found->kind == ALLOCATION_MANAGED) &&
        registry_remove(pointer, &entry))
        later_free(&entry, stream_of(cuda_context(), stream)->busy_until_ns);
    else
        result = cuda_free(pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return cuMemFreeAsync(pointer, stream ? stream : STREAM_PER_THREAD);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream ? stream : STREAM_PER_THREAD);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream ? stream : STREAM_PER_THREAD);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    ENTER("cuda_pool");
    NEED(pool && properties && properties->allocType == ALLOCATION_PINNED);
    bool on_device = properties->location.type == LOCATION_DEVICE;
    int ordinal = on_device ? properties->location.id : 0;
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    *pool = new_pool(ordinal);
    if (*pool) {
        (*pool)->on_host = !on_device;
        (*pool)->most = properties->maxSize;
    }
    cuda_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER("cuda_pool");
    LOCK_POOL(pool);
    CUresult result = CUDA_SUCCESS;
    if (default_pools[pool->ordinal] == pool) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        for (int i = 0; i < DEVICES_MAX; i++)
            if (current_pools[i] == pool)
                current_pools[i] = NULL;
        pool->destroyed = true;
        shrink(pool, 0);
        drop_if_over(pool);
    }
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER("cuda_pool");
    LOCK_POOL(pool);
    shrink(pool, keep);
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER("cuda_pool");
    NEED(value);
    LOCK_POOL(pool);
    CUresult result = CUDA_SUCCESS;
    uint64_t number = attribute >= RELEASE_THRESHOLD ? *(uint64_t *)value : 0;
    if (attribute >= REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        pool->reuse[attribute] = *(int *)value;
    else if (attribute == RELEASE_THRESHOLD)
        pool->threshold = number;
    else if (attribute == RESERVED_HIGH && !number)
        pool->reserved_high = pool->reserved;
    else if (attribute == USED_HIGH && !number)
        pool->used_high = pool->used;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER("cuda_pool");
    NEED(value && attribute >= REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= USED_HIGH);
    LOCK_POOL(pool);
    const uint64_t numbers[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};
    if (attribute < RELEASE_THRESHOLD)
        *(int *)value = pool->reuse[attribute];
    else
        *(uint64_t *)value = numbers[attribute - RELEASE_THRESHOLD];
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    ENTER("cuda_pool");
    NEED(access || !count);
    LOCK_POOL(pool);
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    enum { READ_WRITE = 3 };
    ENTER("cuda_pool");
    NEED(flags && location);
    LOCK_POOL(pool);
    *flags = READ_WRITE;
    cuda_unlock();
    return CUDA_SUCCESS;
}

static CUresult pool_of_device(CUmemoryPool *pool, CUdevice ordinal, bool default_one)
{
    NEED(pool);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    *pool = default_one ? kept(default_pools, ordinal) : current(ordinal);
    cuda_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    ENTER("cuda_pool");
    return pool_of_device(pool, ordinal, true);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    ENTER("cuda_pool");
    return pool_of_device(pool, ordinal, false);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    ENTER("cuda_pool");
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    LOCK_POOL(pool);
    current_pools[ordinal] = pool;
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    ENTER("cuda_graph");
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    if (graph_pools[ordinal])
        shrink(graph_pools[ordinal], 0);
    cuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
    ENTER("cuda_graph");
    NEED(value && attribute >= 0 && attribute <= 3);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    CUmemoryPool pool = pool_of_graphs(ordinal);
    const uint64_t numbers[] = {pool ? pool->used : 0, pool ? pool->used_high : 0, pool ? pool->reserved : 0,
                                pool ? pool->reserved_high : 0};
    *(uint64_t *)value = numbers[attribute];
    cuda_unlock();
    return CUDA_SUCCESS;
}
