/* What this process holds, by handle: so that a free gives back exactly what its allocation was charged. */
#ifndef ALIQUOT_PRELOAD_LEDGER_H
#define ALIQUOT_PRELOAD_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

/* Handles of different kinds may be equal numbers. */
enum space { POINTER = 1, ARRAY, MIPMAP, PHYSICAL, MAPPING, MODULE, GRAPH, GRAPH_EXEC, GRAPH_CAPTURE };

struct entry {
    uint64_t key;
    uint64_t bytes;
    void *context; /* it goes with this one; NULL: with none */
    void *owner;   /* pool, physical memory or graph, by space */
    int32_t device;
    enum space space;
};

/* False: no memory. An entry that is there already is replaced and answered in `*old` (else old->space is 0). */
bool ledger_put(struct entry entry, struct entry *old);
bool ledger_find(enum space space, uint64_t key, struct entry *found);
bool ledger_take(enum space space, uint64_t key, struct entry *taken);
/* Takes out one entry that `match` accepts, false: there is none. Looks at all of them. */
bool ledger_take_any(bool (*match)(const struct entry *entry, const void *argument), const void *argument,
                     struct entry *taken);
bool ledger_find_any(bool (*match)(const struct entry *entry, const void *argument), const void *argument,
                     struct entry *found);
void ledger_forget(void);

#endif
