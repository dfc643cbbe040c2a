/*
 * Device addresses. The process reserves a range that nothing else can get and that has no memory behind it, so that
 * touching a device pointer on the host faults as it does with real hardware. Free ranges are kept in order of address
 * and joined, so that addresses last as long as the process.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

#define RANGE_BYTES (UINT64_C(1) << 42)
#define PAGE UINT64_C(4096)

struct range {
    uint64_t start, bytes;
    struct range *next;
};

static struct range *free_ranges;
static uint64_t base;

bool addresses_backed(void)
{
    const char *wanted = getenv("ALIQUOT_SIMGPU_BACKED");
    return wanted && *wanted == '1';
}

static bool reserve(void)
{
    void *memory = mmap(NULL, RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct range *all = malloc(sizeof *all);
    if (memory == MAP_FAILED || !all) {
        free(all);
        return false;
    }
    base = (uint64_t)(uintptr_t)memory;
    *all = (struct range){.start = base, .bytes = RANGE_BYTES};
    free_ranges = all;
    return true;
}

static bool back(uint64_t start, uint64_t bytes, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap((void *)(uintptr_t)start, bytes, protection, flags, -1, 0) != MAP_FAILED;
}

static uint64_t page_round(uint64_t bytes)
{
    return bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
}

/* Cuts [start, start + bytes) out of a free range that holds it. */
static bool cut(struct range **link, uint64_t start, uint64_t bytes)
{
    struct range *range = *link;
    uint64_t after = range->start + range->bytes - (start + bytes);
    if (start > range->start && after) {
        struct range *tail = malloc(sizeof *tail);
        if (!tail)
            return false;
        *tail = (struct range){.start = start + bytes, .bytes = after, .next = range->next};
        range->next = tail;
    }
    if (start > range->start) {
        range->bytes = start - range->start;
    } else if (after) {
        range->start = start + bytes;
        range->bytes = after;
    } else {
        *link = range->next;
        free(range);
    }
    return true;
}

CUdeviceptr addresses_take(uint64_t bytes, uint64_t alignment)
{
    if (bytes > RANGE_BYTES || (!base && !reserve()))
        return 0;
    bytes = page_round(bytes);
    alignment = alignment < PAGE ? PAGE : alignment;
    for (struct range **link = &free_ranges; *link; link = &(*link)->next) {
        uint64_t start = ((*link)->start + alignment - 1) / alignment * alignment;
        uint64_t end = (*link)->start + (*link)->bytes;
        if (start > end || end - start < bytes)
            continue;
        if (addresses_backed() && !back(start, bytes, PROT_READ | PROT_WRITE))
            return 0;
        return cut(link, start, bytes) ? start : 0;
    }
    return 0;
}

void addresses_give(CUdeviceptr address, uint64_t bytes)
{
    bytes = page_round(bytes);
    if (addresses_backed())
        back(address, bytes, PROT_NONE);
    struct range **link = &free_ranges, *before = NULL;
    while (*link && (*link)->start < address) {
        before = *link;
        link = &before->next;
    }
    struct range *after = *link;
    if (before && before->start + before->bytes == address) {
        before->bytes += bytes;
    } else {
        before = malloc(sizeof *before);
        if (!before)
            return; /* the addresses are lost, the memory isn't */
        *before = (struct range){.start = address, .bytes = bytes, .next = after};
        *link = before;
    }
    if (after && before->start + before->bytes == after->start) {
        before->bytes += after->bytes;
        before->next = after->next;
        free(after);
    }
}

void addresses_forget(void)
{
    while (free_ranges) {
        struct range *next = free_ranges->next;
        free(free_ranges);
        free_ranges = next;
    }
    if (base)
        munmap((void *)(uintptr_t)base, RANGE_BYTES);
    base = 0;
}
