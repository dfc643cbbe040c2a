/*
 * Copies. Device memory has nothing behind it unless ALIQUOT_SIMGPU_BACKED=1 is set: a copy checks its pointers, and
 * what comes from the device is zero. With it, bytes really move.
 */
#include "internal.h"

#include <string.h>

/* Whether [pointer, pointer + bytes) lies within one allocation of this process. */
static bool within(CUdeviceptr pointer, uint64_t bytes)
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
    NEED(within(to, bytes));
    if (addresses_backed())
        memcpy(at(to), from, bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes)
{
    NEED(to || !bytes);
    NEED(within(from, bytes));
    if (addresses_backed())
        memcpy(to, at(from), bytes);
    else
        memset(to, 0, bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_device(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    NEED(within(to, bytes) && within(from, bytes));
    if (addresses_backed())
        memmove(at(to), at(from), bytes);
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, const void *value, size_t unit, size_t count)
{
    uint64_t bytes;
    NEED(!__builtin_mul_overflow(unit, count, &bytes) && within(to, bytes));
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
    bool to_device = within(to, bytes), from_device = within(from, bytes);
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
