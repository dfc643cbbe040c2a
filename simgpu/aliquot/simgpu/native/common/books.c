/* The books of device memory. Every sum is taken from the tables, so a process that dies anywhere leaves no drift. */
#include "machine.h"

#include <stdio.h>
#include <string.h>

static struct process_identity account_identity(const struct sim_account *account)
{
    return (struct process_identity){
        .pid = account->pid, .start_ticks = account->start_ticks, .stack_start = account->stack_start};
}

static bool holder_is(const struct sim_holder *holder, pid_t pid, uint64_t start_ticks)
{
    return holder->pid == pid && holder->start_ticks == start_ticks;
}

/* Shared memory lives as long as anybody holds it; the first holder left carries it. */
static void reap_shared(struct sim_shared *shared)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < HOLDERS_MAX; i++) {
        struct sim_holder holder = shared->holders[i];
        struct process_identity identity = {
            .pid = holder.pid, .start_ticks = holder.start_ticks, .stack_start = holder.stack_start};
        if (holder.pid && process_alive(&identity))
            shared->holders[kept++] = holder;
    }
    memset(&shared->holders[kept], 0, (HOLDERS_MAX - kept) * sizeof shared->holders[0]);
    if (!kept)
        memset(shared, 0, sizeof *shared);
}

void books_reap(struct sim_device *device)
{
    struct scenario *scenario = machine();
    for (uint32_t i = 0; i < device->account_count; i++) {
        struct sim_account *account = &device->accounts[i];
        if (account->state != ACCOUNT_PROCESS)
            continue;
        struct process_identity identity = account_identity(account);
        if (process_alive(&identity))
            continue;
        share_out(device, monotonic_ns());
        if (account->server && account->queued_ns > account_time_ns(account, monotonic_ns()))
            device->wedged_server = account->server;
        memset(account, 0, sizeof *account);
    }
    while (device->account_count && device->accounts[device->account_count - 1].state == ACCOUNT_FREE)
        device->account_count--;
    uint32_t index = (uint32_t)(device - scenario->devices);
    for (uint32_t i = 0; i < scenario->shared_count; i++)
        if (scenario->shared[i].in_use && scenario->shared[i].device == index)
            reap_shared(&scenario->shared[i]);
    while (scenario->shared_count && !scenario->shared[scenario->shared_count - 1].in_use)
        scenario->shared_count--;
}

uint64_t books_used_bytes(const struct sim_device *device, uint32_t gpu_instance)
{
    const struct scenario *scenario = machine();
    uint32_t index = (uint32_t)(device - scenario->devices);
    uint64_t used = 0;
    for (uint32_t i = 0; i < device->account_count; i++) {
        const struct sim_account *account = &device->accounts[i];
        if (gpu_instance == NO_INSTANCE || account->gpu_instance == gpu_instance)
            used += account->memory_bytes + account->managed_bytes; /* zero in free slots */
    }
    for (uint32_t i = 0; i < scenario->shared_count; i++) {
        const struct sim_shared *shared = &scenario->shared[i];
        if (shared->in_use && shared->device == index &&
            (gpu_instance == NO_INSTANCE || shared->gpu_instance == gpu_instance))
            used += shared->bytes;
    }
    return used;
}

uint64_t books_total_bytes(const struct sim_device *device, uint32_t gpu_instance)
{
    if (gpu_instance == NO_INSTANCE)
        return device->total_bytes;
    for (uint32_t i = 0; i < INSTANCES_MAX; i++)
        if (device->gpu_instances[i].in_use && device->gpu_instances[i].id == gpu_instance)
            return device->profiles[device->gpu_instances[i].profile].memory_mib << 20;
    return 0;
}

uint64_t books_free_bytes(const struct sim_device *device, uint32_t gpu_instance)
{
    uint64_t total = books_total_bytes(device, gpu_instance);
    uint64_t taken = books_used_bytes(device, gpu_instance);
    if (gpu_instance == NO_INSTANCE)
        taken += device->reserved_bytes;
    return taken < total ? total - taken : 0;
}

uint64_t books_shared_bytes(const struct sim_device *device, const struct sim_account *account)
{
    const struct scenario *scenario = machine();
    uint32_t index = (uint32_t)(device - scenario->devices);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < scenario->shared_count; i++) {
        const struct sim_shared *shared = &scenario->shared[i];
        if (shared->in_use && shared->device == index &&
            holder_is(&shared->holders[0], account->pid, account->start_ticks))
            bytes += shared->bytes;
    }
    return bytes;
}

static bool is_own(const struct sim_account *account, struct place place)
{
    const struct process_identity *own = machine_self();
    return account->state == ACCOUNT_PROCESS && account->pid == own->pid &&
           account->start_ticks == own->start_ticks && account->gpu_instance == place.gpu_instance &&
           account->compute_instance == place.compute_instance;
}

static struct sim_account *free_slot(struct sim_device *device)
{
    for (uint32_t i = 0; i < ACCOUNTS_MAX; i++)
        if (device->accounts[i].state == ACCOUNT_FREE)
            return &device->accounts[i];
    return NULL;
}

struct sim_account *books_account(struct place place, bool create)
{
    struct sim_device *device = &machine()->devices[place.device];
    const struct process_identity *own = machine_self();
    for (uint32_t i = 0; i < device->account_count; i++) {
        struct sim_account *account = &device->accounts[i];
        if (!is_own(account, place))
            continue;
        if (account->stack_start == own->stack_start)
            return account;
        memset(account, 0, sizeof *account); /* what this process held before it called exec */
    }
    if (!create)
        return NULL;
    struct sim_account *account = free_slot(device);
    if (!account) {
        books_reap(device);
        account = free_slot(device);
    }
    if (!account)
        return NULL;
    *account = (struct sim_account){
        .pid = own->pid,
        .start_ticks = own->start_ticks,
        .stack_start = own->stack_start,
        .gpu_instance = place.gpu_instance,
        .compute_instance = place.compute_instance,
        .types = TYPE_COMPUTE,
        .sm_percent = DERIVED,
        .since_us = realtime_us(),
    };
    if (!process_name(own->pid, account->name, sizeof account->name))
        snprintf(account->name, sizeof account->name, "pid %d", (int)own->pid);
    uint32_t index = (uint32_t)(account - device->accounts);
    if (device->account_count <= index)
        device->account_count = index + 1;
    account->state = ACCOUNT_PROCESS;
    return account;
}

void books_close(struct place place)
{
    struct sim_account *account = books_account(place, false);
    if (account)
        memset(account, 0, sizeof *account);
}

static bool limit_stale(const struct sim_limit *limit)
{
    struct cgroup_line now;
    return !cgroup_identify(limit->path, &now) || now.device != limit->cgroup_device ||
           now.inodes[0] != limit->cgroup_inode;
}

struct sim_limit *books_limit(struct sim_device *device, uint64_t cgroup_device, uint64_t cgroup_inode)
{
    struct scenario *scenario = machine();
    uint32_t index = (uint32_t)(device - scenario->devices);
    for (uint32_t i = 0; i < scenario->limit_count; i++) {
        struct sim_limit *limit = &scenario->limits[i];
        if (!limit->in_use || limit->device != index || limit->cgroup_device != cgroup_device ||
            limit->cgroup_inode != cgroup_inode)
            continue;
        if (!limit_stale(limit))
            return limit;
        memset(limit, 0, sizeof *limit); /* removing a cgroup clears its limits */
    }
    return NULL;
}

struct sim_limit *books_shown_limit(struct sim_device *device, const struct cgroup_line *line)
{
    if (machine()->limits_nested)
        return books_limit(device, line->device, line->inodes[0]);
    for (int i = 0; i < CGROUP_DEPTH && line->inodes[i]; i++) {
        struct sim_limit *limit = books_limit(device, line->device, line->inodes[i]);
        if (limit)
            return limit;
    }
    return NULL;
}

/* Where limits nest, all that is below a cgroup counts there. The driver's own books know one limit for each process:
 * the nearest. A cgroup with a limit of its own therefore takes nothing from the one above it. */
static bool counts_against(struct sim_device *device, const struct sim_account *account, const struct sim_limit *limit)
{
    if (account->cgroup_device != limit->cgroup_device)
        return false;
    for (int i = 0; i < CGROUP_DEPTH && account->cgroup_inodes[i]; i++) {
        if (account->cgroup_inodes[i] == limit->cgroup_inode)
            return true;
        if (!machine()->limits_nested && books_limit(device, account->cgroup_device, account->cgroup_inodes[i]))
            return false;
    }
    return false;
}

uint64_t books_limited_bytes(struct sim_device *device, const struct sim_limit *limit)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < device->account_count; i++) {
        const struct sim_account *account = &device->accounts[i];
        if (account->state && counts_against(device, account, limit))
            used += account->memory_bytes - (device->contexts_spared ? account->context_bytes : 0) +
                    books_shared_bytes(device, account);
    }
    return used;
}

static bool limits_have_room(struct sim_device *device, const struct cgroup_line *line, uint64_t bytes)
{
    for (int i = 0; i < CGROUP_DEPTH && line->inodes[i]; i++) {
        const struct sim_limit *limit = books_limit(device, line->device, line->inodes[i]);
        if (!limit)
            continue;
        uint64_t used = books_limited_bytes(device, limit);
        if (used > limit->hard_bytes || bytes > limit->hard_bytes - used)
            return false;
        if (!machine()->limits_nested)
            break;
    }
    return true;
}

static bool within_limit(struct sim_device *device, struct sim_account *account, uint64_t bytes)
{
    if (!machine()->limit_count)
        return true;
    struct cgroup_line line = process_own_cgroups();
    account->cgroup_device = line.device;
    memcpy(account->cgroup_inodes, line.inodes, sizeof line.inodes);
    if (limits_have_room(device, &line, bytes))
        return true;
    books_reap(device);
    return limits_have_room(device, &line, bytes);
}

/* Managed pages give way to memory that must be resident. */
static void evict_managed(struct sim_device *device, uint32_t gpu_instance, uint64_t bytes)
{
    for (uint32_t i = 0; i < device->account_count && bytes; i++) {
        struct sim_account *account = &device->accounts[i];
        if (gpu_instance != NO_INSTANCE && account->gpu_instance != gpu_instance)
            continue;
        uint64_t part = account->managed_bytes < bytes ? account->managed_bytes : bytes;
        account->managed_bytes -= part;
        bytes -= part;
    }
}

static bool fits(struct sim_device *device, uint32_t gpu_instance, uint64_t bytes)
{
    if (bytes <= books_free_bytes(device, gpu_instance))
        return true;
    books_reap(device);
    uint64_t room = books_free_bytes(device, gpu_instance);
    if (bytes > room)
        evict_managed(device, gpu_instance, bytes - room);
    return bytes <= books_free_bytes(device, gpu_instance);
}

bool books_charge(struct place place, enum charge_kind kind, uint64_t bytes)
{
    struct sim_device *device = &machine()->devices[place.device];
    struct sim_account *account = books_account(place, true);
    if (!account)
        return false;
    if (kind == CHARGE_MANAGED) { /* what doesn't fit stays in host memory */
        uint64_t room = books_free_bytes(device, place.gpu_instance);
        account->managed_bytes += bytes < room ? bytes : room;
        return true;
    }
    if (account->pinned_bytes &&
        account->memory_bytes + books_shared_bytes(device, account) + bytes > account->pinned_bytes)
        return false;
    uint64_t limited = kind == CHARGE_CONTEXT && device->contexts_spared ? 0 : bytes;
    if (!within_limit(device, account, limited) || !fits(device, place.gpu_instance, bytes))
        return false;
    account->memory_bytes += bytes;
    if (kind == CHARGE_CONTEXT)
        account->context_bytes += bytes;
    if (account->peak_bytes < account->memory_bytes + account->managed_bytes)
        account->peak_bytes = account->memory_bytes + account->managed_bytes;
    return true;
}

void books_credit(struct place place, enum charge_kind kind, uint64_t bytes)
{
    struct sim_account *account = books_account(place, false);
    if (!account)
        return;
    uint64_t *held = kind == CHARGE_MANAGED ? &account->managed_bytes : &account->memory_bytes;
    *held -= bytes < *held ? bytes : *held;
    if (kind == CHARGE_CONTEXT)
        account->context_bytes -= bytes < account->context_bytes ? bytes : account->context_bytes;
}
