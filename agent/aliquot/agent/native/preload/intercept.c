/*
 * The ways to a function's address. A name that we hook is answered with ours wherever the real one exists; any other
 * call goes on unchanged, and by a tail call: the C library looks at its return address to know who asks (RTLD_NEXT,
 * the caller's RUNPATH), so we must not appear in between.
 */
#include <dlfcn.h>

#include "driver.h"
#include "elf.h"

EXPORT void *dlsym(void *handle, const char *name)
{
    void *ours = replacement(name);
    if (!ours)
        return REAL(dlsym)(handle, name);
    return REAL(dlsym)(handle, name) ? ours : NULL;
}

EXPORT void *dlvsym(void *handle, const char *name, const char *version)
{
    void *ours = replacement(name);
    if (!ours)
        return REAL(dlvsym)(handle, name, version);
    return REAL(dlvsym)(handle, name, version) ? ours : NULL;
}

/* A library opened with RTLD_DEEPBIND would find the driver's functions before ours. */
EXPORT void *dlopen(const char *path, int flags)
{
    return REAL(dlopen)(path, flags & ~RTLD_DEEPBIND);
}

/* In a namespace of its own a library would be bound to the driver without us: we go in first. The copy of us there has a
 * slot of its own in the account. */
EXPORT void *dlmopen(long space, const char *path, int flags)
{
    static int (*information)(void *, int, void *);
    char own[512];
    if (!information)
        information = (int (*)(void *, int, void *))libc_function("dlinfo");
    if (space == LM_ID_NEWLM) {
        void *ours = own_path(own, sizeof own) ? REAL(dlmopen)(LM_ID_NEWLM, own, RTLD_LAZY) : NULL;
        if (!ours || !information || information(ours, RTLD_DI_LMID, &space) != 0)
            return NULL;
    }
    return REAL(dlmopen)(space, path, flags & ~RTLD_DEEPBIND);
}

static CUresult swapped(CUresult result, const char *symbol, void **function, int version, uint64_t flags)
{
    if (result == CUDA_SUCCESS && symbol && function && *function) {
        void *ours = replacement_for(symbol, *function, version, flags);
        if (ours)
            *function = ours;
    }
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return swapped(REAL(cuGetProcAddress)(symbol, function, version, flags), symbol, function, version, flags);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    return swapped(REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status), symbol, function, version,
                   flags);
}

EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    return swapped(REAL(cuGetProcAddress_v2_ptsz)(symbol, function, version, flags, status), symbol, function, version,
                   flags | PROC_ADDRESS_PER_THREAD_STREAM);
}
