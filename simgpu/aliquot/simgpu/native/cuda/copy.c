/*
 * Copies. Device memory has nothing behind it unless ALIQUOT_SIMGPU_BACKED=1 is set: a copy checks its pointers, and
 * what comes from the device is zero. With it, bytes really move.
 */
#include "internal.h"

#include <string.h>

bool addresses_within(CUdeviceptr pointer, uint64_t bytes)
{
    cuda_lock();
    const struct allocation *entry = registry_containing(pointer);
    bool inside = entry && bytes <= entry->bytes - (pointer - entry->pointer);
    cuda_unlock();
    return inside;
}

static void *at(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes)
{
    NEED(from || !bytes);
    NEED(addresses_within(to, bytes));
    if (addresses_backed())
        memcpy(at(to), from, bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes)
{
    NEED(to || !bytes);
    NEED(addresses_within(from, bytes));
    if (addresses_backed())
        memcpy(to, at(from), bytes);
    else
        memset(to, 0, bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_device(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    NEED(addresses_within(to, bytes) && addresses_within(from, bytes));
    if (addresses_backed())
        memmove(at(to), at(from), bytes);
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, const void *value, size_t unit, size_t count)
{
    uint64_t bytes;
    NEED(!__builtin_mul_overflow(unit, count, &bytes) && addresses_within(to, bytes));
    for (size_t i = 0; addresses_backed() && i < count; i++)
        memcpy((char *)at(to) + i * unit, value, unit);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    ENTER("cuda_copy");
    return copy_in(to, from, bytes);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER("cuda_copy");
    (void)stream;
    return copy_in(to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    ENTER("cuda_copy");
    return copy_out(to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER("cuda_copy");
    (void)stream;
    return copy_out(to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    ENTER("cuda_copy");
    return copy_device(to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER("cuda_copy");
    (void)stream;
    return copy_device(to, from, bytes);
}

/* Either side may be the host. */
static CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    bool to_device = addresses_within(to, bytes), from_device = addresses_within(from, bytes);
    if (to_device && from_device)
        return copy_device(to, from, bytes);
    if (to_device)
        return copy_in(to, at(from), bytes);
    if (from_device)
        return copy_out(at(to), from, bytes);
    NEED(to && from);
    memmove(at(to), at(from), bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    ENTER("cuda_copy");
    return copy_any(to, from, bytes);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER("cuda_copy");
    (void)stream;
    return copy_any(to, from, bytes);
}

/* One side of a copy of rows: where its first byte is. */
struct side {
    bool device;
    uint64_t start;
    size_t pitch;
};

static bool side_of(struct side *side, int type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch)
{
    uint64_t before;
    *side = (struct side){.device = type == CU_MEMORYTYPE_DEVICE, .pitch = pitch};
    if (!side->device && type != CU_MEMORYTYPE_HOST)
        return false; /* arrays have no addresses here */
    if (__builtin_mul_overflow(pitch, y, &before))
        return false;
    side->start = (side->device ? device : (uint64_t)(uintptr_t)host) + before + x;
    return true;
}

static CUresult copy_rows(const CUDA_MEMCPY2D *copy)
{
    NEED(copy);
    struct side to, from;
    size_t width = copy->WidthInBytes, height = copy->Height;
    NEED(side_of(&to, copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstPitch));
    NEED(side_of(&from, copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcPitch));
    NEED(height < 2 || ((!to.pitch || to.pitch >= width) && (!from.pitch || from.pitch >= width)));
    for (size_t row = 0; row < height; row++) {
        uint64_t there = to.start + row * (to.pitch ? to.pitch : width);
        uint64_t here = from.start + row * (from.pitch ? from.pitch : width);
        CUresult result = CUDA_SUCCESS;
        if (to.device && from.device)
            result = copy_device(there, here, width);
        else if (to.device)
            result = copy_in(there, at(here), width);
        else if (from.device)
            result = copy_out(at(there), here, width);
        else
            memmove(at(there), at(here), width);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
    ENTER("cuda_copy");
    return copy_rows(copy);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    ENTER("cuda_copy");
    (void)stream;
    return copy_rows(copy);
}

#define FILL(symbol, type)                                                             \
    EXPORT CUresult symbol##_v2(CUdeviceptr to, type value, size_t count)              \
    {                                                                                  \
        ENTER("cuda_copy");                                                            \
        return fill(to, &value, sizeof value, count);                                  \
    }                                                                                  \
    EXPORT CUresult symbol##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
    {                                                                                  \
        ENTER("cuda_copy");                                                            \
        (void)stream;                                                                  \
        return fill(to, &value, sizeof value, count);                                  \
    }                                                                                  \
    ALIAS(symbol##_v2_ptds, symbol##_v2);                                              \
    ALIAS(symbol##Async_ptsz, symbol##Async);

FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned)

ALIAS(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);
ALIAS(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);
ALIAS(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);
ALIAS(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);
ALIAS(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);
ALIAS(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2);
ALIAS(cuMemcpy_ptds, cuMemcpy);
ALIAS(cuMemcpyAsync_ptsz, cuMemcpyAsync);
ALIAS(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2);
ALIAS(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2);
