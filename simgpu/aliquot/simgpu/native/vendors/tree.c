#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *root(const char *variable, const char *usual)
{
    const char *path = getenv(variable);
    return path != NULL ? path : usual;
}

static bool read_word(const char *path, char *word)
{
    FILE *file = fopen(path, "re");
    bool found = file != NULL && fgets(word, TREE_WORD, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (found) {
        word[strcspn(word, "\n")] = '\0';
    }
    return found;
}

bool tree_word(const struct tree_card *card, const char *file, char *word)
{
    char path[2 * TREE_PATH];
    snprintf(path, sizeof path, "%s/%s", card->folder, file);
    return read_word(path, word);
}

bool tree_number(const struct tree_card *card, const char *file, unsigned long long *number)
{
    char word[TREE_WORD];
    if (!tree_word(card, file, word)) {
        return false;
    }
    *number = strtoull(word, NULL, 0);
    return true;
}

static int by_number(const void *left, const void *right)
{
    return ((const struct tree_card *)left)->number - ((const struct tree_card *)right)->number;
}

int tree_cards(const char *vendor, struct tree_card *cards)
{
    char folder[TREE_PATH], word[TREE_WORD];
    snprintf(folder, sizeof folder, "%s/class/drm", root("ALIQUOT_SIMSYS", "/sys"));
    DIR *directory = opendir(folder);
    int count = 0;
    struct dirent *entry;
    while (directory != NULL && count < TREE_CARDS_MAX && (entry = readdir(directory)) != NULL) {
        int number, end = 0;
        if (sscanf(entry->d_name, "card%d%n", &number, &end) != 1 || entry->d_name[end] != '\0') {
            continue;
        }
        struct tree_card *card = &cards[count];
        card->number = number;
        if (snprintf(card->folder, sizeof card->folder, "%s/card%d/device", folder, number) >= TREE_PATH ||
            !tree_word(card, "vendor", word) || strcmp(word, vendor) != 0) {
            continue;
        }
        char *path = realpath(card->folder, NULL);
        if (path == NULL) {
            continue;
        }
        const char *last = strrchr(path, '/');
        snprintf(card->pci, sizeof card->pci, "%.*s", TREE_WORD - 1, last != NULL ? last + 1 : path);
        free(path);
        count++;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    qsort(cards, (size_t)count, sizeof *cards, by_number);
    return count;
}

int tree_links(const struct tree_card *card, struct tree_link *links)
{
    char path[2 * TREE_PATH], line[TREE_WORD];
    snprintf(path, sizeof path, "%s/simulated_links", card->folder);
    FILE *file = fopen(path, "re");
    int count = 0, up;
    while (file != NULL && count < TREE_LINKS_MAX && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%127s %d", links[count].to, &up) == 2) {
            links[count++].up = up != 0;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

/* What one file says: bytes resident on the card; -1: it is not of this card. */
static long long resident(const char *path, const char *pci, const char *key, const char *other)
{
    FILE *file = fopen(path, "re");
    char line[256], word[TREE_WORD], unit[16];
    bool mine = false;
    unsigned long long amount = 0, value;
    bool told = false;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "drm-pdev: %127s", word) == 1) {
            mine = strcmp(word, pci) == 0;
        }
        unit[0] = '\0';
        char *colon = strchr(line, ':');
        if (colon == NULL) {
            continue;
        }
        *colon = '\0';
        bool best = strcmp(line, key) == 0;
        if ((best || (!told && strcmp(line, other) == 0)) && sscanf(colon + 1, "%llu %15s", &value, unit) >= 1) {
            amount = value * (strcmp(unit, "KiB") == 0 ? 1024 : strcmp(unit, "MiB") == 0 ? 1048576 : 1);
            told = best;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return mine ? (long long)amount : -1;
}

int tree_processes(const struct tree_card *card, const char *key, const char *other, struct tree_process *found, int most)
{
    const char *proc = root("ALIQUOT_SIMPROC", "/proc");
    DIR *directory = opendir(proc);
    struct dirent *entry;
    int count = 0;
    while (directory != NULL && count < most && (entry = readdir(directory)) != NULL) {
        char folder[TREE_PATH], path[2 * TREE_PATH];
        if (!isdigit((unsigned char)entry->d_name[0]) ||
            snprintf(folder, sizeof folder, "%s/%s/fdinfo", proc, entry->d_name) >= TREE_PATH) {
            continue;
        }
        DIR *files = opendir(folder);
        struct tree_process process = {.pid = atoi(entry->d_name)};
        struct dirent *each;
        while (files != NULL && (each = readdir(files)) != NULL) {
            snprintf(path, sizeof path, "%s/%s", folder, each->d_name);
            long long bytes = resident(path, card->pci, key, other);
            if (bytes >= 0) {
                process.files++;
                process.bytes += (unsigned long long)bytes;
            }
        }
        if (files != NULL) {
            closedir(files);
        }
        if (process.files > 0) {
            snprintf(path, sizeof path, "%s/%s/comm", proc, entry->d_name);
            char word[TREE_WORD] = "";
            read_word(path, word);
            snprintf(process.name, sizeof process.name, "%.63s", word);
            found[count++] = process;
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}
