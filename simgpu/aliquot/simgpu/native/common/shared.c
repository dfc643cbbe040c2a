#include "shared.h"

#include <string.h>

static struct sim_shared *entry_of(const struct share_ticket *ticket)
{
    struct scenario *scenario = machine();
    if (ticket->magic != SHARE_MAGIC || ticket->slot >= SHARED_MAX || ticket->device >= scenario->device_count)
        return NULL;
    books_reap(&scenario->devices[ticket->device]);
    struct sim_shared *entry = &scenario->shared[ticket->slot];
    return entry->in_use && entry->serial == ticket->serial ? entry : NULL;
}

const struct sim_shared *share_find(const struct share_ticket *ticket)
{
    return entry_of(ticket);
}

static struct sim_holder *own_holder(struct sim_shared *entry)
{
    const struct process_identity *own = machine_self();
    for (uint32_t i = 0; i < HOLDERS_MAX; i++)
        if (entry->holders[i].pid == own->pid && entry->holders[i].start_ticks == own->start_ticks)
            return &entry->holders[i];
    return NULL;
}

bool share_hold(const struct share_ticket *ticket)
{
    struct sim_shared *entry = entry_of(ticket);
    if (!entry)
        return false;
    struct sim_holder *holder = own_holder(entry);
    for (uint32_t i = 0; !holder && i < HOLDERS_MAX; i++) {
        if (entry->holders[i].pid)
            continue;
        const struct process_identity *own = machine_self();
        holder = &entry->holders[i];
        *holder = (struct sim_holder){
            .pid = own->pid, .start_ticks = own->start_ticks, .stack_start = own->stack_start};
    }
    if (holder)
        holder->references++;
    return holder != NULL;
}

void share_release(const struct share_ticket *ticket)
{
    struct sim_shared *entry = entry_of(ticket);
    struct sim_holder *holder = entry ? own_holder(entry) : NULL;
    if (!holder || --holder->references)
        return;
    uint32_t index = (uint32_t)(holder - entry->holders);
    memmove(holder, holder + 1, (HOLDERS_MAX - 1 - index) * sizeof *holder);
    memset(&entry->holders[HOLDERS_MAX - 1], 0, sizeof *holder);
    if (!entry->holders[0].pid)
        memset(entry, 0, sizeof *entry);
}

bool share_create(struct place place, uint64_t bytes, struct share_ticket *ticket)
{
    struct scenario *scenario = machine();
    for (uint32_t slot = 0; slot < SHARED_MAX; slot++) {
        struct sim_shared *entry = &scenario->shared[slot];
        if (entry->in_use)
            continue;
        const struct process_identity *own = machine_self();
        *entry = (struct sim_shared){.device = place.device,
                                     .gpu_instance = place.gpu_instance,
                                     .serial = scenario->next_serial++,
                                     .bytes = bytes};
        entry->holders[0] = (struct sim_holder){.pid = own->pid,
                                                .references = 1,
                                                .start_ticks = own->start_ticks,
                                                .stack_start = own->stack_start};
        if (scenario->shared_count <= slot)
            scenario->shared_count = slot + 1;
        /* Both within one hold of the lock: nobody sees the memory twice, or not at all. */
        entry->in_use = 1;
        books_credit(place, CHARGE_MEMORY, bytes);
        *ticket = (struct share_ticket){.magic = SHARE_MAGIC,
                                        .slot = slot,
                                        .device = place.device,
                                        .serial = entry->serial,
                                        .bytes = bytes};
        return true;
    }
    return false;
}
