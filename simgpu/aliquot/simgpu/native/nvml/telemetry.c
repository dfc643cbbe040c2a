/* What a device does now: load, heat, power, clocks. Values that nobody set follow from the load. */
#include "internal.h"

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO, CLOCK_KINDS };

static uint32_t at_most_100(uint32_t percent)
{
    return percent < 100 ? percent : 100;
}

uint32_t device_gpu_percent(const struct sim_device *device)
{
    if (device->gpu_percent != DERIVED)
        return (uint32_t)device->gpu_percent;
    uint64_t now_ns = monotonic_ns();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < device->account_count; i++)
        if (device->accounts[i].state)
            sum += account_sm_percent(&device->accounts[i], now_ns);
    return at_most_100(sum);
}

uint32_t device_memory_percent(const struct sim_device *device)
{
    if (device->memory_percent != DERIVED)
        return (uint32_t)device->memory_percent;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < device->account_count; i++)
        sum += (uint32_t)device->accounts[i].memory_percent;
    return at_most_100(sum ? sum : device_gpu_percent(device) * 3 / 5);
}

int device_temperature_c(const struct sim_device *device)
{
    if (device->temperature_c != DERIVED)
        return device->temperature_c;
    return device->temperature_idle_c + (int)device_gpu_percent(device) * 40 / 100;
}

uint32_t device_power_mw(const struct sim_device *device)
{
    if (device->power_mw >= 0)
        return (uint32_t)device->power_mw;
    uint64_t range = device->power_limit_mw > device->power_idle_mw ? device->power_limit_mw - device->power_idle_mw : 0;
    return device->power_idle_mw + (uint32_t)(range * device_gpu_percent(device) * 9 / 1000);
}

/* Power as it is now, taken over the time since somebody last asked. */
uint64_t device_energy_mj(struct sim_device *device)
{
    uint64_t now_us = realtime_us();
    if (now_us > device->energy_until_us) /* the clock may have been set back */
        device->energy_uj += (now_us - device->energy_until_us) * device_power_mw(device) / 1000;
    device->energy_until_us = now_us;
    return device->energy_uj / 1000;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    NEED(utilization);
    BEGIN("utilization", handle, target);
    REQUIRE(!target.instance && !target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    books_reap(target.device);
    utilization->gpu = device_gpu_percent(target.device);
    utilization->memory = device_memory_percent(target.device);
    return nvml_end(NVML_SUCCESS);
}

static nvmlReturn_t engine(const struct target *target, int32_t percent, unsigned *utilization, unsigned *period_us)
{
    if (percent == UNSUPPORTED || target->instance || target->device->mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    *utilization = (unsigned)percent;
    *period_us = 167000;
    return NVML_SUCCESS;
}

#define ENGINE(symbol, percent)                                                                        \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t handle, unsigned *utilization, unsigned *period_us)        \
    {                                                                                                  \
        NEED(utilization && period_us);                                                                \
        BEGIN("utilization", handle, target);                                                          \
        return nvml_end(engine(&target, percent, utilization, period_us));                             \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, target.device->encoder_percent)
ENGINE(nvmlDeviceGetDecoderUtilization, target.device->decoder_percent)
ENGINE(nvmlDeviceGetJpgUtilization, target.device->architecture >= 7 ? 0 : UNSUPPORTED)
ENGINE(nvmlDeviceGetOfaUtilization, target.device->architecture >= 7 ? 0 : UNSUPPORTED)

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned sensor, unsigned *temperature_c)
{
    NEED(temperature_c && sensor < 2);
    BEGIN("temperature", handle, target);
    GPU_ONLY(target);
    *temperature_c = (unsigned)device_temperature_c(target.device);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *temperature)
{
    NEED(temperature && temperature->sensorType < 2);
    BEGIN("temperature", handle, target);
    REQUIRE(temperature->version == VERSION_OF(nvmlTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    GPU_ONLY(target);
    temperature->temperature = device_temperature_c(target.device);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned threshold, unsigned *temperature_c)
{
    NEED(temperature_c && threshold < 8);
    BEGIN("temperature", handle, target);
    GPU_ONLY(target);
    const struct sim_device *d = target.device;
    bool has_memory_sensor = d->memory_temperature_c != UNSUPPORTED;
    REQUIRE(threshold <= 3 && (threshold != 2 || has_memory_sensor), NVML_ERROR_NOT_SUPPORTED);
    const int values[] = {d->temperature_shutdown_c, d->temperature_slowdown_c, 95, d->temperature_slowdown_c - 4};
    *temperature_c = (unsigned)values[threshold];
    return nvml_end(NVML_SUCCESS);
}

GPU_VALUE(nvmlDeviceGetPowerUsage, "power", unsigned, device_power_mw(d))
GPU_VALUE(nvmlDeviceGetPowerManagementLimit, "power", unsigned, d->power_limit_mw)
GPU_VALUE(nvmlDeviceGetEnforcedPowerLimit, "power", unsigned, d->power_limit_mw)
GPU_VALUE(nvmlDeviceGetPowerManagementDefaultLimit, "power", unsigned, d->power_default_mw)
GPU_VALUE(nvmlDeviceGetPowerManagementMode, "power", unsigned, 1)
GPU_VALUE(nvmlDeviceGetPerformanceState, "pstate", unsigned, d->pstate)
GPU_VALUE(nvmlDeviceGetPowerState, "pstate", unsigned, d->pstate)
GPU_VALUE(nvmlDeviceGetCurrentClocksEventReasons, "throttle", unsigned long long, d->throttle_reasons)
GPU_VALUE(nvmlDeviceGetSupportedClocksEventReasons, "throttle", unsigned long long, 0x1ff)
ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);
ALIAS(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *millijoules)
{
    NEED(millijoules);
    BEGIN("power", handle, target);
    GPU_ONLY(target);
    *millijoules = device_energy_mj(target.device);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned *least, unsigned *most)
{
    NEED(least && most);
    BEGIN("power", handle, target);
    GPU_ONLY(target);
    *least = target.device->power_min_mw;
    *most = target.device->power_max_mw;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t handle, unsigned limit_mw)
{
    BEGIN("power", handle, target);
    GPU_ONLY(target);
    struct sim_device *d = target.device;
    REQUIRE(nvml_is_admin(), NVML_ERROR_NO_PERMISSION);
    REQUIRE(d->power_min_mw <= limit_mw && limit_mw <= d->power_max_mw, NVML_ERROR_INVALID_ARGUMENT);
    d->power_limit_mw = limit_mw;
    return nvml_end(NVML_SUCCESS);
}

static unsigned clock_mhz(const struct sim_device *device, unsigned kind, bool highest)
{
    if (kind == CLOCK_MEM)
        return highest ? device->clock_memory_max_mhz : device->clock_memory_mhz;
    unsigned sm = highest ? device->clock_sm_max_mhz : device->clock_sm_mhz;
    return kind == CLOCK_VIDEO ? sm * 9 / 10 : sm;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned kind, unsigned *mhz)
{
    NEED(mhz && kind < CLOCK_KINDS);
    BEGIN("clocks", handle, target);
    GPU_ONLY(target);
    *mhz = clock_mhz(target.device, kind, false);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned kind, unsigned *mhz)
{
    NEED(mhz && kind < CLOCK_KINDS);
    BEGIN("clocks", handle, target);
    GPU_ONLY(target);
    *mhz = clock_mhz(target.device, kind, true);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t handle, unsigned kind, unsigned *mhz)
{
    NEED(mhz && kind < CLOCK_VIDEO);
    BEGIN("clocks", handle, target);
    GPU_ONLY(target);
    *mhz = clock_mhz(target.device, kind, true);
    return nvml_end(NVML_SUCCESS);
}

ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetApplicationsClock);
ALIAS(nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetApplicationsClock);

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, unsigned kind, unsigned id, unsigned *mhz)
{
    NEED(mhz && kind < CLOCK_KINDS && id < 4);
    BEGIN("clocks", handle, target);
    GPU_ONLY(target);
    *mhz = clock_mhz(target.device, kind, id != 0);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned *percent)
{
    NEED(percent);
    BEGIN("fan", handle, target);
    REQUIRE(!target.instance && target.device->fan_percent >= 0, NVML_ERROR_NOT_SUPPORTED);
    *percent = (unsigned)target.device->fan_percent;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t handle, unsigned fan, unsigned *percent)
{
    NEED(percent);
    BEGIN("fan", handle, target);
    REQUIRE(!target.instance && target.device->fan_percent >= 0, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(fan == 0, NVML_ERROR_INVALID_ARGUMENT);
    *percent = (unsigned)target.device->fan_percent;
    return nvml_end(NVML_SUCCESS);
}

GPU_VALUE(nvmlDeviceGetNumFans, "fan", unsigned, d->fan_percent >= 0 ? 1 : 0)

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned counter, unsigned *kib_per_second)
{
    NEED(kib_per_second && counter < 2);
    BEGIN("pcie", handle, target);
    REQUIRE(!target.instance && !target.device->mig_mode, NVML_ERROR_NOT_SUPPORTED);
    *kib_per_second = device_gpu_percent(target.device) * 1024;
    return nvml_end(NVML_SUCCESS);
}
