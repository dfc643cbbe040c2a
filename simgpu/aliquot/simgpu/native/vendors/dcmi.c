/* Stands for libdcmi.so: Huawei's interface to Ascend cards. Structures are those of the public dcmi_interface_api.h.
 *
 *   driver VERSION
 *   chip CARD DEVICE LOGIC PHYSICAL NAME CORES MEMORY_MB SYSTEM_MB BUSY HEAT DECIWATT HEALTH DOUBLE_BIT DIE PCI STATE
 *   template NAME_OF_CHIP TEMPLATE CORES MEMORY_MB
 *   vdev CARD DEVICE ID TEMPLATE CORES MEMORY_MB
 *   proc CARD DEVICE PID MB VDEV
 *   link CARD DEVICE CARD DEVICE KIND
 *
 * DIE is five words in hex, PCI is domain:bus:device.function in hex, STATE is ok, lost or starting. VDEV is -1 on a whole
 * device. As the real library does, a list of processes names those of all virtual devices of a chip, and not theirs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

#define EXPORT __attribute__((visibility("default")))
#define VARIABLE "ALIQUOT_SIMDCMI"

enum {
    OK = 0,
    INVALID = -8001,
    INVALID_DEVICE = -8007,
    NO_DEVICE = -8008,
    NOT_READY = -8012,
    NO_RESOURCE = -8020,
    NOT_SUPPORTED = -8255,
    IN_USE = -8017,
};
enum { CMD_VDEV = 52, VDEV_RESOURCE = 0, TOTAL_RESOURCE = 1, FREE_RESOURCE = 2 };
enum { TOPO_SELF = 0, TOPO_SYS = 1 };
enum { NAME_CHARS = 32, PROC_MAX = 64, SPLIT_MAX = 32, RESERVE = 32 };

struct chip {
    int card, device, logic, physical, cores, busy, heat, deciwatt;
    unsigned int health, double_bit, die[5], domain, bus, dev, function;
    unsigned long memory_mb, system_mb;
    char name[NAME_CHARS], state[16];
};

struct vdev {
    int card, device, id, cores;
    unsigned long memory_mb;
    char template_name[NAME_CHARS];
};

struct proc {
    int card, device, pid, vdev;
    unsigned long mb;
};

static bool read_chip(const char *line, struct chip *chip)
{
    return sscanf(line, "chip %d %d %d %d %31s %d %lu %lu %d %d %d %u %u %8x%8x%8x%8x%8x %x:%x:%x.%x %15s", &chip->card,
                  &chip->device, &chip->logic, &chip->physical, chip->name, &chip->cores, &chip->memory_mb,
                  &chip->system_mb, &chip->busy, &chip->heat, &chip->deciwatt, &chip->health, &chip->double_bit,
                  &chip->die[0], &chip->die[1], &chip->die[2], &chip->die[3], &chip->die[4], &chip->domain, &chip->bus,
                  &chip->dev, &chip->function, chip->state) == 23;
}

static bool read_vdev(const char *line, struct vdev *vdev)
{
    return sscanf(line, "vdev %d %d %d %31s %d %lu", &vdev->card, &vdev->device, &vdev->id, vdev->template_name,
                  &vdev->cores, &vdev->memory_mb) == 6;
}

static bool read_proc(const char *line, struct proc *proc)
{
    return sscanf(line, "proc %d %d %d %lu %d", &proc->card, &proc->device, &proc->pid, &proc->mb, &proc->vdev) == 5;
}

/* Finds a chip that answers; its lines are left in `*scene`, for the caller to free. */
static int find(int card, int device, struct chip *chip, struct scene **scene)
{
    *scene = scene_read(VARIABLE);
    for (int i = 0; *scene != NULL && i < (*scene)->count; i++) {
        if (read_chip((*scene)->line[i], chip) && chip->card == card && chip->device == device) {
            if (strcmp(chip->state, "lost") == 0) {
                break;
            }
            return strcmp(chip->state, "starting") == 0 ? NOT_READY : OK;
        }
    }
    return *scene == NULL ? NO_DEVICE : INVALID_DEVICE;
}

static unsigned long used_mb(const struct scene *scene, const struct chip *chip)
{
    unsigned long sum = chip->system_mb;
    struct proc proc;
    for (int i = 0; i < scene->count; i++) {
        if (read_proc(scene->line[i], &proc) && proc.card == chip->card && proc.device == chip->device &&
            scene_alive(proc.pid)) {
            sum += proc.mb;
        }
    }
    return sum;
}

EXPORT int dcmi_init(void)
{
    struct scene *scene = scene_read(VARIABLE);
    int result = scene != NULL ? OK : NOT_READY;
    free(scene);
    return result;
}

EXPORT int dcmi_get_driver_version(char *version, unsigned int length)
{
    struct scene *scene = scene_read(VARIABLE);
    char word[64] = "";
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        if (sscanf(scene->line[i], "driver %63s", word) == 1) {
            break;
        }
    }
    free(scene);
    snprintf(version, length, "%s", word);
    return word[0] != '\0' ? OK : NOT_SUPPORTED;
}

EXPORT int dcmi_get_card_list(int *count, int *cards, int length)
{
    struct scene *scene = scene_read(VARIABLE);
    struct chip chip;
    *count = 0;
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        bool fresh = read_chip(scene->line[i], &chip);
        for (int known = 0; fresh && known < *count; known++) {
            fresh = cards[known] != chip.card;
        }
        if (fresh && *count < length) {
            cards[(*count)++] = chip.card;
        }
    }
    free(scene);
    return OK;
}

EXPORT int dcmi_get_card_num_list(int *count, int *cards, int length)
{
    return dcmi_get_card_list(count, cards, length);
}

EXPORT int dcmi_get_device_num_in_card(int card, int *count)
{
    struct scene *scene = scene_read(VARIABLE);
    struct chip chip;
    *count = 0;
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        *count += read_chip(scene->line[i], &chip) && chip.card == card;
    }
    free(scene);
    return *count > 0 ? OK : INVALID_DEVICE;
}

#define WITH_CHIP(card, device)                                                                                        \
    struct scene *scene;                                                                                               \
    struct chip chip;                                                                                                  \
    int result = find(card, device, &chip, &scene);                                                                    \
    if (result != OK) {                                                                                                \
        free(scene);                                                                                                   \
        return result;                                                                                                 \
    }

EXPORT int dcmi_get_device_logic_id(int *logic, int card, int device)
{
    WITH_CHIP(card, device)
    *logic = chip.logic;
    free(scene);
    return OK;
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *physical)
{
    struct scene *scene = scene_read(VARIABLE);
    struct chip chip;
    int result = INVALID_DEVICE;
    for (int i = 0; scene != NULL && i < scene->count; i++) {
        if (read_chip(scene->line[i], &chip) && chip.logic == (int)logic) {
            *physical = (unsigned int)chip.physical;
            result = OK;
        }
    }
    free(scene);
    return result;
}

struct chip_info {
    unsigned char type[NAME_CHARS], name[NAME_CHARS], version[NAME_CHARS];
    unsigned int cores;
};

EXPORT int dcmi_get_device_chip_info(int card, int device, struct chip_info *info)
{
    WITH_CHIP(card, device)
    memset(info, 0, sizeof *info);
    strcpy((char *)info->type, "Ascend");
    strcpy((char *)info->name, chip.name);
    strcpy((char *)info->version, "V1");
    info->cores = (unsigned int)chip.cores;
    free(scene);
    return OK;
}

struct chip_info_v2 {
    struct chip_info info;
    unsigned char npu_name[NAME_CHARS];
};

EXPORT int dcmi_get_device_chip_info_v2(int card, int device, struct chip_info_v2 *info)
{
    memset(info, 0, sizeof *info);
    return dcmi_get_device_chip_info(card, device, &info->info);
}

struct die_id {
    unsigned int soc_die[5];
};

EXPORT int dcmi_get_device_die_v2(int card, int device, int kind, struct die_id *die)
{
    WITH_CHIP(card, device)
    for (int i = 0; i < 5; i++) {
        die->soc_die[i] = chip.die[i] ^ (kind == 1 ? 0 : 0xFFFFFFFF);
    }
    free(scene);
    return OK;
}

struct pcie_info {
    unsigned int vendor, subvendor, device, subdevice;
    int domain;
    unsigned int bus, dev, function;
    unsigned char reserved[32];
};

EXPORT int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie_info *info)
{
    WITH_CHIP(card, device)
    memset(info, 0, sizeof *info);
    info->vendor = info->subvendor = 0x19e5;
    info->device = 0xd802;
    info->domain = (int)chip.domain;
    info->bus = chip.bus;
    info->dev = chip.dev;
    info->function = chip.function;
    free(scene);
    return OK;
}

struct hbm_info {
    unsigned long long memory_size;
    unsigned int frequency;
    unsigned long long memory_usage;
    int temperature;
    unsigned int bandwidth_percent;
};

EXPORT int dcmi_get_device_hbm_info(int card, int device, struct hbm_info *info)
{
    WITH_CHIP(card, device)
    memset(info, 0, sizeof *info);
    info->memory_size = chip.memory_mb;
    info->memory_usage = used_mb(scene, &chip);
    info->frequency = 1600;
    info->temperature = chip.heat;
    info->bandwidth_percent = (unsigned int)chip.busy / 2;
    free(scene);
    return OK;
}

/* Known of 910B and later boards only, as with the real library. Chips without a line of theirs meet on the bus. */
EXPORT int dcmi_get_topo_info_by_device_id(int card, int device, int card2, int device2, int *kind)
{
    WITH_CHIP(card, device)
    *kind = card == card2 && device == device2 ? TOPO_SELF : TOPO_SYS;
    for (int i = 0; i < scene->count; i++) {
        int a, b, c, d, told;
        if (sscanf(scene->line[i], "link %d %d %d %d %d", &a, &b, &c, &d, &told) == 5 &&
            ((a == card && b == device && c == card2 && d == device2) ||
             (c == card && d == device && a == card2 && b == device2))) {
            *kind = told;
        }
    }
    free(scene);
    return strncmp(chip.name, "910B", 4) == 0 ? OK : NOT_SUPPORTED;
}

EXPORT int dcmi_get_device_temperature(int card, int device, int *temperature)
{
    WITH_CHIP(card, device)
    *temperature = chip.heat;
    free(scene);
    return OK;
}

EXPORT int dcmi_get_device_power_info(int card, int device, int *deciwatt)
{
    WITH_CHIP(card, device)
    *deciwatt = chip.deciwatt;
    free(scene);
    return OK;
}

EXPORT int dcmi_get_device_health(int card, int device, unsigned int *health)
{
    WITH_CHIP(card, device)
    *health = chip.health;
    free(scene);
    return OK;
}

EXPORT int dcmi_get_device_utilization_rate(int card, int device, int kind, unsigned int *percent)
{
    WITH_CHIP(card, device)
    free(scene);
    if (kind == 2 || kind == 13) {
        *percent = (unsigned int)chip.busy;
    } else if (kind == 6 || kind == 10) {
        *percent = (unsigned int)chip.busy / 2;
    } else if (kind == 3) {
        *percent = 1;
    } else {
        return NOT_SUPPORTED;
    }
    return OK;
}

struct ecc_info {
    int enabled;
    unsigned int single, twofold, total_single, total_twofold, pages_single, pages_twofold;
};

EXPORT int dcmi_get_device_ecc_info(int card, int device, int kind, struct ecc_info *info)
{
    WITH_CHIP(card, device)
    free(scene);
    if (kind != 2) {
        return NOT_SUPPORTED;
    }
    memset(info, 0, sizeof *info);
    info->enabled = 1;
    info->twofold = info->total_twofold = chip.double_bit;
    return OK;
}

struct proc_info {
    int pid;
    unsigned long memory_mb;
};

EXPORT int dcmi_get_device_resource_info(int card, int device, struct proc_info *found, int *count)
{
    WITH_CHIP(card, device)
    struct proc proc;
    *count = 0;
    for (int i = 0; i < scene->count && *count < PROC_MAX; i++) {
        if (read_proc(scene->line[i], &proc) && proc.card == card && proc.device == device && scene_alive(proc.pid)) {
            found[*count].pid = proc.pid;
            found[(*count)++].memory_mb = proc.mb;
        }
    }
    free(scene);
    return OK;
}

struct base {
    unsigned long long token, token_max, task_timeout;
    unsigned int group;
    unsigned char vip_mode, reserved[RESERVE - 1];
};

struct computing {
    float cores, vector_cores;
    unsigned short small[8];
    unsigned long long memory_mb;
    unsigned int event, notify, stream, model;
    unsigned short cpu[5];
    unsigned char reserved[RESERVE];
};

struct media {
    float engines[6];
    unsigned char reserved[RESERVE];
};

struct total {
    unsigned int count, id[SPLIT_MAX], groups, group_bits;
    struct base base;
    struct computing computing;
    struct media media;
};

struct left {
    unsigned int groups, group_bits;
    struct base base;
    struct computing computing;
    struct media media;
};

struct asked {
    unsigned int id;
    char name[16];
    unsigned int status, in_container, vf, group;
    unsigned long long container;
    struct base base;
    struct computing computing;
    struct media media;
};

static void sum_up(const struct scene *scene, const struct chip *chip, struct total *total, int *cores, unsigned long *mb)
{
    struct vdev vdev;
    *cores = chip->cores;
    *mb = chip->memory_mb;
    for (int i = 0; i < scene->count; i++) {
        if (read_vdev(scene->line[i], &vdev) && vdev.card == chip->card && vdev.device == chip->device &&
            total->count < SPLIT_MAX) {
            total->id[total->count++] = (unsigned int)vdev.id;
            *cores -= vdev.cores;
            *mb -= vdev.memory_mb;
        }
    }
}

static bool used_by_process(const struct scene *scene, int card, int device, int id)
{
    struct proc proc;
    for (int i = 0; i < scene->count; i++) {
        if (read_proc(scene->line[i], &proc) && proc.card == card && proc.device == device && proc.vdev == id &&
            scene_alive(proc.pid)) {
            return true;
        }
    }
    return false;
}

EXPORT int dcmi_get_device_info(int card, int device, int command, unsigned int part, void *buffer, unsigned int *size)
{
    WITH_CHIP(card, device)
    struct total total = {0};
    int cores;
    unsigned long mb;
    sum_up(scene, &chip, &total, &cores, &mb);
    result = NOT_SUPPORTED;
    if (command == CMD_VDEV && part == TOTAL_RESOURCE && *size >= sizeof total) {
        total.computing.cores = (float)chip.cores;
        total.computing.memory_mb = chip.memory_mb;
        memcpy(buffer, &total, sizeof total);
        result = OK;
    } else if (command == CMD_VDEV && part == FREE_RESOURCE && *size >= sizeof(struct left)) {
        struct left left = {0};
        left.computing.cores = (float)cores;
        left.computing.memory_mb = mb;
        memcpy(buffer, &left, sizeof left);
        result = OK;
    } else if (command == CMD_VDEV && part == VDEV_RESOURCE && *size >= sizeof(struct asked)) {
        struct asked *asked = buffer;
        struct vdev vdev;
        result = INVALID;
        for (int i = 0; i < scene->count; i++) {
            if (read_vdev(scene->line[i], &vdev) && vdev.card == card && vdev.device == device &&
                vdev.id == (int)asked->id) {
                snprintf(asked->name, sizeof asked->name, "%.15s", vdev.template_name);
                asked->in_container = used_by_process(scene, card, device, vdev.id);
                asked->computing.cores = (float)vdev.cores;
                asked->computing.memory_mb = vdev.memory_mb;
                result = OK;
            }
        }
    }
    free(scene);
    return result;
}

struct create_in {
    unsigned int id, group;
    char template_name[32];
    unsigned char reserved[64];
};

struct create_out {
    unsigned int id, bus, dev, function, group;
    unsigned char reserved[RESERVE];
};

EXPORT int dcmi_create_vdevice(int card, int device, struct create_in *in, struct create_out *out)
{
    int lock = scene_lock(VARIABLE);
    if (lock < 0) {
        return NOT_READY;
    }
    struct scene *scene;
    struct chip chip;
    int result = find(card, device, &chip, &scene);
    struct total total = {0};
    struct vdev vdev = {0};
    int cores = 0;
    unsigned long mb = 0;
    char of_chip[NAME_CHARS];
    if (result == OK) {
        result = INVALID;
        sum_up(scene, &chip, &total, &cores, &mb);
        for (int i = 0; i < scene->count; i++) {
            if (sscanf(scene->line[i], "template %31s %31s %d %lu", of_chip, vdev.template_name, &vdev.cores,
                       &vdev.memory_mb) == 4 &&
                strcmp(of_chip, chip.name) == 0 && strcmp(vdev.template_name, in->template_name) == 0) {
                result = vdev.cores <= cores && vdev.memory_mb <= mb ? OK : NO_RESOURCE;
                break;
            }
        }
    }
    struct proc proc;
    for (int i = 0; result == OK && i < scene->count; i++) {
        bool whole = read_proc(scene->line[i], &proc) && proc.card == card && proc.device == device && proc.vdev < 0;
        if (whole && scene_alive(proc.pid)) {
            result = IN_USE; /* a chip with a program on it is not divided */
        }
    }
    for (unsigned int i = 0; result == OK && i < total.count; i++) {
        if (total.id[i] == in->id) {
            result = IN_USE;
        }
    }
    if (result == OK && scene->count < SCENE_LINES_MAX) {
        snprintf(scene->line[scene->count++], SCENE_LINE_CHARS, "vdev %d %d %u %s %d %lu\n", card, device, in->id,
                 vdev.template_name, vdev.cores, vdev.memory_mb);
        result = scene_write(VARIABLE, scene) ? OK : NOT_READY;
        memset(out, 0, sizeof *out);
        out->id = in->id;
    }
    free(scene);
    scene_unlock(lock);
    return result;
}

EXPORT int dcmi_set_destroy_vdevice(int card, int device, unsigned int id)
{
    int lock = scene_lock(VARIABLE);
    if (lock < 0) {
        return NOT_READY;
    }
    struct scene *scene;
    struct chip chip;
    int result = find(card, device, &chip, &scene);
    if (result == OK) {
        struct vdev vdev;
        result = INVALID;
        for (int i = 0; i < scene->count; i++) {
            if (read_vdev(scene->line[i], &vdev) && vdev.card == card && vdev.device == device && vdev.id == (int)id) {
                result = used_by_process(scene, card, device, vdev.id) ? IN_USE : OK;
                if (result == OK) {
                    scene->line[i][0] = '\0';
                }
            }
        }
        if (result == OK && !scene_write(VARIABLE, scene)) {
            result = NOT_READY;
        }
    }
    free(scene);
    scene_unlock(lock);
    return result;
}
