/* Allocation and freeing of linear memory, and memory of the host. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static enum charge_kind charge_of(enum allocation_kind kind)
{
    return kind == ALLOCATION_MANAGED ? CHARGE_MANAGED : CHARGE_MEMORY;
}

CUresult cuda_allocate(struct CUctx_st *context, uint64_t bytes, enum allocation_kind kind, void *owner,
                       CUdeviceptr *pointer)
{
    uint64_t booked = cuda_round(bytes);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (booked > (UINT64_C(1) << 41) || !cuda_charge(context->ordinal, charge_of(kind), booked))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation allocation = {.pointer = addresses_take(booked, 512),
                                    .bytes = bytes,
                                    .booked = booked,
                                    .kind = kind,
                                    .ordinal = context->ordinal,
                                    .context = context,
                                    .owner = owner};
    if (!allocation.pointer || !registry_add(allocation)) {
        if (allocation.pointer)
            addresses_give(allocation.pointer, booked);
        cuda_credit(context->ordinal, charge_of(kind), booked);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = allocation.pointer;
    return CUDA_SUCCESS;
}

void cuda_release_entry(const struct allocation *entry)
{
    addresses_give(entry->pointer, entry->booked);
    cuda_credit(entry->ordinal, charge_of(entry->kind), entry->booked);
}

CUresult cuda_free(CUdeviceptr pointer)
{
    struct allocation *found = registry_find(pointer), entry;
    if (!found || (found->kind != ALLOCATION_DEVICE && found->kind != ALLOCATION_MANAGED))
        return CUDA_ERROR_INVALID_VALUE; /* freed before, or never ours */
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
