/*
 * A bucket of launches for each device, refilled at a rate that a controller adjusts: once a second it asks NVML how
 * busy the lease's processes kept the device, and so what a launch costs. So the part of the device's time is
 * met on average over a second or so, not at every moment; a lease alone on its device is held to its part as well.
 * Where NVML can't tell in here there is nothing to go by, and launches pass.
 */
#include "throttle.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "process.h"

#define SECOND UINT64_C(1000000000)

enum { SAMPLES_MAX = 256, PIDS_MAX = 64, RATE_MIN = 2, RATE_MAX = 1000000, RATE_FIRST = 20000 };
static const uint64_t control_period_ns = SECOND, burst_ns = SECOND / 50;

typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

struct bucket {
    uint64_t rate; /* launches per second */
    uint64_t filled_ns, controlled_ns;
    uint64_t launches; /* since controlled_ns */
    bool settled;      /* the rate comes from a measurement */
    int64_t tokens; /* in billionths of a launch */
    unsigned long long seen_us;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct bucket buckets[DEVICES_MAX];

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

bool throttle_wanted(void)
{
    for (int device = 0; device < DEVICES_MAX; device++)
        if (book_share_milli(device))
            return true;
    return false;
}

/* How busy the lease's processes kept the device since the last time, in thousandths; -1: nothing is known. */
static int busy_milli(int device, struct bucket *bucket)
{
    static nvmlReturn_t (*utilization)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long);
    static nvmlProcessUtilizationSample_t samples[SAMPLES_MAX];
    int32_t pids[PIDS_MAX];
    unsigned count = SAMPLES_MAX, percent[PIDS_MAX] = {0}, sum = 0;
    unsigned long long newest[PIDS_MAX] = {0};
    nvmlDevice_t handle = nvml_handle(device);
    if (!utilization)
        utilization = (__typeof__(utilization))nvml_function("nvmlDeviceGetProcessUtilization");
    if (!handle || !utilization)
        return -1;
    if (utilization(handle, samples, &count, bucket->seen_us) != NVML_SUCCESS)
        return -1;
    const int ours = book_pids(pids, PIDS_MAX);
    for (unsigned i = 0; i < count && i < SAMPLES_MAX; i++) {
        if (samples[i].time_us > bucket->seen_us)
            bucket->seen_us = samples[i].time_us;
        for (int j = 0; j < ours; j++)
            if ((int32_t)samples[i].pid == pids[j] && samples[i].time_us >= newest[j]) {
                newest[j] = samples[i].time_us;
                percent[j] = samples[i].sm;
            }
    }
    for (int j = 0; j < ours; j++)
        sum += percent[j];
    return count ? (int)sum * 10 : -1;
}

/* What a launch costs of the device's time is what the busy time was shared by; so many of them make up the share. */
static void control(int device, struct bucket *bucket, unsigned share_milli, uint64_t passed_ns)
{
    const int busy = busy_milli(device, bucket);
    const uint64_t made = bucket->launches * SECOND / passed_ns;
    bucket->launches = 0;
    if (busy < 0)
        return;
    uint64_t next = busy == 0 || made == 0 ? bucket->rate * 2 : made * share_milli / (unsigned)busy;
    if (bucket->settled)
        next = (bucket->rate + next) / 2; /* utilisation is a rough and late figure */
    bucket->settled = busy > 0;
    bucket->rate = next < RATE_MIN ? RATE_MIN : next > RATE_MAX ? RATE_MAX : next;
}

/* Takes a token; how long to wait until there is one. Under the mutex. */
static uint64_t take(int device, unsigned share_milli)
{
    struct bucket *bucket = &buckets[device];
    const uint64_t now = now_ns();
    if (!bucket->rate)
        *bucket = (struct bucket){.rate = RATE_FIRST, .filled_ns = now, .controlled_ns = now};
    if (now - bucket->controlled_ns >= control_period_ns) {
        const uint64_t passed_ns = now - bucket->controlled_ns;
        bucket->controlled_ns = now;
        control(device, bucket, share_milli, passed_ns);
    }
    bucket->launches++;
    uint64_t passed = now - bucket->filled_ns;
    if (passed > SECOND)
        passed = SECOND;
    bucket->filled_ns = now;
    bucket->tokens += (int64_t)(passed * bucket->rate);
    const int64_t burst = (int64_t)(burst_ns * bucket->rate > SECOND ? burst_ns * bucket->rate : SECOND);
    if (bucket->tokens > burst)
        bucket->tokens = burst;
    bucket->tokens -= (int64_t)SECOND;
    return bucket->tokens >= 0 ? 0 : (uint64_t)-bucket->tokens / bucket->rate + 1;
}

void throttle_launch(void)
{
    const int device = device_current(NULL);
    const unsigned share_milli = device >= 0 ? book_share_milli(device) : 0;
    if (!share_milli || share_milli >= 1000)
        return;
    pthread_mutex_lock(&mutex);
    const uint64_t wait_ns = take(device, share_milli);
    pthread_mutex_unlock(&mutex);
    struct timespec wait = {.tv_sec = (time_t)(wait_ns / SECOND), .tv_nsec = (long)(wait_ns % SECOND)};
    while (wait_ns && nanosleep(&wait, &wait) != 0)
        continue;
}

void throttle_graph(void)
{
    static int wanted = -1; /* settled at the first launch */
    if (wanted < 0)
        wanted = throttle_wanted();
    if (wanted)
        throttle_launch();
}

#define LAUNCHES(suffix)                                                                                               \
    EXPORT CUresult cuLaunchKernel##suffix(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
                                           unsigned block_x, unsigned block_y, unsigned block_z,                       \
                                           unsigned shared_bytes, CUstream stream, void **parameters, void **extra)    \
    {                                                                                                                  \
        throttle_graph();                                                                                              \
        return REAL(cuLaunchKernel##suffix)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, \
                                            stream, parameters, extra);                                                \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *config, CUfunction function, void **parameters,     \
                                             void **extra)                                                             \
    {                                                                                                                  \
        throttle_graph();                                                                                              \
        return REAL(cuLaunchKernelEx##suffix)(config, function, parameters, extra);                                    \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchCooperativeKernel##suffix(                                                                 \
        CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
        unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters)                                   \
    {                                                                                                                  \
        throttle_graph();                                                                                              \
        return REAL(cuLaunchCooperativeKernel##suffix)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,    \
                                                       shared_bytes, stream, parameters);                              \
    }

LAUNCHES()
LAUNCHES(_ptsz)

void throttle_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(buckets, 0, sizeof buckets);
}
