/*
 * The two files beside this library that make it a lease's (aliquot.agent.enforce.preload_files is their other end):
 *
 *   limit    belongs to the agent; the lease's processes can only read it. What they may hold, per device.
 *   account  the lease's processes write what they hold into it. Who forges it deceives only its own lease, and only
 *            until the agent compares it with what the driver says (limit.excess_bytes), at most a poll later.
 *
 * Fixed sizes and natural alignment. Change a structure here and in preload_files.py together, and raise the version.
 */
#ifndef ALIQUOT_PRELOAD_LAYOUT_H
#define ALIQUOT_PRELOAD_LAYOUT_H

#include <pthread.h>
#include <stdint.h>

#define LIMIT_MAGIC UINT64_C(0x314d494c5141)     /* "AQLIM1", little endian */
#define ACCOUNT_MAGIC UINT64_C(0x314343415141)   /* "AQACC1" */
#define LAYOUT_VERSION 2u

#define UNLIMITED_BYTES (UINT64_C(1) << 62) /* of memory: another tier holds it, and this library the pace alone */

enum { DEVICES_MAX = 16, SLOTS_MAX = 512 };

struct limit_device {
    unsigned char uuid[16];
    uint64_t memory_bytes;  /* (atomic) what all processes of the lease may hold together */
    uint64_t excess_bytes;  /* (atomic) held by them according to the driver, beyond what `account` says */
    uint64_t context_bytes; /* what a context takes, reserved before one is made; the truth is measured then */
    uint64_t used_us;       /* (atomic) of the device's time, used by the lease while its launches were paced */
    uint32_t paced;         /* whether launches may ever have to wait; where not, they are not looked up as ours */
    uint32_t allowed_milli; /* (atomic) of the device's time, for now; 0: as much as there is */
};

struct limit_file {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    char lease[64];
    struct limit_device devices[DEVICES_MAX];
};

struct slot {
    int32_t pid; /* in its own namespace; 0: free */
    uint32_t life_locked;
    uint64_t start_ticks;
    uint64_t pid_namespace;
    uint64_t held[DEVICES_MAX];
};

/* How fast the lease's processes launch on a device, together. All atomic, and in nobody's lock. */
struct pace {
    uint64_t next_ns;      /* CLOCK_MONOTONIC: when the next launch may go */
    uint64_t cost_ns;      /* of the device's time, that a launch was seen to take on average; 0: not known yet */
    uint64_t made;         /* launches */
    uint64_t seen_made, seen_used_us; /* at the last measurement */
};

struct account_file {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_count;
    union {
        pthread_mutex_t mutex; /* robust, process-shared; made by the agent */
        uint64_t mutex_room[8];
    };
    uint64_t held[DEVICES_MAX]; /* sums over the slots */
    uint64_t peak[DEVICES_MAX]; /* the most held at any moment since the agent last looked; it sets it to 0 */
    struct slot slots[SLOTS_MAX];
    uint64_t context[DEVICES_MAX]; /* the least that making a context was seen to take; 0: not measured yet */
    struct pace paces[DEVICES_MAX];
};

#endif
