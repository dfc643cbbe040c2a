/* MIG devices: how they are found, and what they have. */
#include "mig.h"

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is_mig)
{
    NEED(is_mig);
    BEGIN("mig", handle, target);
    *is_mig = target.instance != NULL;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id)
{
    NEED(id);
    BEGIN("mig", handle, target);
    REQUIRE(target.instance, NVML_ERROR_NOT_SUPPORTED);
    *id = target.parent->id;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id)
{
    NEED(id);
    BEGIN("mig", handle, target);
    REQUIRE(target.instance, NVML_ERROR_NOT_SUPPORTED);
    *id = target.instance->id;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    NEED(count);
    BEGIN("mig", handle, target);
    *count = !target.instance && target.device->mig_supported ? 7 : 0;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *device)
{
    NEED(device && index < INSTANCES_MAX);
    BEGIN("mig", handle, target);
    REQUIRE(!target.instance && target.device->mig_supported, NVML_ERROR_NOT_SUPPORTED);
    unsigned seen = 0;
    for (uint32_t slot = 0; slot < INSTANCES_MAX; slot++) {
        if (!mig_compute_instance(target.device, slot) || seen++ != index)
            continue;
        *device = nvml_mig_handle(target.index, slot);
        return nvml_end(NVML_SUCCESS);
    }
    return nvml_end(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *device)
{
    NEED(device);
    BEGIN("mig", handle, target);
    REQUIRE(target.instance, NVML_ERROR_INVALID_ARGUMENT);
    *device = nvml_gpu_handle(target.index);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    NEED(attributes);
    BEGIN("mig", handle, target);
    REQUIRE(target.instance, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *profile = &target.device->profiles[target.parent->profile];
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = profile->multiprocessors / profile->slices * target.instance->slices,
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedEncoderCount = profile->encoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = target.instance->slices,
        .memorySizeMB = profile->memory_mib};
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2);
