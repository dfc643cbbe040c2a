/* Values by field number: what one call answers for many kinds of numbers at once. */
#include "internal.h"

enum field {
    ECC_CURRENT = 1, ECC_PENDING = 2,
    ECC_SBE_VOL_TOTAL = 3, ECC_DBE_VOL_TOTAL = 4, ECC_SBE_AGG_TOTAL = 5, ECC_DBE_AGG_TOTAL = 6,
    ECC_SBE_VOL_DEV = 11, ECC_DBE_VOL_DEV = 12,
    RETIRED_SBE = 29, RETIRED_DBE = 30, RETIRED_PENDING = 31,
    NVLINK_CRC_FLIT_TOTAL = 38, NVLINK_CRC_DATA_TOTAL = 45, NVLINK_REPLAY_TOTAL = 52, NVLINK_RECOVERY_TOTAL = 59,
    MEMORY_TEMP = 82, TOTAL_ENERGY = 83, NVLINK_SPEED_COMMON = 90, NVLINK_LINK_COUNT = 91,
    RETIRED_PENDING_SBE = 92, RETIRED_PENDING_DBE = 93, PCIE_REPLAY = 94,
    REMAPPED_COR = 142, REMAPPED_UNC = 143, REMAPPED_PENDING = 144, REMAPPED_FAILURE = 145,
    NVLINK_GET_SPEED = 164, NVLINK_GET_STATE = 165, RESETLESS_MIG = 184,
    POWER_AVERAGE = 185, POWER_INSTANT = 186, POWER_MIN_LIMIT = 187, POWER_MAX_LIMIT = 188,
    POWER_DEFAULT_LIMIT = 189, POWER_CURRENT_LIMIT = 190, ENERGY = 191, POWER_REQUESTED_LIMIT = 192,
    RESET_STATUS = 226, DRAIN_AND_RESET_STATUS = 227, RECOVERY_ACTION = 230,
};

enum { RECOVERY_RESET = 1, RECOVERY_DRAIN_AND_RESET = 4 };

static uint64_t link_errors(const struct sim_device *device, unsigned kind)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < device->link_count; i++)
        sum += device->links[i].errors[kind];
    return sum;
}

static nvmlReturn_t small(nvmlFieldValue_t *field, uint32_t value)
{
    field->valueType = VALUE_UNSIGNED_INT;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t large(nvmlFieldValue_t *field, uint64_t value)
{
    field->valueType = VALUE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t of_links(const struct sim_device *d, nvmlFieldValue_t *field)
{
    if (!d->link_count)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case NVLINK_CRC_FLIT_TOTAL: return large(field, link_errors(d, 2));
    case NVLINK_CRC_DATA_TOTAL: return large(field, link_errors(d, 3));
    case NVLINK_REPLAY_TOTAL: return large(field, link_errors(d, 0));
    case NVLINK_RECOVERY_TOTAL: return large(field, link_errors(d, 1));
    case NVLINK_SPEED_COMMON: return small(field, d->link_mbps);
    case NVLINK_LINK_COUNT: return small(field, d->link_count);
    case NVLINK_GET_SPEED:
    case NVLINK_GET_STATE: break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    if (field->scopeId >= d->link_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool active = d->links[field->scopeId].active;
    return small(field, field->fieldId == NVLINK_GET_STATE ? active : active ? d->link_mbps : 0);
}

static nvmlReturn_t of_memory_errors(const struct sim_device *d, nvmlFieldValue_t *field)
{
    bool remaps = d->remap_supported;
    switch (field->fieldId) {
    case RETIRED_SBE: return remaps ? NVML_ERROR_NOT_SUPPORTED : small(field, d->retired_single);
    case RETIRED_DBE: return remaps ? NVML_ERROR_NOT_SUPPORTED : small(field, d->retired_double);
    case RETIRED_PENDING:
    case RETIRED_PENDING_SBE:
    case RETIRED_PENDING_DBE: return remaps ? NVML_ERROR_NOT_SUPPORTED : small(field, d->retired_pending);
    case REMAPPED_COR: return remaps ? small(field, d->remapped_correctable) : NVML_ERROR_NOT_SUPPORTED;
    case REMAPPED_UNC: return remaps ? small(field, d->remapped_uncorrectable) : NVML_ERROR_NOT_SUPPORTED;
    case REMAPPED_PENDING: return remaps ? small(field, d->remap_pending) : NVML_ERROR_NOT_SUPPORTED;
    case REMAPPED_FAILURE: return remaps ? small(field, d->remap_failure) : NVML_ERROR_NOT_SUPPORTED;
    default: break;
    }
    if (field->fieldId != ECC_CURRENT && field->fieldId != ECC_PENDING && !d->ecc_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case ECC_CURRENT: return small(field, d->ecc_mode);
    case ECC_PENDING: return small(field, d->ecc_pending);
    case ECC_SBE_VOL_TOTAL: return large(field, device_ecc_total(d, 0, 0));
    case ECC_DBE_VOL_TOTAL: return large(field, device_ecc_total(d, 1, 0));
    case ECC_SBE_AGG_TOTAL: return large(field, device_ecc_total(d, 0, 1));
    case ECC_DBE_AGG_TOTAL: return large(field, device_ecc_total(d, 1, 1));
    case ECC_SBE_VOL_DEV: return large(field, d->ecc[0][0][2]);
    case ECC_DBE_VOL_DEV: return large(field, d->ecc[1][0][2]);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t answer(struct sim_device *d, nvmlFieldValue_t *field)
{
    switch (field->fieldId) {
    case MEMORY_TEMP:
        if (d->memory_temperature_c == UNSUPPORTED)
            return NVML_ERROR_NOT_SUPPORTED;
        return small(field, (uint32_t)(d->memory_temperature_c == DERIVED ? device_temperature_c(d) + 6
                                                                          : d->memory_temperature_c));
    case TOTAL_ENERGY:
    case ENERGY: return large(field, device_energy_mj(d));
    case POWER_AVERAGE:
    case POWER_INSTANT: return small(field, device_power_mw(d));
    case POWER_MIN_LIMIT: return small(field, d->power_min_mw);
    case POWER_MAX_LIMIT: return small(field, d->power_max_mw);
    case POWER_DEFAULT_LIMIT: return small(field, d->power_default_mw);
    case POWER_CURRENT_LIMIT:
    case POWER_REQUESTED_LIMIT: return small(field, d->power_limit_mw);
    case PCIE_REPLAY: return small(field, 0);
    case RESETLESS_MIG: return small(field, d->mig_without_reset);
    case RECOVERY_ACTION: return small(field, d->recovery_action);
    case RESET_STATUS: return small(field, d->recovery_action == RECOVERY_RESET);
    case DRAIN_AND_RESET_STATUS: return small(field, d->recovery_action == RECOVERY_DRAIN_AND_RESET);
    default: break;
    }
    nvmlReturn_t result = of_links(d, field);
    return result == NVML_ERROR_NOT_SUPPORTED ? of_memory_errors(d, field) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *fields)
{
    NEED(count > 0 && fields);
    BEGIN("fields", handle, target);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (long long)realtime_us();
        fields[i].latencyUsec = 0;
        fields[i].value = (nvmlValue_t){.ullVal = 0};
        fields[i].nvmlReturn = target.instance ? NVML_ERROR_NOT_SUPPORTED : answer(target.device, &fields[i]);
    }
    return nvml_end(NVML_SUCCESS);
}
