/* A disk that misbehaves while it is told to: full, slow, hung or broken. Preloaded by test_faulty_disk.py; no part of
 * the product, and needs neither root nor a file system of its own.
 *
 *   DISK_PATH   part of the names of the files that are on this disk
 *   DISK_SAYS   a file that holds what it does now: nothing, "full", "broken", or "slow MILLISECONDS" for each sync
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int on_this_disk(int fd)
{
    const char *path = getenv("DISK_PATH");
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

/* What the disk does now, in `word`; returns the number behind it. */
static long state(char word[16])
{
    const char *says = getenv("DISK_SAYS");
    char text[64] = "";
    long number = 0;
    int fd = says == NULL ? -1 : open(says, O_RDONLY | O_CLOEXEC);

    word[0] = '\0';
    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof text - 1) > 0)
        sscanf(text, "%15s %ld", word, &number);
    close(fd);
    return number;
}

/* The error that a write meets now; 0 for none. */
static int fault(int fd)
{
    char word[16];

    if (!on_this_disk(fd))
        return 0;
    state(word);
    if (strcmp(word, "full") == 0)
        return ENOSPC;
    return strcmp(word, "broken") == 0 ? EIO : 0;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    int error = fault(fd);

    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    if (error) {
        errno = error;
        return -1;
    }
    return real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    char word[16];
    long milliseconds;
    int error = fault(fd);

    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (error) {
        errno = error;
        return -1;
    }
    /* Looked at again and again, so that a disk that hung for an hour comes back when it is told to. */
    for (long waited = 0; on_this_disk(fd) && waited < (milliseconds = state(word)) && strcmp(word, "slow") == 0;
         waited += 20)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return real(fd);
}
