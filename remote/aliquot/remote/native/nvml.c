/*
 * A stand-in for NVML in programs of `aliquot run --remote`: its devices are the parts of the lease. It knows what the
 * ticket says of them. What is the card's own (temperature, power, processes, …), and so not the part's, is not
 * supported: stubs.c of the simulated NVML answers so for every other name that callers look up.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "ticket.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name, original) EXPORT __typeof__(original) name __attribute__((alias(#original)))

#define VERSION "aliquot" /* of no driver: programs that show it show what answers them */

/* One for each part that was ever seen. They are kept, since programs may keep handles for as long as they like. */
struct nvmlDevice_st {
    char id[TEXT_MAX];
    unsigned index; /* among those of the last nvmlInit */
    bool listed;
    struct nvmlDevice_st *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static unsigned device_count;
static struct nvmlDevice_st *devices;

bool nvml_initialised(void);
bool nvml_initialised(void)
{
    return __atomic_load_n(&references, __ATOMIC_ACQUIRE) > 0;
}

static struct nvmlDevice_st *device_of(const char *id)
{
    struct nvmlDevice_st *device = devices;
    while (device && strcmp(device->id, id))
        device = device->next;
    if (!device && (device = calloc(1, sizeof *device))) {
        strcpy(device->id, id);
        device->next = devices;
        devices = device;
    }
    return device;
}

static nvmlReturn_t list_devices(const struct ticket *ticket)
{
    device_count = 0;
    for (struct nvmlDevice_st *device = devices; device; device = device->next)
        device->listed = false;
    for (size_t i = 0; i < ticket->count; i++) {
        struct nvmlDevice_st *device = device_of(ticket->parts[i].id);
        if (!device)
            return NVML_ERROR_MEMORY;
        device->index = device_count++;
        device->listed = true;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    struct ticket ticket;
    nvmlReturn_t result = NVML_SUCCESS;
    (void)flags;
    bool known = ticket_read(&ticket);
    pthread_mutex_lock(&mutex);
    if (references == 0)
        result = known ? list_devices(&ticket) : NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS)
        __atomic_add_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    ticket_free(&ticket);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}
ALIAS(nvmlInit, nvmlInit_v2);

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references > 0)
        __atomic_sub_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch ((int)result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Version Mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t copy_text(char *buffer, unsigned length, const char *text)
{
    size_t size = strlen(text) + 1;
    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, size);
    return NVML_SUCCESS;
}

/* Checks a handle, and copies what it stands for. */
static nvmlReturn_t identify(nvmlDevice_t handle, struct nvmlDevice_st *copy)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&mutex);
    if (references > 0) {
        const struct nvmlDevice_st *device = devices;
        while (device && device != handle)
            device = device->next;
        result = device ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
        if (device)
            *copy = *device;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* What is known of a part at present. It is lost where the lease has none such any more, as a card that fell off. */
static nvmlReturn_t look(nvmlDevice_t handle, struct part *part)
{
    struct nvmlDevice_st device;
    struct ticket ticket;
    nvmlReturn_t result = identify(handle, &device);
    if (result != NVML_SUCCESS)
        return result;
    result = NVML_ERROR_GPU_IS_LOST;
    if (!ticket_read(&ticket))
        return result; /* its `aliquot run` has ended */
    for (size_t i = 0; i < ticket.count; i++)
        /* A lease that ends is served until its grace is over. */
        if (!strcmp(ticket.parts[i].id, device.id) && (ticket.parts[i].served || !ticket.ending)) {
            *part = ticket.parts[i];
            result = NVML_SUCCESS;
        }
    ticket_free(&ticket);
    return result;
}

#define LOOK(handle, part)                                   \
    struct part part;                                        \
    do {                                                     \
        nvmlReturn_t looked_ = look(handle, &part);          \
        if (looked_ != NVML_SUCCESS)                         \
            return looked_;                                  \
    } while (0)

#define NEED(condition)                         \
    do {                                        \
        if (!(condition))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* -- the machine */

static nvmlReturn_t system_text(char *buffer, unsigned length)
{
    return nvml_initialised() ? copy_text(buffer, length, VERSION) : NVML_ERROR_UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return system_text(version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return system_text(version, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    NEED(count);
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references > 0)
        *count = device_count;
    pthread_mutex_unlock(&mutex);
    return result;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

/* The device of an index or, where `id` is given, of a UUID. */
static nvmlReturn_t find(unsigned index, const char *id, nvmlDevice_t *device)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    NEED(device);
    pthread_mutex_lock(&mutex);
    if (references > 0) {
        struct nvmlDevice_st *each = devices;
        while (each && !(each->listed && (id ? !strcmp(each->id, id) : each->index == index)))
            each = each->next;
        result = each ? NVML_SUCCESS : id ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
        if (each)
            *device = each;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return find(index, NULL, device);
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    NEED(uuid);
    return find(0, uuid, device);
}

/* -- a part */

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    struct nvmlDevice_st device;
    NEED(index);
    LOOK(handle, part);
    nvmlReturn_t result = identify(handle, &device);
    *index = device.index;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    LOOK(handle, part);
    return copy_text(name, length, part.model);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    LOOK(handle, part);
    return copy_text(uuid, length, part.id);
}

static uint64_t used_of(const struct part *part)
{
    return part->used_bytes < part->memory_bytes ? part->used_bytes : part->memory_bytes;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    NEED(memory);
    LOOK(handle, part);
    uint64_t used = used_of(&part);
    *memory = (nvmlMemory_t){.total = part.memory_bytes, .free = part.memory_bytes - used, .used = used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    NEED(memory);
    if (memory->version != VERSION_OF(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    LOOK(handle, part);
    uint64_t used = used_of(&part);
    /* What a driver keeps for itself is not in a part's limit. */
    memory->total = part.memory_bytes;
    memory->reserved = 0;
    memory->free = part.memory_bytes - used;
    memory->used = used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    NEED(rates);
    LOOK(handle, part);
    if (!part.busy_known)
        return NVML_ERROR_NOT_SUPPORTED;
    /* Nobody measures how busy the memory is, and the structure has no word for that: docs/remote.md says so. */
    *rates = (nvmlUtilization_t){.gpu = part.busy_percent, .memory = 0};
    return NVML_SUCCESS;
}
