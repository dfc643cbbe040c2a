/* Stands for libamd_smi.so, on the simulated cards of `tree.h`. Structures are those that the wheel `amdsmi` 7.0.2 binds.
 *
 * Two habits of the real library are kept, because tools show them: the memory of processes is in units of 1,024 bytes
 * told as if they were 1,000, and a client that has several files open is counted with each.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree.h"

#define EXPORT __attribute__((visibility("default")))
#define VENDOR "0x1002"

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, NO_DATA = 40, NOT_FOUND = 31 };
enum { PROCESSES_MAX = 1024 };

static struct tree_card cards[TREE_CARDS_MAX];
static int count;

static struct tree_card *card_of(void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    return number >= 1 && number <= (uintptr_t)count ? &cards[number - 1] : NULL;
}

EXPORT int amdsmi_init(uint64_t flags)
{
    (void)flags;
    count = tree_cards(VENDOR, cards);
    return SUCCESS;
}

EXPORT int amdsmi_shut_down(void)
{
    return SUCCESS;
}

EXPORT int amdsmi_status_code_to_string(int status, const char **text)
{
    (void)status;
    *text = "an error of the stand-in";
    return SUCCESS;
}

/* One socket for each card. */
EXPORT int amdsmi_get_socket_handles(uint32_t *found, void **handles)
{
    for (int i = 0; handles != NULL && i < count && i < (int)*found; i++) {
        handles[i] = (void *)(uintptr_t)(i + 1);
    }
    *found = (uint32_t)count;
    return SUCCESS;
}

EXPORT int amdsmi_get_processor_handles(void *socket, uint32_t *found, void **handles)
{
    if (card_of(socket) == NULL) {
        return NOT_FOUND;
    }
    if (handles != NULL && *found >= 1) {
        handles[0] = socket;
    }
    *found = 1;
    return SUCCESS;
}

EXPORT int amdsmi_get_processor_type(void *handle, int *type)
{
    *type = 1;
    return card_of(handle) != NULL ? SUCCESS : NOT_FOUND;
}

EXPORT int amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bdf)
{
    struct tree_card *card = card_of(handle);
    unsigned int domain, bus, device, function;
    if (card == NULL || sscanf(card->pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) {
        return NOT_FOUND;
    }
    *bdf = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
    return SUCCESS;
}

EXPORT int amdsmi_get_gpu_device_uuid(void *handle, uint32_t *length, char *uuid)
{
    struct tree_card *card = card_of(handle);
    char unique[TREE_WORD];
    unsigned long long device;
    if (card == NULL || !tree_word(card, "unique_id", unique) || !tree_number(card, "device", &device)) {
        return NOT_SUPPORTED;
    }
    unsigned long long number = strtoull(unique, NULL, 16);
    snprintf(uuid, *length, "%02xff%04x-0000-1000-80%02x-%010llx", (unsigned int)(number >> 56 & 0xff),
             (unsigned int)device, (unsigned int)(number >> 40 & 0xff), number & 0xffffffffffULL);
    return SUCCESS;
}

static int memory(void *handle, int kind, const char *file, uint64_t *bytes)
{
    struct tree_card *card = card_of(handle);
    unsigned long long number;
    if (card == NULL || kind != 0 || !tree_number(card, file, &number)) {
        return NOT_SUPPORTED;
    }
    *bytes = number;
    return SUCCESS;
}

EXPORT int amdsmi_get_gpu_memory_total(void *handle, int kind, uint64_t *bytes)
{
    return memory(handle, kind, "mem_info_vram_total", bytes);
}

EXPORT int amdsmi_get_gpu_memory_usage(void *handle, int kind, uint64_t *bytes)
{
    return memory(handle, kind, "mem_info_vram_used", bytes);
}

struct vram {
    uint32_t total_mb, used_mb, reserved[2];
};

EXPORT int amdsmi_get_gpu_vram_usage(void *handle, struct vram *vram)
{
    uint64_t total, used;
    memset(vram, 0, sizeof *vram);
    if (memory(handle, 0, "mem_info_vram_total", &total) != SUCCESS ||
        memory(handle, 0, "mem_info_vram_used", &used) != SUCCESS) {
        return NOT_SUPPORTED;
    }
    vram->total_mb = (uint32_t)(total >> 20);
    vram->used_mb = (uint32_t)(used >> 20);
    return SUCCESS;
}

struct engines {
    uint32_t gfx, umc, mm, reserved[13];
};

EXPORT int amdsmi_get_gpu_activity(void *handle, struct engines *busy)
{
    struct tree_card *card = card_of(handle);
    unsigned long long number;
    memset(busy, 0, sizeof *busy);
    busy->umc = busy->mm = UINT32_MAX;
    if (card == NULL || !tree_number(card, "gpu_busy_percent", &number)) {
        return NOT_SUPPORTED;
    }
    busy->gfx = (uint32_t)number;
    return SUCCESS;
}

struct ecc {
    uint64_t correctable, uncorrectable, deferred, reserved[5];
};

static unsigned long long errors(const struct tree_card *card, const char *block, const char *kind, bool *told)
{
    char name[64], line[TREE_WORD], path[2 * TREE_PATH];
    snprintf(name, sizeof name, "ras/%s_err_count", block);
    snprintf(path, sizeof path, "%s/%s", card->folder, name);
    FILE *file = fopen(path, "re");
    unsigned long long number, sum = 0;
    char word[16];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%15[a-z]: %llu", word, &number) == 2) {
            *told = true;
            sum += strcmp(word, kind) == 0 ? number : 0;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return sum;
}

EXPORT int amdsmi_get_gpu_total_ecc_count(void *handle, struct ecc *ecc)
{
    static const char *const blocks[] = {"umc", "gfx", "sdma", "mmhub", "xgmi_wafl"};
    struct tree_card *card = card_of(handle);
    bool told = false;
    memset(ecc, 0, sizeof *ecc);
    for (size_t i = 0; card != NULL && i < sizeof blocks / sizeof *blocks; i++) {
        ecc->correctable += errors(card, blocks[i], "ce", &told);
        ecc->uncorrectable += errors(card, blocks[i], "ue", &told);
    }
    return told ? SUCCESS : NOT_SUPPORTED;
}

enum { LINK_PCIE = 1, LINK_XGMI = 2, LINK_DOWN = 0, LINK_UP = 1 };

struct link_status {
    uint32_t total, status[TREE_LINKS_MAX], padding;
    uint64_t reserved[7];
};

EXPORT int amdsmi_get_gpu_xgmi_link_status(void *handle, struct link_status *found)
{
    struct tree_card *card = card_of(handle);
    struct tree_link links[TREE_LINKS_MAX];
    memset(found, 0, sizeof *found);
    int there = card != NULL ? tree_links(card, links) : 0;
    for (int i = 0; i < there; i++) {
        found->status[i] = links[i].up ? LINK_UP : LINK_DOWN;
    }
    found->total = (uint32_t)there;
    return there > 0 ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int amdsmi_topo_get_link_type(void *from, void *to, uint64_t *hops, uint32_t *kind)
{
    struct tree_card *here = card_of(from), *there = card_of(to);
    struct tree_link links[TREE_LINKS_MAX];
    if (here == NULL || there == NULL || here == there) {
        return INVALID;
    }
    *hops = 2;
    *kind = LINK_PCIE;
    int count = tree_links(here, links);
    for (int i = 0; i < count; i++) {
        if (strcmp(links[i].to, there->pci) == 0) {
            *hops = 1;
            *kind = LINK_XGMI;
        }
    }
    return SUCCESS;
}

#pragma pack(push, 1)
struct process {
    char name[256];
    uint32_t pid;
    uint8_t padding[4];
    uint64_t memory;
    uint64_t gfx, enc;
    uint32_t engine_reserved[12];
    uint64_t gtt, cpu, vram;
    uint32_t memory_reserved[10];
    char container[256];
    uint32_t occupancy, reserved[11];
};
#pragma pack(pop)

EXPORT int amdsmi_get_gpu_process_list(void *handle, uint32_t *most, struct process *list)
{
    static struct tree_process found[PROCESSES_MAX];
    struct tree_card *card = card_of(handle);
    if (card == NULL) {
        return NOT_FOUND;
    }
    int there = tree_processes(card, "drm-resident-vram", "drm-memory-vram", found, PROCESSES_MAX);
    for (int i = 0; list != NULL && i < there && i < (int)*most; i++) {
        memset(&list[i], 0, sizeof list[i]);
        snprintf(list[i].name, sizeof list[i].name, "%s", found[i].name);
        list[i].pid = (uint32_t)found[i].pid;
        list[i].memory = list[i].vram = found[i].bytes / 1024 * 1000;
        list[i].occupancy = UINT32_MAX;
    }
    *most = (uint32_t)there;
    return SUCCESS;
}
