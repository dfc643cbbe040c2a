/* Allocation and freeing of linear memory, and memory of the host. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ADDRESSABLE (UINT64_C(1) << 41) /* more than any device has */

static bool take(struct CUctx_st *context, enum allocation_kind kind, void *owner, uint64_t bytes)
{
    later_settle();
    if (kind == ALLOCATION_POOL)
        return pool_take(owner, bytes);
    return cuda_charge(context->ordinal, kind == ALLOCATION_MANAGED ? CHARGE_MANAGED : CHARGE_MEMORY, bytes);
}

CUresult cuda_allocate(struct CUctx_st *context, uint64_t bytes, enum allocation_kind kind, void *owner,
                       CUdeviceptr *pointer)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation allocation = {.bytes = bytes,
                                    .booked = cuda_round(bytes),
                                    .kind = kind,
                                    .ordinal = context->ordinal,
                                    .context = context,
                                    .owner = owner};
    if (allocation.booked > ADDRESSABLE || !take(context, kind, owner, allocation.booked))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation.pointer = addresses_take(allocation.booked, 512);
    if (!allocation.pointer || !registry_add(allocation)) {
        cuda_release_entry(&allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = allocation.pointer;
    return CUDA_SUCCESS;
}

void cuda_release_entry(const struct allocation *entry)
{
    if (entry->pointer && entry->kind != ALLOCATION_GRAPH) /* a graph's node keeps its address */
        addresses_give(entry->pointer, entry->booked);
    switch (entry->kind) {
    case ALLOCATION_MANAGED: cuda_credit(entry->ordinal, CHARGE_MANAGED, entry->booked); break;
    case ALLOCATION_POOL: pool_return(entry->owner, entry->booked); break;
    case ALLOCATION_GRAPH: graph_node_freed(entry->owner); break;
    case ALLOCATION_EXPORTED:
    case ALLOCATION_IMPORTED:
        machine_lock();
        share_release(&entry->ticket);
        machine_unlock();
        break;
    case ALLOCATION_VIEW:
    case ALLOCATION_MAPPED: break;
    case ALLOCATION_ARRAY:
    case ALLOCATION_MIPMAP: free(entry->owner); __attribute__((fallthrough));
    case ALLOCATION_DEVICE:
    case ALLOCATION_MODULE: cuda_credit(entry->ordinal, CHARGE_MEMORY, entry->booked); break;
    }
}

static bool freeable(enum allocation_kind kind)
{
    return kind == ALLOCATION_DEVICE || kind == ALLOCATION_MANAGED || kind == ALLOCATION_POOL ||
           kind == ALLOCATION_GRAPH || kind == ALLOCATION_EXPORTED || kind == ALLOCATION_VIEW;
}

CUresult cuda_free(CUdeviceptr pointer)
{
    struct allocation *found = registry_find(pointer), entry;
    if (!found || !freeable(found->kind))
        return CUDA_ERROR_INVALID_VALUE; /* freed before, never ours, or to be given back in another way */
    registry_remove(pointer, &entry);
    cuda_release_entry(&entry);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER("cuda_alloc");
    NEED(pointer);
    NEED_CONTEXT(context);
    cuda_lock();
    CUresult result = cuda_allocate(context, bytes, ALLOCATION_DEVICE, NULL, pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
                                   unsigned element_bytes)
{
    enum { ROW_ALIGNMENT = 512 };
    ENTER("cuda_alloc");
    NEED(pointer && pitch && width_bytes && height);
    NEED(element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
    NEED_CONTEXT(context);
    uint64_t row, bytes;
    if (__builtin_add_overflow(width_bytes, ROW_ALIGNMENT - 1, &row))
        return CUDA_ERROR_OUT_OF_MEMORY;
    row = row / ROW_ALIGNMENT * ROW_ALIGNMENT;
    if (__builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    cuda_lock();
    CUresult result = cuda_allocate(context, bytes, ALLOCATION_DEVICE, NULL, pointer);
    cuda_unlock();
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };
    ENTER("cuda_alloc");
    NEED(pointer && (flags == ATTACH_GLOBAL || flags == ATTACH_HOST));
    NEED_CONTEXT(context);
    cuda_lock();
    CUresult result = cuda_allocate(context, bytes, ALLOCATION_MANAGED, NULL, pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER("cuda_free");
    if (!pointer)
        return CUDA_SUCCESS;
    cuda_lock();
    CUresult result = cuda_free(pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer)
{
    ENTER("cuda_memory_info");
    cuda_lock();
    const struct allocation *entry = registry_containing(pointer);
    if (entry && start)
        *start = entry->pointer;
    if (entry && bytes)
        *bytes = entry->bytes;
    cuda_unlock();
    return entry ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Host memory takes nothing of the device. */
EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ENTER("cuda_host");
    NEED(pointer && bytes);
    (void)flags;
    NEED_CONTEXT(context);
    (void)context;
    return posix_memalign(pointer, 4096, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
    ENTER("cuda_host");
    NEED(pointer);
    free(pointer);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned flags)
{
    ENTER("cuda_host");
    NEED(device_pointer && pointer && flags == 0);
    *device_pointer = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    ENTER("cuda_host");
    NEED(pointer && bytes);
    (void)flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *pointer)
{
    ENTER("cuda_host");
    NEED(pointer);
    return CUDA_SUCCESS;
}
ALIAS(cuMemHostRegister, cuMemHostRegister_v2);
