/* MIG mode, the profiles of a GPU, and GPU instances. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

enum { MEMORY_SLICES = 8 };

static struct nvmlGpuInstance_st handles[DEVICES_MAX][INSTANCES_MAX];

static bool in_use(struct sim_device *device)
{
    books_reap(device);
    return device->account_count != 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    NEED(current && pending);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    *current = target.device->mig_mode;
    *pending = target.device->mig_pending;
    return nvml_end(NVML_SUCCESS);
}

/* Before Hopper the change needs a reset of the GPU, which running processes prevent: then it stays pending. */
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned mode, nvmlReturn_t *activation)
{
    NEED(mode < 2 && activation);
    BEGIN("mig_admin", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    struct sim_device *device = target.device;
    device->mig_pending = mode;
    *activation = NVML_SUCCESS;
    if (device->mig_mode == mode)
        return nvml_end(NVML_SUCCESS);
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++)
        if (device->gpu_instances[slot].in_use)
            *activation = NVML_ERROR_IN_USE;
    if (in_use(device))
        *activation = NVML_ERROR_IN_USE;
    if (*activation == NVML_SUCCESS)
        device->mig_mode = mode;
    return nvml_end(NVML_SUCCESS);
}

static const struct sim_profile *profile_of_kind(const struct sim_device *device, unsigned kind)
{
    for (uint32_t i = 0; i < PROFILES_MAX; i++)
        if (device->profiles[i].in_use && device->profiles[i].kind == kind)
            return &device->profiles[i];
    return NULL;
}

static const struct sim_profile *profile_of_id(const struct sim_device *device, unsigned id)
{
    for (uint32_t i = 0; i < PROFILES_MAX; i++)
        if (device->profiles[i].in_use && device->profiles[i].id == id)
            return &device->profiles[i];
    return NULL;
}

static void fill_v2(const struct sim_profile *p, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version,
                                              .id = p->id,
                                              .sliceCount = p->slices,
                                              .instanceCount = p->count_max,
                                              .multiprocessorCount = p->multiprocessors,
                                              .copyEngineCount = p->copy_engines,
                                              .decoderCount = p->decoders,
                                              .encoderCount = p->encoders,
                                              .jpegCount = p->jpegs,
                                              .ofaCount = p->ofas,
                                              .memorySizeMB = p->memory_mib};
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
}

static void fill_v3(const struct sim_profile *p, nvmlGpuInstanceProfileInfo_v3_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_v3_t){.version = info->version,
                                              .id = p->id,
                                              .sliceCount = p->slices,
                                              .instanceCount = p->count_max,
                                              .multiprocessorCount = p->multiprocessors,
                                              .copyEngineCount = p->copy_engines,
                                              .decoderCount = p->decoders,
                                              .encoderCount = p->encoders,
                                              .jpegCount = p->jpegs,
                                              .ofaCount = p->ofas,
                                              .memorySizeMB = p->memory_mib};
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned kind,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    NEED(info);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *p = profile_of_kind(target.device, kind);
    REQUIRE(p, kind < 0x12 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlGpuInstanceProfileInfo_t){.id = p->id,
                                           .sliceCount = p->slices,
                                           .instanceCount = p->count_max,
                                           .multiprocessorCount = p->multiprocessors,
                                           .copyEngineCount = p->copy_engines,
                                           .decoderCount = p->decoders,
                                           .encoderCount = p->encoders,
                                           .jpegCount = p->jpegs,
                                           .ofaCount = p->ofas,
                                           .memorySizeMB = p->memory_mib};
    return nvml_end(NVML_SUCCESS);
}

static nvmlReturn_t versioned_info(const struct sim_profile *profile, unsigned *version_first)
{
    if (*version_first == VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2))
        fill_v2(profile, (void *)version_first);
    else if (*version_first == VERSION_OF(nvmlGpuInstanceProfileInfo_v3_t, 3))
        fill_v3(profile, (void *)version_first);
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned kind, unsigned *info)
{
    NEED(info);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = profile_of_kind(target.device, kind);
    REQUIRE(profile, kind < 0x12 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    return nvml_end(versioned_info(profile, info));
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t handle, unsigned id, unsigned *info)
{
    NEED(info);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = profile_of_id(target.device, id);
    REQUIRE(profile, NVML_ERROR_INVALID_ARGUMENT);
    return nvml_end(versioned_info(profile, info));
}

/* Every placement that the geometry allows, whether it is free or not: that is what the call answers. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned id,
                                                                  nvmlPlacement_t *placements, unsigned *count)
{
    NEED(count);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = profile_of_id(target.device, id);
    REQUIRE(profile, NVML_ERROR_NOT_SUPPORTED);
    unsigned needed = (unsigned)__builtin_popcount(profile->starts), capacity = *count;
    *count = needed;
    if (!placements)
        return nvml_end(NVML_SUCCESS);
    REQUIRE(needed <= capacity, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned start = 0, i = 0; start < MEMORY_SLICES; start++)
        if (profile->starts >> start & 1)
            placements[i++] = (nvmlPlacement_t){.start = start, .size = profile->memory_slices};
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2);

/* Memory slices and compute slices that instances hold; `count` is how many there are of one profile. */
static void occupied(const struct sim_device *device, const struct sim_profile *profile, unsigned *memory_mask,
                     unsigned *slices, unsigned *count)
{
    *memory_mask = *slices = *count = 0;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_gpu_instance *instance = &device->gpu_instances[slot];
        if (!instance->in_use)
            continue;
        const struct sim_profile *of = &device->profiles[instance->profile];
        *memory_mask |= ((1u << of->memory_slices) - 1) << instance->start;
        *slices += of->slices;
        *count += of == profile;
    }
}

static bool placeable(const struct sim_device *device, const struct sim_profile *profile, unsigned start)
{
    enum { COMPUTE_SLICES = 7 };
    unsigned memory_mask, slices, count;
    occupied(device, profile, &memory_mask, &slices, &count);
    unsigned wanted = ((1u << profile->memory_slices) - 1) << start;
    return profile->starts >> start & 1 && !(memory_mask & wanted) && slices + profile->slices <= COMPUTE_SLICES &&
           count < profile->count_max;
}

/* How many more of a profile would fit, by filling them in from the left. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned *count)
{
    NEED(count);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = profile_of_id(target.device, id);
    REQUIRE(profile, NVML_ERROR_INVALID_ARGUMENT);
    unsigned memory_mask, slices, present;
    occupied(target.device, profile, &memory_mask, &slices, &present);
    *count = 0;
    for (unsigned start = 0; start < MEMORY_SLICES; start++) {
        unsigned wanted = ((1u << profile->memory_slices) - 1) << start;
        if (!(profile->starts >> start & 1) || memory_mask & wanted || slices + profile->slices > 7 ||
            present + *count >= profile->count_max)
            continue;
        memory_mask |= wanted;
        slices += profile->slices;
        (*count)++;
    }
    return nvml_end(NVML_SUCCESS);
}

nvmlGpuInstance_t mig_gpu_instance_handle(uint32_t device, uint32_t slot)
{
    struct nvmlGpuInstance_st *handle = &handles[device][slot];
    *handle = (struct nvmlGpuInstance_st){
        .device = device, .slot = slot, .serial = machine()->devices[device].gpu_instances[slot].serial};
    return handle;
}

/* Ids are given out anew from the lowest free one, as the driver does. */
static uint32_t free_id(const struct sim_device *device)
{
    for (uint32_t id = 1;; id++) {
        bool taken = false;
        for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++)
            taken |= device->gpu_instances[slot].in_use && device->gpu_instances[slot].id == id;
        if (!taken)
            return id;
    }
}

static nvmlReturn_t create(const struct target *target, unsigned profile_id, const nvmlPlacement_t *wanted,
                           nvmlGpuInstance_t *created)
{
    struct sim_device *device = target->device;
    if (target->instance || !device->mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!nvml_is_admin())
        return NVML_ERROR_NO_PERMISSION;
    const struct sim_profile *profile = profile_of_id(device, profile_id);
    if (!profile || (wanted && (wanted->size != profile->memory_slices || wanted->start >= MEMORY_SLICES)))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned start = wanted ? wanted->start : 0;
    while (!wanted && start < MEMORY_SLICES && !placeable(device, profile, start))
        start++;
    if (start >= MEMORY_SLICES || !placeable(device, profile, start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        if (device->gpu_instances[slot].in_use)
            continue;
        device->gpu_instances[slot] =
            (struct sim_gpu_instance){.in_use = 1,
                                      .id = profile->slices == 7 ? 0 : free_id(device),
                                      .profile = (uint32_t)(profile - device->profiles),
                                      .start = start,
                                      .serial = machine()->next_serial++};
        *created = mig_gpu_instance_handle(target->index, slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned profile_id, nvmlGpuInstance_t *created)
{
    NEED(created);
    BEGIN("mig_admin", handle, target);
    return nvml_end(create(&target, profile_id, NULL, created));
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned profile_id,
                                                             const nvmlPlacement_t *placement,
                                                             nvmlGpuInstance_t *created)
{
    NEED(created && placement);
    BEGIN("mig_admin", handle, target);
    return nvml_end(create(&target, profile_id, placement, created));
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned profile_id, nvmlGpuInstance_t *instances,
                                              unsigned *count)
{
    NEED(instances && count);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = profile_of_id(target.device, profile_id);
    REQUIRE(profile, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_gpu_instance *instance = &target.device->gpu_instances[slot];
        if (instance->in_use && &target.device->profiles[instance->profile] == profile)
            instances[(*count)++] = mig_gpu_instance_handle(target.index, slot);
    }
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *found)
{
    NEED(found);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_gpu_instance *instance = &target.device->gpu_instances[slot];
        if (instance->in_use && instance->id == id) {
            *found = mig_gpu_instance_handle(target.index, slot);
            return nvml_end(NVML_SUCCESS);
        }
    }
    return nvml_end(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t mig_begin(struct inject_site *site, const char *symbol, const char *call_class, nvmlGpuInstance_t handle,
                       struct mig_target *target)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if ((uintptr_t)handle < (uintptr_t)handles || offset >= sizeof handles || offset % sizeof *handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct target of;
    nvmlReturn_t begun = nvml_begin(site, symbol, call_class, nvml_gpu_handle(handle->device), &of);
    if (begun != NVML_SUCCESS)
        return begun;
    struct sim_gpu_instance *instance = &of.device->gpu_instances[handle->slot];
    if (!instance->in_use || instance->serial != handle->serial)
        return nvml_end(NVML_ERROR_INVALID_ARGUMENT); /* destroyed meanwhile */
    *target = (struct mig_target){.device = of.device,
                                  .device_index = of.index,
                                  .slot = handle->slot,
                                  .gpu_instance = instance,
                                  .profile = &of.device->profiles[instance->profile]};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    NEED(info);
    BEGIN_MIG("mig", handle, target);
    *info = (nvmlGpuInstanceInfo_t){
        .device = nvml_gpu_handle(target.device_index),
        .id = target.gpu_instance->id,
        .profileId = target.profile->id,
        .placement = {.start = target.gpu_instance->start, .size = target.profile->memory_slices}};
    return nvml_end(NVML_SUCCESS);
}

bool mig_gpu_instance_busy(struct sim_device *device, uint32_t slot)
{
    books_reap(device);
    for (uint32_t i = 0; i < device->account_count; i++)
        if (device->accounts[i].state && device->accounts[i].gpu_instance == device->gpu_instances[slot].id)
            return true;
    for (uint32_t i = 0; i < INSTANCES_MAX; i++)
        if (device->compute_instances[i].in_use && device->compute_instances[i].gpu_instance == slot)
            return true;
    return false;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    BEGIN_MIG("mig_admin", handle, target);
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    REQUIRE(!mig_gpu_instance_busy(target.device, target.slot), NVML_ERROR_IN_USE);
    memset(target.gpu_instance, 0, sizeof *target.gpu_instance);
    return nvml_end(NVML_SUCCESS);
}
