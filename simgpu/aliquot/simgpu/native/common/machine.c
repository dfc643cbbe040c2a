#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct scenario *mapped;
static dev_t mapped_device;
static ino_t mapped_inode;
static uint64_t mappings;
static struct process_identity self;

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t realtime_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static bool layout_matches(const struct scenario *scenario)
{
    return scenario->magic == SCENARIO_MAGIC && scenario->version == SCENARIO_VERSION &&
           scenario->header_bytes == sizeof(struct scenario) && scenario->device_bytes == sizeof(struct sim_device) &&
           scenario->account_bytes == sizeof(struct sim_account) && scenario->device_count <= DEVICES_MAX;
}

struct scenario *machine_open(void)
{
    const char *path = getenv("ALIQUOT_SIMGPU");
    struct stat file;
    if (!path || !*path || stat(path, &file) || (size_t)file.st_size < sizeof(struct scenario))
        return NULL;
    if (mapped && file.st_dev == mapped_device && file.st_ino == mapped_inode)
        return mapped;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct scenario *scenario = mmap(NULL, sizeof *scenario, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (scenario == MAP_FAILED)
        return NULL;
    if (!layout_matches(scenario)) {
        munmap(scenario, sizeof *scenario);
        return NULL;
    }
    /* An earlier mapping stays: another thread may still be reading from it. */
    mapped = scenario;
    mappings++;
    mapped_device = file.st_dev;
    mapped_inode = file.st_ino;
    return mapped;
}

struct scenario *machine(void)
{
    return mapped;
}

uint64_t machine_mapping(void)
{
    return mappings;
}

void machine_lock(void)
{
    if (pthread_mutex_lock(&mapped->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&mapped->mutex);
}

void machine_unlock(void)
{
    pthread_mutex_unlock(&mapped->mutex);
}

void machine_forget_self(void)
{
    self = (struct process_identity){0};
}

const struct process_identity *machine_self(void)
{
    if (!self.pid && !process_identify(getpid(), &self))
        self.pid = getpid();
    return &self;
}
