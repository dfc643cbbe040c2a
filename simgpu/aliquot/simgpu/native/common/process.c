#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define CGROUP2_MAGIC 0x63677270

static ssize_t read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = 0;
    while ((size_t)length < size - 1) {
        ssize_t part = read(fd, text + length, size - 1 - (size_t)length);
        if (part <= 0)
            break;
        length += part;
    }
    close(fd);
    text[length] = '\0';
    return length;
}

bool process_identify(pid_t pid, struct process_identity *identity)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_file(path, text, sizeof text) <= 0)
        return false;
    char *field = strrchr(text, ')'); /* the name may hold blanks and brackets */
    if (!field || field[1] != ' ')
        return false;
    char state = field[2];
    uint64_t threads = 0, start_ticks = 0, stack_start = 0;
    int number = 2;
    for (char *rest = field + 1; *rest && number < 28;) {
        rest += strspn(rest, " ");
        number++;
        if (number == 20)
            threads = strtoull(rest, NULL, 10);
        else if (number == 22)
            start_ticks = strtoull(rest, NULL, 10);
        else if (number == 28)
            stack_start = strtoull(rest, NULL, 10);
        rest += strcspn(rest, " ");
    }
    /* A leader that called pthread_exit is a zombie whose threads live on. */
    if (state == 'X' || (state == 'Z' && threads <= 1))
        return false;
    *identity = (struct process_identity){.pid = pid, .start_ticks = start_ticks, .stack_start = stack_start};
    return true;
}

bool process_alive(const struct process_identity *identity)
{
    struct process_identity now;
    char path[32];
    if (!process_identify(identity->pid, &now)) {
        /* Where /proc hides the processes of others, the kernel at least says that there is one. */
        snprintf(path, sizeof path, "/proc/%d/stat", (int)identity->pid);
        return access(path, F_OK) != 0 && kill(identity->pid, 0) != 0 && errno == EPERM;
    }
    if (now.start_ticks != identity->start_ticks)
        return false;
    return !now.stack_start || !identity->stack_start || now.stack_start == identity->stack_start;
}

bool process_name(pid_t pid, char *name, size_t size)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t length = readlink(path, name, size - 1);
    if (length > 0) {
        name[length] = '\0';
        return true;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    length = read_file(path, name, size);
    if (length <= 0)
        return false;
    name[strcspn(name, "\n")] = '\0';
    return true;
}

bool cgroup_identify(const char *path, struct cgroup_line *line)
{
    struct statfs filesystem;
    struct stat directory;
    char above[3072];
    *line = (struct cgroup_line){0};
    snprintf(above, sizeof above, "%s", path);
    for (int depth = 0; depth < CGROUP_DEPTH && *above; depth++) {
        if (statfs(above, &filesystem) || filesystem.f_type != CGROUP2_MAGIC || stat(above, &directory))
            break;
        line->device = directory.st_dev;
        line->inodes[depth] = directory.st_ino;
        char *last = strrchr(above, '/');
        if (!last)
            break;
        *last = '\0';
    }
    return line->inodes[0] != 0;
}

/* The mount point of cgroup v2 and the part of the hierarchy that is mounted there. */
static bool cgroup_mount(char *root, size_t root_size, char *point, size_t point_size)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts)
        return false;
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, mounts)) {
        char line_root[1024], line_point[1024];
        const char *kind = strstr(line, " - cgroup2 ");
        if (kind && sscanf(line, "%*s %*s %*s %1023s %1023s", line_root, line_point) == 2) {
            snprintf(root, root_size, "%s", strcmp(line_root, "/") ? line_root : "");
            snprintf(point, point_size, "%s", line_point);
            found = true;
        }
    }
    fclose(mounts);
    return found;
}

struct cgroup_line process_own_cgroups(void)
{
    struct cgroup_line none = {0}, line;
    char text[4096], root[1024], point[1024], path[3072];
    if (read_file("/proc/self/cgroup", text, sizeof text) <= 0)
        return none;
    char *own = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!own || !cgroup_mount(root, sizeof root, point, sizeof point))
        return none;
    own = strstr(own, "0::") + 3;
    own[strcspn(own, "\n")] = '\0';
    size_t prefix = strlen(root);
    if (strncmp(own, root, prefix) != 0)
        prefix = 0;
    snprintf(path, sizeof path, "%s%s", point, own + prefix);
    return cgroup_identify(path, &line) ? line : none;
}
