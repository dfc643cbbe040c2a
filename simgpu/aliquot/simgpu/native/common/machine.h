/* The simulated machine as this process sees it: the mapped scenario, its lock, and the books of device memory. */
#ifndef ALIQUOT_MACHINE_H
#define ALIQUOT_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "process.h"
#include "scenario.h"

/* Where a process's memory lives: a device, or a MIG instance of it. */
struct place {
    uint32_t device;
    uint32_t gpu_instance;     /* id, or NO_INSTANCE */
    uint32_t compute_instance; /* id, or NO_INSTANCE */
};

enum charge_kind { CHARGE_MEMORY, CHARGE_CONTEXT, CHARGE_MANAGED };

/* Maps the file named by ALIQUOT_SIMGPU; NULL where there is none or it isn't a scenario of this version.
 * The mapping is kept; another value of the variable maps another file. */
struct scenario *machine_open(void);

/* The mapping that machine_open made, or NULL. */
struct scenario *machine(void);

/* How many files have been mapped so far: what was remembered of an earlier one is void. */
uint64_t machine_mapping(void);

/* An owner that died within the lock left nothing half done that matters: every sum is taken from the tables. */
void machine_lock(void);
void machine_unlock(void);

uint64_t monotonic_ns(void);
uint64_t realtime_us(void);

/* The calls below want the lock. */

/* Forgets the accounts and shared holdings of processes that are gone. */
void books_reap(struct sim_device *device);

/* Memory held on the device (gpu_instance NO_INSTANCE) or on one of its GPU instances, without the driver's own. */
uint64_t books_used_bytes(const struct sim_device *device, uint32_t gpu_instance);

/* What a place holds in all, and what could still be allocated there. */
uint64_t books_total_bytes(const struct sim_device *device, uint32_t gpu_instance);
uint64_t books_free_bytes(const struct sim_device *device, uint32_t gpu_instance);

/* Shared memory that is booked on this account's process, because it is the first holder left. */
uint64_t books_shared_bytes(const struct sim_device *device, const struct sim_account *account);

/* This process's account at the place; NULL where create is false and there is none, or the table is full. */
struct sim_account *books_account(struct place place, bool create);
void books_close(struct place place);

/* Reserves bytes or leaves all as it was; false: they don't fit into the device, instance or cgroup limit. */
bool books_charge(struct place place, enum charge_kind kind, uint64_t bytes);
void books_credit(struct place place, enum charge_kind kind, uint64_t bytes);

/* The limit set on a cgroup itself for the device, if any; drops limits whose cgroup is gone. */
struct sim_limit *books_limit(struct sim_device *device, uint64_t cgroup_device, uint64_t cgroup_inode);

/* The limit that a process in a cgroup is shown, and Get answers with: by the driver's own books the nearest at or
 * above it; where limits nest, its own alone. */
struct sim_limit *books_shown_limit(struct sim_device *device, const struct cgroup_line *line);

/* What counts against a limit. Managed memory doesn't. */
uint64_t books_limited_bytes(struct sim_device *device, const struct sim_limit *limit);

/* Busy time of an account in the last full second, in percent. */
uint32_t account_sm_percent(const struct sim_account *account, uint64_t now_ns);

/* Gives a device's time until now to those that had queued work (sharing.c). */
void share_out(struct sim_device *device, uint64_t now_ns);

/* An account's own time: it goes slower than CLOCK_MONOTONIC while others use the device too. */
uint64_t account_time_ns(const struct sim_account *account, uint64_t now_ns);

/* Forget what this process knows of itself (after a fork), and its identity. */
void machine_forget_self(void);
const struct process_identity *machine_self(void);

#endif
