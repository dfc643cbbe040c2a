#include "inject.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "machine.h"

#define SPIN_NS 60000 /* below what a sleep can resolve */

/* Real NVML serves one call at a time in a process: a slow one delays the others. */
static pthread_mutex_t serial = PTHREAD_MUTEX_INITIALIZER;

static void spend(uint64_t duration_ns)
{
    pthread_mutex_lock(&serial);
    uint64_t end = monotonic_ns() + duration_ns;
    if (duration_ns > SPIN_NS) {
        struct timespec until = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
            continue;
    }
    while (monotonic_ns() < end)
        continue;
    pthread_mutex_unlock(&serial);
}

static void block(const struct sim_rule *rule)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    while (__atomic_load_n(&rule->hang, __ATOMIC_ACQUIRE) && __atomic_load_n(&rule->in_use, __ATOMIC_ACQUIRE))
        nanosleep(&pause, NULL);
}

static bool names(const struct sim_rule *rule, const char *symbol, const char *call_class)
{
    return strcmp(rule->call, "*") == 0 || strcmp(rule->call, symbol) == 0 || strcmp(rule->call, call_class) == 0;
}

int inject(struct inject_site *site, const char *symbol, const char *call_class, int device)
{
    struct scenario *scenario = machine();
    uint64_t generation = __atomic_load_n(&scenario->rules_generation, __ATOMIC_ACQUIRE);
    uint64_t quiet = machine_mapping() << 40 | (generation + 1);
    if (__atomic_load_n(&site->quiet, __ATOMIC_RELAXED) == quiet)
        return 0;
    uint64_t latency_ns = 0;
    const struct sim_rule *hanging = NULL;
    bool named = false;
    int error = 0;
    machine_lock();
    for (uint32_t i = 0; i < RULES_MAX; i++) {
        const struct sim_rule *rule = &scenario->rules[i];
        if (!rule->in_use || !names(rule, symbol, call_class))
            continue;
        named = true;
        if (rule->device >= 0 && rule->device != device)
            continue;
        latency_ns = rule->latency_ns > latency_ns ? rule->latency_ns : latency_ns;
        error = rule->error ? rule->error : error;
        hanging = rule->hang ? rule : hanging;
    }
    machine_unlock();
    if (!named)
        __atomic_store_n(&site->quiet, quiet, __ATOMIC_RELAXED);
    if (latency_ns)
        spend(latency_ns);
    if (hanging)
        block(hanging);
    return error;
}
