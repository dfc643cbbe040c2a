/* Peers, pointers and advice: calls that programs make along the way and that move no memory. */
#include "internal.h"

enum pointer_attribute {
    POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE_POINTER = 3, POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9, POINTER_RANGE_START = 11, POINTER_RANGE_SIZE = 12, POINTER_MAPPED = 13,
};

enum { MEMORY_TYPE_DEVICE = 2 };

static uint32_t peers[DEVICES_MAX]; /* bit n: this ordinal may reach ordinal n */

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
    ENTER("cuda_device");
    NEED(can);
    if (!cuda_device(ordinal) || !cuda_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    bool mig = cuda_place(ordinal).gpu_instance != NO_INSTANCE || cuda_place(peer).gpu_instance != NO_INSTANCE;
    *can = ordinal != peer && !mig;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER("cuda_context");
    NEED(peer && flags == 0);
    NEED_CONTEXT(context);
    uint32_t bit = 1u << peer->ordinal;
    if (peers[context->ordinal] & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    peers[context->ordinal] |= bit;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER("cuda_context");
    NEED(peer);
    NEED_CONTEXT(context);
    uint32_t bit = 1u << peer->ordinal;
    if (!(peers[context->ordinal] & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    peers[context->ordinal] &= ~bit;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    ENTER("cuda_memory_info");
    NEED(value);
    cuda_lock();
    const struct allocation *entry = registry_containing(pointer);
    CUresult result = entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (entry)
        switch (attribute) {
        case POINTER_CONTEXT: *(CUcontext *)value = entry->context; break;
        case POINTER_MEMORY_TYPE: *(unsigned *)value = MEMORY_TYPE_DEVICE; break;
        case POINTER_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
        case POINTER_IS_MANAGED: *(unsigned *)value = entry->kind == ALLOCATION_MANAGED; break;
        case POINTER_DEVICE_ORDINAL: *(int *)value = entry->ordinal; break;
        case POINTER_RANGE_START: *(CUdeviceptr *)value = entry->pointer; break;
        case POINTER_RANGE_SIZE: *(size_t *)value = entry->bytes; break;
        case POINTER_MAPPED: *(unsigned *)value = 1; break;
        default: result = CUDA_ERROR_NOT_SUPPORTED; break;
        }
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream)
{
    ENTER("cuda_copy");
    (void)pointer, (void)bytes, (void)ordinal, (void)stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                                      CUstream stream)
{
    ENTER("cuda_copy");
    (void)pointer, (void)bytes, (void)location, (void)flags, (void)stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice ordinal)
{
    ENTER("cuda_copy");
    (void)pointer, (void)bytes, (void)advice, (void)ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location)
{
    ENTER("cuda_copy");
    (void)pointer, (void)bytes, (void)advice, (void)location;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuProfilerStart(void)
{
    ENTER("cuda_context");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuProfilerStop(void)
{
    ENTER("cuda_context");
    return CUDA_SUCCESS;
}

/* Tables between NVIDIA's own libraries: there are none. */
EXPORT CUresult cuGetExportTable(const void **table, const void *id)
{
    NEED(table && id);
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
ALIAS(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync);
ALIAS(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2);
