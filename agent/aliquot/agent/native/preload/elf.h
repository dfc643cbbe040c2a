/* Finding functions of the C library without asking the dynamic linker by name: it would find our own first. */
#ifndef ALIQUOT_PRELOAD_ELF_H
#define ALIQUOT_PRELOAD_ELF_H

#include <stdbool.h>
#include <stddef.h>

/* The function of the C library (libc, libdl or libpthread) as programs of today would bind it, or NULL. */
void *libc_function(const char *name);

/* The path of the file that this library was loaded from; false where it doesn't fit. */
bool own_path(char *path, size_t size);

#endif
