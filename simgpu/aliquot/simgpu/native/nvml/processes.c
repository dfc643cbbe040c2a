/* Who uses a device, and how much of it. */
#include "internal.h"

#include <string.h>

struct listed {
    unsigned pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
    uint32_t sm_percent, memory_percent;
};

/* The processes of the given types on a GPU, or on one MIG device. */
static unsigned list(const struct target *target, uint32_t types, struct listed *rows)
{
    struct sim_device *device = target->device;
    uint64_t now_ns = monotonic_ns();
    unsigned count = 0;
    books_reap(device);
    for (uint32_t i = 0; i < device->account_count; i++) {
        const struct sim_account *account = &device->accounts[i];
        if (!account->state || !(account->types & types))
            continue;
        if (target->instance && (account->gpu_instance != target->parent->id ||
                                 account->compute_instance != target->instance->id))
            continue;
        bool unknown = account->flags & ACCOUNT_MEMORY_UNKNOWN || device->processes_memory_unknown;
        rows[count++] = (struct listed){
            .pid = (unsigned)account->pid,
            .bytes = unknown ? NOT_AVAILABLE
                             : account->memory_bytes + account->managed_bytes + books_shared_bytes(device, account),
            .gpu_instance = account->gpu_instance,
            .compute_instance = account->compute_instance,
            .sm_percent = account_sm_percent(account, now_ns),
            .memory_percent = (uint32_t)account->memory_percent,
        };
    }
    return count;
}

/* The protocol of all lists: too small an array answers the size it should have. */
static bool has_room(unsigned *capacity, unsigned count, const void *array)
{
    bool enough = count <= *capacity && (array || count == 0);
    *capacity = count;
    return enough;
}

static nvmlReturn_t processes_v1(nvmlDevice_t handle, struct inject_site *site, const char *symbol, uint32_t types,
                                 unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    struct target target;
    struct listed rows[ACCOUNTS_MAX];
    NEED(count);
    nvmlReturn_t begun = nvml_begin(site, symbol, "processes", handle, &target);
    if (begun != NVML_SUCCESS)
        return begun;
    unsigned found = list(&target, types, rows);
    REQUIRE(has_room(count, found, infos), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = rows[i].pid, .usedGpuMemory = rows[i].bytes};
    return nvml_end(NVML_SUCCESS);
}

static nvmlReturn_t processes_v2(nvmlDevice_t handle, struct inject_site *site, const char *symbol, uint32_t types,
                                 unsigned *count, nvmlProcessInfo_v2_t *infos)
{
    struct target target;
    struct listed rows[ACCOUNTS_MAX];
    NEED(count);
    nvmlReturn_t begun = nvml_begin(site, symbol, "processes", handle, &target);
    if (begun != NVML_SUCCESS)
        return begun;
    unsigned found = list(&target, types, rows);
    REQUIRE(has_room(count, found, infos), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        infos[i] = (nvmlProcessInfo_v2_t){.pid = rows[i].pid,
                                          .usedGpuMemory = rows[i].bytes,
                                          .gpuInstanceId = rows[i].gpu_instance,
                                          .computeInstanceId = rows[i].compute_instance};
    return nvml_end(NVML_SUCCESS);
}

#define LIST(symbol, version, types)                                                                           \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v##version##_t *infos)    \
    {                                                                                                          \
        static struct inject_site site;                                                                        \
        return processes_v##version(handle, &site, __func__, types, count, infos);                             \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, 1, TYPE_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 2, TYPE_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 2, TYPE_COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 1, TYPE_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, TYPE_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 2, TYPE_GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 1, TYPE_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, TYPE_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2, TYPE_MPS)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_v1_t *list_out)
{
    static const uint32_t types_of_mode[] = {TYPE_COMPUTE, TYPE_GRAPHICS, TYPE_MPS,
                                             TYPE_COMPUTE | TYPE_GRAPHICS | TYPE_MPS};
    struct listed rows[ACCOUNTS_MAX];
    NEED(list_out && list_out->mode < 4);
    BEGIN("processes", handle, target);
    REQUIRE(list_out->version == VERSION_OF(nvmlProcessDetailList_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned found = list(&target, types_of_mode[list_out->mode], rows);
    REQUIRE(has_room(&list_out->numProcArrayEntries, found, list_out->procArray), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        list_out->procArray[i] = (nvmlProcessDetail_v1_t){.pid = rows[i].pid,
                                                          .usedGpuMemory = rows[i].bytes,
                                                          .gpuInstanceId = rows[i].gpu_instance,
                                                          .computeInstanceId = rows[i].compute_instance};
    return nvml_end(NVML_SUCCESS);
}

/* The busy ones among the processes; an idle device answers NOT_FOUND, as NVML does. */
static unsigned list_busy(const struct target *target, struct listed *rows)
{
    unsigned found = list(target, TYPE_COMPUTE | TYPE_GRAPHICS | TYPE_MPS, rows), busy = 0;
    for (unsigned i = 0; i < found; i++)
        if (rows[i].sm_percent || rows[i].memory_percent)
            rows[busy++] = rows[i];
    return busy;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long last_seen_us)
{
    struct listed rows[ACCOUNTS_MAX];
    NEED(count);
    BEGIN("process_utilization", handle, target);
    REQUIRE(!target.instance && !target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    uint64_t now_us = realtime_us();
    unsigned found = last_seen_us < now_us ? list_busy(&target, rows) : 0;
    REQUIRE(found || *count == 0, NVML_ERROR_NOT_FOUND);
    REQUIRE(has_room(count, found, samples), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = rows[i].pid,
                                                      .timeStamp = now_us,
                                                      .smUtil = rows[i].sm_percent,
                                                      .memUtil = rows[i].memory_percent};
    return nvml_end(found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_v1_t *info)
{
    struct listed rows[ACCOUNTS_MAX];
    NEED(info);
    BEGIN("process_utilization", handle, target);
    REQUIRE(info->version == VERSION_OF(nvmlProcessesUtilizationInfo_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(!target.instance && !target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    uint64_t now_us = realtime_us();
    unsigned found = info->lastSeenTimeStamp < now_us ? list_busy(&target, rows) : 0;
    REQUIRE(found, NVML_ERROR_NOT_FOUND);
    REQUIRE(has_room(&info->processSamplesCount, found, info->procUtilArray), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.pid = rows[i].pid,
                                                                   .timeStamp = now_us,
                                                                   .smUtil = rows[i].sm_percent,
                                                                   .memUtil = rows[i].memory_percent};
    return nvml_end(NVML_SUCCESS);
}
