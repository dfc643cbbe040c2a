/* What programs are told about memory: the lease is the device. Frameworks size their caches by these answers. */
#include <stdlib.h>

#include "process.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    const CUresult result = REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS || !free_bytes || !total_bytes)
        return result;
    const int device = device_current(NULL);
    if (device == DEVICE_UNKNOWN)
        return result;
    pools_refresh(device, false);
    *total_bytes = smaller(*total_bytes, book_limit(device));
    *free_bytes = smaller(*free_bytes, book_room(device));
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    const CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    if (result != CUDA_SUCCESS || !bytes)
        return result;
    const int device = device_of(ordinal);
    if (device != DEVICE_UNKNOWN)
        *bytes = smaller(*bytes, book_limit(device));
    return result;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "GPU-" or "MIG-" and 32 hexadecimal digits with dashes in between. */
static int device_of_nvml(nvmlDevice_t handle)
{
    static nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned);
    unsigned char uuid[16] = {0};
    char text[96];
    if (!get_uuid)
        get_uuid = (nvmlReturn_t(*)(nvmlDevice_t, char *, unsigned))nvml_function("nvmlDeviceGetUUID");
    if (!get_uuid || get_uuid(handle, text, sizeof text) != NVML_SUCCESS)
        return DEVICE_FOREIGN;
    int digits = 0;
    for (const char *c = text + 4; c[-4] && c[-3] && c[-2] && c[-1] && *c && digits < 32; c++)
        if (digit(*c) >= 0) {
            uuid[digits / 2] = (unsigned char)(uuid[digits / 2] << 4 | digit(*c));
            digits++;
        }
    const int device = book_device(uuid);
    return book_limits(device) ? device : DEVICE_FOREIGN;
}

/* Devices that the lease has no part of are shown as they are. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    const nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(handle, memory);
    if (result != NVML_SUCCESS || !memory)
        return result;
    const int device = device_of_nvml(handle);
    if (device < 0)
        return result;
    memory->total = smaller(memory->total, book_limit(device));
    memory->free = smaller(memory->free, book_room(device));
    memory->used = memory->total - memory->free;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    const nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(handle, memory);
    if (result != NVML_SUCCESS || !memory)
        return result;
    const int device = device_of_nvml(handle);
    if (device < 0)
        return result;
    memory->total = smaller(memory->total, book_limit(device));
    memory->free = smaller(memory->free, book_room(device));
    memory->reserved = 0; /* what the driver keeps is no part of a lease */
    memory->used = memory->total - memory->free;
    return result;
}
