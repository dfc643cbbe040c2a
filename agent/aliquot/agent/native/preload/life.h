/* Who a process is, and whether the one that took a slot still lives. */
#ifndef ALIQUOT_PRELOAD_LIFE_H
#define ALIQUOT_PRELOAD_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

struct identity {
    int32_t pid;
    uint64_t start_ticks;
    uint64_t pid_namespace;
};

struct identity life_self(void);

/* Holds a lock on the slot's byte of the account file for as long as this process runs this program: the kernel drops
 * it at death or exec, whatever the pid namespace of who asks. False where the kernel has no such locks. */
bool life_lock(const char *account_path, int slot);

/* Whether the owner of a slot lives. `account_fd` is open for reading and writing. */
bool life_goes_on(const struct slot *slot, int index, const struct identity *self, int account_fd);

bool in_first_pid_namespace(void);

#endif
