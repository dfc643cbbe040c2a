/* The machine as a whole: versions, how many devices, and how to find one. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    NEED(version);
    BEGIN_SYSTEM("system");
    return nvml_end(nvml_copy_string(version, length, machine()->driver_version));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    NEED(version);
    BEGIN_SYSTEM("system");
    return nvml_end(nvml_copy_string(version, length, machine()->nvml_version));
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NEED(version);
    BEGIN_SYSTEM("system");
    *version = (int)machine()->cuda_version;
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    NEED(name && length);
    BEGIN_SYSTEM("processes");
    for (uint32_t d = 0; d < machine()->device_count; d++) { /* processes that exist only in the scenario */
        const struct sim_device *device = &machine()->devices[d];
        for (uint32_t i = 0; i < device->account_count; i++) {
            const struct sim_account *account = &device->accounts[i];
            if (account->state == ACCOUNT_STICKY && account->pid == (int32_t)pid && account->name[0])
                return nvml_end(nvml_copy_string(name, length, account->name));
        }
    }
    char full[4096];
    bool found = process_name((pid_t)pid, full, sizeof full);
    if (found)
        snprintf(name, length, "%s", full); /* NVML cuts a name that is too long */
    return nvml_end(found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    NEED(count);
    BEGIN_SYSTEM("count");
    *count = machine()->device_count;
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
    NEED(count);
    BEGIN_SYSTEM("system");
    *count = 0;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
    NEED(count);
    BEGIN_SYSTEM("system");
    *count = 0;
    return nvml_end(NVML_SUCCESS);
}

static nvmlReturn_t found(uint32_t index, nvmlDevice_t *handle)
{
    *handle = nvml_gpu_handle(index);
    return machine()->devices[index].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    NEED(handle);
    BEGIN_SYSTEM("handle");
    return nvml_end(index < machine()->device_count ? found(index, handle) : NVML_ERROR_INVALID_ARGUMENT);
}

ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

static nvmlReturn_t handle_by_uuid(const char *uuid, nvmlDevice_t *handle)
{
    for (uint32_t index = 0; index < machine()->device_count; index++) {
        struct sim_device *device = &machine()->devices[index];
        if (strcmp(device->uuid, uuid) == 0)
            return found(index, handle);
        for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
            const struct sim_compute_instance *instance = mig_compute_instance(device, slot);
            if (instance && strcmp(instance->uuid, uuid) == 0) {
                *handle = nvml_mig_handle(index, slot);
                return device->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    NEED(uuid && handle);
    BEGIN_SYSTEM("handle");
    return nvml_end(handle_by_uuid(uuid, handle));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *handle)
{
    NEED(uuid && handle);
    BEGIN_SYSTEM("handle");
    REQUIRE(uuid->type == 1 || uuid->type == 2, NVML_ERROR_INVALID_ARGUMENT);
    char text[48] = {0};
    if (uuid->type == 1)
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
    else {
        const unsigned char *b = uuid->value.bytes;
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    }
    return nvml_end(handle_by_uuid(text, handle));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *handle)
{
    NEED(serial && handle);
    BEGIN_SYSTEM("handle");
    for (uint32_t index = 0; index < machine()->device_count; index++)
        if (strcmp(machine()->devices[index].serial, serial) == 0)
            return nvml_end(found(index, handle));
    return nvml_end(NVML_ERROR_NOT_FOUND);
}

/* "00000000:1A:00.0", "0000:1a:00.0" and "1a:00.0" name the same place. */
static bool parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device)
{
    *domain = 0;
    return sscanf(text, "%x:%x:%x", domain, bus, device) == 3 || sscanf(text, "%x:%x", bus, device) == 2;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
    unsigned domain, bus, slot;
    NEED(bus_id && handle && parse_bus_id(bus_id, &domain, &bus, &slot));
    BEGIN_SYSTEM("handle");
    for (uint32_t index = 0; index < machine()->device_count; index++) {
        const struct sim_device *device = &machine()->devices[index];
        if (device->pci_domain == domain && device->pci_bus == bus && device->pci_device == slot)
            return nvml_end(found(index, handle));
    }
    return nvml_end(NVML_ERROR_NOT_FOUND);
}

ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);
