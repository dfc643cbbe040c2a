/* A hash table with open addressing; gaps are closed at removal, so that it never has to be cleaned up. */
#include "ledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table;
static size_t slots, used; /* slots is a power of two, or 0 */

static size_t home(enum space space, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)space << 56)) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 32) & (slots - 1);
}

static struct entry *slot_of(enum space space, uint64_t key)
{
    size_t i = home(space, key);
    while (table[i].space && (table[i].key != key || table[i].space != space))
        i = (i + 1) & (slots - 1);
    return &table[i];
}

static bool grow(void)
{
    struct entry *old = table;
    const size_t old_slots = slots, wanted = slots ? slots * 2 : 256;
    struct entry *larger = calloc(wanted, sizeof *larger);
    if (!larger)
        return false;
    table = larger;
    slots = wanted;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].space)
            *slot_of(old[i].space, old[i].key) = old[i];
    free(old);
    return true;
}

static void remove_at(struct entry *entry)
{
    size_t gap = (size_t)(entry - table);
    used--;
    for (size_t i = (gap + 1) & (slots - 1); table[i].space; i = (i + 1) & (slots - 1)) {
        const size_t wanted = home(table[i].space, table[i].key);
        if (((i - wanted) & (slots - 1)) >= ((i - gap) & (slots - 1))) {
            table[gap] = table[i];
            gap = i;
        }
    }
    memset(&table[gap], 0, sizeof table[gap]);
}

bool ledger_put(struct entry entry, struct entry *old)
{
    pthread_mutex_lock(&mutex);
    const bool room = (used + 1) * 2 <= slots || grow();
    if (room) {
        struct entry *slot = slot_of(entry.space, entry.key);
        *old = *slot;
        used += !slot->space;
        *slot = entry;
    }
    pthread_mutex_unlock(&mutex);
    return room;
}

static bool look(enum space space, uint64_t key, struct entry *out, bool take)
{
    pthread_mutex_lock(&mutex);
    struct entry *slot = slots ? slot_of(space, key) : NULL;
    const bool found = slot && slot->space;
    if (found) {
        *out = *slot;
        if (take)
            remove_at(slot);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool ledger_find(enum space space, uint64_t key, struct entry *found)
{
    return look(space, key, found, false);
}

bool ledger_take(enum space space, uint64_t key, struct entry *taken)
{
    return look(space, key, taken, true);
}

static bool look_any(bool (*match)(const struct entry *, const void *), const void *argument, struct entry *out,
                     bool take)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < slots && !found; i++) {
        if (!table[i].space || !match(&table[i], argument))
            continue;
        found = true;
        *out = table[i];
        if (take)
            remove_at(&table[i]);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool ledger_take_any(bool (*match)(const struct entry *, const void *), const void *argument, struct entry *taken)
{
    return look_any(match, argument, taken, true);
}

bool ledger_find_any(bool (*match)(const struct entry *, const void *), const void *argument, struct entry *found)
{
    return look_any(match, argument, found, false);
}

void ledger_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    free(table);
    table = NULL;
    slots = used = 0;
}
