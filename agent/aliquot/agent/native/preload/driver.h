/* The real driver: the functions behind our hooks, and a few that we only call. */
#ifndef ALIQUOT_PRELOAD_DRIVER_H
#define ALIQUOT_PRELOAD_DRIVER_H

#include <stdbool.h>

#include "prototypes.h"

enum hook_id {
#define LIBC(name) HOOK_##name,
#define NVML(name) HOOK_##name,
#define HOOK(name, base, version, per_thread) HOOK_##name,
#include "hooks.def"
    HOOK_COUNT
};

/* The real function of a hook; never NULL: a driver without it answers CUDA_ERROR_NOT_FOUND. */
void *real_function(enum hook_id id);

#define REAL(name) ((__typeof__(&name))real_function(HOOK_##name))

/* The hook for a name, or NULL: not ours, or not wanted now (a throttle that is off). */
void *replacement(const char *name);

/* The hook for what the driver gave for cuGetProcAddress(base, version, flags), or NULL. */
void *replacement_for(const char *base, const void *given, int version, uint64_t flags);

/* Functions of the driver that we call but don't hook. Any of them may be missing in an old driver. */
struct driver {
    CUresult (*CtxGetCurrent)(CUcontext *);
    CUresult (*CtxGetDevice)(CUdevice *);
    CUresult (*CtxPushCurrent)(CUcontext);
    CUresult (*CtxPopCurrent)(CUcontext *);
    CUresult (*CtxGetLimit)(size_t *, int);
    CUresult (*DeviceGetCount)(int *);
    CUresult (*DeviceGetUuid)(CUuuid *, CUdevice);
    CUresult (*DeviceGetAttribute)(int *, int, CUdevice);
    CUresult (*DevicePrimaryCtxGetState)(CUdevice, unsigned *, int *);
    CUresult (*DeviceGetDefaultMemPool)(CUmemoryPool *, CUdevice);
    CUresult (*DeviceGetMemPool)(CUmemoryPool *, CUdevice);
    CUresult (*MemPoolGetAttribute)(CUmemoryPool, int, void *);
    CUresult (*DeviceGetGraphMemAttribute)(CUdevice, int, void *);
    CUresult (*StreamIsCapturing)(CUstream, int *);
    CUresult (*StreamGetCtx)(CUstream, CUcontext *);
    CUresult (*StreamGetCaptureInfo)(CUstream, int *, unsigned long long *);
    CUresult (*LaunchHostFunc)(CUstream, void (*)(void *), void *);
    CUresult (*LaunchHostFunc_ptsz)(CUstream, void (*)(void *), void *);
    CUresult (*GreenCtxDestroy)(CUgreenCtx);
};
const struct driver *driver(void);

/* A function of the real NVML, which is loaded if need be; NULL where there is none. */
void *nvml_function(const char *name);

/* The C library's own. */
void *real_dlsym(void *handle, const char *name);
void *real_dlopen(const char *path, int flags);

#endif
