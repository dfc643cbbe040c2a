/* Device memory, and its limits per cgroup. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    uint64_t total, reserved, free;
};

/* A caller sees no more free memory than the limit that it is shown leaves it. */
static struct memory memory_of(const struct target *target)
{
    uint32_t gpu_instance = target_gpu_instance(target);
    books_reap(target->device);
    struct memory memory = {.total = books_total_bytes(target->device, gpu_instance),
                            .reserved = target->instance ? 0 : target->device->reserved_bytes,
                            .free = books_free_bytes(target->device, gpu_instance)};
    if (!machine()->limit_count)
        return memory;
    struct cgroup_line line = process_own_cgroups();
    const struct sim_limit *limit = books_shown_limit(target->device, &line);
    if (limit) {
        uint64_t used = books_limited_bytes(target->device, limit);
        uint64_t left = used < limit->hard_bytes ? limit->hard_bytes - used : 0;
        memory.free = left < memory.free ? left : memory.free;
    }
    return memory;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    NEED(memory);
    BEGIN("memory", handle, target);
    struct memory now = memory_of(&target);
    *memory = (nvmlMemory_t){.total = now.total, .free = now.free, .used = now.total - now.free};
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    NEED(memory);
    BEGIN("memory", handle, target);
    REQUIRE(memory->version == VERSION_OF(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    struct memory now = memory_of(&target);
    memory->total = now.total;
    memory->reserved = now.reserved;
    memory->free = now.free;
    memory->used = now.total - now.free - now.reserved;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    NEED(memory);
    BEGIN("memory", handle, target);
    uint64_t total = target.device->bar1_bytes, used = (uint64_t)2 << 20;
    *memory = (nvmlBAR1Memory_t){.bar1Total = total, .bar1Used = used, .bar1Free = total - used};
    return nvml_end(NVML_SUCCESS);
}

/* Limits per cgroup came with driver 615, and don't go with MIG. */
static nvmlReturn_t limits_supported(const struct target *target)
{
    bool recent = atoi(machine()->driver_version) >= 615;
    return recent && !target->instance && !target->device->mig_mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static struct sim_limit *free_limit(void)
{
    struct scenario *scenario = machine();
    for (uint32_t i = 0; i < LIMITS_MAX; i++) {
        if (scenario->limits[i].in_use)
            continue;
        if (scenario->limit_count <= i)
            scenario->limit_count = i + 1;
        return &scenario->limits[i];
    }
    return NULL;
}

static void drop_limit(struct sim_limit *limit)
{
    struct scenario *scenario = machine();
    memset(limit, 0, sizeof *limit);
    while (scenario->limit_count && !scenario->limits[scenario->limit_count - 1].in_use)
        scenario->limit_count--;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, nvmlSetMemoryLimits_v1_t *limits)
{
    NEED(limits && limits->nameSpace);
    BEGIN("limits", handle, target);
    REQUIRE(limits_supported(&target) == NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    uint64_t total = target.device->total_bytes;
    REQUIRE(limits->softLimit <= limits->hardLimit, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(limits->softLimit <= total, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(limits->hardLimit <= total || limits->hardLimit == LIMIT_MAX, NVML_ERROR_INVALID_ARGUMENT);
    struct cgroup_line line;
    REQUIRE(cgroup_identify(limits->nameSpace, &line), NVML_ERROR_OPERATING_SYSTEM);
    REQUIRE(strlen(limits->nameSpace) < sizeof machine()->limits[0].path, NVML_ERROR_INVALID_ARGUMENT);
    struct sim_limit *limit = books_limit(target.device, line.device, line.inodes[0]);
    if (limits->softLimit == 0 && limits->hardLimit == LIMIT_MAX) {
        if (limit)
            drop_limit(limit);
        return nvml_end(NVML_SUCCESS);
    }
    limit = limit ? limit : free_limit();
    REQUIRE(limit, NVML_ERROR_INSUFFICIENT_RESOURCES);
    *limit = (struct sim_limit){.in_use = 1,
                                .device = target.index,
                                .cgroup_device = line.device,
                                .cgroup_inode = line.inodes[0],
                                .soft_bytes = limits->softLimit,
                                .hard_bytes = limits->hardLimit};
    snprintf(limit->path, sizeof limit->path, "%s", limits->nameSpace);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *limits)
{
    NEED(limits && limits->nameSpace);
    BEGIN("limits", handle, target);
    REQUIRE(limits_supported(&target) == NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED);
    struct cgroup_line line;
    REQUIRE(cgroup_identify(limits->nameSpace, &line), NVML_ERROR_OPERATING_SYSTEM);
    const struct sim_limit none = {
        .cgroup_device = line.device, .cgroup_inode = line.inodes[0], .hard_bytes = LIMIT_MAX};
    const struct sim_limit *limit = books_shown_limit(target.device, &line);
    if (!limit && machine()->limits_nested)
        limit = &none; /* the controller's file says "max" */
    REQUIRE(limit, NVML_ERROR_NOT_FOUND);
    books_reap(target.device);
    limits->softLimit = limit->soft_bytes;
    limits->hardLimit = limit->hard_bytes;
    limits->currentUsed = books_limited_bytes(target.device, limit);
    return nvml_end(NVML_SUCCESS);
}
