/* The library's state in this process: initialisation, fork, and which devices the process may see. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

struct runtime runtime;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* A page that the kernel clears in a forked child: however it was forked, the child knows that it is one. */
static volatile uint32_t *alive;

void cuda_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void cuda_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* Locks that another thread of the parent may have held at the fork. */
static void after_fork_in_child(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    init_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (alive)
        *alive = 0;
}

__attribute__((constructor)) static void loaded(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* A process that ends in order gives its memory back at once; the books are reaped of any other. */
__attribute__((destructor)) static void unloaded(void)
{
    if (!alive || !*alive || !machine())
        return;
    machine_lock();
    for (int i = 0; i < runtime.visible_count; i++)
        books_close(runtime.visible[i].place);
    machine_unlock();
}

static void show(uint32_t device, const struct sim_compute_instance *instance)
{
    struct scenario *scenario = machine();
    const struct sim_device *of = &scenario->devices[device];
    struct visible *visible = &runtime.visible[runtime.visible_count++];
    *visible = (struct visible){
        .place = {.device = device,
                  .gpu_instance = instance ? of->gpu_instances[instance->gpu_instance].id : NO_INSTANCE,
                  .compute_instance = instance ? instance->id : NO_INSTANCE}};
    snprintf(visible->uuid, sizeof visible->uuid, "%.63s", instance ? instance->uuid : of->uuid);
}

static bool already_visible(uint32_t device)
{
    for (int i = 0; i < runtime.visible_count; i++)
        if (runtime.visible[i].place.device == device)
            return true;
    return false;
}

/* A MIG device is seen alone: CUDA gives a process one of them, and no other device beside it. */
static bool show_mig(const char *uuid)
{
    struct scenario *scenario = machine();
    for (uint32_t d = 0; d < scenario->device_count; d++)
        for (uint32_t i = 0; i < INSTANCES_MAX; i++) {
            const struct sim_compute_instance *instance = &scenario->devices[d].compute_instances[i];
            if (!instance->in_use || (uuid && strncasecmp(instance->uuid, uuid, strlen(uuid)) != 0))
                continue;
            runtime.visible_count = 0;
            show(d, instance);
            return true;
        }
    return false;
}

static void show_default(void)
{
    struct scenario *scenario = machine();
    for (uint32_t d = 0; d < scenario->device_count; d++)
        if (!scenario->devices[d].mig_mode && !scenario->devices[d].lost)
            show(d, NULL);
    if (!runtime.visible_count)
        show_mig(NULL);
}

/* Indices count the devices without MIG; a UUID may be shortened while it stays unique. */
static int find_device(const char *name)
{
    struct scenario *scenario = machine();
    char *end;
    long wanted = strtol(name, &end, 10);
    bool by_index = end != name && *end == '\0';
    int match = -1, index = 0;
    for (uint32_t d = 0; d < scenario->device_count; d++) {
        const struct sim_device *device = &scenario->devices[d];
        if (device->mig_mode || device->lost)
            continue;
        if (by_index ? index == wanted : strncasecmp(device->uuid, name, strlen(name)) == 0) {
            if (match >= 0)
                return -1;
            match = (int)d;
        }
        index++;
    }
    return match;
}

/* Like CUDA: the list is read up to the first entry that names nothing. */
static void show_listed(const char *list)
{
    char copy[1024], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", list);
    while ((name = strsep(&rest, ","))) {
        name += strspn(name, " ");
        name[strcspn(name, " ")] = '\0';
        if (strncasecmp(name, "MIG-", 4) == 0) {
            if (!runtime.visible_count)
                show_mig(name);
            return;
        }
        int device = *name ? find_device(name) : -1;
        if (device < 0)
            return;
        if (already_visible((uint32_t)device)) { /* a device named twice makes the list void */
            runtime.visible_count = 0;
            return;
        }
        show((uint32_t)device, NULL);
    }
}

static void forget(void)
{
    uint64_t generation = runtime.generation + 1;
    registry_clear();
    addresses_forget();
    pools_forget();
    vmm_forget();
    later_forget();
    machine_forget_self();
    memset(&runtime, 0, sizeof runtime);
    runtime.generation = generation;
}

static CUresult initialise(void)
{
    if (alive && *alive)
        return CUDA_SUCCESS;
    if (!machine_open())
        return CUDA_ERROR_NO_DEVICE;
    static struct inject_site site;
    CUresult injected = (CUresult)inject(&site, "cuInit", "cuda_init", INJECT_ANY_DEVICE);
    if (injected != CUDA_SUCCESS)
        return injected;
    if (!alive) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        madvise(memory, page, MADV_WIPEONFORK);
        alive = memory;
    }
    forget();
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    machine_lock();
    if (list)
        show_listed(list);
    else
        show_default();
    machine_unlock();
    if (!runtime.visible_count)
        return CUDA_ERROR_NO_DEVICE;
    for (int ordinal = 0; ordinal < runtime.visible_count; ordinal++)
        mps_wait(ordinal);
    *alive = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned flags)
{
    NEED(flags == 0);
    pthread_mutex_lock(&init_mutex);
    CUresult result = initialise();
    pthread_mutex_unlock(&init_mutex);
    return result;
}

CUresult cuda_begin(struct inject_site *site, const char *symbol, const char *call_class)
{
    if (!alive || !*alive)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct CUctx_st *context = cuda_context();
    int device = context ? (int)runtime.visible[context->ordinal].place.device : INJECT_ANY_DEVICE;
    CUresult injected = (CUresult)inject(site, symbol, call_class, device);
    if (injected != CUDA_SUCCESS)
        return injected;
    return device >= 0 && machine()->devices[device].lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

struct sim_device *cuda_device(int ordinal)
{
    if (ordinal < 0 || ordinal >= runtime.visible_count)
        return NULL;
    return &machine()->devices[runtime.visible[ordinal].place.device];
}

struct place cuda_place(int ordinal)
{
    return runtime.visible[ordinal].place;
}

int cuda_ordinal_of(uint32_t device)
{
    for (int i = 0; i < runtime.visible_count; i++)
        if (runtime.visible[i].place.device == device)
            return i;
    return -1;
}

bool cuda_charge_once(int ordinal, enum charge_kind kind, uint64_t bytes)
{
    machine_lock();
    bool charged = books_charge(cuda_place(ordinal), kind, bytes);
    machine_unlock();
    return charged;
}

bool cuda_charge(int ordinal, enum charge_kind kind, uint64_t bytes)
{
    later_settle();
    return cuda_charge_once(ordinal, kind, bytes) ||
           (pools_give_up(ordinal) && cuda_charge_once(ordinal, kind, bytes));
}

void cuda_credit(int ordinal, enum charge_kind kind, uint64_t bytes)
{
    machine_lock();
    books_credit(cuda_place(ordinal), kind, bytes);
    machine_unlock();
}

uint64_t cuda_round(uint64_t bytes)
{
    uint64_t unit = machine()->granularity_bytes;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}
