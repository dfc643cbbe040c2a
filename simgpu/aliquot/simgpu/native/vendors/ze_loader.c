/* Stands for libze_loader.so.1, Sysman only, on the simulated cards of `tree.h`. Structures are those of the public
 * zes_api.h, as the wheel `pyzes` has them as far as it binds them; it binds nothing of errors (RAS) and fabric ports. Like the real library it counts a client with each of its open files.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree.h"

#define EXPORT __attribute__((visibility("default")))
#define VENDOR "0x8086"
#define TEXT 64

enum { SUCCESS = 0, UNINITIALIZED = 0x78000001, UNSUPPORTED = 0x78000003, INVALID = 0x78000004 };
enum { PROCESSES_MAX = 1024 };

static struct tree_card cards[TREE_CARDS_MAX];
static int count = -1;

static struct tree_card *card_of(void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    return number >= 1 && (int)number <= count ? &cards[number - 1] : NULL;
}

EXPORT int zesInit(uint32_t flags)
{
    (void)flags;
    count = tree_cards(VENDOR, cards);
    return SUCCESS;
}

EXPORT int zesDriverGet(uint32_t *found, void **drivers)
{
    if (count < 0) {
        return UNINITIALIZED;
    }
    if (drivers != NULL && *found >= 1) {
        drivers[0] = cards;
    }
    *found = 1;
    return SUCCESS;
}

EXPORT int zesDeviceGet(void *driver, uint32_t *found, void **devices)
{
    (void)driver;
    for (int i = 0; devices != NULL && i < count && i < (int)*found; i++) {
        devices[i] = (void *)(uintptr_t)(i + 1);
    }
    *found = (uint32_t)(count > 0 ? count : 0);
    return SUCCESS;
}

struct core {
    int32_t type_of_struct;
    void *next;
    int32_t type;
    uint32_t vendor, device, flags, subdevice, clock;
    uint64_t allocation_max;
    uint32_t small[7];
    uint64_t timer;
    uint32_t timestamp_bits, kernel_bits;
    uint8_t uuid[16];
    char name[256];
};

struct properties {
    int32_t type_of_struct;
    void *next;
    struct core core;
    uint32_t subdevices;
    char serial[TEXT], board[TEXT], brand[TEXT], model[TEXT], vendor[TEXT], driver[TEXT];
};

EXPORT int zesDeviceGetProperties(void *device, struct properties *found)
{
    struct tree_card *card = card_of(device);
    unsigned long long number = 0;
    if (card == NULL) {
        return INVALID;
    }
    tree_number(card, "device", &number);
    found->core.type = 1;
    found->core.vendor = 0x8086;
    found->core.device = (uint32_t)number;
    unsigned int domain = 0, bus = 0, dev = 0, function = 0;
    sscanf(card->pci, "%x:%x:%x.%x", &domain, &bus, &dev, &function);
    const uint8_t uuid[16] = {0x86, 0x80, (uint8_t)number, (uint8_t)(number >> 8), 0, 0, 0, 0, (uint8_t)domain,
                              (uint8_t)(domain >> 8), (uint8_t)bus, (uint8_t)(dev << 3 | function)};
    memcpy(found->core.uuid, uuid, sizeof uuid);
    snprintf(found->vendor, sizeof found->vendor, "Intel(R) Corporation");
    snprintf(found->serial, sizeof found->serial, "unknown");
    return SUCCESS;
}

struct pci {
    int32_t type_of_struct;
    void *next;
    uint32_t domain, bus, device, function;
    int32_t generation, width;
    int64_t bandwidth;
    uint8_t counters[3];
};

EXPORT int zesDevicePciGetProperties(void *device, struct pci *found)
{
    struct tree_card *card = card_of(device);
    if (card == NULL) {
        return INVALID;
    }
    found->generation = found->width = -1;
    found->bandwidth = -1;
    return sscanf(card->pci, "%x:%x:%x.%x", &found->domain, &found->bus, &found->device, &found->function) == 4
               ? SUCCESS
               : UNSUPPORTED;
}

EXPORT int zesDeviceEnumMemoryModules(void *device, uint32_t *found, void **modules)
{
    if (card_of(device) == NULL) {
        return INVALID;
    }
    if (modules != NULL && *found >= 1) {
        modules[0] = device;
    }
    *found = 1;
    return SUCCESS;
}

struct memory {
    int32_t type_of_struct;
    void *next;
    int32_t health;
    uint64_t free, size;
};

/* What is in use, dmem's root says for the card's first region: "drm/0000:03:00.0/vram0 123". */
static bool dmem(const struct tree_card *card, const char *file, unsigned long long *bytes)
{
    const char *root = getenv("ALIQUOT_SIMCGROUP");
    char path[TREE_PATH], line[256], region[TREE_WORD], wanted[2 * TREE_WORD];
    snprintf(path, sizeof path, "%s/%s", root != NULL ? root : "/sys/fs/cgroup", file);
    snprintf(wanted, sizeof wanted, "drm/%s/vram0", card->pci);
    FILE *opened = fopen(path, "re");
    bool found = false;
    while (opened != NULL && !found && fgets(line, sizeof line, opened) != NULL) {
        found = sscanf(line, "%127s %llu", region, bytes) == 2 && strcmp(region, wanted) == 0;
    }
    if (opened != NULL) {
        fclose(opened);
    }
    return found;
}

EXPORT int zesMemoryGetState(void *module, struct memory *found)
{
    struct tree_card *card = card_of(module);
    unsigned long long size, used;
    if (card == NULL || !dmem(card, "dmem.capacity", &size) || !dmem(card, "dmem.current", &used)) {
        return UNSUPPORTED;
    }
    found->health = 1;
    found->size = size;
    found->free = size - used;
    return SUCCESS;
}

struct process {
    int32_t type_of_struct;
    void *next;
    uint32_t pid;
    uint64_t memory, shared;
    uint32_t engines;
};

EXPORT int zesDeviceProcessesGetState(void *device, uint32_t *most, struct process *list)
{
    static struct tree_process found[PROCESSES_MAX];
    struct tree_card *card = card_of(device);
    if (card == NULL) {
        return INVALID;
    }
    int there = tree_processes(card, "drm-resident-vram0", "drm-resident-local0", found, PROCESSES_MAX);
    for (int i = 0; list != NULL && i < there && i < (int)*most; i++) {
        list[i].pid = (uint32_t)found[i].pid;
        list[i].memory = found[i].bytes;
        list[i].shared = 0;
        list[i].engines = 1;
    }
    *most = (uint32_t)there;
    return SUCCESS;
}

/* A card has two sets of errors; and ports, one for each link. Their handles are its number and theirs. */
enum { SETS = 2, OWN = 256, CATEGORIES = 7, COMPUTE_ERRORS = 3, FIRST_PORT = 16, PORT_HEALTHY = 1, PORT_FAILED = 3 };

static int list(void *device, uint32_t *found, void **handles, int first, int there)
{
    for (int i = 0; handles != NULL && i < there && i < (int)*found; i++) {
        handles[i] = (void *)((uintptr_t)device * OWN + (uintptr_t)(first + i));
    }
    *found = (uint32_t)there;
    return SUCCESS;
}

static struct tree_card *owner_of(void *handle, int *number)
{
    *number = (int)((uintptr_t)handle % OWN);
    return card_of((void *)((uintptr_t)handle / OWN));
}

EXPORT int zesDeviceEnumRasErrorSets(void *device, uint32_t *found, void **handles)
{
    return card_of(device) != NULL ? list(device, found, handles, 0, SETS) : INVALID;
}

struct ras_properties {
    int32_t type_of_struct;
    void *next;
    int32_t type;
    uint8_t on_subdevice;
    uint32_t subdevice;
};

EXPORT int zesRasGetProperties(void *set, struct ras_properties *found)
{
    int number;
    if (owner_of(set, &number) == NULL) {
        return INVALID;
    }
    found->type = number;
    found->on_subdevice = 0;
    return SUCCESS;
}

struct ras_state {
    int32_t type_of_struct;
    void *next;
    uint64_t category[CATEGORIES];
};

EXPORT int zesRasGetState(void *set, uint8_t clear, struct ras_state *found)
{
    (void)clear;
    int number;
    unsigned long long errors;
    struct tree_card *card = owner_of(set, &number);
    if (card == NULL || !tree_number(card, "simulated_uncorrected", &errors)) {
        return UNSUPPORTED;
    }
    memset(found->category, 0, sizeof found->category);
    /* Corrected ones, and what programs did wrong, are no sign of a bad card. */
    found->category[number == 1 ? COMPUTE_ERRORS : 1] = number == 1 ? errors : 1000;
    found->category[1] += 7;
    return SUCCESS;
}

EXPORT int zesDeviceEnumFabricPorts(void *device, uint32_t *found, void **handles)
{
    struct tree_card *card = card_of(device);
    struct tree_link links[TREE_LINKS_MAX];
    return card != NULL ? list(device, found, handles, FIRST_PORT, tree_links(card, links)) : INVALID;
}

struct port_id {
    uint32_t fabric, attach;
    uint8_t number;
};

struct speed {
    int64_t bits;
    int32_t width;
};

struct port_properties {
    int32_t type_of_struct;
    void *next;
    char model[256];
    uint8_t on_subdevice;
    uint32_t subdevice;
    struct port_id id;
    struct speed receive, send;
};

/* Numbers on the fabric have nothing to do with those of devices. */
static uint32_t fabric_of(const char *pci)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(cards[i].pci, pci) == 0) {
            return 0x40000000U + 16U * (uint32_t)i;
        }
    }
    return 0;
}

EXPORT int zesFabricPortGetProperties(void *port, struct port_properties *found)
{
    int number;
    struct tree_card *card = owner_of(port, &number);
    if (card == NULL) {
        return INVALID;
    }
    snprintf(found->model, sizeof found->model, "XeLink");
    found->id = (struct port_id){fabric_of(card->pci), 0, (uint8_t)(number - FIRST_PORT + 1)};
    return SUCCESS;
}

struct port_state {
    int32_t type_of_struct;
    void *next;
    int32_t status;
    uint32_t quality, failures;
    struct port_id remote;
    struct speed receive, send;
};

EXPORT int zesFabricPortGetState(void *port, struct port_state *found)
{
    int number;
    struct tree_card *card = owner_of(port, &number);
    struct tree_link links[TREE_LINKS_MAX];
    if (card == NULL || number - FIRST_PORT >= tree_links(card, links)) {
        return INVALID;
    }
    const struct tree_link *link = &links[number - FIRST_PORT];
    found->status = link->up ? PORT_HEALTHY : PORT_FAILED;
    found->failures = link->up ? 0 : 1;
    found->remote = (struct port_id){fabric_of(link->to), 0, 1};
    return SUCCESS;
}
