/* What the NVML files share: how a call begins and ends, and which device it is about. */
#ifndef ALIQUOT_NVML_INTERNAL_H
#define ALIQUOT_NVML_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "../common/inject.h"
#include "../common/machine.h"
#include "abi.h"

#define EXPORT __attribute__((visibility("default")))

/* What a handle means: a GPU, or with `instance` a MIG device on it. */
struct target {
    struct sim_device *device;
    uint32_t index;
    struct sim_compute_instance *instance; /* NULL: the whole GPU */
    struct sim_gpu_instance *parent;       /* of instance */
};

/* Checks that the library is initialised, serves the injected faults, finds the device and takes the machine lock.
 * On anything but NVML_SUCCESS the lock is not held. A lost GPU answers NVML_ERROR_GPU_IS_LOST to every call. */
nvmlReturn_t nvml_begin(struct inject_site *site, const char *symbol, const char *call_class, nvmlDevice_t handle,
                        struct target *target);

/* The same for calls that are about no device. */
nvmlReturn_t nvml_begin_system(struct inject_site *site, const char *symbol, const char *call_class);

/* Releases the lock and passes its argument on. */
nvmlReturn_t nvml_end(nvmlReturn_t result);

bool nvml_initialised(void);
bool nvml_is_admin(void);

/* The handle of a GPU, and of the MIG device in a slot of its compute instances. */
nvmlDevice_t nvml_gpu_handle(uint32_t index);
nvmlDevice_t nvml_mig_handle(uint32_t index, uint32_t slot);

struct sim_compute_instance *mig_compute_instance(struct sim_device *device, uint32_t slot);
uint32_t target_gpu_instance(const struct target *target); /* id, or NO_INSTANCE */

/* Copies a string into a caller's buffer, or NVML_ERROR_INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_string(char *buffer, unsigned length, const char *text);

/* What is measured, or follows from the load where the scenario doesn't set it. */
uint32_t device_gpu_percent(const struct sim_device *device);
uint32_t device_memory_percent(const struct sim_device *device);
int device_temperature_c(const struct sim_device *device);
uint32_t device_power_mw(const struct sim_device *device);
uint64_t device_energy_mj(struct sim_device *device);
uint32_t device_ecc_total(const struct sim_device *device, unsigned error_type, unsigned counter);

#define NEED(condition)                         \
    do {                                        \
        if (!(condition))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#define BEGIN(call_class, handle, target)                                                        \
    struct target target;                                                                        \
    do {                                                                                         \
        static struct inject_site site_;                                                         \
        nvmlReturn_t begun_ = nvml_begin(&site_, __func__, call_class, handle, &target);         \
        if (begun_ != NVML_SUCCESS)                                                              \
            return begun_;                                                                       \
    } while (0)

#define BEGIN_SYSTEM(call_class)                                                   \
    do {                                                                           \
        static struct inject_site site_;                                           \
        nvmlReturn_t begun_ = nvml_begin_system(&site_, __func__, call_class);     \
        if (begun_ != NVML_SUCCESS)                                                \
            return begun_;                                                         \
    } while (0)

#define REQUIRE(condition, error)        \
    do {                                 \
        if (!(condition))                \
            return nvml_end(error);      \
    } while (0)

#define GPU_ONLY(target) REQUIRE(!(target).instance, NVML_ERROR_NOT_SUPPORTED)

/* A call that answers one value of a whole GPU. `d` is the struct sim_device in the expression. */
#define GPU_VALUE(symbol, call_class, type, expression)          \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t handle, type *value) \
    {                                                            \
        NEED(value);                                             \
        BEGIN(call_class, handle, target);                       \
        GPU_ONLY(target);                                        \
        const struct sim_device *d = target.device;              \
        (void)d;                                                 \
        *value = (type)(expression);                             \
        return nvml_end(NVML_SUCCESS);                           \
    }

/* One more name of a function: an older version with the same interface. */
#define ALIAS(name, original) EXPORT __typeof__(original) name __attribute__((alias(#original)))

#endif
