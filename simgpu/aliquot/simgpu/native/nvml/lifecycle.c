/* Initialisation, handles, and the frame every call runs in. */
#include "internal.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct nvmlDevice_st {
    uint32_t device;
    int32_t slot; /* of the compute instance; -1: the whole GPU */
    uint64_t serial;
};

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static int references;
static struct nvmlDevice_st gpu_handles[DEVICES_MAX];
static struct nvmlDevice_st mig_handles[DEVICES_MAX][INSTANCES_MAX];

bool nvml_initialised(void)
{
    return __atomic_load_n(&references, __ATOMIC_ACQUIRE) > 0;
}

bool nvml_is_admin(void)
{
    return geteuid() == 0;
}

nvmlReturn_t nvml_end(nvmlReturn_t result)
{
    machine_unlock();
    return result;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&init_mutex);
    nvmlReturn_t result = NVML_SUCCESS;
    if (references == 0 && !machine_open())
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS) {
        static struct inject_site site;
        result = (nvmlReturn_t)inject(&site, __func__, "init", INJECT_ANY_DEVICE);
    }
    if (result == NVML_SUCCESS) {
        for (uint32_t i = 0; i < DEVICES_MAX; i++)
            gpu_handles[i] = (struct nvmlDevice_st){.device = i, .slot = -1};
        __atomic_add_fetch(&references, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&init_mutex);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&init_mutex);
    nvmlReturn_t result = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references > 0)
        __atomic_sub_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&init_mutex);
    return result;
}

nvmlDevice_t nvml_gpu_handle(uint32_t index)
{
    return &gpu_handles[index];
}

nvmlDevice_t nvml_mig_handle(uint32_t index, uint32_t slot)
{
    struct nvmlDevice_st *handle = &mig_handles[index][slot];
    handle->device = index;
    handle->slot = (int32_t)slot;
    handle->serial = machine()->devices[index].compute_instances[slot].serial;
    return handle;
}

struct sim_compute_instance *mig_compute_instance(struct sim_device *device, uint32_t slot)
{
    return slot < INSTANCES_MAX && device->compute_instances[slot].in_use ? &device->compute_instances[slot] : NULL;
}

uint32_t target_gpu_instance(const struct target *target)
{
    return target->parent ? target->parent->id : NO_INSTANCE;
}

static bool points_into(const void *pointer, const void *array, size_t bytes, size_t item)
{
    uintptr_t offset = (uintptr_t)pointer - (uintptr_t)array;
    return (uintptr_t)pointer >= (uintptr_t)array && offset < bytes && offset % item == 0;
}

static nvmlReturn_t resolve(nvmlDevice_t handle, struct target *target)
{
    *target = (struct target){0};
    if (!points_into(handle, gpu_handles, sizeof gpu_handles, sizeof *handle) &&
        !points_into(handle, mig_handles, sizeof mig_handles, sizeof *handle))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (handle->device >= machine()->device_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    target->index = handle->device;
    target->device = &machine()->devices[handle->device];
    if (target->device->lost)
        return NVML_ERROR_GPU_IS_LOST;
    if (handle->slot < 0)
        return NVML_SUCCESS;
    target->instance = mig_compute_instance(target->device, (uint32_t)handle->slot);
    if (!target->instance || target->instance->serial != handle->serial)
        return NVML_ERROR_INVALID_ARGUMENT; /* the MIG device was destroyed */
    target->parent = &target->device->gpu_instances[target->instance->gpu_instance];
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_begin(struct inject_site *site, const char *symbol, const char *call_class, nvmlDevice_t handle,
                        struct target *target)
{
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    machine_lock();
    nvmlReturn_t result = resolve(handle, target);
    machine_unlock();
    if (!target->device)
        return result;
    nvmlReturn_t injected = (nvmlReturn_t)inject(site, symbol, call_class, (int)target->index);
    if (injected != NVML_SUCCESS)
        return injected;
    machine_lock();
    result = resolve(handle, target); /* the call may have taken a while */
    if (result != NVML_SUCCESS)
        return nvml_end(result);
    share_out(target->device, monotonic_ns());
    return result;
}

nvmlReturn_t nvml_begin_system(struct inject_site *site, const char *symbol, const char *call_class)
{
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t injected = (nvmlReturn_t)inject(site, symbol, call_class, INJECT_ANY_DEVICE);
    if (injected != NVML_SUCCESS)
        return injected;
    machine_lock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_copy_string(char *buffer, unsigned length, const char *text)
{
    size_t size = strlen(text) + 1;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, size);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch ((int)result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_OPERATING_SYSTEM: return "Operating System Error";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Version Mismatch";
    case NVML_ERROR_GPU_NOT_FOUND: return "GPU Not Found";
    default: return "Unknown Error";
    }
}
