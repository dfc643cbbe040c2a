/* Who a process is: what /proc says about identity, life and cgroup. */
#ifndef ALIQUOT_PROCESS_H
#define ALIQUOT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "scenario.h"

struct process_identity {
    pid_t pid;
    uint64_t start_ticks;
    uint64_t stack_start; /* 0 where we may not see it */
};

struct cgroup_line {
    uint64_t device, inodes[CGROUP_DEPTH]; /* of a cgroup v2 directory and those above it; 0 where there is none */
};

/* False where no such process lives; a zombie has already given its GPU memory back, and counts as dead. */
bool process_identify(pid_t pid, struct process_identity *identity);

/* Whether the process that had this identity still runs the same program. */
bool process_alive(const struct process_identity *identity);

/* The cgroup v2 directory that this process is in now, and those above it. */
struct cgroup_line process_own_cgroups(void);

/* Identifies a cgroup v2 directory by its path; false where it is none. */
bool cgroup_identify(const char *path, struct cgroup_line *line);

/* The program's name as NVML tells it: the path of the executable, or its short name. */
bool process_name(pid_t pid, char *name, size_t size);

#endif
