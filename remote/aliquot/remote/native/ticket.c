/* Reads the ticket: JSON of our own launcher, of which only some members matter. Anything else is skipped. */
#include "ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20, DEPTH_MAX = 16, NAME_MAX_BYTES = 32 };

struct reader {
    const char *at; /* ends with a NUL, which is part of no value */
};

static void skip_space(struct reader *reader)
{
    reader->at += strspn(reader->at, " \t\r\n");
}

static bool take(struct reader *reader, char wanted)
{
    skip_space(reader);
    if (*reader->at != wanted)
        return false;
    reader->at++;
    return true;
}

/* A string; what is too long for `text` is cut off. Escapes of more than a character are not in what is read here. */
static bool read_string(struct reader *reader, char *text, size_t size)
{
    size_t length = 0;
    if (!take(reader, '"'))
        return false;
    while (*reader->at != '"') {
        if (*reader->at == '\\')
            reader->at++;
        if (*reader->at == '\0')
            return false;
        if (length + 1 < size)
            text[length++] = *reader->at;
        reader->at++;
    }
    reader->at++;
    if (size > 0)
        text[length] = '\0';
    return true;
}

static bool read_number(struct reader *reader, uint64_t *value)
{
    char *end;
    skip_space(reader);
    if (*reader->at < '0' || *reader->at > '9')
        return false;
    errno = 0;
    *value = strtoull(reader->at, &end, 10);
    reader->at = end;
    return errno == 0;
}

typedef bool (*member_reader)(struct reader *reader, const char *name, void *into);

static bool read_object(struct reader *reader, member_reader member, void *into)
{
    char name[NAME_MAX_BYTES];
    if (!take(reader, '{'))
        return false;
    if (take(reader, '}'))
        return true;
    do {
        if (!read_string(reader, name, sizeof name) || !take(reader, ':') || !member(reader, name, into))
            return false;
    } while (take(reader, ','));
    return take(reader, '}');
}

struct skipping {
    int depth;
};

static bool skip_value(struct reader *reader, int depth);

static bool skip_member(struct reader *reader, const char *name, void *into)
{
    (void)name;
    return skip_value(reader, ((struct skipping *)into)->depth);
}

static bool skip_value(struct reader *reader, int depth)
{
    struct skipping deeper = {depth + 1};
    if (depth > DEPTH_MAX)
        return false;
    skip_space(reader);
    if (*reader->at == '"')
        return read_string(reader, NULL, 0);
    if (*reader->at == '{')
        return read_object(reader, skip_member, &deeper);
    if (take(reader, '[')) {
        if (take(reader, ']'))
            return true;
        do {
            if (!skip_value(reader, depth + 1))
                return false;
        } while (take(reader, ','));
        return take(reader, ']');
    }
    size_t word = strspn(reader->at, "+-.0123456789abcdefghijklmnopqrstuvwxyzE"); /* a number, true, false or null */
    reader->at += word;
    return word > 0;
}

static bool part_member(struct reader *reader, const char *name, void *into)
{
    struct part *part = into;
    if (!strcmp(name, "slice_id"))
        return read_string(reader, part->id, sizeof part->id);
    if (!strcmp(name, "device_model"))
        return read_string(reader, part->model, sizeof part->model);
    if (!strcmp(name, "memory_bytes"))
        return read_number(reader, &part->memory_bytes);
    if (!strcmp(name, "used_bytes"))
        return read_number(reader, &part->used_bytes);
    if (!strcmp(name, "endpoint")) {
        char first[2];
        bool read = read_string(reader, first, sizeof first);
        part->served = read && first[0] != '\0';
        return read;
    }
    uint64_t percent;
    if (!strcmp(name, "busy_percent") && read_number(reader, &percent)) {
        part->busy_percent = percent < 100 ? (unsigned)percent : 100;
        return part->busy_known = true;
    }
    return skip_value(reader, 0); /* nobody has measured it where it is null */
}

static bool read_parts(struct reader *reader, struct ticket *ticket)
{
    if (!take(reader, '['))
        return false;
    if (take(reader, ']'))
        return true;
    do {
        struct part *more = realloc(ticket->parts, (ticket->count + 1) * sizeof *more);
        if (!more)
            return false;
        ticket->parts = more;
        memset(&more[ticket->count], 0, sizeof *more);
        if (!read_object(reader, part_member, &more[ticket->count++]))
            return false;
    } while (take(reader, ','));
    return take(reader, ']');
}

static bool ticket_member(struct reader *reader, const char *name, void *into)
{
    struct ticket *ticket = into;
    if (!strcmp(name, "parts") && ticket->count == 0)
        return read_parts(reader, ticket);
    if (!strcmp(name, "ending")) {
        char first[2];
        bool read = read_string(reader, first, sizeof first);
        ticket->ending = read && first[0] != '\0';
        return read;
    }
    return skip_value(reader, 0);
}

/* The content with a NUL behind it, from malloc; NULL where it can't be read. */
static char *read_file(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char *content = file < 0 ? NULL : malloc(FILE_BYTES_MAX + 1);
    size_t size = 0;
    while (content) {
        ssize_t got = read(file, content + size, FILE_BYTES_MAX - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            content[size] = '\0';
            break;
        }
        size += (size_t)got;
    }
    if (file >= 0)
        close(file);
    return content;
}

bool ticket_read(struct ticket *ticket)
{
    const char *path = getenv("ALIQUOT_REMOTE_TICKET");
    char *content = path && *path ? read_file(path) : NULL;
    struct reader reader = {content};
    *ticket = (struct ticket){0};
    bool read = content && read_object(&reader, ticket_member, ticket);
    free(content);
    if (!read)
        ticket_free(ticket);
    return read;
}

void ticket_free(struct ticket *ticket)
{
    free(ticket->parts);
    *ticket = (struct ticket){0};
}
