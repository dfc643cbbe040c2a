/* A module's image, as far as this driver looks into it. */
#ifndef ALIQUOT_CUDA_IMAGE_H
#define ALIQUOT_CUDA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME_MAX_BYTES 128
#define IMAGE_UNIT (UINT64_C(64) << 10) /* code is loaded in pieces of this size */

struct global {
    char name[NAME_MAX_BYTES];
    uint64_t bytes, offset;
};

struct image {
    uint64_t bytes; /* what it takes on the device, globals and all */
    char *ptx;      /* its text; NULL for a binary */
    struct global *globals;
    size_t global_count;
};

/* Reads an image; false: it is none, or there is no memory. `image` must be zero, and be dropped either way. */
bool image_read(struct image *image, const void *data);

/* Whether it has an entry point of this name; of a binary we only know that it may. */
bool image_declares(const struct image *image, const char *name);

/* Place and size of one parameter of an entry point, as PTX declares it; false: there is none of that number. */
bool image_parameter(const struct image *image, const char *entry, size_t number, size_t *offset, size_t *bytes);

void image_drop(struct image *image);

#endif
