/* Stands for libhlml.so: Intel's interface to Gaudi cards.
 *
 *   gaudi NUMBER NAME UUID PCI MEMORY_BYTES SYSTEM_BYTES BUSY HEAT MILLIWATT UNCORRECTED STATE
 *   proc NUMBER PID BYTES
 *
 * PCI is domain:bus:device.function in hex, STATE is ok or lost.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

#define EXPORT __attribute__((visibility("default")))
#define VARIABLE "ALIQUOT_SIMHLML"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_FOUND = 6, NO_DRIVER = 9, LOST = 15 };

struct card {
    unsigned int number, domain, bus, device, function, busy, heat, milliwatt, uncorrected;
    unsigned long long memory, system, held;
    char name[32], uuid[64], state[16];
};

static int find(void *handle, struct card *card)
{
    struct scene *scene = scene_read(VARIABLE);
    unsigned int number = (unsigned int)(uintptr_t)handle - 1, of;
    int result = scene == NULL ? NO_DRIVER : NOT_FOUND, pid;
    unsigned long long bytes;
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        struct card each = {0};
        if (sscanf(scene->line[i], "gaudi %u %31s %63s %x:%x:%x.%x %llu %llu %u %u %u %u %15s", &each.number, each.name,
                   each.uuid, &each.domain, &each.bus, &each.device, &each.function, &each.memory, &each.system,
                   &each.busy, &each.heat, &each.milliwatt, &each.uncorrected, each.state) == 14 &&
            each.number == number) {
            *card = each;
            result = strcmp(each.state, "lost") == 0 ? LOST : SUCCESS;
        }
    }
    for (int i = 0; result == SUCCESS && i < scene->count; i++) {
        if (sscanf(scene->line[i], "proc %u %d %llu", &of, &pid, &bytes) == 3 && of == number && scene_alive(pid)) {
            card->held += bytes;
        }
    }
    free(scene);
    return result;
}

EXPORT int hlml_init(void)
{
    struct scene *scene = scene_read(VARIABLE);
    int result = scene != NULL ? SUCCESS : NO_DRIVER;
    free(scene);
    return result;
}

EXPORT int hlml_init_with_flags(unsigned int flags)
{
    (void)flags;
    return hlml_init();
}

EXPORT int hlml_shutdown(void)
{
    return SUCCESS;
}

EXPORT int hlml_device_get_count(unsigned int *count)
{
    struct scene *scene = scene_read(VARIABLE);
    *count = 0;
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        *count += strncmp(scene->line[i], "gaudi ", 6) == 0;
    }
    free(scene);
    return SUCCESS;
}

EXPORT int hlml_device_get_handle_by_index(unsigned int index, void **handle)
{
    struct card card;
    *handle = (void *)(uintptr_t)(index + 1);
    return find(*handle, &card);
}

#define WITH_CARD(handle)                                                                                              \
    struct card card;                                                                                                  \
    int result = find(handle, &card);                                                                                  \
    if (result != SUCCESS) {                                                                                           \
        return result;                                                                                                 \
    }

EXPORT int hlml_device_get_name(void *handle, char *name, unsigned int length)
{
    WITH_CARD(handle)
    snprintf(name, length, "%s", card.name);
    return SUCCESS;
}

EXPORT int hlml_device_get_uuid(void *handle, char *uuid, unsigned int length)
{
    WITH_CARD(handle)
    snprintf(uuid, length, "%s", card.uuid);
    return SUCCESS;
}

struct pci_info {
    unsigned int bus;
    char bus_id[19];
    unsigned int device, domain, pci_device_id;
    char caps[4][10];
    unsigned int revision, subsystem;
};

EXPORT int hlml_device_get_pci_info(void *handle, struct pci_info *info)
{
    WITH_CARD(handle)
    memset(info, 0, sizeof *info);
    info->bus = card.bus;
    info->device = card.device;
    info->domain = card.domain;
    snprintf(info->bus_id, sizeof info->bus_id, "%04x:%02x:%02x.%x", card.domain & 0xffff, card.bus & 0xff,
             card.device & 0xff, card.function & 0xf);
    return SUCCESS;
}

struct memory {
    unsigned long long free, total, used;
};

EXPORT int hlml_device_get_memory_info(void *handle, struct memory *memory)
{
    WITH_CARD(handle)
    memory->total = card.memory;
    memory->used = card.system + card.held;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT int hlml_device_get_utilization_rates(void *handle, unsigned int rates[2])
{
    WITH_CARD(handle)
    rates[0] = card.busy;
    rates[1] = (unsigned int)((card.system + card.held) * 100 / card.memory);
    return SUCCESS;
}

EXPORT int hlml_device_get_temperature(void *handle, int sensor, unsigned int *heat)
{
    WITH_CARD(handle)
    *heat = card.heat + (sensor == 3 ? 5 : 0);
    return sensor == 0 || sensor == 3 ? SUCCESS : INVALID;
}

EXPORT int hlml_device_get_power_usage(void *handle, unsigned int *milliwatt)
{
    WITH_CARD(handle)
    *milliwatt = card.milliwatt;
    return SUCCESS;
}

EXPORT int hlml_device_get_total_ecc_errors(void *handle, int kind, int counter, long long *count)
{
    WITH_CARD(handle)
    (void)counter;
    *count = kind == 1 ? card.uncorrected : 0;
    return SUCCESS;
}
