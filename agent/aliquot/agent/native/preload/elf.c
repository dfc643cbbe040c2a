/*
 * Reads the symbol tables of the loaded C library. We define dlsym, dlvsym and dlopen ourselves, so asking the linker
 * for those names answers ours; and which library and version holds them (libdl.so.2 or libc.so.6, 2.2.5 or 2.34)
 * depends on the age of the container. The tables in memory say it for any of them.
 */
#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN_VERSION 0x8000u

struct wanted {
    const char *name;
    void *found, *found_hidden;
};

struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    const ElfW(Versym) *versions;
    const uint32_t *gnu_hash;
};

/* Some linkers leave addresses in the dynamic section relative to the load address. */
static const void *address(ElfW(Addr) base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool read_tables(const struct dl_phdr_info *info, struct tables *tables)
{
    const ElfW(Dyn) *entry = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    *tables = (struct tables){0};
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        const void *at = address(info->dlpi_addr, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            tables->symbols = at;
        else if (entry->d_tag == DT_STRTAB)
            tables->strings = at;
        else if (entry->d_tag == DT_VERSYM)
            tables->versions = at;
        else if (entry->d_tag == DT_GNU_HASH)
            tables->gnu_hash = at;
    }
    return tables->symbols && tables->strings && tables->gnu_hash;
}

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    return hash;
}

static void look_up(const struct tables *tables, ElfW(Addr) base, struct wanted *wanted)
{
    const uint32_t buckets = tables->gnu_hash[0], first = tables->gnu_hash[1], bloom = tables->gnu_hash[2];
    const uint32_t *bucket = tables->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    const uint32_t hash = hash_of(wanted->name);
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    if (index < first)
        return;
    for (;; index++) {
        const ElfW(Sym) *symbol = &tables->symbols[index];
        const uint32_t here = chain[index - first];
        if ((here | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            strcmp(tables->strings + symbol->st_name, wanted->name) == 0) {
            bool hidden = tables->versions && (tables->versions[index] & HIDDEN_VERSION);
            void **found = hidden ? &wanted->found_hidden : &wanted->found;
            if (!*found)
                *found = (void *)(base + symbol->st_value);
        }
        if (here & 1)
            return;
    }
}

static bool is_libc(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libc-2.", 7) == 0 ||
           strncmp(name, "libdl.so", 8) == 0 || strncmp(name, "libdl-2.", 8) == 0 ||
           strncmp(name, "libpthread.so", 13) == 0 || strncmp(name, "libpthread-2.", 13) == 0;
}

static int visit(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct tables tables;
    (void)size;
    if (info->dlpi_name && is_libc(info->dlpi_name) && read_tables(info, &tables))
        look_up(&tables, info->dlpi_addr, argument);
    return 0;
}

void *libc_function(const char *name)
{
    struct wanted wanted = {.name = name};
    dl_iterate_phdr(visit, &wanted);
    return wanted.found ? wanted.found : wanted.found_hidden;
}

struct own {
    char *path;
    size_t size;
    bool found;
};

static int visit_own(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct own *own = argument;
    uintptr_t here = (uintptr_t)&own_path;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD || here < start || here - start >= segment->p_memsz)
            continue;
        size_t length = strlen(info->dlpi_name);
        own->found = length > 0 && length < own->size;
        if (own->found)
            memcpy(own->path, info->dlpi_name, length + 1);
        return 1;
    }
    return 0;
}

bool own_path(char *path, size_t size)
{
    struct own own = {.path = path, .size = size};
    dl_iterate_phdr(visit_own, &own);
    return own.found;
}
