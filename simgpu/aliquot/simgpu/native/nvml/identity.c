/* What a device is: names, numbers, place on the bus, modes. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    NEED(name);
    BEGIN("identity", handle, target);
    char text[144];
    if (target.instance) {
        const struct sim_profile *profile = &target.device->profiles[target.parent->profile];
        if (target.instance->slices == profile->slices)
            snprintf(text, sizeof text, "%s MIG %s", target.device->name, profile->name);
        else
            snprintf(text, sizeof text, "%s MIG %uc.%s", target.device->name, target.instance->slices, profile->name);
    } else {
        snprintf(text, sizeof text, "%s", target.device->name);
    }
    return nvml_end(nvml_copy_string(name, length, text));
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    NEED(uuid);
    BEGIN("identity", handle, target);
    return nvml_end(nvml_copy_string(uuid, length, target.instance ? target.instance->uuid : target.device->uuid));
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned length)
{
    NEED(serial);
    BEGIN("identity", handle, target);
    GPU_ONLY(target);
    return nvml_end(nvml_copy_string(serial, length, target.device->serial));
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t handle, char *number, unsigned length)
{
    NEED(number);
    BEGIN("identity", handle, target);
    GPU_ONLY(target);
    return nvml_end(nvml_copy_string(number, length, target.device->board_part_number));
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *version, unsigned length)
{
    NEED(version);
    BEGIN("identity", handle, target);
    GPU_ONLY(target);
    return nvml_end(nvml_copy_string(version, length, target.device->vbios));
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    NEED(index);
    BEGIN("identity", handle, target);
    *index = target.index;
    if (target.instance) { /* its place among the MIG devices, as GetMigDeviceHandleByIndex counts */
        *index = 0;
        for (uint32_t slot = 0; &target.device->compute_instances[slot] != target.instance; slot++)
            *index += target.device->compute_instances[slot].in_use != 0;
    }
    return nvml_end(NVML_SUCCESS);
}

static void bus_id(const struct sim_device *device, char *text, size_t size, const char *format)
{
    snprintf(text, size, format, device->pci_domain, device->pci_bus, device->pci_device);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    NEED(pci);
    BEGIN("identity", handle, target);
    const struct sim_device *d = target.device;
    *pci = (nvmlPciInfo_t){.domain = d->pci_domain,
                           .bus = d->pci_bus,
                           .device = d->pci_device,
                           .pciDeviceId = d->pci_id,
                           .pciSubSystemId = d->pci_subsystem_id};
    bus_id(d, pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0");
    bus_id(d, pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0");
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_v2_t *pci)
{
    NEED(pci);
    BEGIN("identity", handle, target);
    const struct sim_device *d = target.device;
    *pci = (nvmlPciInfo_v2_t){.domain = d->pci_domain,
                              .bus = d->pci_bus,
                              .device = d->pci_device,
                              .pciDeviceId = d->pci_id,
                              .pciSubSystemId = d->pci_subsystem_id};
    bus_id(d, pci->busId, sizeof pci->busId, "%04X:%02X:%02X.0");
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2);

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_v1_t *pci)
{
    NEED(pci);
    BEGIN("identity", handle, target);
    REQUIRE(pci->version == VERSION_OF(nvmlPciInfoExt_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const struct sim_device *d = target.device;
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version,
                                 .domain = d->pci_domain,
                                 .bus = d->pci_bus,
                                 .device = d->pci_device,
                                 .pciDeviceId = d->pci_id,
                                 .pciSubSystemId = d->pci_subsystem_id,
                                 .baseClass = 3,
                                 .subClass = 2};
    bus_id(d, pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0");
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    NEED(major && minor);
    BEGIN("identity", handle, target);
    *major = (int)target.device->compute_major;
    *minor = (int)target.device->compute_minor;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, unsigned *architecture)
{
    NEED(architecture);
    BEGIN("identity", handle, target);
    *architecture = target.device->architecture;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t handle, unsigned *brand)
{
    NEED(brand);
    BEGIN("identity", handle, target);
    *brand = target.device->brand;
    return nvml_end(NVML_SUCCESS);
}

GPU_VALUE(nvmlDeviceGetMinorNumber, "identity", unsigned, d->minor)
GPU_VALUE(nvmlDeviceGetBoardId, "identity", unsigned, d->pci_bus << 8 | d->pci_device)
GPU_VALUE(nvmlDeviceGetMultiGpuBoard, "identity", unsigned, 0)
GPU_VALUE(nvmlDeviceGetModuleId, "identity", unsigned, d->minor + 1)
GPU_VALUE(nvmlDeviceGetNumGpuCores, "identity", unsigned, d->cores)
GPU_VALUE(nvmlDeviceGetMemoryBusWidth, "identity", unsigned, d->memory_bus_bits)
GPU_VALUE(nvmlDeviceGetBusType, "identity", unsigned, 2) /* PCIe */
GPU_VALUE(nvmlDeviceGetNumaNodeId, "identity", unsigned, d->numa_node)
GPU_VALUE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie", unsigned, d->pcie_generation)
GPU_VALUE(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie", unsigned, d->pcie_generation)
GPU_VALUE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie", unsigned, d->pcie_generation)
GPU_VALUE(nvmlDeviceGetMaxPcieLinkWidth, "pcie", unsigned, d->pcie_width)
GPU_VALUE(nvmlDeviceGetCurrPcieLinkWidth, "pcie", unsigned, d->pcie_width)
GPU_VALUE(nvmlDeviceGetPcieReplayCounter, "pcie", unsigned, 0)
GPU_VALUE(nvmlDeviceGetDisplayMode, "modes", unsigned, 0)
GPU_VALUE(nvmlDeviceGetDisplayActive, "modes", unsigned, 0)
GPU_VALUE(nvmlDeviceGetPersistenceMode, "modes", unsigned, d->persistence_mode)
GPU_VALUE(nvmlDeviceGetComputeMode, "modes", unsigned, d->compute_mode)
GPU_VALUE(nvmlDeviceGetVirtualizationMode, "modes", unsigned, 0)

static nvmlReturn_t set_mode(uint32_t *mode, unsigned value, unsigned highest)
{
    if (value > highest)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!nvml_is_admin())
        return NVML_ERROR_NO_PERMISSION;
    *mode = value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t handle, unsigned mode)
{
    BEGIN("modes", handle, target);
    GPU_ONLY(target);
    return nvml_end(set_mode(&target.device->persistence_mode, mode, 1));
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t handle, unsigned mode)
{
    BEGIN("modes", handle, target);
    GPU_ONLY(target);
    REQUIRE(mode != 1, NVML_ERROR_NOT_SUPPORTED); /* EXCLUSIVE_THREAD is gone */
    return nvml_end(set_mode(&target.device->compute_mode, mode, 3));
}
