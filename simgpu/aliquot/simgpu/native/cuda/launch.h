/* Kernels and the queues they run in. */
#ifndef ALIQUOT_CUDA_LAUNCH_H
#define ALIQUOT_CUDA_LAUNCH_H

#include "internal.h"

struct CUfunc_st {
    bool spins; /* its first argument says how long it runs, in nanoseconds */
    const struct kernel *kernel; /* one that is known by its name; NULL: it computes nothing */
    CUmodule module;
    char *name;
    struct CUfunc_st *next;
};

/* What a launch hands over: each parameter's address, or (`each` is NULL) all of them in one piece of memory. */
struct parameters {
    void **each;
    const char *packed;
    size_t bytes;
};

/* A parameter by its number and place; NULL: it was not handed over. */
const void *parameter(const struct parameters *parameters, size_t number, size_t offset, size_t bytes);

/* Kernels that are known by their name (kernels.c): done by the processor, at once, where memory is backed. */
const struct kernel *kernel_named(const char *name);
CUresult kernel_run(const struct kernel *kernel, const struct parameters *parameters);

struct CUstream_st {
    struct CUctx_st *context;
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t busy_until_ns; /* in the process's own time on the device: when all that was queued is done */
    CUgraph capturing;      /* what is queued becomes nodes of this one instead; NULL: nothing is captured */
};

/* The stream meant by a handle: the context's default one for NULL and the two special handles. */
struct CUstream_st *stream_of(struct CUctx_st *context, CUstream handle);

/* Queues work that keeps the whole device busy for so long. */
void stream_queue(struct CUstream_st *stream, uint64_t duration_ns);

/* What no stream means to the variants for per-thread default streams. It captures for its thread alone; otherwise it is
 * the context's default one. */
#define STREAM_PER_THREAD ((CUstream)2)

/* The graph that a stream captures into, or NULL. The legacy default stream captures nothing. */
CUgraph stream_capture(CUstream handle);

/* A graph, and what is captured into it (graph.c). */
CUgraph graph_new(void);
void graph_drop(CUgraph graph);
CUresult graph_capture_allocation(CUgraph graph, int ordinal, uint64_t bytes, CUdeviceptr *pointer);
CUresult graph_capture_free(CUgraph graph, CUdeviceptr pointer);
CUresult graph_capture_kernel(CUgraph graph, uint64_t kernel_ns);

/* Waits until a moment of the process's own time on a device has come. */
void wait_until_ns(int ordinal, uint64_t moment_ns);

#endif
