/*
 * Clients of MPS. What stands in for its control daemon writes a file in place of the socket: which server takes a
 * client that comes this way, and what that one may hold and use:
 *
 *   $CUDA_MPS_PIPE_DIRECTORY/control     SERVER LIMIT_MIB PERCENT     LIMIT_MIB 0: no limit
 *
 * As on hardware, a client without the file has the device as if there were no MPS; its own variables can only lower
 * what it may have; and an entry of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for a device that it does not see takes every limit
 * of that kind away, the server's own too. A server of which a client was killed with work queued takes nobody any more:
 * who comes hangs.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct terms {
    uint64_t server, pinned_bytes;
    uint32_t percent;
};

static bool read_terms(struct terms *terms)
{
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    unsigned long long server, mib;
    unsigned percent;
    if (!pipe || !*pipe)
        return false;
    snprintf(path, sizeof path, "%s/control", pipe);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fscanf(file, "%llu %llu %u", &server, &mib, &percent) == 3;
    fclose(file);
    *terms = (struct terms){server, mib << 20, percent};
    return read && server;
}

static uint64_t lower(uint64_t limit, uint64_t other)
{
    return !limit || (other && other < limit) ? other : limit;
}

/* 0=2G,1=4096M: by the ordinals that the process sees. */
static void lower_pinned(struct terms *terms, int ordinal)
{
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char unit;
    unsigned long long number;
    for (unsigned named; text && sscanf(text, "%u=%llu%c", &named, &number, &unit) == 3;) {
        if (named >= (unsigned)runtime.visible_count) {
            terms->pinned_bytes = 0;
            return;
        }
        if ((int)named == ordinal)
            terms->pinned_bytes = lower(terms->pinned_bytes, number << (unit == 'G' ? 30 : 20));
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
}

void mps_wait(int ordinal)
{
    struct terms terms;
    struct sim_device *device = cuda_device(ordinal);
    if (cuda_place(ordinal).gpu_instance != NO_INSTANCE || !read_terms(&terms))
        return;
    machine_lock();
    books_reap(device);
    while (device->wedged_server == terms.server) {
        machine_unlock();
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        machine_lock();
    }
    machine_unlock();
}

bool mps_connect(int ordinal)
{
    struct terms terms;
    struct place place = cuda_place(ordinal);
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (place.gpu_instance != NO_INSTANCE || !read_terms(&terms))
        return true;
    lower_pinned(&terms, ordinal);
    const unsigned percent = own ? (unsigned)atoi(own) : 0;
    if (percent && percent < terms.percent)
        terms.percent = percent;
    machine_lock();
    struct sim_account *account = books_account(place, true);
    if (account) {
        account->types |= TYPE_MPS;
        account->server = terms.server;
        account->pinned_bytes = terms.pinned_bytes;
        account->thread_percent = terms.percent;
    }
    machine_unlock();
    return account;
}
