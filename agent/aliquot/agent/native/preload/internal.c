/*
 * What the driver itself takes in this process: contexts, code and its variables, stacks, heaps. How much that is
 * depends on driver, device and program, so it is measured: what NVML says this process holds, less what we know of.
 * Where NVML can't tell in here (another pid namespace), the estimates stay, and the agent's comparison corrects them.
 */
#include <pthread.h>
#include <string.h>

#include "process.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t internal[DEVICES_MAX]; /* charged */
static uint64_t promised[DEVICES_MAX];

enum { PROMISES_MAX = 64 }; /* what there is no room to note stays promised for as long as the process lives */
static struct promise { CUcontext context; int device; uint64_t bytes; } promises[PROMISES_MAX];

bool internal_grow(int device, uint64_t bytes)
{
    if (device < 0)
        return false;
    bool fits = book_charge(device, bytes);
    if (!fits) {
        reclaim(device);
        fits = book_charge(device, bytes);
    }
    if (!fits)
        return false;
    pthread_mutex_lock(&mutex);
    internal[device] += bytes;
    pthread_mutex_unlock(&mutex);
    return true;
}

void internal_shrink(int device, uint64_t bytes)
{
    if (device < 0)
        return;
    pthread_mutex_lock(&mutex);
    if (bytes > internal[device])
        bytes = internal[device];
    internal[device] -= bytes;
    book_credit(device, bytes);
    pthread_mutex_unlock(&mutex);
}

uint64_t internal_bytes(int device)
{
    pthread_mutex_lock(&mutex);
    const uint64_t bytes = device < 0 ? 0 : internal[device];
    pthread_mutex_unlock(&mutex);
    return bytes;
}

static uint64_t known(int device)
{
    const uint64_t held = book_held_here(device);
    return held > internal[device] ? held - internal[device] : 0;
}

bool internal_settle(int device)
{
    uint64_t measured, wanted;
    bool fits = true;
    if (device < 0)
        return true;
    pthread_mutex_lock(&mutex);
    /* What we know of is charged before it is taken and credited after it is given back, so the larger of before and
     * after is no less than what it was at the moment of measuring. */
    const uint64_t before = known(device);
    if (measure(device, &measured)) {
        const uint64_t after = known(device), ours = before > after ? before : after;
        wanted = measured > ours ? measured - ours : 0;
        if (wanted < promised[device])
            wanted = promised[device];
        if (wanted > internal[device]) {
            fits = book_charge(device, wanted - internal[device]);
            if (!fits)
                book_force(device, wanted - internal[device]);
            internal[device] = wanted;
        } else if (wanted < internal[device] && before == after) {
            book_credit(device, internal[device] - wanted);
            internal[device] = wanted;
        }
    }
    pthread_mutex_unlock(&mutex);
    return fits;
}

/* The promise to a context, or one that is free; NULL: none is. */
static struct promise *promise_to(int device, CUcontext context)
{
    struct promise *free_one = NULL;
    for (int i = 0; i < PROMISES_MAX; i++) {
        if (promises[i].bytes && promises[i].context == context && promises[i].device == device)
            return &promises[i];
        if (!promises[i].bytes)
            free_one = &promises[i];
    }
    return free_one;
}

void internal_promise(int device, CUcontext context, int64_t change)
{
    if (device < 0)
        return;
    pthread_mutex_lock(&mutex);
    struct promise *promise = promise_to(device, context);
    if (change > 0) {
        promised[device] += (uint64_t)change;
        if (promise)
            *promise = (struct promise){context, device, promise->bytes + (uint64_t)change};
    } else if (promise) {
        const uint64_t less = (uint64_t)-change < promise->bytes ? (uint64_t)-change : promise->bytes;
        promise->bytes -= less;
        promised[device] -= less;
    }
    pthread_mutex_unlock(&mutex);
}

void internal_forget_promises(int device, CUcontext context)
{
    internal_promise(device, context, INT64_MIN + 1);
}

void internal_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(internal, 0, sizeof internal);
    memset(promised, 0, sizeof promised);
    memset(promises, 0, sizeof promises);
}
