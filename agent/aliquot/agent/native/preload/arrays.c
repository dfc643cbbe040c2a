/* Arrays and mipmaps. Their layout is the driver's secret; we charge rows of whole 512 bytes in whole chunks. */
#include "process.h"

EXPORT CUresult cuArrayCreate(CUarray *array, const void *descriptor)
{
    (void)array, (void)descriptor;
    return CUDA_ERROR_NOT_SUPPORTED; /* the 32-bit interface */
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const void *descriptor)
{
    (void)array, (void)descriptor;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Bytes of one channel of a format; block-compressed and planar ones are taken for their largest. */
static uint64_t format_bytes(unsigned format)
{
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: return 1;
    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 2;
    default: return 4;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned level, uint64_t *bytes)
{
    const bool layered = of->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
    const uint64_t width = larger(of->Width >> level, 1), height = larger(of->Height >> level, 1);
    const uint64_t depth = larger(layered ? of->Depth : of->Depth >> level, 1);
    uint64_t row;
    if (__builtin_mul_overflow(width, format_bytes(of->Format) * larger(of->NumChannels, 1), &row))
        return false;
    return !__builtin_mul_overflow(round_up(row, 512), height, bytes) && !__builtin_mul_overflow(*bytes, depth, bytes);
}

static bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels, uint64_t *bytes)
{
    *bytes = 0;
    if (of->Flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING))
        return true; /* memory comes by cuMemMapArrayAsync */
    for (unsigned level = 0; level < levels && level < 32; level++) {
        uint64_t more;
        if (!level_bytes(of, level, &more) || __builtin_add_overflow(*bytes, more, bytes))
            return false;
    }
    return true;
}

struct creation {
    CUcontext context;
    int device;
    uint64_t bytes;
};

/* DEVICE_UNKNOWN in the result: the call goes on uncharged, to fail. */
static bool begin(struct creation *creation, const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels)
{
    creation->device = of ? device_current(&creation->context) : DEVICE_UNKNOWN;
    if (creation->device == DEVICE_UNKNOWN)
        return true;
    return array_bytes(of, levels, &creation->bytes) && memory_charge(creation->device, creation->bytes);
}

static CUresult end(const struct creation *creation, CUresult result, enum space space, void *handle,
                    CUresult (*destroy)(void *))
{
    if (creation->device == DEVICE_UNKNOWN)
        return result;
    if (result == CUDA_SUCCESS) {
        if (memory_record((struct entry){.space = space,
                                         .key = (uintptr_t)handle,
                                         .bytes = creation->bytes,
                                         .context = creation->context,
                                         .device = creation->device}))
            return CUDA_SUCCESS;
        destroy(handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_credit(creation->device, creation->bytes);
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    struct creation creation;
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (descriptor)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = descriptor->Width,
                                         .Height = descriptor->Height,
                                         .Format = descriptor->Format,
                                         .NumChannels = descriptor->NumChannels};
    if (!begin(&creation, descriptor && array ? &flat : NULL, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuArrayCreate_v2)(array, descriptor);
    return end(&creation, result, ARRAY, array ? *array : NULL, REAL(cuArrayDestroy));
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    struct creation creation;
    if (!begin(&creation, array ? descriptor : NULL, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuArray3DCreate_v2)(array, descriptor);
    return end(&creation, result, ARRAY, array ? *array : NULL, REAL(cuArrayDestroy));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                       unsigned levels)
{
    struct creation creation;
    if (!begin(&creation, array ? descriptor : NULL, levels))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    return end(&creation, result, MIPMAP, array ? *array : NULL, REAL(cuMipmappedArrayDestroy));
}

static CUresult destroy(enum space space, void *handle, CUresult (*real)(void *))
{
    struct entry entry;
    const bool ours = ledger_take(space, (uintptr_t)handle, &entry);
    const CUresult result = real(handle);
    if (ours && result == CUDA_SUCCESS)
        memory_credit(entry.device, entry.bytes);
    else if (ours)
        memory_record(entry);
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    return destroy(ARRAY, array, REAL(cuArrayDestroy));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy(MIPMAP, array, REAL(cuMipmappedArrayDestroy));
}
