/* What the CUDA files share: the process's runtime state, how a call begins, contexts and allocations. */
#ifndef ALIQUOT_CUDA_INTERNAL_H
#define ALIQUOT_CUDA_INTERNAL_H

#include <stdbool.h>

#include "../common/inject.h"
#include "../common/machine.h"
#include "../common/shared.h"
#include "abi.h"

#define EXPORT __attribute__((visibility("default")))

/* One more exported name of a function with the same interface: a version, or the per-thread-stream variant. */
#define ALIAS(name, original) EXPORT __typeof__(original) name __attribute__((alias(#original)))

struct visible {
    struct place place;
    char uuid[64];
};

struct CUctx_st {
    int ordinal;
    bool primary, alive;
    unsigned references; /* of a primary context */
    unsigned flags;
    uint64_t booked; /* its cost, without what grows with limits */
    uint64_t grown;  /* by cuCtxSetLimit */
    size_t limits[CU_LIMITS];
    uint64_t id;
    uint64_t busy_until_ns; /* in the process's own time on the device: when the last kernel of this context is done */
};

enum allocation_kind {
    ALLOCATION_DEVICE,   /* cuMemAlloc, cuMemAllocPitch */
    ALLOCATION_MANAGED,
    ALLOCATION_POOL,     /* stream ordered; the owner is its pool */
    ALLOCATION_GRAPH,    /* live memory of a graph's allocation node; the owner is that node */
    ALLOCATION_EXPORTED, /* was DEVICE, and other processes may hold it now; booked in the shared table */
    ALLOCATION_IMPORTED, /* another process's memory */
    ALLOCATION_VIEW,     /* an address of something that is booked elsewhere */
    ALLOCATION_MAPPED,   /* a mapping into an address reservation: see vmm.c */
    ALLOCATION_MODULE,   /* goes with its module */
    ALLOCATION_ARRAY,    /* the owner is its descriptor */
    ALLOCATION_MIPMAP,
};

struct allocation {
    CUdeviceptr pointer; /* 0: empty slot */
    uint64_t bytes;      /* asked for */
    uint64_t booked;
    enum allocation_kind kind;
    int ordinal;
    struct CUctx_st *context; /* it dies with this one; NULL: with the process */
    void *owner;
    struct share_ticket ticket; /* of EXPORTED and IMPORTED */
};

struct runtime {
    struct visible visible[DEVICES_MAX];
    int visible_count;
    struct CUctx_st *primary[DEVICES_MAX];
    uint64_t generation; /* differs after a fork */
    uint64_t next_id;
};

extern struct runtime runtime;

/* Begins a call: the library is initialised in this very process (not merely in the one it was forked from), the
 * injected faults are served, and the current context's device is still there. */
CUresult cuda_begin(struct inject_site *site, const char *symbol, const char *call_class);

#define ENTER(call_class)                                                  \
    do {                                                                   \
        static struct inject_site site_;                                   \
        CUresult begun_ = cuda_begin(&site_, __func__, call_class);        \
        if (begun_ != CUDA_SUCCESS)                                        \
            return begun_;                                                 \
    } while (0)

#define NEED(condition)                       \
    do {                                      \
        if (!(condition))                     \
            return CUDA_ERROR_INVALID_VALUE;  \
    } while (0)

/* The thread's current context, or NULL. */
struct CUctx_st *cuda_context(void);

#define NEED_CONTEXT(name)                    \
    struct CUctx_st *name = cuda_context();   \
    if (!name)                                \
        return CUDA_ERROR_INVALID_CONTEXT

/* The process's own lock: registry, contexts, pools, graphs. Taken before the machine lock, never after it. */
void cuda_lock(void);
void cuda_unlock(void);

/* Takes this process in as a client of MPS where its environment says so (mps.c). False: there is no room. */
bool mps_connect(int ordinal);

/* At initialisation: does not come back while the server that this process would come to takes nobody any more. */
void mps_wait(int ordinal);

struct sim_device *cuda_device(int ordinal); /* NULL: no such ordinal */
struct place cuda_place(int ordinal);
uint64_t cuda_time_ns(int ordinal); /* this process's own time on the device: see common/sharing.c */
int cuda_ordinal_of(uint32_t device); /* -1: the process doesn't see it */
uint64_t cuda_total_bytes(int ordinal); /* without what the driver reserves; a cgroup's limit if that is less */

/* Books memory on a device or gives it back. Takes the machine lock; under cuda_lock, because memory that pools keep
 * for later makes way where there is no other left. */
bool cuda_charge(int ordinal, enum charge_kind kind, uint64_t bytes);
bool cuda_charge_once(int ordinal, enum charge_kind kind, uint64_t bytes);
void cuda_credit(int ordinal, enum charge_kind kind, uint64_t bytes);
uint64_t cuda_round(uint64_t bytes); /* to the granularity memory is booked in */

/* Registry of device pointers; under cuda_lock. Pointers returned stay valid until the next change. */
struct allocation *registry_find(CUdeviceptr pointer);    /* by its first address */
struct allocation *registry_containing(CUdeviceptr pointer);
bool registry_add(struct allocation allocation);
bool registry_remove(CUdeviceptr pointer, struct allocation *removed);
/* Calls `visit` on each entry; those for which it answers true are removed afterwards. */
void registry_sweep(bool (*visit)(struct allocation *entry, void *argument), void *argument);
void registry_clear(void);

/* Device addresses: from a range that the process reserves without memory behind it. 0: none left. */
CUdeviceptr addresses_take(uint64_t bytes, uint64_t alignment);
void addresses_give(CUdeviceptr address, uint64_t bytes);
bool addresses_within(CUdeviceptr pointer, uint64_t bytes); /* all of it in one allocation of this process */
void addresses_forget(void);
bool addresses_backed(void); /* ALIQUOT_SIMGPU_BACKED=1: device addresses are real host memory */

/* Allocates and registers, or frees, under cuda_lock. */
CUresult cuda_allocate(struct CUctx_st *context, uint64_t bytes, enum allocation_kind kind, void *owner,
                       CUdeviceptr *pointer);
CUresult cuda_free(CUdeviceptr pointer);
void cuda_release_entry(const struct allocation *entry); /* books and address of an entry already out of the registry */

/* Pools of stream-ordered memory; under cuda_lock but for the first. */
void pools_synchronised(void); /* work is done: memory above each pool's threshold goes back to the device */
bool pools_give_up(int ordinal); /* gives back all that pools keep unused; false: there was nothing */
bool pool_take(CUmemoryPool pool, uint64_t bytes);
void pool_return(CUmemoryPool pool, uint64_t bytes);
CUmemoryPool pool_of_graphs(int ordinal); /* where graphs' memory comes from; NULL: no memory for its bookkeeping */

void graph_node_freed(void *node); /* the memory of an allocation node was freed outside its graph */

/* Memory that is held on for a while; under cuda_lock. An entry is out of the registry already. */
void later_free(const struct allocation *entry, uint64_t due_ns);
bool later_exported(const struct share_ticket *ticket, int descriptor); /* false: it can't be kept track of */
void later_settle(void); /* gives up what is over */

/* State of other files, dropped in a forked child that initialises anew. */
void pools_forget(void);
void vmm_forget(void);
void later_forget(void);

#endif
