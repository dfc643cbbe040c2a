/* MIG instances as the NVML calls name them. */
#ifndef ALIQUOT_NVML_MIG_H
#define ALIQUOT_NVML_MIG_H

#include "internal.h"

/* Handles of instances: which slot of which device, and the serial that tells a successor in the slot apart. */
struct nvmlGpuInstance_st {
    uint32_t device, slot;
    uint64_t serial;
};

struct nvmlComputeInstance_st {
    uint32_t device, slot;
    uint64_t serial;
};

struct mig_target {
    struct sim_device *device;
    uint32_t device_index, slot;
    struct sim_gpu_instance *gpu_instance;
    const struct sim_profile *profile;
};

/* Like nvml_begin, for a call about a GPU instance. */
nvmlReturn_t mig_begin(struct inject_site *site, const char *symbol, const char *call_class, nvmlGpuInstance_t handle,
                       struct mig_target *target);

nvmlGpuInstance_t mig_gpu_instance_handle(uint32_t device, uint32_t slot);

/* Whether compute instances or running processes keep a GPU instance from being destroyed. */
bool mig_gpu_instance_busy(struct sim_device *device, uint32_t slot);

#define BEGIN_MIG(call_class, handle, target)                                                \
    struct mig_target target;                                                                \
    do {                                                                                     \
        static struct inject_site site_;                                                     \
        nvmlReturn_t begun_ = mig_begin(&site_, __func__, call_class, handle, &target);      \
        if (begun_ != NVML_SUCCESS)                                                          \
            return begun_;                                                                   \
    } while (0)

#endif
