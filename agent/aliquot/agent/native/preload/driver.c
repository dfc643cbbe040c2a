/* Finds the real driver when it is first needed: most programs that load this library never use a GPU. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "elf.h"
#include "throttle.h"

struct hook {
    const char *name, *base;
    void *ours;
    int version;
    bool per_thread, throttle;
};

static const struct hook hooks[HOOK_COUNT] = {
#define LIBC(name) {#name, NULL, (void *)name, 0, false, false},
#define NVML(name) {#name, NULL, (void *)name, 0, false, false},
#define THROTTLE(name, base, version, per_thread) {#name, #base, (void *)name, version, per_thread, true},
#define HOOK(name, base, version, per_thread) {#name, #base, (void *)name, version, per_thread, false},
#include "hooks.def"
};

static void *real[HOOK_COUNT];
static struct driver calls;
static void *cuda, *nvml;

static int not_found(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

void *real_dlsym(void *handle, const char *name)
{
    static void *(*function)(void *, const char *);
    if (!function)
        function = (void *(*)(void *, const char *))libc_function("dlsym");
    return function ? function(handle, name) : NULL;
}

void *real_dlopen(const char *path, int flags)
{
    static void *(*function)(const char *, int);
    if (!function)
        function = (void *(*)(const char *, int))libc_function("dlopen");
    return function ? function(path, flags) : NULL;
}

/* Racing threads find the same library and the same functions, so no lock is needed. */
static void *cuda_library(void)
{
    if (!cuda)
        cuda = real_dlopen("libcuda.so.1", RTLD_LAZY);
    return cuda;
}

void *nvml_function(const char *name)
{
    if (!nvml)
        nvml = real_dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    return nvml ? real_dlsym(nvml, name) : NULL;
}

static void *find_real(enum hook_id id)
{
    const struct hook *hook = &hooks[id];
    void *found;
    if (!hook->base)
        found = strncmp(hook->name, "nvml", 4) == 0 ? nvml_function(hook->name) : libc_function(hook->name);
    else
        found = cuda_library() ? real_dlsym(cuda, hook->name) : NULL;
    if (!found)
        found = (void *)not_found;
    __atomic_store_n(&real[id], found, __ATOMIC_RELEASE);
    return found;
}

void *real_function(enum hook_id id)
{
    void *found = __atomic_load_n(&real[id], __ATOMIC_ACQUIRE);
    return __builtin_expect(found != NULL, 1) ? found : find_real(id);
}

const struct driver *driver(void)
{
    static bool ready;
    if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
        return &calls;
    static const char *const names[] = {
        "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxGetLimit",
        "cuDeviceGetCount", "cuDeviceGetUuid_v2", "cuDeviceGetAttribute", "cuDevicePrimaryCtxGetState",
        "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool",
        "cuMemPoolGetAttribute", "cuDeviceGetGraphMemAttribute", "cuStreamIsCapturing", "cuStreamGetCtx",
        "cuStreamGetCaptureInfo", "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz", "cuGreenCtxDestroy",
    };
    _Static_assert(sizeof names / sizeof *names == sizeof calls / sizeof(void *), "one name for each function");
    void **functions = (void **)&calls;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = cuda_library() ? real_dlsym(cuda, names[i]) : NULL;
        if (!found && strcmp(names[i], "cuDeviceGetUuid_v2") == 0 && cuda)
            found = real_dlsym(cuda, "cuDeviceGetUuid");
        functions[i] = found ? found : (void *)not_found;
    }
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
    return &calls;
}

static bool wanted(const struct hook *hook)
{
    return !hook->throttle || throttle_wanted();
}

void *replacement(const char *name)
{
    /* dlsym is called a lot: nearly every other name is told apart by its first letters. */
    if (!name || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v') ||
                   (name[0] == 'd' && name[1] == 'l')))
        return NULL;
    for (int i = 0; i < HOOK_COUNT; i++)
        if (strcmp(hooks[i].name, name) == 0)
            return wanted(&hooks[i]) ? hooks[i].ours : NULL;
    return NULL;
}

/* The name under which the driver exports an address itself; NULL: none. */
static const char *exported_name(const void *address)
{
    static int (*look_up)(const void *, Dl_info *);
    Dl_info found;
    if (!look_up)
        look_up = (int (*)(const void *, Dl_info *))libc_function("dladdr");
    return look_up && look_up(address, &found) && found.dli_saddr == address ? found.dli_sname : NULL;
}

void *replacement_for(const char *base, const void *given, int version, uint64_t flags)
{
    const bool per_thread = flags & PROC_ADDRESS_PER_THREAD_STREAM;
    const struct hook *best = NULL;
    for (int i = 0; i < HOOK_COUNT; i++) {
        const struct hook *hook = &hooks[i];
        if (!hook->base || (strcmp(hook->base, base) != 0 && strcmp(hook->name, base) != 0))
            continue;
        if (given == real_function((enum hook_id)i))
            return wanted(hook) ? hook->ours : NULL;
        /* Not one of the exported functions: the newest interface that the caller can mean. */
        if (hook->version > version || (hook->per_thread && !per_thread))
            continue;
        if (!best || hook->version > best->version || (hook->version == best->version && hook->per_thread))
            best = hook;
    }
    /* An interface newer than this library may take other arguments than any of ours. */
    if (best && exported_name(given))
        return NULL;
    return best && wanted(best) ? best->ours : NULL;
}
