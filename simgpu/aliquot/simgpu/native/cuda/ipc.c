/*
 * Memory of other processes: IPC handles and external memory. What is exported is booked once, in the scenario's
 * shared table, on whichever holder came first and still lives; who opens it pays nothing.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXTERNAL_OPAQUE_FD = 1 };

struct CUextMemory_st {
    int ordinal;
    struct share_ticket ticket;
};

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    ENTER("cuda_ipc");
    NEED(handle);
    cuda_lock();
    struct allocation *entry = registry_containing(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE; /* managed, pooled and mapped memory have other ways */
    if (entry && entry->kind == ALLOCATION_DEVICE) {
        machine_lock();
        if (share_create(cuda_place(entry->ordinal), entry->booked, &entry->ticket))
            entry->kind = ALLOCATION_EXPORTED;
        machine_unlock();
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (entry && entry->kind == ALLOCATION_EXPORTED) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &entry->ticket, sizeof entry->ticket);
        result = CUDA_SUCCESS;
    }
    cuda_unlock();
    return result;
}

/* Registers an address for memory that the process already holds. */
static CUresult give_address(struct CUctx_st *context, enum allocation_kind kind, const struct share_ticket *ticket,
                             uint64_t bytes, CUdeviceptr *pointer)
{
    struct allocation entry = {.pointer = addresses_take(bytes, 512),
                               .bytes = bytes,
                               .booked = bytes,
                               .kind = kind,
                               .ordinal = context->ordinal,
                               .context = context,
                               .ticket = *ticket};
    if (entry.pointer && registry_add(entry)) {
        *pointer = entry.pointer;
        return CUDA_SUCCESS;
    }
    cuda_release_entry(&entry);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    ENTER("cuda_ipc");
    struct share_ticket ticket;
    NEED(pointer);
    (void)flags;
    NEED_CONTEXT(context);
    memcpy(&ticket, &handle, sizeof ticket);
    NEED(ticket.magic == SHARE_MAGIC);
    if (cuda_ordinal_of(ticket.device) != context->ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    machine_lock();
    const struct sim_shared *shared = share_find(&ticket);
    bool own = shared && shared->holders[0].pid == machine_self()->pid;
    bool held = shared && !own && share_hold(&ticket);
    machine_unlock();
    if (own)
        return CUDA_ERROR_INVALID_CONTEXT; /* a process can't open what it exported itself */
    if (!held)
        return CUDA_ERROR_INVALID_VALUE;
    cuda_lock();
    CUresult result = give_address(context, ALLOCATION_IMPORTED, &ticket, ticket.bytes, pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER("cuda_ipc");
    struct allocation entry;
    cuda_lock();
    struct allocation *found = registry_find(pointer);
    bool imported = found && found->kind == ALLOCATION_IMPORTED;
    if (imported) {
        registry_remove(pointer, &entry);
        cuda_release_entry(&entry);
    }
    cuda_unlock();
    return imported ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *external, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    ENTER("cuda_ipc");
    struct share_ticket ticket;
    NEED(external && description && description->type == EXTERNAL_OPAQUE_FD);
    NEED(pread(description->handle.fd, &ticket, sizeof ticket, 0) == (ssize_t)sizeof ticket);
    NEED(ticket.magic == SHARE_MAGIC && description->size <= ticket.bytes);
    int ordinal = cuda_ordinal_of(ticket.device);
    if (ordinal < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    struct CUextMemory_st *imported = malloc(sizeof *imported);
    machine_lock();
    bool held = imported && share_hold(&ticket);
    machine_unlock();
    if (!held) {
        free(imported);
        return imported ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    close(description->handle.fd); /* it is CUDA's from here on */
    *imported = (struct CUextMemory_st){.ordinal = ordinal, .ticket = ticket};
    *external = imported;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory external,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
    ENTER("cuda_ipc");
    NEED(pointer && external && description && description->size);
    NEED(description->offset <= external->ticket.bytes &&
         description->size <= external->ticket.bytes - description->offset);
    NEED_CONTEXT(context);
    cuda_lock();
    CUresult result = give_address(context, ALLOCATION_VIEW, &external->ticket, description->size, pointer);
    cuda_unlock();
    return result;
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory external)
{
    ENTER("cuda_ipc");
    NEED(external);
    machine_lock();
    share_release(&external->ticket);
    machine_unlock();
    free(external);
    return CUDA_SUCCESS;
}
ALIAS(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2);
