/*
 * Graphs, as far as memory is concerned: nodes that allocate, nodes that free, and kernels that take time. A graph is
 * run in the order in which its nodes were added; its memory comes from the device's pool of graph memory.
 */
#include "launch.h"

#include <stdlib.h>
#include <string.h>

enum node_type { NODE_KERNEL = 0, NODE_EMPTY = 5, NODE_ALLOCATE = 10, NODE_FREE = 11 };
enum { AUTO_FREE_ON_LAUNCH = 1, LOCATION_DEVICE = 1 };

struct CUgraphNode_st {
    enum node_type type;
    unsigned references; /* its graph's and those of what was instantiated from it */
    int ordinal;
    CUdeviceptr pointer; /* allocated, or to be freed */
    uint64_t bytes, booked;
    bool live;           /* the memory is allocated now */
    uint64_t kernel_ns;  /* 0: as long as the device says */
};

struct nodes {
    struct CUgraphNode_st **items;
    size_t count;
};

struct CUgraph_st {
    struct nodes nodes;
};

struct CUgraphExec_st {
    struct nodes nodes;
    unsigned long long flags;
};

static bool append(struct nodes *nodes, struct CUgraphNode_st *node)
{
    struct CUgraphNode_st **more = realloc(nodes->items, (nodes->count + 1) * sizeof *more);
    if (!more)
        return false;
    nodes->items = more;
    nodes->items[nodes->count++] = node;
    node->references++;
    return true;
}

void graph_node_freed(void *owner)
{
    struct CUgraphNode_st *node = owner;
    node->live = false;
    pool_return(pool_of_graphs(node->ordinal), node->booked);
}

static void drop(struct nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++) {
        struct CUgraphNode_st *node = nodes->items[i];
        if (--node->references)
            continue;
        struct allocation entry;
        if (node->live && registry_remove(node->pointer, &entry))
            cuda_release_entry(&entry);
        if (node->type == NODE_ALLOCATE)
            addresses_give(node->pointer, node->booked);
        free(node);
    }
    free(nodes->items);
}

CUgraph graph_new(void)
{
    return calloc(1, sizeof(struct CUgraph_st));
}

void graph_drop(CUgraph graph)
{
    cuda_lock();
    drop(&graph->nodes);
    cuda_unlock();
    free(graph);
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    ENTER("cuda_graph");
    NEED(graph && flags == 0);
    *graph = graph_new();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    ENTER("cuda_graph");
    NEED(graph);
    graph_drop(graph);
    return CUDA_SUCCESS;
}

static CUresult add_node(CUgraphNode *added, CUgraph graph, struct CUgraphNode_st wanted)
{
    NEED(added && graph);
    struct CUgraphNode_st *node = malloc(sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = wanted;
    cuda_lock();
    bool done = append(&graph->nodes, node);
    cuda_unlock();
    if (!done)
        free(node);
    else
        *added = node;
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_memory(CUgraphNode *added, CUgraph graph, int ordinal, uint64_t bytes, CUdeviceptr *pointer)
{
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    struct CUgraphNode_st node = {
        .type = NODE_ALLOCATE, .ordinal = ordinal, .bytes = bytes, .booked = cuda_round(bytes)};
    cuda_lock();
    node.pointer = addresses_take(node.booked, 512);
    cuda_unlock();
    if (!node.pointer)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_node(added, graph, node);
    if (result == CUDA_SUCCESS)
        *pointer = node.pointer;
    return result;
}

static CUresult add_allocation(CUgraphNode *added, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    NEED(parameters && parameters->bytesize && parameters->poolProps.location.type == LOCATION_DEVICE);
    return add_memory(added, graph, parameters->poolProps.location.id, parameters->bytesize, &parameters->dptr);
}

CUresult graph_capture_allocation(CUgraph graph, int ordinal, uint64_t bytes, CUdeviceptr *pointer)
{
    CUgraphNode added;
    NEED(pointer && bytes);
    return add_memory(&added, graph, ordinal, bytes, pointer);
}

CUresult graph_capture_free(CUgraph graph, CUdeviceptr pointer)
{
    CUgraphNode added;
    return add_node(&added, graph, (struct CUgraphNode_st){.type = NODE_FREE, .pointer = pointer});
}

CUresult graph_capture_kernel(CUgraph graph, uint64_t kernel_ns)
{
    CUgraphNode added;
    return add_node(&added, graph, (struct CUgraphNode_st){.type = NODE_KERNEL, .kernel_ns = kernel_ns});
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ENTER("cuda_graph");
    (void)after, (void)after_count;
    return add_allocation(node, graph, parameters);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                      CUdeviceptr pointer)
{
    ENTER("cuda_graph");
    (void)after, (void)after_count;
    return add_node(node, graph, (struct CUgraphNode_st){.type = NODE_FREE, .pointer = pointer});
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count)
{
    ENTER("cuda_graph");
    (void)after, (void)after_count;
    return add_node(node, graph, (struct CUgraphNode_st){.type = NODE_EMPTY});
}

struct kernel_parameters {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **arguments, **extra;
};

/* Arguments are read when the node is added: the program may reuse their memory. */
static CUresult add_kernel(CUgraphNode *added, CUgraph graph, const struct kernel_parameters *parameters)
{
    struct CUgraphNode_st node = {.type = NODE_KERNEL};
    if (parameters->function->spins && parameters->arguments && parameters->arguments[0])
        memcpy(&node.kernel_ns, parameters->arguments[0], sizeof node.kernel_ns);
    return add_node(added, graph, node);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                        const struct kernel_parameters *parameters)
{
    ENTER("cuda_graph");
    (void)after, (void)after_count;
    NEED(parameters && parameters->function);
    return add_kernel(node, graph, parameters);
}

/* The general form: a type, and what the type needs. */
struct node_parameters {
    int type, reserved[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS allocate;
        CUdeviceptr free;
        struct kernel_parameters kernel;
        long long room[29];
    };
};

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                  size_t after_count, struct node_parameters *parameters)
{
    ENTER("cuda_graph");
    (void)after, (void)edges, (void)after_count;
    NEED(parameters);
    switch (parameters->type) {
    case NODE_ALLOCATE: return add_allocation(node, graph, &parameters->allocate);
    case NODE_FREE:
        return add_node(node, graph, (struct CUgraphNode_st){.type = NODE_FREE, .pointer = parameters->free});
    case NODE_EMPTY: return add_node(node, graph, (struct CUgraphNode_st){.type = NODE_EMPTY});
    case NODE_KERNEL:
        NEED(parameters->kernel.function);
        return add_kernel(node, graph, &parameters->kernel);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                               struct node_parameters *parameters)
{
    return cuGraphAddNode_v2(node, graph, after, NULL, after_count, parameters);
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ENTER("cuda_graph");
    NEED(node && parameters && node->type == NODE_ALLOCATE);
    memset(parameters, 0, sizeof *parameters);
    parameters->poolProps.allocType = 1;
    parameters->poolProps.location = (CUmemLocation){.type = LOCATION_DEVICE, .id = node->ordinal};
    parameters->bytesize = node->bytes;
    parameters->dptr = node->pointer;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    NEED(executable && graph);
    struct CUgraphExec_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    bool whole = true;
    cuda_lock();
    for (size_t i = 0; whole && i < graph->nodes.count; i++)
        whole = append(&made->nodes, graph->nodes.items[i]);
    if (!whole)
        drop(&made->nodes);
    cuda_unlock();
    if (!whole) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *executable = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    ENTER("cuda_graph");
    return instantiate(executable, graph, flags);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log,
                                      size_t log_bytes)
{
    ENTER("cuda_graph");
    (void)failed, (void)log, (void)log_bytes;
    return instantiate(executable, graph, 0);
}

struct instantiate_parameters {
    unsigned long long flags;
    CUstream upload_stream;
    CUgraphNode failed;
    int result;
};

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                             struct instantiate_parameters *parameters)
{
    ENTER("cuda_graph");
    NEED(parameters);
    parameters->failed = NULL;
    CUresult result = instantiate(executable, graph, parameters->flags);
    parameters->result = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    ENTER("cuda_graph");
    NEED(executable);
    cuda_lock();
    drop(&executable->nodes);
    cuda_unlock();
    free(executable);
    return CUDA_SUCCESS;
}

/* Memory of this graph that an earlier launch left allocated: the launch fails, unless it may free it first. */
static CUresult settle(CUgraphExec executable)
{
    for (size_t i = 0; i < executable->nodes.count; i++) {
        struct CUgraphNode_st *node = executable->nodes.items[i];
        if (node->type != NODE_ALLOCATE || !node->live)
            continue;
        if (!(executable->flags & AUTO_FREE_ON_LAUNCH))
            return CUDA_ERROR_INVALID_VALUE;
        cuda_free(node->pointer);
    }
    return CUDA_SUCCESS;
}

static CUresult run(struct CUctx_st *context, struct CUgraphNode_st *node, struct CUstream_st *stream)
{
    uint64_t duration_ns = node->kernel_ns ? node->kernel_ns : cuda_device(context->ordinal)->kernel_ns;
    switch (node->type) {
    case NODE_ALLOCATE: {
        struct allocation entry = {.pointer = node->pointer,
                                   .bytes = node->bytes,
                                   .booked = node->booked,
                                   .kind = ALLOCATION_GRAPH,
                                   .ordinal = node->ordinal,
                                   .context = context,
                                   .owner = node};
        CUmemoryPool pool = pool_of_graphs(node->ordinal);
        if (!pool || !pool_take(pool, node->booked))
            return CUDA_ERROR_OUT_OF_MEMORY;
        node->live = true;
        if (registry_add(entry))
            return CUDA_SUCCESS;
        graph_node_freed(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    case NODE_FREE: return cuda_free(node->pointer);
    case NODE_KERNEL:
        if (duration_ns)
            stream_queue(stream, duration_ns);
        return CUDA_SUCCESS;
    case NODE_EMPTY: break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    ENTER("cuda_graph");
    NEED(executable);
    if (stream_capture(stream)) /* a graph within a graph is more than is simulated */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    NEED_CONTEXT(context);
    cuda_lock();
    CUresult result = settle(executable);
    for (size_t i = 0; result == CUDA_SUCCESS && i < executable->nodes.count; i++)
        result = run(context, executable->nodes.items[i], stream_of(context, stream));
    cuda_unlock();
    return result;
}

EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream stream)
{
    ENTER("cuda_graph");
    (void)stream;
    NEED(executable);
    return CUDA_SUCCESS;
}
ALIAS(cuGraphLaunch_ptsz, cuGraphLaunch);
ALIAS(cuGraphUpload_ptsz, cuGraphUpload);
ALIAS(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams);
