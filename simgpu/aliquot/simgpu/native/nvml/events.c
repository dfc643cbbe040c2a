/* Events: an event set remembers what it asked for and how far it has read in the scenario's ring. */
#include "internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Everything that the control tool can raise, but clocks and power states, which only some devices report. */
#define SUPPORTED_TYPES UINT64_C(0xff8b)
#define LOOK_NS UINT64_C(100000000) /* a waiter looks by itself this often, in case a wake-up was lost */

struct nvmlEventSet_st {
    uint64_t types[DEVICES_MAX];
    uint64_t next; /* the number of the first event that was not looked at */
};

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
    NEED(types);
    BEGIN("events", handle, target);
    GPU_ONLY(target);
    *types = SUPPORTED_TYPES;
    return nvml_end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    NEED(set);
    BEGIN_SYSTEM("events");
    *set = calloc(1, sizeof **set);
    if (*set)
        (*set)->next = machine()->events_written;
    return nvml_end(*set ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set)
{
    NEED(set);
    BEGIN("events", handle, target);
    REQUIRE(!target.instance && !(types & ~SUPPORTED_TYPES), NVML_ERROR_NOT_SUPPORTED);
    set->types[target.index] |= types;
    return nvml_end(NVML_SUCCESS);
}

/* The next event that the set asked for, if there is one. Wants the lock. */
static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    const struct scenario *scenario = machine();
    if (scenario->events_written - set->next > EVENTS_MAX)
        set->next = scenario->events_written - EVENTS_MAX;
    while (set->next < scenario->events_written) {
        const struct sim_event *event = &scenario->events[set->next++ % EVENTS_MAX];
        if (!(set->types[event->device] & event->type))
            continue;
        *data = (nvmlEventData_t){.device = nvml_gpu_handle(event->device),
                                  .eventType = event->type,
                                  .eventData = event->data,
                                  .gpuInstanceId = event->gpu_instance,
                                  .computeInstanceId = event->compute_instance};
        return true;
    }
    return false;
}

static void sleep_on(uint32_t *word, uint32_t value, uint64_t at_most_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(at_most_ns / 1000000000u), .tv_nsec = (long)(at_most_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    NEED(set && data);
    uint64_t deadline_ns = monotonic_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        BEGIN_SYSTEM("events");
        struct scenario *scenario = machine();
        uint32_t seen = __atomic_load_n(&scenario->events_futex, __ATOMIC_ACQUIRE);
        bool found = next_event(set, data);
        nvml_end(NVML_SUCCESS);
        if (found)
            return NVML_SUCCESS;
        uint64_t now_ns = monotonic_ns();
        if (now_ns >= deadline_ns)
            return NVML_ERROR_TIMEOUT;
        uint64_t left_ns = deadline_ns - now_ns;
        sleep_on(&scenario->events_futex, seen, left_ns < LOOK_NS ? left_ns : LOOK_NS);
    }
}

/* The first version knows nothing of MIG: its structure ends before the instances. */
struct event_data_v1 {
    nvmlDevice_t device;
    unsigned long long type, data;
};

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data_v1 *data, unsigned timeout_ms)
{
    nvmlEventData_t full;
    NEED(data);
    nvmlReturn_t result = nvmlEventSetWait_v2(set, &full, timeout_ms);
    if (result == NVML_SUCCESS)
        *data = (struct event_data_v1){.device = full.device, .type = full.eventType, .data = full.eventData};
    return result;
}
