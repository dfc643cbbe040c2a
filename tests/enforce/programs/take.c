/*
 * Takes device memory piece by piece until it is refused, says how much in one line of JSON, and holds it until its
 * standard input is closed. How it comes to the driver's functions is its first argument:
 *
 *   linked           the dynamic linker binds them (compiled with -DLINKED)
 *   open PATH        dlopen and dlsym
 *   deepbind PATH    dlopen with RTLD_DEEPBIND of a library that is linked with the driver
 *   namespace PATH   the same, by dlmopen in a namespace of its own
 *   dlvsym PATH      dlvsym instead of dlsym
 *   tables PATH      the driver's symbol table, read by itself
 *   attack FOLDER    like open, after trying to change what the folder says of its lease's limit
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct calls {
    int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*alloc)(unsigned long long *, size_t);
};

#ifdef LINKED
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);

struct calls linked_calls(void);
struct calls linked_calls(void)
{
    return (struct calls){cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2};
}
#endif

#ifndef LIBRARY
static void *by_tables(void *handle, const char *name)
{
    struct link_map *map;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map))
        return NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
    }
    /* The string table follows the symbol table in every library that linkers make. */
    for (const ElfW(Sym) *symbol = symbols; (const char *)symbol < strings; symbol++)
        if (symbol->st_shndx != SHN_UNDEF && strcmp(strings + symbol->st_name, name) == 0)
            return (void *)(map->l_addr + symbol->st_value);
    return NULL;
}

static void *by_dlvsym(void *handle, const char *name)
{
    void *found = dlvsym(handle, name, "LIBCUDA_1");
    return found ? found : dlsym(handle, name);
}

static struct calls find(const char *how, const char *path)
{
    struct calls calls = {0};
    void *(*look)(void *, const char *) = strcmp(how, "tables") == 0   ? by_tables
                                          : strcmp(how, "dlvsym") == 0 ? by_dlvsym
                                                                       : (void *(*)(void *, const char *))dlsym;
#ifdef LINKED
    if (strcmp(how, "linked") == 0)
        return linked_calls();
#endif
    const int apart = strcmp(how, "namespace") == 0;
    void *handle = apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW)
                         : dlopen(path, RTLD_NOW | (strcmp(how, "deepbind") == 0 ? RTLD_DEEPBIND : 0));
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(5);
    }
    if (apart || strcmp(how, "deepbind") == 0)
        return ((struct calls(*)(void))dlsym(handle, "linked_calls"))();
    calls.init = (int (*)(unsigned))look(handle, "cuInit");
    calls.retain = (int (*)(void **, int))look(handle, "cuDevicePrimaryCtxRetain");
    calls.current = (int (*)(void *))look(handle, "cuCtxSetCurrent");
    calls.alloc = (int (*)(unsigned long long *, size_t))look(handle, "cuMemAlloc_v2");
    return calls;
}

/* Ends the program where any of it succeeds. */
static void attack(const char *folder)
{
    char limit[600], other[600];
    snprintf(limit, sizeof limit, "%s/limit", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    if (open(limit, O_RDWR) >= 0 || truncate(limit, 0) == 0 || chmod(limit, 0666) == 0 || unlink(limit) == 0 ||
        creat(other, 0666) >= 0 || symlink("/dev/null", other) == 0 || rename(folder, other) == 0)
        exit(6);
}

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "linked";
    if (strcmp(how, "attack") == 0) {
        attack(words[2]);
        count = 1, how = "open";
    }
    struct calls calls = find(how, count > 2 ? words[2] : "libcuda.so.1");
    const size_t piece = (size_t)64 << 20, most = (size_t)6 << 30;
    unsigned long long pointer;
    size_t held = 0;
    void *context;
    int error = calls.init(0);
    if (!error)
        error = calls.retain(&context, 0);
    if (!error)
        error = calls.current(context);
    while (!error && held + piece <= most && !(error = calls.alloc(&pointer, piece)))
        held += piece;
    printf("{\"pid\": %d, \"error\": %d, \"held_bytes\": %zu}\n", (int)getpid(), error, held);
    fflush(stdout);
    for (char byte; read(STDIN_FILENO, &byte, 1) > 0;)
        continue;
    return 0;
}
#endif
