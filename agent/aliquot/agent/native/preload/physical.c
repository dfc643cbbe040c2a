/*
 * Physical memory of the virtual memory interface. It lives as long as any handle to it or any mapping of it: giving
 * up the handle of mapped memory frees nothing, so it gives nothing back.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

struct physical {
    uint64_t bytes;
    int device;
    uint64_t handles, mappings;
    bool pinned; /* held by something whose end we don't see: charged as long as the process lives */
    bool exported; /* a descriptor may hold it longer than we know of */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool lingers[DEVICES_MAX]; /* memory that was exported may be held there still */

/* All of these want the mutex. Ledger entries: PHYSICAL by handle (bytes counts its references), MAPPING by address. */

static bool put(struct entry entry)
{
    struct entry old;
    return ledger_put(entry, &old);
}

static void let_go(struct physical *physical)
{
    if (physical->handles || physical->mappings || physical->pinned)
        return;
    memory_credit(physical->device, physical->bytes);
    if (physical->exported && physical->device >= 0) {
        __atomic_store_n(&lingers[physical->device], true, __ATOMIC_RELAXED);
        internal_settle(physical->device); /* what it still holds counts as the driver's own part of this process */
    }
    free(physical);
}

/* A descriptor may have been closed, which nobody tells. */
void physical_refresh(int device)
{
    if (device >= 0 && __atomic_load_n(&lingers[device], __ATOMIC_RELAXED))
        internal_settle(device);
}

static bool add_handle(CUmemGenericAllocationHandle handle, struct physical *physical)
{
    struct entry entry = {.space = PHYSICAL, .key = handle, .owner = physical, .device = physical->device};
    ledger_find(PHYSICAL, handle, &entry);
    if (entry.owner != physical) /* a handle whose end passed us by */
        entry = (struct entry){.space = PHYSICAL, .key = handle, .owner = physical, .device = physical->device};
    entry.bytes++;
    if (!put(entry))
        return false;
    physical->handles++;
    return true;
}

static void remove_handle(CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    if (!ledger_take(PHYSICAL, handle, &entry))
        return;
    struct physical *physical = entry.owner;
    if (--entry.bytes)
        put(entry);
    physical->handles--;
    let_go(physical);
}

static bool within(const struct entry *entry, const void *argument)
{
    const uint64_t *range = argument; /* start, size */
    return entry->space == MAPPING && entry->key - range[0] < range[1];
}

static bool contains(const struct entry *entry, const void *argument)
{
    const uint64_t *address = argument;
    return entry->space == MAPPING && *address - entry->key < entry->bytes;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    const int device = handle && properties && size ? device_of_location(&properties->location) : DEVICE_UNKNOWN;
    if (device == DEVICE_UNKNOWN || device == DEVICE_HOST)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    if (!memory_charge(device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result == CUDA_SUCCESS) {
        struct physical *physical = calloc(1, sizeof *physical);
        bool known = false;
        if (physical) {
            *physical = (struct physical){.bytes = size, .device = device};
            pthread_mutex_lock(&mutex);
            known = add_handle(*handle, physical);
            pthread_mutex_unlock(&mutex);
        }
        if (known)
            return CUDA_SUCCESS;
        free(physical);
        REAL(cuMemRelease)(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_credit(device, size);
    return result;
}

/* Within the mutex, here and below: the driver may give the same handle or address to another thread at once. */
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&mutex);
    const CUresult result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS)
        remove_handle(handle);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    struct entry entry;
    pthread_mutex_lock(&mutex);
    const CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS && ledger_find(PHYSICAL, handle, &entry))
        ((struct physical *)entry.owner)->exported = true;
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    struct entry mapping;
    const uint64_t wanted = (uintptr_t)address;
    pthread_mutex_lock(&mutex);
    const CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS &&
        (ledger_find(MAPPING, wanted, &mapping) || ledger_find_any(contains, &wanted, &mapping)) &&
        !add_handle(*handle, mapping.owner))
        ((struct physical *)mapping.owner)->pinned = true;
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    struct entry entry;
    pthread_mutex_lock(&mutex);
    const CUresult result = REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && ledger_find(PHYSICAL, handle, &entry)) {
        struct physical *physical = entry.owner;
        if (put((struct entry){.space = MAPPING, .key = pointer, .bytes = size, .owner = physical}))
            physical->mappings++;
        else
            physical->pinned = true;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    struct entry entry;
    const uint64_t range[2] = {pointer, size};
    pthread_mutex_lock(&mutex);
    const CUresult result = REAL(cuMemUnmap)(pointer, size);
    if (result == CUDA_SUCCESS) {
        uint64_t unmapped = 0;
        bool more = ledger_take(MAPPING, pointer, &entry);
        while (more) {
            struct physical *physical = entry.owner;
            unmapped += entry.bytes;
            physical->mappings--;
            let_go(physical);
            more = unmapped < size && ledger_take_any(within, range, &entry);
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static void pin(CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    pthread_mutex_lock(&mutex);
    if (ledger_find(PHYSICAL, handle, &entry))
        ((struct physical *)entry.owner)->pinned = true;
    pthread_mutex_unlock(&mutex);
}

static CUresult map_array(CUresult result, const CUarrayMapInfo *list, unsigned count)
{
    enum { MAP = 1 };
    for (unsigned i = 0; result == CUDA_SUCCESS && list && i < count; i++)
        if (list[i].memOperationType == MAP)
            pin(list[i].memHandle);
    return result;
}

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return map_array(REAL(cuMemMapArrayAsync)(list, count, stream), list, count);
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return map_array(REAL(cuMemMapArrayAsync_ptsz)(list, count, stream), list, count);
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
                                   CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                   unsigned long long flags)
{
    const CUresult result = REAL(cuMulticastBindMem)(multicast, multicast_offset, handle, offset, size, flags);
    if (result == CUDA_SUCCESS)
        pin(handle);
    return result;
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice ordinal, size_t multicast_offset,
                                      CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                      unsigned long long flags)
{
    const CUresult result =
        REAL(cuMulticastBindMem_v2)(multicast, ordinal, multicast_offset, handle, offset, size, flags);
    if (result == CUDA_SUCCESS)
        pin(handle);
    return result;
}

EXPORT CUresult cuLogicalEndpointBindMem(uint32_t endpoint, CUdevice ordinal, uint64_t endpoint_offset,
                                         CUmemGenericAllocationHandle handle, uint64_t offset, uint64_t size,
                                         unsigned long long flags)
{
    const CUresult result =
        REAL(cuLogicalEndpointBindMem)(endpoint, ordinal, endpoint_offset, handle, offset, size, flags);
    if (result == CUDA_SUCCESS)
        pin(handle);
    return result;
}

void physical_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* what it held is forgotten with the ledger */
    memset(lingers, 0, sizeof lingers);
}
