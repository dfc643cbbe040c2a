/*
 * Modules. An image is looked at, not run: its size and the globals it declares take device memory, its entry points
 * can be launched. PTX is read as text, a cubin by its ELF sections, a fat binary by its length.
 */
#include "internal.h"

#include <ctype.h>
#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"

#define FATBIN_MAGIC 0xBA55ED50u
#define NAME_MAX_BYTES 128
#define CODE_UNIT (UINT64_C(64) << 10) /* code is loaded in pieces of this size */

struct global {
    char name[NAME_MAX_BYTES];
    uint64_t bytes, offset;
};

struct CUmod_st {
    bool is_ptx;
    char *ptx;
    CUdeviceptr base;
    struct global *globals;
    size_t global_count;
    struct CUfunc_st *functions;
};

static uint64_t type_bytes(const char *type)
{
    static const struct { const char *name; uint64_t bytes; } types[] = {
        {".b8", 1}, {".u8", 1}, {".s8", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".b32", 4},
        {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, type) == 0)
            return types[i].bytes;
    return 0;
}

/* The next word of PTX: a name with its dots, or one other character. */
static const char *word(const char *text, char *out)
{
    size_t length = 0;
    text += strspn(text, " \t\r\n");
    while ((isalnum((unsigned char)text[length]) || strchr("._$%", text[length])) && text[length])
        length++;
    if (!length && *text)
        length = 1;
    size_t kept = length < NAME_MAX_BYTES - 1 ? length : NAME_MAX_BYTES - 1;
    memcpy(out, text, kept);
    out[kept] = '\0';
    return text + length;
}

/* `.global .align 4 .b8 table[4096];` and its like: name, and bytes of type times dimensions. */
static const char *read_global(const char *text, struct global *global)
{
    char token[NAME_MAX_BYTES];
    uint64_t element = 0, count = 1;
    *global = (struct global){0};
    while (*(text = word(text, token)) && *token && strcmp(token, ";") && strcmp(token, "=")) {
        if (strcmp(token, ".align") == 0)
            text = word(text, token);
        else if (strcmp(token, "[") == 0) {
            text = word(text, token);
            uint64_t dimension = strtoull(token, NULL, 10);
            if (dimension && __builtin_mul_overflow(count, dimension, &count))
                count = UINT64_MAX / 16;
        } else if (type_bytes(token))
            element = type_bytes(token);
        else if (isalpha((unsigned char)*token) || *token == '_' || *token == '$')
            memcpy(global->name, token, sizeof token);
    }
    global->bytes = count > UINT64_MAX / 16 ? UINT64_MAX / 16 : element * count;
    return text;
}

static bool read_ptx_globals(struct CUmod_st *module)
{
    char token[NAME_MAX_BYTES];
    for (const char *text = module->ptx; *text;) {
        text = word(text, token);
        if (strcmp(token, ".global") != 0)
            continue;
        struct global global, *more = realloc(module->globals, (module->global_count + 1) * sizeof *more);
        if (!more)
            return false;
        module->globals = more;
        text = read_global(text, &global);
        if (global.bytes && global.name[0])
            module->globals[module->global_count++] = global;
    }
    return true;
}

static uint64_t elf_bytes(const void *image)
{
    const Elf64_Ehdr *header = image;
    const Elf64_Shdr *sections = (const void *)((const char *)image + header->e_shoff);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_flags & SHF_ALLOC)
            bytes += sections[i].sh_size;
    return bytes;
}

/* What an image takes on the device, and its kind; false: it is none. */
static bool measure(struct CUmod_st *module, const void *image, uint64_t *bytes)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    *bytes = CODE_UNIT;
    if (magic == FATBIN_MAGIC) {
        uint64_t length;
        memcpy(&length, (const char *)image + 8, sizeof length);
        *bytes = length;
        return true;
    }
    if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        *bytes = elf_bytes(image);
        return true;
    }
    const char *text = (const char *)image + strspn(image, " \t\r\n");
    if (strncmp(text, "//", 2) != 0 && strncmp(text, ".version", 8) != 0)
        return false;
    module->is_ptx = true;
    module->ptx = strdup(image);
    if (!module->ptx || !read_ptx_globals(module))
        return false;
    for (size_t i = 0; i < module->global_count; i++) {
        module->globals[i].offset = *bytes;
        if (__builtin_add_overflow(*bytes, (module->globals[i].bytes + 255) / 256 * 256, bytes))
            *bytes = UINT64_MAX / 2;
    }
    return true;
}

static void drop(struct CUmod_st *module)
{
    while (module->functions) {
        struct CUfunc_st *next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    free(module->globals);
    free(module->ptx);
    free(module);
}

static CUresult load(CUmodule *loaded, const void *image)
{
    NEED(loaded && image);
    NEED_CONTEXT(context);
    struct CUmod_st *module = calloc(1, sizeof *module);
    uint64_t bytes;
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!measure(module, image, &bytes)) {
        drop(module);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    bytes = bytes > UINT64_MAX - CODE_UNIT ? bytes : (bytes + CODE_UNIT - 1) / CODE_UNIT * CODE_UNIT;
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

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    ENTER("cuda_module");
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

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER("cuda_module");
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

/* Whether PTX declares `.entry name`; of binaries we only know that something may be in there. */
static bool declares(const struct CUmod_st *module, const char *name)
{
    char token[NAME_MAX_BYTES];
    if (!module->is_ptx)
        return true;
    for (const char *text = module->ptx; *text;) {
        text = word(text, token);
        if (strcmp(token, ".entry") != 0)
            continue;
        text = word(text, token);
        if (strcmp(token, name) == 0)
            return true;
    }
    return false;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER("cuda_module");
    NEED(function && module && name);
    if (!declares(module, name))
        return CUDA_ERROR_NOT_FOUND;
    struct CUfunc_st *created = calloc(1, sizeof *created);
    if (!created)
        return CUDA_ERROR_OUT_OF_MEMORY;
    created->spins = strcmp(name, "spin") == 0;
    cuda_lock();
    created->next = module->functions;
    module->functions = created;
    cuda_unlock();
    *function = created;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    ENTER("cuda_module");
    NEED(module && name);
    for (size_t i = 0; i < module->global_count; i++) {
        const struct global *global = &module->globals[i];
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
