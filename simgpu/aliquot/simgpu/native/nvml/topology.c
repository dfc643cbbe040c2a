/* How devices are connected: PCIe ancestors and NVLink. */
#include "internal.h"

#include <stdio.h>

enum { LEVEL_INTERNAL = 0, LEVEL_SWITCH = 10, LEVEL_HOST_BRIDGE = 30, LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PCI };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };

static unsigned ancestor(const struct sim_device *one, const struct sim_device *other)
{
    if (one == other)
        return LEVEL_INTERNAL;
    if (one->pcie_switch == other->pcie_switch)
        return LEVEL_SWITCH;
    if (one->host_bridge == other->host_bridge)
        return LEVEL_HOST_BRIDGE;
    return one->numa_node == other->numa_node ? LEVEL_NODE : LEVEL_SYSTEM;
}

/* Both devices of a pair; the first call's frame finds one, this the other. */
static const struct sim_device *second(nvmlDevice_t handle)
{
    for (uint32_t i = 0; i < machine()->device_count; i++)
        if (handle == nvml_gpu_handle(i))
            return &machine()->devices[i];
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t handle, nvmlDevice_t other_handle, unsigned *level)
{
    NEED(level);
    BEGIN("topology", handle, target);
    const struct sim_device *other = second(other_handle);
    REQUIRE(other && !target.instance, NVML_ERROR_INVALID_ARGUMENT);
    *level = ancestor(target.device, other);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t handle, nvmlDevice_t other_handle, int *same)
{
    NEED(same);
    BEGIN("topology", handle, target);
    const struct sim_device *other = second(other_handle);
    REQUIRE(other && !target.instance, NVML_ERROR_INVALID_ARGUMENT);
    *same = target.device == other;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned *count,
                                                     nvmlDevice_t *devices)
{
    NEED(count);
    BEGIN("topology", handle, target);
    GPU_ONLY(target);
    unsigned near = 0;
    for (uint32_t i = 0; i < machine()->device_count; i++) {
        if (i == target.index || ancestor(target.device, &machine()->devices[i]) != level)
            continue;
        if (near < *count && devices)
            devices[near] = nvml_gpu_handle(i);
        near++;
    }
    *count = near;
    return nvml_end(NVML_SUCCESS);
}

static bool linked(const struct sim_device *device, const struct sim_device *other)
{
    uint32_t index = (uint32_t)(other - machine()->devices);
    for (uint32_t i = 0; i < device->link_count; i++) {
        const struct sim_link *link = &device->links[i];
        if (link->active && (link->remote_device == (int32_t)index || (link->remote_device < 0 && other->link_count)))
            return true;
    }
    return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t other_handle, unsigned capability,
                                           unsigned *status)
{
    NEED(status && capability <= P2P_PCI);
    BEGIN("topology", handle, target);
    const struct sim_device *other = second(other_handle);
    REQUIRE(other && !target.instance, NVML_ERROR_INVALID_ARGUMENT);
    bool nvlink = linked(target.device, other);
    bool works = capability == P2P_NVLINK || capability == P2P_ATOMICS ? nvlink : true;
    *status = works && !target.device->mig_mode ? P2P_OK : P2P_NOT_SUPPORTED;
    return nvml_end(NVML_SUCCESS);
}

#define BEGIN_LINK(handle, link, target)                                                  \
    BEGIN("nvlink", handle, target);                                                      \
    REQUIRE(!target.instance && target.device->link_count, NVML_ERROR_NOT_SUPPORTED);     \
    REQUIRE(link < target.device->link_count, NVML_ERROR_INVALID_ARGUMENT)

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, unsigned *active)
{
    NEED(active);
    BEGIN_LINK(handle, link, target);
    *active = target.device->links[link].active;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned link, unsigned *version)
{
    NEED(version);
    BEGIN_LINK(handle, link, target);
    unsigned architecture = target.device->architecture;
    *version = architecture >= 9 ? 6 : architecture >= 7 ? 5 : 2; /* NVLink 4.0, 3.0, 2.0 by NVML's numbers */
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, unsigned capability,
                                                  unsigned *result)
{
    NEED(result && capability < 6);
    BEGIN_LINK(handle, link, target);
    *result = capability != 4; /* all but an SLI bridge */
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned link, unsigned counter,
                                                    unsigned long long *value)
{
    NEED(value && counter < 5);
    BEGIN_LINK(handle, link, target);
    *value = target.device->links[link].errors[counter];
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link, unsigned *type)
{
    NEED(type);
    BEGIN_LINK(handle, link, target);
    *type = target.device->links[link].remote_device < 0 ? REMOTE_SWITCH : REMOTE_GPU;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t *pci)
{
    enum { SWITCH_BUS = 0xc0, SWITCH_ID = 0x22a310de };
    NEED(pci);
    BEGIN_LINK(handle, link, target);
    REQUIRE(target.device->links[link].active, NVML_ERROR_NOT_SUPPORTED);
    int32_t remote = target.device->links[link].remote_device;
    const struct sim_device *other = remote >= 0 ? &machine()->devices[remote] : NULL;
    *pci = (nvmlPciInfo_t){.domain = other ? other->pci_domain : 0,
                           .bus = other ? other->pci_bus : SWITCH_BUS + link % 6,
                           .device = other ? other->pci_device : 0,
                           .pciDeviceId = other ? other->pci_id : SWITCH_ID};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);
