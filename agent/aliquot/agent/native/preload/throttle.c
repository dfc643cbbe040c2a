/*
 * Launches of a lease wait for one another while the agent holds it to a part of a device's time (`allowed_milli`). The
 * agent measures what the lease's processes use of it (`used_us`); what was launched meanwhile tells what a launch
 * takes, and so how far apart launches must be for the lease to use as much as it may. All processes of a lease keep one
 * pace, which is in its account: starting more of them, or short ones, gains nothing.
 *
 * So a part is met on average over a second or so, not at every moment. Until something was measured, launches pass.
 */
#include "throttle.h"

#include <time.h>

#include "process.h"

#define SECOND UINT64_C(1000000000)

enum { BEHIND_MAX = 64 };
static const uint64_t burst_ns = SECOND / 20;   /* so much of what was left unused may be made up for */
static const uint64_t glance_ns = SECOND / 50;  /* how long a launch waits before it looks at what is allowed now */
static const uint64_t apart_max_ns = 60 * SECOND;

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define SWAPPED(field, seen, value)                                                                                    \
    __atomic_compare_exchange_n(&(field), &(seen), (value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

bool throttle_wanted(void)
{
    return book_paced();
}

/* What a launch takes, whenever the agent has measured anew: one process of the lease works it out. */
static void learn(struct pace *pace, uint64_t used_us)
{
    uint64_t seen_us = LOAD(pace->seen_used_us);
    if (used_us == seen_us || !SWAPPED(pace->seen_used_us, seen_us, used_us))
        return;
    const uint64_t made = LOAD(pace->made), since = made - LOAD(pace->seen_made), known_ns = LOAD(pace->cost_ns);
    STORE(pace->seen_made, made);
    if (!since || used_us < seen_us)
        return;
    const uint64_t cost_ns = (used_us - seen_us) * 1000 / since;
    /* The measurement is late by about as long as it covers. */
    STORE(pace->cost_ns, known_ns ? (known_ns + cost_ns) / 2 : cost_ns);
}

/* Takes the next turn to launch: when it is. */
static uint64_t turn_ns(struct pace *pace, uint64_t now, uint64_t apart_ns)
{
    uint64_t next_ns = LOAD(pace->next_ns), turn;
    do {
        turn = next_ns + burst_ns < now ? now - burst_ns : next_ns;
        if (turn > now + BEHIND_MAX * apart_ns) /* of a pace that was much slower, or nobody's */
            turn = now;
    } while (!SWAPPED(pace->next_ns, next_ns, turn + apart_ns));
    return turn;
}

static void await(const struct limit_device *limit, uint64_t turn, unsigned allowed_milli)
{
    for (uint64_t now; (now = now_ns()) < turn && LOAD(limit->allowed_milli) == allowed_milli;) {
        const uint64_t wait_ns = turn - now < glance_ns ? turn - now : glance_ns;
        nanosleep(&(struct timespec){.tv_nsec = (long)wait_ns}, NULL);
    }
}

void throttle_launch(void)
{
    if (!book_pacing())
        return;
    const int device = device_launching();
    const struct limit_device *limit = book_allowance(device);
    struct pace *pace = book_pace(device);
    const unsigned allowed_milli = limit ? LOAD(limit->allowed_milli) : 0;
    if (!pace || !allowed_milli)
        return;
    learn(pace, LOAD(limit->used_us));
    __atomic_add_fetch(&pace->made, 1, __ATOMIC_RELAXED);
    const uint64_t cost_ns = LOAD(pace->cost_ns);
    const uint64_t apart_ns = cost_ns < apart_max_ns ? cost_ns * 1000 / allowed_milli : apart_max_ns;
    if (apart_ns)
        await(limit, turn_ns(pace, now_ns(), apart_ns < apart_max_ns ? apart_ns : apart_max_ns), allowed_milli);
}

#define LAUNCHES(suffix)                                                                                               \
    EXPORT CUresult cuLaunchKernel##suffix(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
                                           unsigned block_x, unsigned block_y, unsigned block_z,                       \
                                           unsigned shared_bytes, CUstream stream, void **parameters, void **extra)    \
    {                                                                                                                  \
        throttle_launch();                                                                                              \
        return REAL(cuLaunchKernel##suffix)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, \
                                            stream, parameters, extra);                                                \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *config, CUfunction function, void **parameters,     \
                                             void **extra)                                                             \
    {                                                                                                                  \
        throttle_launch();                                                                                              \
        return REAL(cuLaunchKernelEx##suffix)(config, function, parameters, extra);                                    \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchCooperativeKernel##suffix(                                                                 \
        CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
        unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters)                                   \
    {                                                                                                                  \
        throttle_launch();                                                                                              \
        return REAL(cuLaunchCooperativeKernel##suffix)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,    \
                                                       shared_bytes, stream, parameters);                              \
    }

LAUNCHES()
LAUNCHES(_ptsz)
