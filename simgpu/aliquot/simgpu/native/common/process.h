/* Who a process is: what /proc says about identity, life and cgroup. */
#ifndef ALIQUOT_PROCESS_H
#define ALIQUOT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process_identity {
    pid_t pid;
    uint64_t start_ticks;
    uint64_t stack_start; /* 0 where we may not see it */
};

struct cgroup_identity {
    uint64_t device, inode; /* of the cgroup v2 directory; both 0 where it can't be found */
};

/* False where no such process lives; a zombie has already given its GPU memory back, and counts as dead. */
bool process_identify(pid_t pid, struct process_identity *identity);

/* Whether the process that had this identity still runs the same program. */
bool process_alive(const struct process_identity *identity);

/* The cgroup v2 directory that this process is in now. */
struct cgroup_identity process_own_cgroup(void);

/* Identifies a cgroup v2 directory by its path; false where it is none. */
bool cgroup_identify(const char *path, struct cgroup_identity *identity);

/* The program's name as NVML tells it: the path of the executable, or its short name. */
bool process_name(pid_t pid, char *name, size_t size);

#endif
