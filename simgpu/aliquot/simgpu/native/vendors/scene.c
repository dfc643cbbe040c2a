#include "scene.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PATH_CHARS 4096

struct scene *scene_read(const char *variable)
{
    const char *path = getenv(variable);
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file == NULL) {
        return NULL;
    }
    struct scene *scene = calloc(1, sizeof *scene);
    while (scene != NULL && scene->count < SCENE_LINES_MAX &&
           fgets(scene->line[scene->count], SCENE_LINE_CHARS, file) != NULL) {
        scene->count++;
    }
    fclose(file);
    return scene;
}

int scene_lock(const char *variable)
{
    const char *path = getenv(variable);
    char name[PATH_CHARS];
    if (path == NULL || snprintf(name, sizeof name, "%s.lock", path) >= (int)sizeof name) {
        return -1;
    }
    int lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock >= 0 && flock(lock, LOCK_EX) != 0) {
        close(lock);
        return -1;
    }
    return lock;
}

void scene_unlock(int lock)
{
    close(lock);
}

bool scene_write(const char *variable, const struct scene *scene)
{
    const char *path = getenv(variable);
    char name[PATH_CHARS];
    if (path == NULL || snprintf(name, sizeof name, "%s.%d", path, (int)getpid()) >= (int)sizeof name) {
        return false;
    }
    FILE *file = fopen(name, "we");
    if (file == NULL) {
        return false;
    }
    for (int i = 0; i < scene->count; i++) {
        fputs(scene->line[i], file);
    }
    return fclose(file) == 0 && rename(name, path) == 0;
}

bool scene_alive(int pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}
