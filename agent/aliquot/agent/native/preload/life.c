/*
 * A slot's owner is known by pid and start time, because the kernel gives pids away again. That can be looked up only
 * within one pid namespace; so each owner also holds a lock that anybody can probe. The lock is tied to an open file
 * description that only a mapping keeps open: the program can't close it by closing all descriptors, and a child
 * doesn't inherit it.
 */
#include "life.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC) /* its inode is part of the kernel's interface */
#define LOCKS_START (INT64_C(1) << 32)           /* far behind the file's end: nobody reads or writes there */

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

struct process_stat {
    char state;
    uint64_t threads;
    uint64_t start_ticks;
};

/* Not strtoull: newer headers bind it to a name that older C libraries don't have. */
static uint64_t digits(const char *text)
{
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return value;
}

/* Fields 3, 20 and 22 of /proc/pid/stat. The name before them may itself hold blanks and brackets. */
static bool read_stat(int32_t pid, struct process_stat *stat)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    char *field = strrchr(text, ')');
    if (!field)
        return false;
    field += 2;
    stat->state = *field;
    for (int number = 3; number < 22; number++) {
        if (number == 20)
            stat->threads = digits(field);
        field = strchr(field, ' ');
        if (!field)
            return false;
        field++;
    }
    stat->start_ticks = digits(field);
    return true;
}

static uint64_t own_pid_namespace(void)
{
    char text[64];
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    const char *bracket = strchr(text, '[');
    return bracket ? digits(bracket + 1) : 0;
}

struct identity life_self(void)
{
    struct process_stat stat = {0};
    struct identity self = {.pid = (int32_t)getpid(), .pid_namespace = own_pid_namespace()};
    if (read_stat(self.pid, &stat))
        self.start_ticks = stat.start_ticks;
    return self;
}

bool in_first_pid_namespace(void)
{
    return own_pid_namespace() == FIRST_PID_NAMESPACE;
}

static struct flock lock_of(int slot)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCKS_START + slot, .l_len = 1};
}

bool life_lock(const char *account_path, int slot)
{
    struct flock lock = lock_of(slot);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = open(account_path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *keeper = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
    bool locked = keeper != MAP_FAILED && madvise(keeper, page, MADV_DONTFORK) == 0 &&
                  fcntl(fd, F_OFD_SETLK, &lock) == 0;
    if (keeper != MAP_FAILED && !locked)
        munmap(keeper, page);
    close(fd); /* the mapping keeps the description, and with it the lock */
    return locked;
}

bool life_goes_on(const struct slot *slot, int index, const struct identity *self, int account_fd)
{
    struct flock probe = lock_of(index);
    if (slot->life_locked && fcntl(account_fd, F_OFD_GETLK, &probe) == 0)
        return probe.l_type != F_UNLCK;
    if (slot->pid_namespace != self->pid_namespace)
        return true; /* not ours to judge */
    struct process_stat stat;
    if (!read_stat(slot->pid, &stat) || stat.start_ticks != slot->start_ticks)
        return false;
    /* A zombie has given its memory back, unless only its first thread has ended. */
    return (stat.state != 'Z' && stat.state != 'X') || stat.threads > 1;
}
