/*
 * Memory that is held longer than the program's own handles say: freed on a stream that has not got there yet, or
 * exported by a descriptor that is still open somewhere. Nobody tells when that ends, so it is looked for whenever
 * memory is wanted.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

struct later {
    struct allocation entry; /* freed; pointer 0: exported memory */
    uint64_t due_ns;
    struct share_ticket ticket;
    int probe; /* of the same file as the descriptor that went out */
    struct later *next;
};

static struct later *waiting;

static bool wait_with(struct later one)
{
    struct later *added = malloc(sizeof *added);
    if (!added)
        return false;
    *added = one;
    added->next = waiting;
    waiting = added;
    return true;
}

void later_free(const struct allocation *entry, uint64_t due_ns)
{
    if (due_ns <= cuda_time_ns(entry->ordinal) || !wait_with((struct later){.entry = *entry, .due_ns = due_ns, .probe = -1}))
        cuda_release_entry(entry);
}

/* The lock belongs to the open file, however many descriptors of it there are and in whatever processes. */
static struct flock whole(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
}

bool later_exported(const struct share_ticket *ticket, int descriptor)
{
    char path[64];
    struct flock lock = whole();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int probe = open(path, O_RDWR | O_CLOEXEC);
    machine_lock();
    bool held = probe >= 0 && fcntl(descriptor, F_OFD_SETLK, &lock) == 0 && share_hold(ticket);
    machine_unlock();
    if (held && wait_with((struct later){.ticket = *ticket, .probe = probe}))
        return true;
    if (probe >= 0)
        close(probe);
    return false;
}

static bool over(const struct later *one)
{
    struct flock lock = whole();
    if (one->entry.pointer)
        return one->due_ns <= cuda_time_ns(one->entry.ordinal);
    return fcntl(one->probe, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK;
}

void later_settle(void)
{
    for (struct later **link = &waiting; *link;) {
        struct later *one = *link;
        if (!over(one)) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        if (one->entry.pointer) {
            cuda_release_entry(&one->entry);
        } else {
            close(one->probe);
            machine_lock();
            share_release(&one->ticket);
            machine_unlock();
        }
        free(one);
    }
}

void later_forget(void)
{
    while (waiting) {
        struct later *next = waiting->next;
        if (waiting->probe >= 0)
            close(waiting->probe);
        free(waiting);
        waiting = next;
    }
}
