/* A simulated machine as a text file of lines: a word, then its values. Programs write it, the stand-ins read it at every
 * call, so hardware changes under a running agent. Who changes it holds PATH.lock.
 */
#ifndef ALIQUOT_SCENE_H
#define ALIQUOT_SCENE_H

#include <stdbool.h>
#include <stddef.h>

#define SCENE_LINES_MAX 512
#define SCENE_LINE_CHARS 512

struct scene {
    int count;
    char line[SCENE_LINES_MAX][SCENE_LINE_CHARS];
};

/* Reads the file that the environment variable names. False: there is none. Free it with `free`. */
struct scene *scene_read(const char *variable);

/* Takes and gives back the lock of that file; -1: it can't be had. */
int scene_lock(const char *variable);
void scene_unlock(int lock);

/* Puts the lines in the place of the file's. */
bool scene_write(const char *variable, const struct scene *scene);

/* Whether a process is there. */
bool scene_alive(int pid);

#endif
