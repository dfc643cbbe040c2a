/* Compute instances, and the MIG devices that they make. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

static const unsigned slices_of_kind[] = {1, 2, 3, 4, 7}; /* kinds 0 to 4, which are profile ids as well */
enum { KINDS = sizeof slices_of_kind / sizeof slices_of_kind[0], KIND_COUNT = 9 };

static struct nvmlComputeInstance_st handles[DEVICES_MAX][INSTANCES_MAX];

static unsigned kind_of_slices(unsigned slices)
{
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (slices_of_kind[kind] == slices)
            return kind;
    return 0;
}

static bool offers(const struct mig_target *target, unsigned kind)
{
    return kind < KINDS && slices_of_kind[kind] <= target->profile->slices;
}

struct compute_profile {
    unsigned slices, count_max, multiprocessors;
};

static struct compute_profile describe(const struct mig_target *target, unsigned kind)
{
    unsigned slices = slices_of_kind[kind];
    return (struct compute_profile){.slices = slices,
                                    .count_max = target->profile->slices / slices,
                                    .multiprocessors =
                                        target->profile->multiprocessors / target->profile->slices * slices};
}

static void profile_name(const struct mig_target *target, unsigned slices, char *name, size_t size)
{
    if (slices == target->profile->slices)
        snprintf(name, size, "MIG %s", target->profile->name);
    else
        snprintf(name, size, "MIG %uc.%s", slices, target->profile->name);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned kind,
                                                                 unsigned engine, nvmlComputeInstanceProfileInfo_t *info)
{
    NEED(info && kind < KIND_COUNT && engine == 0);
    BEGIN_MIG("mig", handle, target);
    REQUIRE(offers(&target, kind), NVML_ERROR_NOT_SUPPORTED);
    struct compute_profile profile = describe(&target, kind);
    *info = (nvmlComputeInstanceProfileInfo_t){.id = kind,
                                               .sliceCount = profile.slices,
                                               .instanceCount = profile.count_max,
                                               .multiprocessorCount = profile.multiprocessors,
                                               .sharedCopyEngineCount = target.profile->copy_engines,
                                               .sharedDecoderCount = target.profile->decoders,
                                               .sharedEncoderCount = target.profile->encoders,
                                               .sharedJpegCount = target.profile->jpegs,
                                               .sharedOfaCount = target.profile->ofas};
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned kind,
                                                                  unsigned engine, unsigned *version_first)
{
    NEED(version_first && kind < KIND_COUNT && engine == 0);
    BEGIN_MIG("mig", handle, target);
    bool second = *version_first == VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2);
    bool third = *version_first == VERSION_OF(nvmlComputeInstanceProfileInfo_v3_t, 3);
    REQUIRE(second || third, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(offers(&target, kind), NVML_ERROR_NOT_SUPPORTED);
    struct compute_profile profile = describe(&target, kind);
    nvmlComputeInstanceProfileInfo_v2_t *info = (void *)version_first; /* the third version only adds a field */
    *info = (nvmlComputeInstanceProfileInfo_v2_t){.version = *version_first,
                                                  .id = kind,
                                                  .sliceCount = profile.slices,
                                                  .instanceCount = profile.count_max,
                                                  .multiprocessorCount = profile.multiprocessors,
                                                  .sharedCopyEngineCount = target.profile->copy_engines,
                                                  .sharedDecoderCount = target.profile->decoders,
                                                  .sharedEncoderCount = target.profile->encoders,
                                                  .sharedJpegCount = target.profile->jpegs,
                                                  .sharedOfaCount = target.profile->ofas};
    profile_name(&target, profile.slices, info->name, sizeof info->name);
    if (third)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)version_first)->capabilities = 0;
    return nvml_end(NVML_SUCCESS);
}

static unsigned occupied(const struct mig_target *target)
{
    unsigned mask = 0;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_compute_instance *instance = &target->device->compute_instances[slot];
        if (instance->in_use && instance->gpu_instance == target->slot)
            mask |= ((1u << instance->slices) - 1) << instance->start;
    }
    return mask;
}

static bool placeable(const struct mig_target *target, unsigned slices, unsigned start)
{
    unsigned wanted = ((1u << slices) - 1) << start;
    return start + slices <= target->profile->slices && !(occupied(target) & wanted);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned profile_id,
                                                                       unsigned *count)
{
    NEED(count);
    BEGIN_MIG("mig", handle, target);
    REQUIRE(offers(&target, profile_id), NVML_ERROR_INVALID_ARGUMENT);
    unsigned slices = slices_of_kind[profile_id], taken = occupied(&target);
    *count = 0;
    for (unsigned start = 0; start + slices <= target.profile->slices; start++) {
        unsigned wanted = ((1u << slices) - 1) << start;
        if (taken & wanted)
            continue;
        taken |= wanted;
        (*count)++;
    }
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle, unsigned profile_id,
                                                                        nvmlPlacement_t *placements, unsigned *count)
{
    NEED(count);
    BEGIN_MIG("mig", handle, target);
    REQUIRE(offers(&target, profile_id), NVML_ERROR_INVALID_ARGUMENT);
    unsigned slices = slices_of_kind[profile_id], capacity = *count;
    *count = target.profile->slices / slices;
    if (!placements)
        return nvml_end(NVML_SUCCESS);
    REQUIRE(*count <= capacity, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++)
        placements[i] = (nvmlPlacement_t){.start = i * slices, .size = slices};
    return nvml_end(NVML_SUCCESS);
}

/* A MIG device's UUID follows from its GPU and its place, as the driver's do: the same cut has the same name again. */
static void name_device(const struct mig_target *target, struct sim_compute_instance *instance)
{
    char seed[160];
    uint64_t half[2];
    snprintf(seed, sizeof seed, "%s/%u/%u", target->device->uuid, target->gpu_instance->id, instance->id);
    for (int i = 0; i < 2; i++) {
        half[i] = UINT64_C(0xcbf29ce484222325) + (uint64_t)i;
        for (const char *c = seed; *c; c++)
            half[i] = (half[i] ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    }
    snprintf(instance->uuid, sizeof instance->uuid, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(half[0] >> 32),
             (unsigned)(half[0] >> 16 & 0xffff), (unsigned)(half[0] & 0xfff), (unsigned)(half[1] >> 48 & 0x3fff) | 0x8000,
             (unsigned long long)(half[1] & UINT64_C(0xffffffffffff)));
}

static nvmlComputeInstance_t compute_handle(uint32_t device, uint32_t slot)
{
    struct nvmlComputeInstance_st *handle = &handles[device][slot];
    *handle = (struct nvmlComputeInstance_st){
        .device = device, .slot = slot, .serial = machine()->devices[device].compute_instances[slot].serial};
    return handle;
}

static uint32_t free_id(const struct mig_target *target)
{
    for (uint32_t id = 0;; id++) {
        bool taken = false;
        for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
            const struct sim_compute_instance *other = &target->device->compute_instances[slot];
            taken |= other->in_use && other->gpu_instance == target->slot && other->id == id;
        }
        if (!taken)
            return id;
    }
}

static nvmlReturn_t create(const struct mig_target *target, unsigned profile_id, const nvmlPlacement_t *wanted,
                           nvmlComputeInstance_t *created)
{
    if (!nvml_is_admin())
        return NVML_ERROR_NO_PERMISSION;
    if (!offers(target, profile_id) || (wanted && wanted->size != slices_of_kind[profile_id]))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned slices = slices_of_kind[profile_id], start = wanted ? wanted->start : 0;
    while (!wanted && start < target->profile->slices && !placeable(target, slices, start))
        start++;
    if (!placeable(target, slices, start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        struct sim_compute_instance *instance = &target->device->compute_instances[slot];
        if (instance->in_use)
            continue;
        *instance = (struct sim_compute_instance){.id = free_id(target),
                                                  .gpu_instance = target->slot,
                                                  .slices = slices,
                                                  .start = start,
                                                  .serial = machine()->next_serial++};
        name_device(target, instance);
        instance->in_use = 1;
        *created = compute_handle(target->device_index, slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned profile_id,
                                                         nvmlComputeInstance_t *created)
{
    NEED(created);
    BEGIN_MIG("mig_admin", handle, target);
    return nvml_end(create(&target, profile_id, NULL, created));
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned profile_id,
                                                                      const nvmlPlacement_t *placement,
                                                                      nvmlComputeInstance_t *created)
{
    NEED(created && placement);
    BEGIN_MIG("mig_admin", handle, target);
    return nvml_end(create(&target, profile_id, placement, created));
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned profile_id,
                                                       nvmlComputeInstance_t *instances, unsigned *count)
{
    NEED(instances && count);
    BEGIN_MIG("mig", handle, target);
    REQUIRE(offers(&target, profile_id), NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_compute_instance *instance = &target.device->compute_instances[slot];
        if (instance->in_use && instance->gpu_instance == target.slot &&
            instance->slices == slices_of_kind[profile_id])
            instances[(*count)++] = compute_handle(target.device_index, slot);
    }
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id,
                                                          nvmlComputeInstance_t *found)
{
    NEED(found);
    BEGIN_MIG("mig", handle, target);
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        const struct sim_compute_instance *instance = &target.device->compute_instances[slot];
        if (instance->in_use && instance->gpu_instance == target.slot && instance->id == id) {
            *found = compute_handle(target.device_index, slot);
            return nvml_end(NVML_SUCCESS);
        }
    }
    return nvml_end(NVML_ERROR_NOT_FOUND);
}

/* The frame of a call about a compute instance: that of its GPU, then the instance. */
static nvmlReturn_t compute_begin(struct inject_site *site, const char *symbol, const char *call_class,
                                  nvmlComputeInstance_t handle, struct sim_device **device,
                                  struct sim_compute_instance **instance)
{
    struct target target;
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if ((uintptr_t)handle < (uintptr_t)handles || offset >= sizeof handles || offset % sizeof *handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t begun = nvml_begin(site, symbol, call_class, nvml_gpu_handle(handle->device), &target);
    if (begun != NVML_SUCCESS)
        return begun;
    *device = target.device;
    *instance = &target.device->compute_instances[handle->slot];
    bool same = (*instance)->in_use && (*instance)->serial == handle->serial;
    return same ? NVML_SUCCESS : nvml_end(NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    static struct inject_site site;
    struct sim_device *device;
    struct sim_compute_instance *instance;
    NEED(info);
    nvmlReturn_t begun = compute_begin(&site, __func__, "mig", handle, &device, &instance);
    if (begun != NVML_SUCCESS)
        return begun;
    *info = (nvmlComputeInstanceInfo_t){.device = nvml_gpu_handle(handle->device),
                                        .gpuInstance = mig_gpu_instance_handle(handle->device, instance->gpu_instance),
                                        .id = instance->id,
                                        .profileId = kind_of_slices(instance->slices),
                                        .placement = {.start = instance->start, .size = instance->slices}};
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2);

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    static struct inject_site site;
    struct sim_device *device;
    struct sim_compute_instance *instance;
    nvmlReturn_t begun = compute_begin(&site, __func__, "mig_admin", handle, &device, &instance);
    if (begun != NVML_SUCCESS)
        return begun;
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    uint32_t parent = device->gpu_instances[instance->gpu_instance].id;
    books_reap(device);
    for (uint32_t i = 0; i < device->account_count; i++) {
        const struct sim_account *account = &device->accounts[i];
        REQUIRE(!account->state || account->gpu_instance != parent || account->compute_instance != instance->id,
                NVML_ERROR_IN_USE);
    }
    memset(instance, 0, sizeof *instance);
    return nvml_end(NVML_SUCCESS);
}
