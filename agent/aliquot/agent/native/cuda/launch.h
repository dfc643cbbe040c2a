/* Kernels and the queues they run in. */
#ifndef ALIQUOT_CUDA_LAUNCH_H
#define ALIQUOT_CUDA_LAUNCH_H

#include "internal.h"

struct CUfunc_st {
    bool spins; /* its first argument says how long it runs, in nanoseconds */
    struct CUfunc_st *next;
};

struct CUstream_st {
    struct CUctx_st *context;
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t busy_until_ns; /* CLOCK_MONOTONIC: when all that was queued is done */
};

/* The stream meant by a handle: the context's default one for NULL and the two special handles. */
struct CUstream_st *stream_of(struct CUctx_st *context, CUstream handle);

/* Queues work that keeps the whole device busy for so long. */
void stream_queue(struct CUstream_st *stream, uint64_t duration_ns);

/* Waits until the moment has come. */
void wait_until_ns(uint64_t moment_ns);

#endif
