/*
 * The binary interfaces this library stands in front of, as far as it needs them: types of the CUDA driver and of
 * NVML, and the functions it hooks. Written from the vendor's documentation; tests/enforce compares sizes and offsets
 * with the vendor's header where one is installed.
 */
#ifndef ALIQUOT_PRELOAD_ABI_H
#define ALIQUOT_PRELOAD_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void *CUcontext, *CUmodule, *CUlibrary, *CUfunction, *CUstream, *CUarray, *CUmipmappedArray, *CUmemoryPool;
typedef void *CUgraph, *CUgraphNode, *CUgraphExec, *CUgreenCtx;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum { LIMIT_STACK_SIZE = 0, LIMIT_PRINTF_FIFO_SIZE = 1, LIMIT_MALLOC_HEAP_SIZE = 2 };
enum { ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39 };
enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED_CURRENT = 5, POOL_USED_CURRENT = 7 };
enum { GRAPH_MEMORY_RESERVED_CURRENT = 2 };
enum { LOCATION_NONE = 0, LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_LAST = 4, LOCATION_DEVICE_PART = 6 };
enum { ALLOCATION_MANAGED = 2 };
enum { NODE_MEM_ALLOC = 10 };
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED_MAPPING = 0x80, ARRAY_CUBEMAP = 0x04, ARRAY_LAYERED = 0x01 };
enum { PROC_ADDRESS_PER_THREAD_STREAM = 2 };
#define STREAM_PER_THREAD ((CUstream)2) /* what no stream means to the variants for per-thread default streams */

typedef struct {
    size_t Width, Height;
    unsigned Format, NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    unsigned Format, NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct { int type, id; } CUmemLocation;

typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps poolProps;
    const void *accessDescs;
    size_t accessDescCount, bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    int type, reserved0[3];
    union {
        long long reserved1[29];
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    int resourceType;
    void *resource;
    int subresourceType;
    union {
        unsigned level[8];
        unsigned long long tail[3];
    } subresource;
    int memOperationType, memHandleType;
    CUmemGenericAllocationHandle memHandle;
    unsigned long long offset;
    unsigned deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
enum { NVML_SUCCESS = 0, NVML_ERROR_INSUFFICIENT_SIZE = 7 };
#define NVML_VALUE_NOT_AVAILABLE UINT64_MAX

#endif
