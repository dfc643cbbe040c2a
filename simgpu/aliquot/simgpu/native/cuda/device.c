/* Devices as CUDA counts and describes them. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

enum attribute { /* CUdevice_attribute */
    MAX_THREADS_PER_BLOCK = 1, MAX_BLOCK_DIM_X = 2, MAX_BLOCK_DIM_Y = 3, MAX_BLOCK_DIM_Z = 4, MAX_GRID_DIM_X = 5,
    MAX_GRID_DIM_Y = 6, MAX_GRID_DIM_Z = 7, MAX_SHARED_MEMORY_PER_BLOCK = 8, TOTAL_CONSTANT_MEMORY = 9, WARP_SIZE = 10,
    MAX_PITCH = 11, MAX_REGISTERS_PER_BLOCK = 12, CLOCK_RATE = 13, TEXTURE_ALIGNMENT = 14, GPU_OVERLAP = 15,
    MULTIPROCESSOR_COUNT = 16, CAN_MAP_HOST_MEMORY = 19, COMPUTE_MODE = 20, CONCURRENT_KERNELS = 31, ECC_ENABLED = 32,
    PCI_BUS_ID = 33, PCI_DEVICE_ID = 34, MEMORY_CLOCK_RATE = 36, GLOBAL_MEMORY_BUS_WIDTH = 37, L2_CACHE_SIZE = 38,
    MAX_THREADS_PER_MULTIPROCESSOR = 39, ASYNC_ENGINE_COUNT = 40, UNIFIED_ADDRESSING = 41, PCI_DOMAIN_ID = 50,
    COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, STREAM_PRIORITIES_SUPPORTED = 78,
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81, MAX_REGISTERS_PER_MULTIPROCESSOR = 82, MANAGED_MEMORY = 83,
    CONCURRENT_MANAGED_ACCESS = 89, COOPERATIVE_LAUNCH = 95, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    MEMORY_POOLS_SUPPORTED = 115, MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
};

static int attribute_of(const struct sim_device *d, enum attribute attribute)
{
    switch (attribute) {
    case MAX_THREADS_PER_BLOCK: case MAX_BLOCK_DIM_X: case MAX_BLOCK_DIM_Y: return 1024;
    case MAX_BLOCK_DIM_Z: return 64;
    case MAX_GRID_DIM_X: case MAX_PITCH: return 0x7fffffff;
    case MAX_GRID_DIM_Y: case MAX_GRID_DIM_Z: return 65535;
    case MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case TOTAL_CONSTANT_MEMORY: case MAX_REGISTERS_PER_BLOCK: case MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case WARP_SIZE: return 32;
    case CLOCK_RATE: return (int)d->clock_sm_max_mhz * 1000;
    case TEXTURE_ALIGNMENT: return 512;
    case MULTIPROCESSOR_COUNT: return (int)d->multiprocessors;
    case COMPUTE_MODE: return (int)d->compute_mode;
    case ECC_ENABLED: return (int)d->ecc_mode;
    case PCI_BUS_ID: return (int)d->pci_bus;
    case PCI_DEVICE_ID: return (int)d->pci_device;
    case PCI_DOMAIN_ID: return (int)d->pci_domain;
    case MEMORY_CLOCK_RATE: return (int)d->clock_memory_max_mhz * 1000;
    case GLOBAL_MEMORY_BUS_WIDTH: return (int)d->memory_bus_bits;
    case L2_CACHE_SIZE: return d->architecture >= 9 ? 50 << 20 : d->architecture >= 7 ? 40 << 20 : 6 << 20;
    case MAX_THREADS_PER_MULTIPROCESSOR: return d->compute_major == 7 && d->compute_minor == 5 ? 1024 : 2048;
    case ASYNC_ENGINE_COUNT: return 3;
    case COMPUTE_CAPABILITY_MAJOR: return (int)d->compute_major;
    case COMPUTE_CAPABILITY_MINOR: return (int)d->compute_minor;
    case MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return d->architecture >= 7 ? 163 << 10 : 64 << 10;
    case GPU_OVERLAP: case CAN_MAP_HOST_MEMORY: case CONCURRENT_KERNELS: case UNIFIED_ADDRESSING:
    case STREAM_PRIORITIES_SUPPORTED: case MANAGED_MEMORY: case CONCURRENT_MANAGED_ACCESS: case COOPERATIVE_LAUNCH:
    case VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: case HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case MEMORY_POOLS_SUPPORTED: case MEMPOOL_SUPPORTED_HANDLE_TYPES: return 1;
    default: return 0;
    }
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    NEED(version);
    const struct scenario *scenario = machine() ? machine() : machine_open();
    *version = scenario ? (int)scenario->cuda_version : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER("cuda_device");
    NEED(count);
    *count = runtime.visible_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER("cuda_device");
    NEED(device);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

#define NEED_DEVICE(name, ordinal)                         \
    const struct sim_device *name = cuda_device(ordinal);  \
    if (!name)                                             \
        return CUDA_ERROR_INVALID_DEVICE

static const struct sim_profile *mig_profile(const struct sim_device *device, uint32_t gpu_instance)
{
    for (uint32_t i = 0; i < INSTANCES_MAX; i++)
        if (device->gpu_instances[i].in_use && device->gpu_instances[i].id == gpu_instance)
            return &device->profiles[device->gpu_instances[i].profile];
    return NULL;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(name && length > 0);
    NEED_DEVICE(device, ordinal);
    machine_lock();
    const struct sim_profile *profile = mig_profile(device, cuda_place(ordinal).gpu_instance);
    snprintf(name, (size_t)length, "%s%s%s", device->name, profile ? " MIG " : "", profile ? profile->name : "");
    machine_unlock();
    return CUDA_SUCCESS;
}

static void parse_uuid(const char *text, CUuuid *uuid)
{
    unsigned byte;
    const char *digits = strchr(text, '-');
    memset(uuid, 0, sizeof *uuid);
    for (size_t i = 0; digits && i < sizeof uuid->bytes; i++) {
        while (*digits == '-')
            digits++;
        if (sscanf(digits, "%2x", &byte) != 1)
            return;
        uuid->bytes[i] = (char)byte;
        digits += 2;
    }
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(uuid);
    NEED_DEVICE(device, ordinal);
    (void)device;
    parse_uuid(runtime.visible[ordinal].uuid, uuid);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(uuid);
    NEED_DEVICE(device, ordinal);
    parse_uuid(device->uuid, uuid); /* of the whole GPU, even on a MIG device */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(value && attribute > 0);
    NEED_DEVICE(device, ordinal);
    *value = attribute_of(device, (enum attribute)attribute);
    machine_lock();
    const struct sim_profile *profile = mig_profile(device, cuda_place(ordinal).gpu_instance);
    if (profile && attribute == MULTIPROCESSOR_COUNT)
        *value = (int)profile->multiprocessors;
    machine_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(major && minor);
    NEED_DEVICE(device, ordinal);
    *major = (int)device->compute_major;
    *minor = (int)device->compute_minor;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(text && length > 0);
    NEED_DEVICE(device, ordinal);
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", device->pci_domain, device->pci_bus, device->pci_device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *ordinal, const char *text)
{
    ENTER("cuda_device");
    unsigned domain, bus, slot;
    NEED(ordinal && text && sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3);
    for (int i = 0; i < runtime.visible_count; i++) {
        const struct sim_device *device = cuda_device(i);
        if (device->pci_domain == domain && device->pci_bus == bus && device->pci_device == slot) {
            *ordinal = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

static const struct sim_limit *own_limit(int ordinal)
{
    if (!machine()->limit_count)
        return NULL;
    struct cgroup_line line = process_own_cgroups();
    return books_shown_limit(cuda_device(ordinal), &line);
}

uint64_t cuda_total_bytes(int ordinal)
{
    struct place place = cuda_place(ordinal);
    machine_lock();
    uint64_t total = books_total_bytes(cuda_device(ordinal), place.gpu_instance);
    if (place.gpu_instance == NO_INSTANCE)
        total -= cuda_device(ordinal)->reserved_bytes;
    const struct sim_limit *limit = own_limit(ordinal);
    if (limit && limit->hard_bytes < total)
        total = limit->hard_bytes;
    machine_unlock();
    return total;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    ENTER("cuda_device");
    NEED(bytes);
    NEED_DEVICE(device, ordinal);
    (void)device;
    *bytes = cuda_total_bytes(ordinal);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER("cuda_memory_info");
    NEED(free_bytes && total_bytes);
    NEED_CONTEXT(context);
    struct sim_device *device = cuda_device(context->ordinal);
    *total_bytes = cuda_total_bytes(context->ordinal);
    machine_lock();
    books_reap(device);
    uint64_t room = books_free_bytes(device, cuda_place(context->ordinal).gpu_instance);
    const struct sim_limit *limit = own_limit(context->ordinal);
    if (limit) {
        uint64_t used = books_limited_bytes(device, limit);
        uint64_t left = used < limit->hard_bytes ? limit->hard_bytes - used : 0;
        room = left < room ? left : room;
    }
    const struct sim_account *account = books_account(cuda_place(context->ordinal), false);
    if (account && account->pinned_bytes) { /* of MPS: the total stays the card's */
        uint64_t left = account->memory_bytes < account->pinned_bytes ? account->pinned_bytes - account->memory_bytes : 0;
        room = left < room ? left : room;
    }
    machine_unlock();
    *free_bytes = room;
    return CUDA_SUCCESS;
}
