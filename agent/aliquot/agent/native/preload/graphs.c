/*
 * Graphs that allocate. The driver takes memory for their allocation nodes when they are launched, from a store of its
 * own on each device, and keeps it there. A node is charged when it is added; a device is charged with the nodes of
 * all graphs that live, or with what the store holds if that is more.
 */
#include <pthread.h>
#include <string.h>

#include "process.h"
#include "throttle.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t nodes[DEVICES_MAX];   /* bytes of allocation nodes in graphs (or captures) that live */
static uint64_t charged[DEVICES_MAX];
static bool in_use; /* this process has had an allocation node: otherwise all of this costs nothing */

/* All of these want the mutex. */

static uint64_t stored(int device)
{
    uint64_t bytes = 0;
    const CUdevice ordinal = ordinal_of(device);
    if (ordinal < 0 ||
        driver()->DeviceGetGraphMemAttribute(ordinal, GRAPH_MEMORY_RESERVED_CURRENT, &bytes) != CUDA_SUCCESS)
        return 0;
    return bytes;
}

static void settle(int device)
{
    const uint64_t held = stored(device), wanted = held > nodes[device] ? held : nodes[device];
    if (wanted > charged[device])
        book_force(device, wanted - charged[device]);
    else
        book_credit(device, charged[device] - wanted);
    charged[device] = wanted;
}

static bool add_nodes(int device, uint64_t bytes)
{
    uint64_t wanted;
    if (device < 0 || __builtin_add_overflow(nodes[device], bytes, &wanted))
        return false;
    if (wanted > charged[device]) {
        if (!book_charge(device, wanted - charged[device]))
            return false;
        charged[device] = wanted;
    }
    nodes[device] = wanted;
    in_use = true;
    return true;
}

static void remove_nodes(int device, uint64_t bytes)
{
    nodes[device] -= bytes < nodes[device] ? bytes : nodes[device];
    settle(device);
}

static void note(enum space space, const void *key, int device, uint64_t bytes)
{
    struct entry entry = {.space = space, .key = (uintptr_t)key, .device = device}, old;
    ledger_find(space, (uintptr_t)key, &entry);
    entry.bytes += bytes;
    ledger_put(entry, &old); /* without memory for it, the nodes stay charged */
}

void graphs_refresh(int device, bool trim)
{
    if (!__atomic_load_n(&in_use, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&mutex);
    if (trim && ordinal_of(device) >= 0)
        REAL(cuDeviceGraphMemTrim)(ordinal_of(device));
    settle(device);
    pthread_mutex_unlock(&mutex);
}

static bool reserve_nodes(int device, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    bool fits = add_nodes(device, bytes);
    pthread_mutex_unlock(&mutex);
    if (!fits && device >= 0) {
        reclaim(device);
        pthread_mutex_lock(&mutex);
        fits = add_nodes(device, bytes);
        pthread_mutex_unlock(&mutex);
    }
    return fits;
}

/* What names a capture: several streams may take part in one, and the default stream of each thread is another one
 * under the same handle. */
static const void *capture_of(CUstream stream)
{
    unsigned long long id = 0;
    int status = 0;
    if (driver()->StreamGetCaptureInfo(stream, &status, &id) == CUDA_SUCCESS && id)
        return (const void *)(uintptr_t)id;
    return stream;
}

bool graph_captures(CUstream stream, int device, uint64_t bytes)
{
    const void *capture = capture_of(stream);
    bytes = round_up(bytes, CHUNK);
    if (!reserve_nodes(device, bytes))
        return false;
    pthread_mutex_lock(&mutex);
    note(GRAPH_CAPTURE, capture, device, bytes);
    pthread_mutex_unlock(&mutex);
    return true;
}

void graph_captured_less(CUstream stream, int device, uint64_t bytes)
{
    const void *capture = capture_of(stream);
    struct entry entry, old;
    bytes = round_up(bytes, CHUNK);
    pthread_mutex_lock(&mutex);
    if (ledger_take(GRAPH_CAPTURE, (uintptr_t)capture, &entry) && entry.bytes > bytes) {
        entry.bytes -= bytes;
        ledger_put(entry, &old);
    }
    remove_nodes(device, bytes);
    pthread_mutex_unlock(&mutex);
}

/* What was captured belongs to the graph it becomes, or to nobody. */
static CUresult end_capture(CUstream stream, CUgraph *graph, CUresult (*end)(CUstream, CUgraph *))
{
    struct entry entry;
    if (!__atomic_load_n(&in_use, __ATOMIC_RELAXED))
        return end(stream, graph);
    const void *capture = capture_of(stream);
    const CUresult result = end(stream, graph);
    pthread_mutex_lock(&mutex);
    if (ledger_take(GRAPH_CAPTURE, (uintptr_t)capture, &entry)) {
        if (result == CUDA_SUCCESS && graph && *graph)
            note(GRAPH, *graph, entry.device, entry.bytes);
        else
            remove_nodes(entry.device, entry.bytes);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end_capture(stream, graph, REAL(cuStreamEndCapture));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end_capture(stream ? stream : STREAM_PER_THREAD, graph, REAL(cuStreamEndCapture_ptsz));
}

/* DEVICE_UNKNOWN: no allocation on a device, nothing to charge. */
static int device_of_node(const CUDA_MEM_ALLOC_NODE_PARAMS *of)
{
    const int device = of ? device_of_location(&of->poolProps.location) : DEVICE_UNKNOWN;
    return device == DEVICE_HOST ? DEVICE_UNKNOWN : device;
}

static CUresult node_added(CUresult result, CUgraph graph, int device, uint64_t bytes)
{
    if (device == DEVICE_UNKNOWN)
        return result;
    pthread_mutex_lock(&mutex);
    if (result == CUDA_SUCCESS)
        note(GRAPH, graph, device, bytes);
    else
        remove_nodes(device, bytes);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *of)
{
    const int device = device_of_node(of);
    const uint64_t bytes = of ? round_up(of->bytesize, CHUNK) : 0;
    if (device != DEVICE_UNKNOWN && !reserve_nodes(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return node_added(REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, of), graph, device, bytes);
}

static int device_of_any_node(const CUgraphNodeParams *of, uint64_t *bytes)
{
    if (!of || of->type != NODE_MEM_ALLOC)
        return DEVICE_UNKNOWN;
    *bytes = round_up(of->alloc.bytesize, CHUNK);
    return device_of_node(&of->alloc);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUgraphNodeParams *of)
{
    uint64_t bytes = 0;
    const int device = device_of_any_node(of, &bytes);
    if (device != DEVICE_UNKNOWN && !reserve_nodes(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return node_added(REAL(cuGraphAddNode)(node, graph, dependencies, count, of), graph, device, bytes);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges,
                                  size_t count, CUgraphNodeParams *of)
{
    uint64_t bytes = 0;
    const int device = device_of_any_node(of, &bytes);
    if (device != DEVICE_UNKNOWN && !reserve_nodes(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return node_added(REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, of), graph, device, bytes);
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges,
                                  size_t count, CUgraphNodeParams *of)
{
    uint64_t bytes = 0;
    const int device = device_of_any_node(of, &bytes);
    if (device != DEVICE_UNKNOWN && !reserve_nodes(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return node_added(REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, of), graph, device, bytes);
}

/* An executable graph names the same memory as its graph, so that is counted once, until both are gone: the graph's entry
 * carries the bytes, and hands them to an executable (whose owner it is) when it goes first. */
static CUresult instantiated(CUresult result, CUgraphExec *exec, CUgraph graph)
{
    struct entry entry, old;
    if (!__atomic_load_n(&in_use, __ATOMIC_RELAXED) || result != CUDA_SUCCESS || !exec)
        return result;
    pthread_mutex_lock(&mutex);
    if (ledger_find(GRAPH, (uintptr_t)graph, &entry)) {
        ledger_put((struct entry){.space = GRAPH_EXEC, .key = (uintptr_t)*exec, .owner = graph, .device = entry.device},
                   &old);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    return instantiated(REAL(cuGraphInstantiate)(exec, graph, error_node, log, size), exec, graph);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    return instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, error_node, log, size), exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *parameters)
{
    return instantiated(REAL(cuGraphInstantiateWithParams)(exec, graph, parameters), exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *parameters)
{
    return instantiated(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters), exec, graph);
}

static bool executes(const struct entry *entry, const void *graph)
{
    return entry->space == GRAPH_EXEC && entry->owner == graph;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    struct entry entry, exec, old;
    const CUresult result = REAL(cuGraphDestroy)(graph);
    if (result != CUDA_SUCCESS || !__atomic_load_n(&in_use, __ATOMIC_RELAXED))
        return result;
    pthread_mutex_lock(&mutex);
    if (ledger_take(GRAPH, (uintptr_t)graph, &entry)) {
        if (ledger_take_any(executes, graph, &exec)) {
            exec.bytes = entry.bytes;
            exec.owner = NULL; /* its graph's address may be used again */
            ledger_put(exec, &old);
        } else {
            remove_nodes(entry.device, entry.bytes);
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct entry entry;
    const CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result != CUDA_SUCCESS || !__atomic_load_n(&in_use, __ATOMIC_RELAXED))
        return result;
    pthread_mutex_lock(&mutex);
    if (ledger_take(GRAPH_EXEC, (uintptr_t)exec, &entry))
        remove_nodes(entry.device, entry.bytes);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* After a launch the store may have grown beyond the nodes; then that is what counts. */
static CUresult launched(CUresult result)
{
    if (__atomic_load_n(&in_use, __ATOMIC_RELAXED)) {
        const int device = device_current(NULL);
        if (device >= 0)
            graphs_refresh(device, false);
    }
    return result;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return launched(REAL(cuGraphUpload)(exec, stream));
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return launched(REAL(cuGraphUpload_ptsz)(exec, stream));
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    throttle_launch();
    return launched(REAL(cuGraphLaunch)(exec, stream));
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    throttle_launch();
    return launched(REAL(cuGraphLaunch_ptsz)(exec, stream));
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    const CUresult result = REAL(cuDeviceGraphMemTrim)(ordinal);
    const int device = device_of(ordinal);
    if (device >= 0)
        graphs_refresh(device, false);
    return result;
}

void graphs_forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(nodes, 0, sizeof nodes);
    memset(charged, 0, sizeof charged);
    in_use = false;
}
