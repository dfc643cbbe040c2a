/* Memory errors and what the hardware did about them: ECC counters, remapped rows, retired pages. */
#include "internal.h"

#include <string.h>

enum { CORRECTED, UNCORRECTED };
enum { VOLATILE, AGGREGATE };
enum { AT_L1 = 0, AT_L2 = 1, AT_DRAM = 2, AT_REGISTERS = 3 };

uint32_t device_ecc_total(const struct sim_device *device, unsigned error_type, unsigned counter)
{
    uint64_t sum = 0;
    for (unsigned location = 0; location < ECC_LOCATIONS; location++)
        sum += device->ecc[error_type][counter][location];
    return (uint32_t)sum;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    NEED(current && pending);
    BEGIN("ecc", handle, target);
    GPU_ONLY(target);
    *current = target.device->ecc_mode;
    *pending = target.device->ecc_pending;
    return nvml_end(NVML_SUCCESS);
}

GPU_VALUE(nvmlDeviceGetDefaultEccMode, "ecc", unsigned, 1)

EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t handle, unsigned mode)
{
    NEED(mode < 2);
    BEGIN("ecc", handle, target);
    GPU_ONLY(target);
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    target.device->ecc_pending = mode; /* until the next reset */
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned error_type, unsigned counter,
                                                unsigned long long *count)
{
    NEED(count && error_type < 2 && counter < 2);
    BEGIN("ecc", handle, target);
    REQUIRE(!target.instance && target.device->ecc_mode, NVML_ERROR_NOT_SUPPORTED);
    *count = device_ecc_total(target.device, error_type, counter);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned error_type, unsigned counter,
                                                    unsigned location, unsigned long long *count)
{
    NEED(count && error_type < 2 && counter < 2 && location < ECC_LOCATIONS);
    BEGIN("ecc", handle, target);
    REQUIRE(!target.instance && target.device->ecc_mode, NVML_ERROR_NOT_SUPPORTED);
    *count = target.device->ecc[error_type][counter][location];
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t handle, unsigned error_type, unsigned counter,
                                                   nvmlEccErrorCounts_t *counts)
{
    NEED(counts && error_type < 2 && counter < 2);
    BEGIN("ecc", handle, target);
    REQUIRE(!target.instance && target.device->ecc_mode, NVML_ERROR_NOT_SUPPORTED);
    const uint64_t *at = target.device->ecc[error_type][counter];
    *counts = (nvmlEccErrorCounts_t){.l1Cache = at[AT_L1],
                                     .l2Cache = at[AT_L2],
                                     .deviceMemory = at[AT_DRAM],
                                     .registerFile = at[AT_REGISTERS]};
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t handle, unsigned counter)
{
    NEED(counter < 2);
    BEGIN("ecc", handle, target);
    GPU_ONLY(target);
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    memset(target.device->ecc[CORRECTED][counter], 0, sizeof target.device->ecc[0][0]);
    memset(target.device->ecc[UNCORRECTED][counter], 0, sizeof target.device->ecc[0][0]);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *correctable, unsigned *uncorrectable,
                                              unsigned *pending, unsigned *failure)
{
    NEED(correctable && uncorrectable && pending && failure);
    BEGIN("remap", handle, target);
    REQUIRE(!target.instance && target.device->remap_supported, NVML_ERROR_NOT_SUPPORTED);
    *correctable = target.device->remapped_correctable;
    *uncorrectable = target.device->remapped_uncorrectable;
    *pending = target.device->remap_pending;
    *failure = target.device->remap_failure;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t handle, nvmlRemappedRowsInfo_v2_t *info)
{
    NEED(info);
    BEGIN("remap", handle, target);
    REQUIRE(!target.instance && target.device->remap_supported, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_device *d = target.device;
    *info = (nvmlRemappedRowsInfo_v2_t){.corrActiveRemaps = d->remapped_correctable,
                                        .uncActiveRemaps = d->remapped_uncorrectable,
                                        .bPending = d->remap_pending,
                                        .bFailureOccurred = d->remap_failure};
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t handle, nvmlRowRemapperHistogramValues_t *values)
{
    enum { BANKS = 640 };
    NEED(values);
    BEGIN("remap", handle, target);
    REQUIRE(!target.instance && target.device->remap_supported, NVML_ERROR_NOT_SUPPORTED);
    unsigned used = target.device->remapped_correctable + target.device->remapped_uncorrectable;
    used = used < BANKS ? used : BANKS;
    unsigned none = target.device->remap_failure && used ? 1 : 0;
    *values = (nvmlRowRemapperHistogramValues_t){.max = BANKS - used, .high = used - none, .none = none};
    return nvml_end(NVML_SUCCESS);
}

/* Retired pages are counted, and get addresses that stay the same from call to call. */
static nvmlReturn_t retired_pages(const struct target *target, unsigned cause, unsigned *count,
                                  unsigned long long *addresses, unsigned long long *timestamps_us)
{
    if (target->instance || target->device->remap_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned pages = cause == 0 ? target->device->retired_single : target->device->retired_double;
    bool enough = pages <= *count && (addresses || !pages);
    *count = pages;
    if (!enough)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages; i++) {
        addresses[i] = (unsigned long long)(cause + 1) << 32 | i << 12;
        if (timestamps_us)
            timestamps_us[i] = realtime_us();
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned *count,
                                              unsigned long long *addresses)
{
    NEED(count && cause < 2);
    BEGIN("remap", handle, target);
    return nvml_end(retired_pages(&target, cause, count, addresses, NULL));
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t handle, unsigned cause, unsigned *count,
                                                 unsigned long long *addresses, unsigned long long *timestamps_us)
{
    NEED(count && cause < 2);
    BEGIN("remap", handle, target);
    return nvml_end(retired_pages(&target, cause, count, addresses, timestamps_us));
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, unsigned *pending)
{
    NEED(pending);
    BEGIN("remap", handle, target);
    REQUIRE(!target.instance && !target.device->remap_supported, NVML_ERROR_NOT_SUPPORTED);
    *pending = target.device->retired_pending;
    return nvml_end(NVML_SUCCESS);
}
