/* Kills its process at the n-th write to the files of one journal: before the write, in the middle of it, or after it.
 * Preloaded by test_crash.py; no part of the product.
 *
 *   CRASH_PATH  part of the names of the files that count
 *   CRASH_AT    the number of the write (1 is the first)
 *   CRASH_HOW   before, torn or after
 *   CRASH_LOG   a file in which each write is noted, with what was there before it, and each sync: kill -9 keeps the
 *               page cache, and from this a test makes what a power cut could have left
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int writes;

/* Whether this file counts; `name` is its name then. */
static int named(int fd, char name[4096])
{
    const char *path = getenv("CRASH_PATH");
    char link[64];
    ssize_t length;

    if (path == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, name, 4095);
    if (length <= 0)
        return 0;
    name[length] = '\0';
    return strstr(name, path) != NULL && strstr(name, "-shm") == NULL;
}

static int counts(int fd)
{
    char name[4096];

    return named(fd, name);
}

/* Note a write that is about to be made, or (without data) a sync that has been made. */
static void note(int fd, const void *data, size_t size, off64_t offset)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *log = getenv("CRASH_LOG");
    struct stat64 status;
    struct {
        uint64_t name, file, offset, old, new;
    } head;
    char name[4096];
    char *old;
    int out;

    if (log == NULL || !named(fd, name) || fstat64(fd, &status) != 0)
        return;
    out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    old = malloc(size + 1);
    if (out < 0 || old == NULL)
        abort();
    head.name = strlen(name);
    head.file = status.st_size;
    head.offset = offset;
    head.new = size;
    head.old = 0;
    if (size > 0) {
        ssize_t there = pread64(fd, old, size, offset);
        head.old = there > 0 ? there : 0;
    }
    pthread_mutex_lock(&lock);
    if (write(out, &head, sizeof head) != sizeof head || write(out, name, head.name) != (ssize_t)head.name ||
        write(out, old, head.old) != (ssize_t)head.old || write(out, data, size) != (ssize_t)size)
        abort();
    pthread_mutex_unlock(&lock);
    free(old);
    close(out);
}

/* Whether this is the write to die at. */
static int due(int fd)
{
    const char *at = getenv("CRASH_AT");

    return at != NULL && counts(fd) && __sync_add_and_fetch(&writes, 1) == atoi(at);
}

static int how(const char *wanted)
{
    const char *chosen = getenv("CRASH_HOW");

    return chosen != NULL && strcmp(chosen, wanted) == 0;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    pause();
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    ssize_t written;
    int now = due(fd);

    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    if (now && how("before"))
        die();
    note(fd, data, size, offset);
    if (now && how("torn")) {
        real(fd, data, size / 2, offset);
        die();
    }
    written = real(fd, data, size, offset);
    if (now)
        die();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    int result, now = due(fd);

    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (now && !how("after"))
        die();
    result = real(fd);
    if (result == 0)
        note(fd, "", 0, 0);
    if (now)
        die();
    return result;
}
