/*
 * What the hooks share: which device of the lease a call is about, charging what is allocated, and what the driver
 * takes for itself in this process (contexts, code, limits), which is measured rather than guessed.
 */
#ifndef ALIQUOT_PRELOAD_PROCESS_H
#define ALIQUOT_PRELOAD_PROCESS_H

#include "book.h"
#include "driver.h"
#include "ledger.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNK (2 * MIB) /* the driver takes device memory in pieces of this size */

/* The lease's index of a CUDA ordinal: DEVICE_FOREIGN if the lease has no part of it, DEVICE_UNKNOWN if the driver
 * can't say (not initialised, no such device): then the call goes on, to fail with the driver's own error. Also where
 * another tier holds the memory: nothing is charged then. */
int device_of(CUdevice ordinal);

/* The index of the calling thread's current device, whoever holds its memory; below 0: none of the lease's. */
int device_launching(void);

/* The same for where memory is to be; DEVICE_HOST if it takes nothing of a device. A kind of place that is newer than
 * this library counts as the current device; where there is none, nobody could be charged: DEVICE_FOREIGN. */
enum { DEVICE_HOST = -3 };
int device_of_location(const CUmemLocation *location);

/* The same for the calling thread's current context; DEVICE_UNKNOWN where there is none. */
int device_current(CUcontext *context);

/* Of a context that was seen being created, else of the current one. */
int device_of_context(CUcontext context);
void context_seen(CUcontext context, int device);

CUdevice ordinal_of(int device); /* the last ordinal that device_of was asked about; -1: none */

uint64_t round_up(uint64_t bytes, uint64_t unit); /* saturates */

/* Charges an allocation of that many bytes, as the driver will: large ones in whole chunks, small ones packed into
 * chunks together. When there is no room, memory that is cached but unused is given up first. */
bool memory_charge(int device, uint64_t bytes);
void memory_credit(int device, uint64_t bytes);

/* Registers what was charged. When that fails the allocation must be undone. */
bool memory_record(struct entry entry);

/* Gives up cached memory of pools and graphs on the device. */
void reclaim(int device);

/* The driver's own part of this process on a device. internal_grow reserves an estimate (false: no room);
 * internal_settle replaces all estimates by what is measured, false: that doesn't fit. */
bool internal_grow(int device, uint64_t bytes);
void internal_shrink(int device, uint64_t bytes);
bool internal_settle(int device);
uint64_t internal_bytes(int device); /* charged for it now */
/* What settling must not go below: room promised for later in a context, such as a heap. */
void internal_promise(int device, CUcontext context, int64_t change);
void internal_forget_promises(int device, CUcontext context);

void process_forget(void);
void internal_forget(void);
void pools_forget(void);
void pools_refresh(int device, bool trim);
void graphs_refresh(int device, bool trim);
void graphs_forget(void);
void physical_forget(void);
void physical_refresh(int device);
void contexts_forget(void);
void measure_forget(void);
/* Called by the pointer free: the pointer was one of a pool's. */
void pool_pointer_freed(const struct entry *entry);

/* Nodes captured from a stream: charged before, taken back where the capture failed. */
bool graph_captures(CUstream stream, int device, uint64_t bytes);
void graph_captured_less(CUstream stream, int device, uint64_t bytes);

/* What the driver says this process holds on a device; false where it can't be had in here. */
bool measure(int device, uint64_t *bytes);
nvmlDevice_t nvml_handle(int device); /* NULL: likewise */

#endif
