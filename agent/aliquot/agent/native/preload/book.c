/*
 * Charging. One mutex for all processes of the lease; it is robust, so that a process killed within it stops nobody:
 * the sums are then taken from the slots again. The limit is only ever read.
 *
 * Where the files can't be used nothing may be allocated: this library is only loaded in a lease's processes, and a
 * lease whose limit is unknown has none to give.
 */
#include "book.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf.h"
#include "life.h"
#include "say.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* What belongs to this very process. The kernel clears it in a child, however that was forked. */
struct own {
    uint32_t opened, slot_taken;
    int32_t slot;
    struct identity identity;
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static const struct limit_file *limits;
static struct account_file *account;
static char account_path[512];
static struct own own_without_wipe, *own = &own_without_wipe;
static int (*make_consistent)(pthread_mutex_t *);

static void *map_beside(const char *name, size_t size, int protection, char *path, size_t path_size)
{
    char library[480];
    if (!own_path(library, sizeof library))
        return NULL;
    char *slash = strrchr(library, '/');
    if (!slash || slash == library)
        return NULL;
    *slash = '\0';
    snprintf(path, path_size, "%s/%s", library, name);
    int fd = open(path, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *memory = lseek(fd, 0, SEEK_END) < (off_t)size ? MAP_FAILED : mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static void make_own(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    if (madvise(memory, page, MADV_WIPEONFORK) == 0)
        own = memory;
    else
        munmap(memory, page); /* an old kernel: fork handlers do (see main.c) */
}

static void open_files(void)
{
    char path[512];
    if (!limits) {
        make_own();
        make_consistent = (int (*)(pthread_mutex_t *))libc_function("pthread_mutex_consistent");
        limits = map_beside("limit", sizeof *limits, PROT_READ, path, sizeof path);
        account = map_beside("account", sizeof *account, PROT_READ | PROT_WRITE, account_path, sizeof account_path);
        if (limits && (limits->magic != LIMIT_MAGIC || limits->version != LAYOUT_VERSION))
            limits = NULL;
        if (account && (account->magic != ACCOUNT_MAGIC || account->version != LAYOUT_VERSION))
            account = NULL;
        if (limits && account)
            say_on(limits);
        else
            say("no GPU memory can be allocated: %s can't be read here; attach this process to its lease again",
                limits ? "the lease's account" : "the lease's limit");
    }
    own->identity = life_self();
    own->opened = 1;
}

static bool usable(void)
{
    if (!own->opened) {
        pthread_mutex_lock(&opening);
        if (!own->opened)
            open_files();
        pthread_mutex_unlock(&opening);
    }
    return limits && account;
}

/* The agent compares what it saw on the device with the most that was charged at any moment since it last looked. So
 * what was charged before a change counts as well as after; it is recorded after the change, because the agent may set
 * the peak back at any moment. */
static void note_peak(int device, uint64_t before)
{
    const uint64_t now = account->held[device], most = before > now ? before : now;
    if (most > account->peak[device])
        account->peak[device] = most;
}

static void sum_up(void)
{
    uint64_t before[DEVICES_MAX];
    memcpy(before, account->held, sizeof before);
    memset(account->held, 0, sizeof account->held);
    for (int i = 0; i < SLOTS_MAX; i++)
        for (int d = 0; d < DEVICES_MAX && account->slots[i].pid; d++)
            account->held[d] += account->slots[i].held[d];
    for (int d = 0; d < DEVICES_MAX; d++)
        note_peak(d, before[d]);
}

static void lock(void)
{
    if (pthread_mutex_lock(&account->mutex) == EOWNERDEAD) {
        sum_up(); /* its owner may have changed one of slot and sum only */
        if (make_consistent)
            make_consistent(&account->mutex);
    }
}

static void unlock(void)
{
    pthread_mutex_unlock(&account->mutex);
}

static void reap(void)
{
    bool reaped = false;
    int fd = open(account_path, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < SLOTS_MAX; i++) {
        struct slot *slot = &account->slots[i];
        if (!slot->pid || (own->slot_taken && i == own->slot) || life_goes_on(slot, i, &own->identity, fd))
            continue;
        memset(slot, 0, sizeof *slot);
        reaped = true;
    }
    if (fd >= 0)
        close(fd);
    if (reaped)
        sum_up();
}

/* Ours from before an exec, which gave its memory back; not that of another copy of this library in this process, which
 * still holds its lock. */
static bool is_left_behind(int index)
{
    const struct slot *slot = &account->slots[index];
    if (slot->pid != own->identity.pid || slot->start_ticks != own->identity.start_ticks ||
        slot->pid_namespace != own->identity.pid_namespace)
        return false;
    int fd = slot->life_locked ? open(account_path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return true;
    const bool held = life_goes_on(slot, index, &own->identity, fd);
    close(fd);
    return !held;
}

static int find_slot(void)
{
    int free_slot = -1;
    for (int i = SLOTS_MAX - 1; i >= 0; i--) {
        if (!account->slots[i].pid)
            free_slot = i;
        else if (is_left_behind(i))
            return i;
    }
    return free_slot;
}

/* Under the lock. */
static struct slot *own_slot(void)
{
    if (own->slot_taken)
        return &account->slots[own->slot];
    int index = find_slot();
    if (index < 0) {
        reap();
        index = find_slot();
    }
    if (index < 0) {
        say("no GPU memory can be allocated: the lease has %d processes on its devices already", SLOTS_MAX);
        return NULL;
    }
    struct slot *slot = &account->slots[index];
    memset(slot, 0, sizeof *slot);
    slot->start_ticks = own->identity.start_ticks;
    slot->pid_namespace = own->identity.pid_namespace;
    slot->life_locked = life_lock(account_path, index);
    slot->pid = own->identity.pid;
    sum_up();
    own->slot = index;
    own->slot_taken = 1;
    return slot;
}

static uint64_t room(int device)
{
    const struct limit_device *limit = &limits->devices[device];
    const uint64_t memory = __atomic_load_n(&limit->memory_bytes, __ATOMIC_RELAXED);
    const uint64_t excess = __atomic_load_n(&limit->excess_bytes, __ATOMIC_RELAXED);
    const uint64_t held = account->held[device];
    if (held > memory || excess > memory - held)
        return 0;
    return memory - held - excess;
}

static void add(struct slot *slot, int device, uint64_t bytes)
{
    const uint64_t before = account->held[device];
    slot->held[device] += bytes;
    account->held[device] += bytes;
    note_peak(device, before);
}

int book_device(const unsigned char uuid[16])
{
    if (!usable())
        return DEVICE_FOREIGN;
    for (unsigned i = 0; i < limits->device_count && i < DEVICES_MAX; i++)
        if (memcmp(limits->devices[i].uuid, uuid, 16) == 0)
            return (int)i;
    return DEVICE_FOREIGN;
}

bool book_charge(int device, uint64_t bytes)
{
    if (!usable() || device < 0)
        return false;
    lock();
    struct slot *slot = own_slot();
    if (slot && bytes > room(device))
        reap();
    bool fits = slot && bytes <= room(device);
    if (fits)
        add(slot, device, bytes);
    unlock();
    return fits;
}

void book_force(int device, uint64_t bytes)
{
    if (!usable() || device < 0)
        return;
    lock();
    struct slot *slot = own_slot();
    if (slot)
        add(slot, device, bytes);
    unlock();
}

void book_credit(int device, uint64_t bytes)
{
    if (!usable() || device < 0)
        return;
    lock();
    struct slot *slot = own_slot();
    if (slot) {
        if (bytes > slot->held[device])
            bytes = slot->held[device];
        const uint64_t before = account->held[device];
        slot->held[device] -= bytes;
        account->held[device] -= bytes < before ? bytes : before;
        note_peak(device, before);
    }
    unlock();
}

void book_note_context(int device, uint64_t bytes)
{
    if (!usable() || device < 0 || !bytes)
        return;
    lock();
    if (!account->context[device] || bytes < account->context[device])
        account->context[device] = bytes;
    unlock();
}

bool book_limits(int device)
{
    if (device >= 0)
        return book_limit(device) < UNLIMITED_BYTES;
    for (unsigned i = 0; usable() && i < limits->device_count && i < DEVICES_MAX; i++)
        if (book_limit((int)i) < UNLIMITED_BYTES)
            return true;
    return !usable() || !limits->device_count;
}

uint64_t book_limit(int device)
{
    return usable() && device >= 0 ? __atomic_load_n(&limits->devices[device].memory_bytes, __ATOMIC_RELAXED) : 0;
}

uint64_t book_room(int device)
{
    if (!usable() || device < 0)
        return 0;
    lock();
    reap();
    uint64_t bytes = room(device);
    unlock();
    return bytes;
}

uint64_t book_held_here(int device)
{
    return usable() && device >= 0 && own->slot_taken ? account->slots[own->slot].held[device] : 0;
}

uint64_t book_context_bytes(int device)
{
    return usable() && device >= 0 ? limits->devices[device].context_bytes : 0;
}

bool book_paced(void)
{
    for (unsigned i = 0; usable() && i < limits->device_count && i < DEVICES_MAX; i++)
        if (limits->devices[i].paced)
            return true;
    return false;
}

bool book_pacing(void)
{
    for (unsigned i = 0; usable() && i < limits->device_count && i < DEVICES_MAX; i++)
        if (__atomic_load_n(&limits->devices[i].allowed_milli, __ATOMIC_RELAXED))
            return true;
    return false;
}

const struct limit_device *book_allowance(int device)
{
    return usable() && device >= 0 ? &limits->devices[device] : NULL;
}

struct pace *book_pace(int device)
{
    return usable() && device >= 0 ? &account->paces[device] : NULL;
}

void book_forget(void)
{
    opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(own, 0, sizeof *own);
}
