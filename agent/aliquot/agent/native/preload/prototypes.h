/* The interfaces of what we hook: the functions that we define under these names, and the driver's behind them. */
#ifndef ALIQUOT_PRELOAD_PROTOTYPES_H
#define ALIQUOT_PRELOAD_PROTOTYPES_H

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))
/* A function and its variant for per-thread default streams. */
#define BOTH(result, name, ...) EXPORT result name(__VA_ARGS__); EXPORT result name##_ptsz(__VA_ARGS__)

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
BOTH(CUresult, cuGetProcAddress_v2, const char *symbol, void **function, int version, uint64_t flags, int *status);

/* The 32-bit interfaces of CUDA 3.1 and before. */
EXPORT CUresult cuMemAlloc(void *pointer, unsigned bytes);
EXPORT CUresult cuMemAllocPitch(void *pointer, void *pitch, unsigned width, unsigned height, unsigned element);
EXPORT CUresult cuArrayCreate(CUarray *array, const void *descriptor);
EXPORT CUresult cuArray3DCreate(CUarray *array, const void *descriptor);

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
EXPORT CUresult cuArrayDestroy(CUarray array);
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                       unsigned levels);
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);

BOTH(CUresult, cuMemAllocAsync, CUdeviceptr *pointer, size_t bytes, CUstream stream);
BOTH(CUresult, cuMemAllocFromPoolAsync, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
BOTH(CUresult, cuMemFreeAsync, CUdeviceptr pointer, CUstream stream);
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool);
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags);
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags);
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags);
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size);
BOTH(CUresult, cuMemMapArrayAsync, CUarrayMapInfo *list, unsigned count, CUstream stream);
EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
                                   CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                   unsigned long long flags);
EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                                      CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                      unsigned long long flags);
EXPORT CUresult cuLogicalEndpointBindMem(uint32_t endpoint, CUdevice device, uint64_t endpoint_offset,
                                         CUmemGenericAllocationHandle handle, uint64_t offset, uint64_t size,
                                         unsigned long long flags);

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUgraphNodeParams *parameters);
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges,
                                  size_t count, CUgraphNodeParams *parameters);
EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges,
                                  size_t count, CUgraphNodeParams *parameters);
BOTH(CUresult, cuStreamEndCapture, CUstream stream, CUgraph *graph);
EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size);
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                      size_t size);
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
BOTH(CUresult, cuGraphInstantiateWithParams, CUgraphExec *exec, CUgraph graph, void *parameters);
BOTH(CUresult, cuGraphUpload, CUgraphExec exec, CUstream stream);
BOTH(CUresult, cuGraphLaunch, CUgraphExec exec, CUstream stream);
EXPORT CUresult cuGraphDestroy(CUgraph graph);
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxDestroy(CUcontext context);
EXPORT CUresult cuCtxDestroy_v2(CUcontext context);
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, void *resources, CUdevice device, unsigned flags);
EXPORT CUresult cuCtxSetLimit(int limit, size_t value);

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path);
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image);
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values);
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
EXPORT CUresult cuModuleUnload(CUmodule module);
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                  int *options, void **values, unsigned count);
EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                                      unsigned jit_count, int *options, void **values, unsigned count);
EXPORT CUresult cuLibraryUnload(CUlibrary library);

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

BOTH(CUresult, cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra);
BOTH(CUresult, cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
BOTH(CUresult, cuLaunchCooperativeKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters);

EXPORT void *dlsym(void *handle, const char *name);
EXPORT void *dlvsym(void *handle, const char *name, const char *version);
EXPORT void *dlopen(const char *path, int flags);
EXPORT void *dlmopen(long space, const char *path, int flags);

#endif
