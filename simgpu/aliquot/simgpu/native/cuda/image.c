/*
 * What a module's image says: PTX is read as text, a cubin by its ELF sections, a fat binary by its length.
 */
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xBA55ED50u

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

static bool read_ptx_globals(struct image *image)
{
    char token[NAME_MAX_BYTES];
    for (const char *text = image->ptx; *text;) {
        text = word(text, token);
        if (strcmp(token, ".global") != 0)
            continue;
        struct global global, *more = realloc(image->globals, (image->global_count + 1) * sizeof *more);
        if (!more)
            return false;
        image->globals = more;
        text = read_global(text, &global);
        if (global.bytes && global.name[0])
            image->globals[image->global_count++] = global;
    }
    return true;
}

static uint64_t elf_bytes(const void *data)
{
    const Elf64_Ehdr *header = data;
    const Elf64_Shdr *sections = (const void *)((const char *)data + header->e_shoff);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_flags & SHF_ALLOC)
            bytes += sections[i].sh_size;
    return bytes;
}

bool image_read(struct image *image, const void *data)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    image->bytes = IMAGE_UNIT;
    if (magic == FATBIN_MAGIC) {
        memcpy(&image->bytes, (const char *)data + 8, sizeof image->bytes);
        return true;
    }
    if (memcmp(data, ELFMAG, SELFMAG) == 0) {
        image->bytes = elf_bytes(data);
        return true;
    }
    const char *text = (const char *)data + strspn(data, " \t\r\n");
    if (strncmp(text, "//", 2) != 0 && strncmp(text, ".version", 8) != 0)
        return false;
    image->ptx = strdup(data);
    if (!image->ptx || !read_ptx_globals(image))
        return false;
    for (size_t i = 0; i < image->global_count; i++) {
        image->globals[i].offset = image->bytes;
        if (__builtin_add_overflow(image->bytes, (image->globals[i].bytes + 255) / 256 * 256, &image->bytes))
            image->bytes = UINT64_MAX / 2;
    }
    return true;
}

/* What follows an entry point's name; NULL: there is none of that name. */
static const char *entry_point(const struct image *image, const char *name)
{
    char token[NAME_MAX_BYTES];
    for (const char *text = image->ptx; *text;) {
        text = word(text, token);
        if (strcmp(token, ".entry") != 0)
            continue;
        text = word(text, token);
        if (strcmp(token, name) == 0)
            return text;
    }
    return NULL;
}

bool image_declares(const struct image *image, const char *name)
{
    return !image->ptx || entry_point(image, name);
}

/* One declaration, `.param .align 8 .b8 name[16]` and its like, up to a comma or the closing bracket, which is left in
 * `token`. */
static const char *read_parameter(const char *text, char *token, size_t *alignment, size_t *bytes)
{
    size_t element = 0, count = 1;
    *alignment = 0;
    while (*(text = word(text, token)) && *token && strcmp(token, ",") && strcmp(token, ")")) {
        if (strcmp(token, ".align") == 0) {
            text = word(text, token);
            *alignment = strtoull(token, NULL, 10);
        } else if (strcmp(token, "[") == 0) {
            text = word(text, token);
            count = strtoull(token, NULL, 10);
        } else if (type_bytes(token))
            element = type_bytes(token);
    }
    *bytes = element * count;
    if (!*alignment)
        *alignment = element ? element : 1;
    return text;
}

bool image_parameter(const struct image *image, const char *entry, size_t number, size_t *offset, size_t *bytes)
{
    char token[NAME_MAX_BYTES];
    const char *text = entry_point(image, entry);
    size_t end = 0, alignment;
    if (!text)
        return false;
    text = word(text, token);
    if (strcmp(token, "(") != 0)
        return false;
    for (size_t i = 0; *text; i++) {
        text = read_parameter(text, token, &alignment, bytes);
        if (!*bytes)
            return false;
        *offset = (end + alignment - 1) / alignment * alignment;
        end = *offset + *bytes;
        if (i == number)
            return true;
        if (strcmp(token, ",") != 0)
            return false;
    }
    return false;
}

void image_drop(struct image *image)
{
    free(image->globals);
    free(image->ptx);
}
