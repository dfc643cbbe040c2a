/* Which device pointers this process holds: a hash table by first address, and the addresses themselves. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct allocation *table;
static size_t slots, used; /* slots is a power of two */

static size_t home(CUdeviceptr pointer)
{
    return (size_t)((pointer >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (slots - 1);
}

static struct allocation *slot_of(CUdeviceptr pointer)
{
    for (size_t i = home(pointer);; i = (i + 1) & (slots - 1))
        if (!table[i].pointer || table[i].pointer == pointer)
            return &table[i];
}

struct allocation *registry_find(CUdeviceptr pointer)
{
    struct allocation *slot = table && pointer ? slot_of(pointer) : NULL;
    return slot && slot->pointer ? slot : NULL;
}

struct allocation *registry_containing(CUdeviceptr pointer)
{
    struct allocation *exact = registry_find(pointer);
    for (size_t i = 0; !exact && i < slots; i++)
        if (table[i].pointer && table[i].pointer <= pointer && pointer - table[i].pointer < table[i].bytes)
            exact = &table[i];
    return exact;
}

static bool grow(void)
{
    struct allocation *old = table;
    size_t old_slots = slots, wanted = slots ? slots * 2 : 256;
    struct allocation *larger = calloc(wanted, sizeof *larger);
    if (!larger)
        return false;
    table = larger;
    slots = wanted;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].pointer)
            *slot_of(old[i].pointer) = old[i];
    free(old);
    return true;
}

bool registry_add(struct allocation allocation)
{
    if (used * 2 >= slots && !grow())
        return false;
    *slot_of(allocation.pointer) = allocation;
    used++;
    return true;
}

bool registry_remove(CUdeviceptr pointer, struct allocation *removed)
{
    struct allocation *slot = registry_find(pointer);
    if (!slot)
        return false;
    *removed = *slot;
    used--;
    /* Close the gap: an entry further on may have been pushed past its home by this one. */
    size_t gap = (size_t)(slot - table);
    for (size_t i = (gap + 1) & (slots - 1); table[i].pointer; i = (i + 1) & (slots - 1)) {
        size_t wanted = home(table[i].pointer);
        if (((i - wanted) & (slots - 1)) >= ((i - gap) & (slots - 1))) {
            table[gap] = table[i];
            gap = i;
        }
    }
    memset(&table[gap], 0, sizeof table[gap]);
    return true;
}

void registry_sweep(bool (*visit)(struct allocation *entry, void *argument), void *argument)
{
    struct allocation *old = table;
    size_t old_slots = slots;
    bool removed = false;
    for (size_t i = 0; i < old_slots; i++) {
        if (!old[i].pointer || !visit(&old[i], argument))
            continue;
        old[i].pointer = 0;
        removed = true;
        used--;
    }
    if (!removed)
        return;
    /* Put the rest back into place. */
    struct allocation *fresh = calloc(slots, sizeof *fresh);
    if (!fresh) /* lookups past a gap would miss: better to stop here than to lose memory silently */
        abort();
    table = fresh;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].pointer)
            *slot_of(old[i].pointer) = old[i];
    free(old);
}

void registry_clear(void)
{
    free(table);
    table = NULL;
    slots = used = 0;
}
