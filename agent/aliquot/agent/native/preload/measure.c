/* Asks NVML what this process holds. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "life.h"
#include "process.h"

enum { PROCESSES_MAX = 512 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int state; /* 0: not tried, 1: works, -1: can't be had */
static nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *);
static nvmlReturn_t (*running)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
static nvmlDevice_t handles[DEVICES_MAX];

/* NVML counts by pids of the machine: in another namespace ours might be somebody else's. */
static bool start(void)
{
    if (state == 0) {
        nvmlReturn_t (*init)(void) = (nvmlReturn_t(*)(void))nvml_function("nvmlInit_v2");
        by_uuid = (nvmlReturn_t(*)(const char *, nvmlDevice_t *))nvml_function("nvmlDeviceGetHandleByUUID");
        running = (nvmlReturn_t(*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))nvml_function(
            "nvmlDeviceGetComputeRunningProcesses_v3");
        state = init && by_uuid && running && in_first_pid_namespace() && init() == NVML_SUCCESS ? 1 : -1;
    }
    return state == 1;
}

static nvmlDevice_t handle_of(int device)
{
    CUuuid id;
    char text[48] = "GPU-";
    if (handles[device])
        return handles[device];
    const CUdevice ordinal = ordinal_of(device);
    if (ordinal < 0 || driver()->DeviceGetUuid(&id, ordinal) != CUDA_SUCCESS)
        return NULL;
    for (int i = 0, used = 4; i < 16; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                         id.bytes[i]);
    for (int kind = 0; kind < 2; kind++) { /* CUDA doesn't say whether it is a whole GPU or a MIG instance */
        memcpy(text, kind ? "MIG-" : "GPU-", 4);
        if (by_uuid(text, &handles[device]) == NVML_SUCCESS)
            return handles[device];
    }
    handles[device] = NULL;
    return NULL;
}

bool measure(int device, uint64_t *bytes)
{
    static nvmlProcessInfo_t processes[PROCESSES_MAX]; /* too large for the stack of any thread; under the mutex */
    bool found = false;
    pthread_mutex_lock(&mutex);
    nvmlDevice_t handle = start() ? handle_of(device) : NULL;
    unsigned count = PROCESSES_MAX;
    if (handle && running(handle, &count, processes) == NVML_SUCCESS) {
        for (unsigned i = 0; i < count && !found; i++) {
            found = processes[i].pid == (unsigned)getpid() && processes[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE;
            *bytes = processes[i].usedGpuMemory;
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

nvmlDevice_t nvml_handle(int device)
{
    pthread_mutex_lock(&mutex);
    nvmlDevice_t handle = start() ? handle_of(device) : NULL;
    pthread_mutex_unlock(&mutex);
    return handle;
}

void measure_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    state = 0;
    memset(handles, 0, sizeof handles);
}
