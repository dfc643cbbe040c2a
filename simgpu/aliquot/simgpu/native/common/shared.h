/* Memory that several processes may hold: one entry in the scenario's table, booked once, whoever holds it. */
#ifndef ALIQUOT_SHARED_H
#define ALIQUOT_SHARED_H

#include "machine.h"

/* What travels between processes, in an IPC handle or in the file behind a descriptor. */
struct share_ticket {
    uint64_t magic;
    uint32_t slot, device;
    uint64_t serial, bytes;
};

#define SHARE_MAGIC UINT64_C(0x524148534d495351)

/* The calls below want the machine lock. */

/* Moves `bytes` of this process's account into an entry of their own that it holds. False: the table is full. */
bool share_create(struct place place, uint64_t bytes, struct share_ticket *ticket);

/* Holds the entry once more; false where it is gone, or has too many holders. */
bool share_hold(const struct share_ticket *ticket);

/* Lets go once; the memory is free when nobody holds it any longer. */
void share_release(const struct share_ticket *ticket);

/* The entry, or NULL where nobody holds it any longer. */
const struct sim_shared *share_find(const struct share_ticket *ticket);

#endif
