/*
 * Code and its variables. What an image takes on the device can't be told from outside (it may be compiled first, or
 * hold code for several devices), so it is measured after loading, and unloaded again where it doesn't fit.
 */
#include "process.h"

static CUresult loaded(CUresult result, int device, void **handle, CUresult (*unload)(void *))
{
    if (result != CUDA_SUCCESS || internal_settle(device))
        return result;
    unload(*handle);
    *handle = NULL;
    internal_settle(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuModuleLoad)(module, path), device, module, REAL(cuModuleUnload));
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuModuleLoadData)(module, image), device, module, REAL(cuModuleUnload));
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuModuleLoadDataEx)(module, image, count, options, values), device, module,
                  REAL(cuModuleUnload));
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuModuleLoadFatBinary)(module, image), device, module, REAL(cuModuleUnload));
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    const int device = device_current(NULL);
    const CUresult result = REAL(cuModuleUnload)(module);
    if (result == CUDA_SUCCESS)
        internal_settle(device);
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                  int *options, void **values, unsigned count)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values, count), device,
                  library, REAL(cuLibraryUnload));
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                                      unsigned jit_count, int *options, void **values, unsigned count)
{
    const int device = device_current(NULL);
    return loaded(REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values, count),
                  device, library, REAL(cuLibraryUnload));
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    const int device = device_current(NULL);
    const CUresult result = REAL(cuLibraryUnload)(library);
    if (result == CUDA_SUCCESS)
        internal_settle(device);
    return result;
}
