/* The lease's ticket, as far as NVML tells of it: what each part is, and what the pool last measured. */
#ifndef ALIQUOT_REMOTE_TICKET_H
#define ALIQUOT_REMOTE_TICKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_MAX = 96 }; /* bytes of a UUID or a name, as NVML's callers have room for */

struct part {
    char id[TEXT_MAX];
    char model[TEXT_MAX];
    uint64_t memory_bytes, used_bytes;
    unsigned busy_percent;
    bool busy_known;
    bool served;
};

struct ticket {
    struct part *parts;
    size_t count;
    bool ending;
};

/* Reads the file that ALIQUOT_REMOTE_TICKET names; false where there is none, or it is no ticket. It is read anew each
 * time, since `aliquot run` writes it anew. What was read is given back by ticket_free. */
bool ticket_read(struct ticket *ticket);
void ticket_free(struct ticket *ticket);

#endif
