/* Modules. An image is looked at, not run: its size and the globals it declares take device memory, its entry points
 * can be launched. */
#include "image.h"
#include "internal.h"
#include "launch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct CUmod_st {
    struct image image;
    CUdeviceptr base; /* of its memory */
    struct CUfunc_st *functions;
};

static void drop(struct CUmod_st *module)
{
    while (module->functions) {
        struct CUfunc_st *next = module->functions->next;
        free(module->functions->name);
        free(module->functions);
        module->functions = next;
    }
    image_drop(&module->image);
    free(module);
}

static CUresult load(CUmodule *loaded, const void *image)
{
    NEED(loaded && image);
    NEED_CONTEXT(context);
    struct CUmod_st *module = calloc(1, sizeof *module);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!image_read(&module->image, image)) {
        drop(module);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    uint64_t bytes = module->image.bytes;
    if (bytes < UINT64_MAX - IMAGE_UNIT)
        bytes = (bytes + IMAGE_UNIT - 1) / IMAGE_UNIT * IMAGE_UNIT;
    cuda_lock();
    CUresult result = cuda_allocate(context, bytes, ALLOCATION_MODULE, module, &module->base);
    cuda_unlock();
    if (result != CUDA_SUCCESS)
        drop(module);
    else
        *loaded = module;
    return result;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER("cuda_module");
    return load(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    ENTER("cuda_module");
    (void)count, (void)options, (void)values;
    return load(module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    ENTER("cuda_module");
    return load(module, image);
}

static CUresult load_file(CUmodule *module, const char *path)
{
    NEED(module && path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat file;
    if (fd < 0 || fstat(fd, &file)) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *image = calloc(1, (size_t)file.st_size + 64);
    ssize_t length = image ? read(fd, image, (size_t)file.st_size) : -1;
    close(fd);
    CUresult result = length > 0 ? load(module, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return result;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    ENTER("cuda_module");
    return load_file(module, path);
}

static CUresult unload(CUmodule module)
{
    struct allocation entry;
    NEED(module);
    cuda_lock();
    bool known = registry_find(module->base) && registry_remove(module->base, &entry);
    if (known)
        cuda_release_entry(&entry);
    cuda_unlock();
    if (!known)
        return CUDA_ERROR_INVALID_HANDLE;
    drop(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER("cuda_module");
    return unload(module);
}

static CUresult function_of(CUfunction *function, CUmodule module, const char *name)
{
    NEED(function && module && name);
    if (!image_declares(&module->image, name))
        return CUDA_ERROR_NOT_FOUND;
    struct CUfunc_st *created = calloc(1, sizeof *created);
    if (created)
        created->name = strdup(name);
    if (!created || !created->name) {
        free(created);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->spins = strcmp(name, "spin") == 0;
    created->kernel = kernel_named(name);
    created->module = module;
    cuda_lock();
    created->next = module->functions;
    module->functions = created;
    cuda_unlock();
    *function = created;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER("cuda_module");
    return function_of(function, module, name);
}

static CUresult global_of(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    NEED(module && name);
    for (size_t i = 0; i < module->image.global_count; i++) {
        const struct global *global = &module->image.globals[i];
        if (strcmp(global->name, name) != 0)
            continue;
        if (pointer)
            *pointer = module->base + global->offset;
        if (bytes)
            *bytes = global->bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    ENTER("cuda_module");
    return global_of(pointer, bytes, module, name);
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    NEED(mode);
    *mode = 1; /* eager */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    ENTER("cuda_module");
    NEED(value && function);
    *value = attribute == 0 ? 1024 : 0; /* threads per block */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    ENTER("cuda_module");
    (void)attribute, (void)value;
    NEED(function);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t number, size_t *offset, size_t *bytes)
{
    ENTER("cuda_module");
    size_t place, size;
    NEED(function && offset);
    if (!function->module->image.ptx)
        return CUDA_ERROR_NOT_SUPPORTED; /* we don't look into binaries */
    NEED(image_parameter(&function->module->image, function->name, number, &place, &size));
    *offset = place;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

/* Libraries: modules that need no context of their own. They are loaded into the current one at once. */
typedef struct CUmod_st *CUlibrary;

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, void *jit_options, void **jit_values,
                                  unsigned jit_count, void *options, void **values, unsigned count)
{
    ENTER("cuda_module");
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, image);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *jit_options, void **jit_values,
                                      unsigned jit_count, void *options, void **values, unsigned count)
{
    ENTER("cuda_module");
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load_file(library, path);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER("cuda_module");
    return unload(library);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER("cuda_module");
    NEED(module && library);
    *module = library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUfunction *kernel, CUlibrary library, const char *name)
{
    ENTER("cuda_module");
    return function_of(kernel, library, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel)
{
    ENTER("cuda_module");
    NEED(function && kernel);
    *function = kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    ENTER("cuda_module");
    return global_of(pointer, bytes, library, name);
}
