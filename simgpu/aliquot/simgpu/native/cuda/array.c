/* Arrays and mipmapped arrays. A handle is the address of the memory, which programs can't use as such. */
#include "internal.h"

#include <stdlib.h>

static uint64_t format_bytes(unsigned format)
{
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc3: return 1; /* 8-bit integers and their normalised forms */
    case 0x02: case 0x09: case 0x10: case 0xc6: case 0xc9: return 2; /* 16 bits, half */
    case 0x03: case 0x0a: case 0x20: return 4; /* 32 bits, float */
    default: return 0;
    }
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    uint64_t width = d->Width >> level, height = d->Height >> level, depth = d->Depth >> level, bytes;
    width = width ? width : 1;
    height = height ? height : 1;
    depth = d->Flags & 1 ? d->Depth : depth; /* layers stay */
    depth = depth ? depth : 1;
    if (__builtin_mul_overflow(width, height, &bytes) || __builtin_mul_overflow(bytes, depth, &bytes) ||
        __builtin_mul_overflow(bytes, format_bytes(d->Format) * d->NumChannels, &bytes))
        return UINT64_MAX;
    return bytes;
}

static CUresult create(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels, enum allocation_kind kind,
                       CUdeviceptr *memory)
{
    NEED(wanted->Width && format_bytes(wanted->Format) && levels && levels <= 32);
    NEED(wanted->NumChannels == 1 || wanted->NumChannels == 2 || wanted->NumChannels == 4);
    NEED_CONTEXT(context);
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels; level++)
        if (__builtin_add_overflow(bytes, level_bytes(wanted, level), &bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
    CUDA_ARRAY3D_DESCRIPTOR *kept = malloc(sizeof *kept);
    if (!kept)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *wanted;
    cuda_lock();
    CUresult result = cuda_allocate(context, bytes, kind, kept, memory);
    cuda_unlock();
    if (result != CUDA_SUCCESS)
        free(kept);
    return result;
}

static CUresult destroy(const void *handle, enum allocation_kind kind)
{
    struct allocation entry;
    CUdeviceptr memory = (CUdeviceptr)(uintptr_t)handle;
    cuda_lock();
    const struct allocation *found = registry_find(memory);
    bool known = found && found->kind == kind;
    if (known) {
        registry_remove(memory, &entry);
        cuda_release_entry(&entry);
    }
    cuda_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult describe(const void *handle, CUDA_ARRAY3D_DESCRIPTOR *description)
{
    cuda_lock();
    const struct allocation *found = registry_find((CUdeviceptr)(uintptr_t)handle);
    bool known = found && (found->kind == ALLOCATION_ARRAY || found->kind == ALLOCATION_MIPMAP);
    if (known)
        *description = *(const CUDA_ARRAY3D_DESCRIPTOR *)found->owner;
    cuda_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description)
{
    ENTER("cuda_array");
    CUdeviceptr memory;
    NEED(array && description);
    CUresult result = create(description, 1, ALLOCATION_ARRAY, &memory);
    if (result == CUDA_SUCCESS)
        *array = (CUarray)(uintptr_t)memory;
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description)
{
    ENTER("cuda_array");
    CUdeviceptr memory;
    NEED(array && description);
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = description->Width,
                                    .Height = description->Height,
                                    .Format = description->Format,
                                    .NumChannels = description->NumChannels};
    CUresult result = create(&full, 1, ALLOCATION_ARRAY, &memory);
    if (result == CUDA_SUCCESS)
        *array = (CUarray)(uintptr_t)memory;
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    ENTER("cuda_array");
    return destroy(array, ALLOCATION_ARRAY);
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *description, CUarray array)
{
    ENTER("cuda_array");
    NEED(description);
    return describe(array, description);
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *description, CUarray array)
{
    ENTER("cuda_array");
    CUDA_ARRAY3D_DESCRIPTOR full;
    NEED(description);
    CUresult result = describe(array, &full);
    if (result == CUDA_SUCCESS)
        *description = (CUDA_ARRAY_DESCRIPTOR){
            .Width = full.Width, .Height = full.Height, .Format = full.Format, .NumChannels = full.NumChannels};
    return result;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description,
                                       unsigned levels)
{
    ENTER("cuda_array");
    CUdeviceptr memory;
    NEED(array && description);
    CUresult result = create(description, levels, ALLOCATION_MIPMAP, &memory);
    if (result == CUDA_SUCCESS)
        *array = (CUmipmappedArray)(uintptr_t)memory;
    return result;
}

/* A level belongs to its array and is not destroyed by itself: the same handle serves all of them. */
EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned number)
{
    ENTER("cuda_array");
    CUDA_ARRAY3D_DESCRIPTOR description;
    NEED(level && number < 32);
    CUresult result = describe(array, &description);
    if (result == CUDA_SUCCESS)
        *level = (CUarray)(void *)array;
    return result;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    ENTER("cuda_array");
    return destroy(array, ALLOCATION_MIPMAP);
}
