/* Kills its process at the n-th write to the files of one journal: before the write, in the middle of it, or after it.
 * Preloaded by test_crash.py; no part of the product.
 *
 *   CRASH_PATH  part of the names of the files that count
 *   CRASH_AT    the number of the write (1 is the first)
 *   CRASH_HOW   before, torn or after
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int writes;

static int counts(int fd)
{
    const char *path = getenv("CRASH_PATH");
    char link[64], name[4096];
    ssize_t length;

    if (path == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, name, sizeof name - 1);
    if (length <= 0)
        return 0;
    name[length] = '\0';
    return strstr(name, path) != NULL && strstr(name, "-shm") == NULL;
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
    if (now)
        die();
    return result;
}
