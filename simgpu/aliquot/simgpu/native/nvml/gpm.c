/* GPU performance metrics: samples a moment apart, and what happened between them. Hopper and later. */
#include "mig.h"

#include <stdlib.h>

enum { GRAPHICS_UTIL = 1, SM_UTIL = 2, SM_OCCUPANCY = 3, ANY_TENSOR_UTIL = 5, HMMA_TENSOR_UTIL = 7, DRAM_BW_UTIL = 10 };
enum { METRIC_MAX = 477 };
#define SAMPLE_GAP_NS UINT64_C(100000000)

struct nvmlGpmSample_st {
    uint32_t device, gpu_instance;
    uint64_t taken_ns; /* 0: never */
    uint32_t sm_percent, memory_percent;
};

typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[]; /* METRIC_MAX of them */
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support)
{
    NEED(support);
    BEGIN("gpm", handle, target);
    REQUIRE(support->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    support->isSupportedDevice = target.device->gpm_supported;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    NEED(sample);
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    NEED(sample);
    free(sample);
    return NVML_SUCCESS;
}

/* The load of one GPU instance is the sum over its processes. */
static void take(struct sim_device *device, uint32_t index, uint32_t gpu_instance, nvmlGpmSample_t sample)
{
    uint64_t now_ns = monotonic_ns();
    uint32_t busy = 0;
    books_reap(device);
    for (uint32_t i = 0; i < device->account_count; i++)
        if (device->accounts[i].state && device->accounts[i].gpu_instance == gpu_instance)
            busy += account_sm_percent(&device->accounts[i], now_ns);
    bool whole = gpu_instance == NO_INSTANCE;
    *sample = (struct nvmlGpmSample_st){.device = index,
                                        .gpu_instance = gpu_instance,
                                        .taken_ns = now_ns,
                                        .sm_percent = whole ? device_gpu_percent(device) : busy < 100 ? busy : 100};
    sample->memory_percent = whole ? device_memory_percent(device) : sample->sm_percent * 3 / 5;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t handle, nvmlGpmSample_t sample)
{
    NEED(sample);
    BEGIN("gpm", handle, target);
    REQUIRE(target.device->gpm_supported, NVML_ERROR_NOT_SUPPORTED);
    take(target.device, target.index, target_gpu_instance(&target), sample);
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t handle, unsigned gpu_instance, nvmlGpmSample_t sample)
{
    NEED(sample);
    BEGIN("gpm", handle, target);
    REQUIRE(!target.instance && target.device->gpm_supported, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(books_total_bytes(target.device, gpu_instance), NVML_ERROR_INVALID_ARGUMENT);
    take(target.device, target.index, gpu_instance, sample);
    return nvml_end(NVML_SUCCESS);
}

static nvmlReturn_t metric_of(const struct nvmlGpmSample_st *sample, nvmlGpmMetric_t *metric)
{
    double sm = sample->sm_percent;
    switch (metric->metricId) {
    case GRAPHICS_UTIL:
    case SM_UTIL: metric->value = sm; return NVML_SUCCESS;
    case SM_OCCUPANCY: metric->value = sm * 0.5; return NVML_SUCCESS;
    case ANY_TENSOR_UTIL:
    case HMMA_TENSOR_UTIL: metric->value = sm * 0.4; return NVML_SUCCESS;
    case DRAM_BW_UTIL: metric->value = sample->memory_percent; return NVML_SUCCESS;
    default: return metric->metricId && metric->metricId < METRIC_MAX ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    NEED(request && request->sample1 && request->sample2 && request->numMetrics <= METRIC_MAX);
    BEGIN_SYSTEM("gpm");
    const struct nvmlGpmSample_st *first = request->sample1, *second = request->sample2;
    REQUIRE(request->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(first->taken_ns && second->taken_ns && first->device == second->device &&
                first->gpu_instance == second->gpu_instance,
            NVML_ERROR_INVALID_ARGUMENT);
    const struct nvmlGpmSample_st *later = second->taken_ns > first->taken_ns ? second : first;
    const struct nvmlGpmSample_st *earlier = later == second ? first : second;
    REQUIRE(later->taken_ns - earlier->taken_ns >= SAMPLE_GAP_NS, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < request->numMetrics; i++) {
        request->metrics[i].value = 0;
        request->metrics[i].nvmlReturn = metric_of(later, &request->metrics[i]);
    }
    return nvml_end(NVML_SUCCESS);
}
