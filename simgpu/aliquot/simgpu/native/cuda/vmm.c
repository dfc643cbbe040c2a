/* Virtual memory management: physical memory, address reservations, and the mappings between them. */
#include "internal.h"

#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GRANULARITY (UINT64_C(2) << 20)

enum { TYPE_PINNED = 1, HANDLE_POSIX_FD = 1, ACCESS_READ_WRITE = 3 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST_LAST = 4, LOCATION_DEVICE_PART = 6 };

struct physical {
    int ordinal;
    bool on_host;
    uint64_t bytes;
    unsigned references; /* cuMemCreate, cuMemRetainAllocationHandle, imports */
    unsigned mappings;
    bool shared;
    struct share_ticket ticket;
    CUmemAllocationProp properties;
    struct physical *next;
};

struct reservation {
    CUdeviceptr start;
    uint64_t bytes;
    struct reservation *next;
};

static struct physical *memory;
static struct reservation *reservations;

static struct physical *known(CUmemGenericAllocationHandle handle)
{
    for (struct physical *one = memory; one; one = one->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)one == handle)
            return one;
    return NULL;
}

static struct physical *add(struct physical physical)
{
    struct physical *added = malloc(sizeof *added);
    if (!added)
        return NULL;
    *added = physical;
    added->next = memory;
    memory = added;
    return added;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->references || physical->mappings)
        return;
    if (physical->shared) {
        machine_lock();
        share_release(&physical->ticket);
        machine_unlock();
    } else if (!physical->on_host) {
        cuda_credit(physical->ordinal, CHARGE_MEMORY, physical->bytes);
    }
    struct physical **link = &memory;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    free(physical);
}

void vmm_forget(void)
{
    while (memory) {
        struct physical *next = memory->next;
        free(memory);
        memory = next;
    }
    while (reservations) {
        struct reservation *next = reservations->next;
        free(reservations);
        reservations = next;
    }
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    ENTER("cuda_vmm");
    NEED(bytes && properties && option >= 0 && option <= 1);
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    ENTER("cuda_alloc");
    NEED(handle && properties && bytes && bytes % GRANULARITY == 0 && flags == 0 && properties->type == TYPE_PINNED);
    bool on_host = properties->location.type > LOCATION_DEVICE && properties->location.type <= LOCATION_HOST_LAST;
    bool in_part = properties->location.type == LOCATION_DEVICE_PART; /* the first byte says of which device */
    int ordinal = on_host ? 0 : in_part ? properties->location.id & 0xff : properties->location.id;
    NEED(on_host || in_part || properties->location.type == LOCATION_DEVICE);
    if (!cuda_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    cuda_lock();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (on_host || cuda_charge(ordinal, CHARGE_MEMORY, bytes)) {
        struct physical *created = add((struct physical){.ordinal = ordinal,
                                                         .on_host = on_host,
                                                         .bytes = bytes,
                                                         .references = 1,
                                                         .properties = *properties});
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)created;
        result = created ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (!created && !on_host)
            cuda_credit(ordinal, CHARGE_MEMORY, bytes);
    }
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER("cuda_free");
    cuda_lock();
    struct physical *physical = known(handle);
    bool held = physical && physical->references;
    if (held) {
        physical->references--;
        drop_if_unused(physical);
    }
    cuda_unlock();
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER("cuda_vmm");
    NEED(handle);
    cuda_lock();
    const struct allocation *mapping = registry_containing((CUdeviceptr)(uintptr_t)address);
    struct physical *physical = mapping && mapping->kind == ALLOCATION_MAPPED ? mapping->owner : NULL;
    if (physical) {
        physical->references++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    }
    cuda_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle handle)
{
    ENTER("cuda_vmm");
    NEED(properties);
    cuda_lock();
    const struct physical *physical = known(handle);
    if (physical)
        *properties = physical->properties;
    cuda_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *start, size_t bytes, size_t alignment, CUdeviceptr wish,
                                    unsigned long long flags)
{
    ENTER("cuda_vmm");
    (void)wish; /* a wish, which CUDA may ignore */
    NEED(start && bytes && bytes % GRANULARITY == 0 && flags == 0 && !(alignment & (alignment - 1)));
    cuda_lock();
    struct reservation *reservation = malloc(sizeof *reservation);
    CUdeviceptr taken = reservation ? addresses_take(bytes, alignment > GRANULARITY ? alignment : GRANULARITY) : 0;
    if (taken) {
        *reservation = (struct reservation){.start = taken, .bytes = bytes, .next = reservations};
        reservations = reservation;
        *start = taken;
    } else {
        free(reservation);
    }
    cuda_unlock();
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct range {
    CUdeviceptr start;
    uint64_t bytes, mapped;
};

static bool overlaps(struct allocation *entry, void *argument)
{
    struct range *range = argument;
    if (entry->kind == ALLOCATION_MAPPED && entry->pointer < range->start + range->bytes &&
        range->start < entry->pointer + entry->bytes)
        range->mapped += entry->bytes;
    return false;
}

static uint64_t mapped_within(CUdeviceptr start, uint64_t bytes)
{
    struct range range = {.start = start, .bytes = bytes};
    registry_sweep(overlaps, &range);
    return range.mapped;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes)
{
    ENTER("cuda_vmm");
    cuda_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *one = *link;
        if (one->start != start || one->bytes != bytes || mapped_within(start, bytes))
            continue;
        *link = one->next;
        addresses_give(start, bytes);
        free(one);
        result = CUDA_SUCCESS;
        break;
    }
    cuda_unlock();
    return result;
}

static bool reserved(CUdeviceptr start, uint64_t bytes)
{
    for (const struct reservation *one = reservations; one; one = one->next)
        if (start >= one->start && bytes <= one->bytes && start - one->start <= one->bytes - bytes)
            return true;
    return false;
}

EXPORT CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    ENTER("cuda_vmm");
    NEED(bytes && bytes % GRANULARITY == 0 && offset == 0 && flags == 0);
    cuda_lock();
    struct physical *physical = known(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (physical && bytes <= physical->bytes && reserved(start, bytes)) {
        result = mapped_within(start, bytes) ? CUDA_ERROR_ALREADY_MAPPED : CUDA_SUCCESS;
        struct allocation mapping = {.pointer = start,
                                     .bytes = bytes,
                                     .booked = bytes,
                                     .kind = ALLOCATION_MAPPED,
                                     .ordinal = physical->ordinal,
                                     .owner = physical};
        if (result == CUDA_SUCCESS && !registry_add(mapping))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            physical->mappings++;
    }
    cuda_unlock();
    return result;
}

static bool unmap(struct allocation *entry, void *argument)
{
    const struct range *range = argument;
    if (entry->kind != ALLOCATION_MAPPED || entry->pointer < range->start ||
        entry->pointer + entry->bytes > range->start + range->bytes)
        return false;
    struct physical *physical = entry->owner;
    physical->mappings--;
    drop_if_unused(physical);
    return true;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr start, size_t bytes)
{
    ENTER("cuda_vmm");
    struct range range = {.start = start, .bytes = bytes};
    cuda_lock();
    bool whole = bytes && mapped_within(start, bytes) == bytes;
    if (whole)
        registry_sweep(unmap, &range);
    cuda_unlock();
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    ENTER("cuda_vmm");
    NEED(access && count);
    cuda_lock();
    bool mapped = bytes && mapped_within(start, bytes) >= bytes;
    cuda_unlock();
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    ENTER("cuda_vmm");
    NEED(flags && location);
    cuda_lock();
    bool mapped = registry_containing(pointer) != NULL;
    cuda_unlock();
    *flags = ACCESS_READ_WRITE;
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A descriptor of a file that says which memory is meant, and holds it for as long as it is open anywhere. */
static CUresult export_file(const struct share_ticket *ticket, int *fd)
{
    // Not by its wrapper, which came with glibc 2.27 only.
    *fd = (int)syscall(SYS_memfd_create, "aliquot-simgpu-memory", MFD_CLOEXEC);
    if (*fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (write(*fd, ticket, sizeof *ticket) == (ssize_t)sizeof *ticket && later_exported(ticket, *fd))
        return CUDA_SUCCESS;
    close(*fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    ENTER("cuda_ipc");
    NEED(shareable && type == HANDLE_POSIX_FD && flags == 0);
    cuda_lock();
    struct physical *physical = known(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (physical && !physical->on_host && physical->properties.requestedHandleTypes & HANDLE_POSIX_FD) {
        machine_lock();
        if (!physical->shared)
            physical->shared = share_create(cuda_place(physical->ordinal), physical->bytes, &physical->ticket);
        machine_unlock();
        result = physical->shared ? export_file(&physical->ticket, shareable) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    cuda_unlock();
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    ENTER("cuda_ipc");
    struct share_ticket ticket;
    NEED(handle && type == HANDLE_POSIX_FD);
    NEED(pread((int)(intptr_t)shareable, &ticket, sizeof ticket, 0) == (ssize_t)sizeof ticket);
    NEED(ticket.magic == SHARE_MAGIC);
    int ordinal = cuda_ordinal_of(ticket.device);
    if (ordinal < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    machine_lock();
    bool held = share_hold(&ticket);
    machine_unlock();
    if (!held)
        return CUDA_ERROR_INVALID_VALUE;
    cuda_lock();
    struct physical *imported = add((struct physical){
        .ordinal = ordinal,
        .bytes = ticket.bytes,
        .references = 1,
        .shared = true,
        .ticket = ticket,
        .properties = {.type = TYPE_PINNED,
                       .requestedHandleTypes = HANDLE_POSIX_FD,
                       .location = {.type = LOCATION_DEVICE, .id = ordinal}}});
    cuda_unlock();
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)imported;
    return imported ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
