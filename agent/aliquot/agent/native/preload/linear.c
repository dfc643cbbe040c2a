/* Linear memory: cuMemAlloc and its kin. Reserve, allocate, record; undo whatever went before a step that fails. */
#include "process.h"

/* No program of the last fifteen years asks for 32-bit device pointers; one that does gets no memory that way. */
EXPORT CUresult cuMemAlloc(void *pointer, unsigned bytes)
{
    (void)pointer, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuMemAllocPitch(void *pointer, void *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)pointer, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult record(CUdeviceptr pointer, uint64_t bytes, CUcontext context, int device)
{
    if (memory_record((struct entry){
            .space = POINTER, .key = pointer, .bytes = bytes, .context = context, .device = device}))
        return CUDA_SUCCESS;
    REAL(cuMemFree_v2)(pointer);
    memory_credit(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context;
    const int device = device_current(&context);
    if (device == DEVICE_UNKNOWN || !pointer || !bytes)
        return REAL(cuMemAlloc_v2)(pointer, bytes);
    if (!memory_charge(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuMemAlloc_v2)(pointer, bytes);
    if (result == CUDA_SUCCESS)
        return record(*pointer, bytes, context, device);
    memory_credit(device, bytes);
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    CUcontext context;
    const int device = device_current(&context);
    if (device == DEVICE_UNKNOWN || !pointer || !bytes)
        return REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (!memory_charge(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (result == CUDA_SUCCESS)
        return record(*pointer, bytes, context, device);
    memory_credit(device, bytes);
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    enum { ROW = 512 }; /* rows begin at multiples of this on all devices so far; corrected below if not */
    CUcontext context;
    uint64_t expected, real;
    const int device = device_current(&context);
    if (device == DEVICE_UNKNOWN || !pointer || !pitch || !width || !height)
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (__builtin_mul_overflow(round_up(width, ROW), height, &expected) || !memory_charge(device, expected))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS) {
        memory_credit(device, expected);
        return result;
    }
    real = (uint64_t)*pitch * height;
    if (real != expected) {
        memory_credit(device, expected);
        if (!memory_charge(device, real)) {
            REAL(cuMemFree_v2)(*pointer);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return record(*pointer, real, context, device);
}

/* The entry goes first: as soon as the driver has freed the memory, another thread may be given the same address. A
 * pointer that we don't know (imported, say) is the driver's to judge. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct entry entry;
    const bool ours = pointer && ledger_take(POINTER, pointer, &entry);
    const CUresult result = REAL(cuMemFree_v2)(pointer);
    if (!ours)
        return result;
    if (result != CUDA_SUCCESS)
        memory_record(entry);
    else if (entry.owner)
        pool_pointer_freed(&entry);
    else
        memory_credit(entry.device, entry.bytes);
    return result;
}
