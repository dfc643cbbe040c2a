/* Devices, and the charging of single allocations. */
#include "process.h"

#include <pthread.h>
#include <string.h>

enum { ORDINALS_MAX = 64, CONTEXTS_MAX = 256 };
enum { NOT_ASKED = 0, INDEX_BASE = 100 }; /* known_devices holds index + INDEX_BASE, so that 0 is "not asked" */

static int known_devices[ORDINALS_MAX];
static CUdevice ordinals[DEVICES_MAX]; /* ordinal + 1 */

static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { CUcontext context; int device; } contexts[CONTEXTS_MAX];
static unsigned contexts_next;

static pthread_mutex_t small_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t small_bytes[DEVICES_MAX];

uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX / unit * unit : (bytes + unit - 1) / unit * unit;
}

static int index_of(CUdevice ordinal)
{
    CUuuid uuid;
    if (ordinal < 0 || ordinal >= ORDINALS_MAX)
        return DEVICE_UNKNOWN;
    int known = __atomic_load_n(&known_devices[ordinal], __ATOMIC_RELAXED);
    if (known != NOT_ASKED)
        return known - INDEX_BASE;
    if (driver()->DeviceGetUuid(&uuid, ordinal) != CUDA_SUCCESS)
        return DEVICE_UNKNOWN;
    int device = book_device(uuid.bytes);
    __atomic_store_n(&known_devices[ordinal], device + INDEX_BASE, __ATOMIC_RELAXED);
    if (device >= 0)
        __atomic_store_n(&ordinals[device], ordinal + 1, __ATOMIC_RELAXED);
    return device;
}

int device_of(CUdevice ordinal)
{
    const int device = index_of(ordinal);
    return device == DEVICE_UNKNOWN || book_limits(device) ? device : DEVICE_UNKNOWN;
}

int device_launching(void)
{
    CUdevice ordinal;
    return driver()->CtxGetDevice(&ordinal) == CUDA_SUCCESS ? index_of(ordinal) : DEVICE_UNKNOWN;
}

int device_of_location(const CUmemLocation *location)
{
    if (location->type == LOCATION_DEVICE)
        return device_of(location->id);
    if (location->type == LOCATION_DEVICE_PART) /* its first byte is the device, its second one which part */
        return device_of(location->id & 0xff);
    if (location->type >= LOCATION_HOST && location->type <= LOCATION_HOST_LAST)
        return DEVICE_HOST;
    const int device = device_current(NULL);
    return device == DEVICE_UNKNOWN && location->type > LOCATION_HOST_LAST ? DEVICE_FOREIGN : device;
}

CUdevice ordinal_of(int device)
{
    return device >= 0 ? __atomic_load_n(&ordinals[device], __ATOMIC_RELAXED) - 1 : -1;
}

int device_current(CUcontext *context)
{
    CUdevice ordinal;
    CUcontext current = NULL;
    if (driver()->CtxGetCurrent(&current) != CUDA_SUCCESS || !current)
        return DEVICE_UNKNOWN;
    if (context)
        *context = current;
    return driver()->CtxGetDevice(&ordinal) == CUDA_SUCCESS ? device_of(ordinal) : DEVICE_UNKNOWN;
}

void context_seen(CUcontext context, int device)
{
    pthread_mutex_lock(&contexts_mutex);
    contexts[contexts_next % CONTEXTS_MAX].context = context;
    contexts[contexts_next++ % CONTEXTS_MAX].device = device;
    pthread_mutex_unlock(&contexts_mutex);
}

int device_of_context(CUcontext context)
{
    int device = DEVICE_UNKNOWN;
    pthread_mutex_lock(&contexts_mutex);
    for (unsigned i = 0; i < CONTEXTS_MAX && i < contexts_next; i++)
        if (contexts[i].context == context)
            device = contexts[i].device; /* the latest: addresses are used again */
    pthread_mutex_unlock(&contexts_mutex);
    return device == DEVICE_UNKNOWN ? device_current(NULL) : device;
}

void reclaim(int device)
{
    pools_refresh(device, true);
    graphs_refresh(device, true);
    physical_refresh(device);
}

static bool is_small(uint64_t bytes)
{
    return bytes < MIB;
}

/* Chunks that the small allocations need, in bytes. */
static uint64_t chunks(int device)
{
    return round_up(small_bytes[device], CHUNK);
}

static bool charge(int device, uint64_t bytes)
{
    if (!is_small(bytes))
        return book_charge(device, round_up(bytes, CHUNK));
    bytes = round_up(bytes, 512);
    pthread_mutex_lock(&small_mutex);
    const uint64_t before = chunks(device);
    small_bytes[device] += bytes;
    const uint64_t more = chunks(device) - before;
    const bool fits = !more || book_charge(device, more);
    if (!fits)
        small_bytes[device] -= bytes;
    pthread_mutex_unlock(&small_mutex);
    return fits;
}

bool memory_charge(int device, uint64_t bytes)
{
    if (device < 0)
        return false;
    if (charge(device, bytes))
        return true;
    reclaim(device);
    return charge(device, bytes);
}

void memory_credit(int device, uint64_t bytes)
{
    if (device < 0)
        return;
    if (!is_small(bytes)) {
        book_credit(device, round_up(bytes, CHUNK));
        return;
    }
    bytes = round_up(bytes, 512);
    pthread_mutex_lock(&small_mutex);
    const uint64_t before = chunks(device);
    small_bytes[device] -= bytes < small_bytes[device] ? bytes : small_bytes[device];
    const uint64_t less = before - chunks(device);
    if (less)
        book_credit(device, less);
    pthread_mutex_unlock(&small_mutex);
}

bool memory_record(struct entry entry)
{
    struct entry old;
    if (!ledger_put(entry, &old))
        return false;
    /* The driver gave a handle again that we thought was in use: its end passed us by. */
    if (old.space && !old.owner)
        memory_credit(old.device, old.bytes);
    return true;
}

void process_forget(void)
{
    contexts_mutex = small_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    contexts_next = 0;
    memset(small_bytes, 0, sizeof small_bytes);
    memset(known_devices, 0, sizeof known_devices);
    memset(ordinals, 0, sizeof ordinals);
}
