/* Functions by name and CUDA version, as the CUDA runtime asks for them. */
#include "internal.h"

#include <string.h>

enum { FLAG_PER_THREAD_STREAM = 2 };
enum query_status { FOUND = 0, NO_SUCH_SYMBOL = 1, NEEDS_NEWER_VERSION = 2 };

/* Only addresses are taken here: what the functions take and answer is known where they are defined. */
#define ENTRY(name, since, function, per_thread) \
    extern void function(void);                  \
    extern void per_thread(void);
#include "proc_table.h"
#undef ENTRY

struct entry {
    const char *name;
    int since;
    void (*function)(void), (*per_thread)(void);
};

static const struct entry entries[] = {
#define ENTRY(name, since, function, per_thread) {#name, since, function, per_thread},
#include "proc_table.h"
#undef ENTRY
};

static const struct entry *find(const char *name, int version, enum query_status *status)
{
    const struct entry *best = NULL;
    *status = NO_SUCH_SYMBOL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, name) != 0)
            continue;
        *status = best || entries[i].since <= version ? FOUND : NEEDS_NEWER_VERSION;
        if (entries[i].since <= version)
            best = &entries[i];
    }
    return best;
}

static CUresult look_up(const char *name, void **function, int version, unsigned long long flags,
                        enum query_status *status)
{
    NEED(name && function);
    const struct scenario *scenario = machine() ? machine() : machine_open();
    NEED(!scenario || version <= (int)scenario->cuda_version);
    const struct entry *found = find(name, version, status);
    *function = NULL;
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    void (*chosen)(void) = flags & FLAG_PER_THREAD_STREAM ? found->per_thread : found->function;
    memcpy(function, &chosen, sizeof chosen);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuda_get_proc_address(const char *name, void **function, int version, unsigned long long flags)
    __asm__("cuGetProcAddress");
EXPORT CUresult cuda_get_proc_address_v2(const char *name, void **function, int version, unsigned long long flags,
                                         int *status) __asm__("cuGetProcAddress_v2");

CUresult cuda_get_proc_address(const char *name, void **function, int version, unsigned long long flags)
{
    enum query_status status;
    return look_up(name, function, version, flags, &status);
}

/* The second version answers success for what it doesn't find, and says so in the status. */
CUresult cuda_get_proc_address_v2(const char *name, void **function, int version, unsigned long long flags, int *status)
{
    enum query_status found = NO_SUCH_SYMBOL;
    CUresult result = look_up(name, function, version, flags, &found);
    if (status)
        *status = (int)found;
    return result == CUDA_ERROR_NOT_FOUND && status ? CUDA_SUCCESS : result;
}
