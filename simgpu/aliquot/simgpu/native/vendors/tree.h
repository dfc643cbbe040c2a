/* Simulated cards of the kernel's DRM drivers, as sysfs and /proc show them: what libamd_smi and libze_loader stand on, as
 * the real ones do. ALIQUOT_SIMSYS and ALIQUOT_SIMPROC name the roots (/sys and /proc where they don't).
 */
#ifndef ALIQUOT_TREE_H
#define ALIQUOT_TREE_H

#include <stdbool.h>

#define TREE_CARDS_MAX 64
#define TREE_PATH 512
#define TREE_WORD 128
#define TREE_LINKS_MAX 8

struct tree_card {
    char folder[TREE_PATH]; /* .../class/drm/cardN/device */
    char pci[TREE_WORD];
    int number;
};

struct tree_process {
    int pid;
    int files; /* how many of its files show the same client */
    unsigned long long bytes;
    char name[64];
};

/* The cards of a PCI vendor, such as "0x1002", by number. */
int tree_cards(const char *vendor, struct tree_card *cards);

/* A word from a file of a card; false: there is none. */
bool tree_word(const struct tree_card *card, const char *file, char *word);
bool tree_number(const struct tree_card *card, const char *file, unsigned long long *number);

struct tree_link {
    char to[TREE_WORD]; /* address of the card at the other end */
    bool up;
};

/* Links of a card's own to other cards (XGMI, Xe Link). */
int tree_links(const struct tree_card *card, struct tree_link *links);

/* Processes with memory on a card by their fdinfo, each of their files counted, as the vendors' libraries do. `key` and
 * `other`: the keys of resident memory, such as "drm-memory-vram".
 */
int tree_processes(const struct tree_card *card, const char *key, const char *other, struct tree_process *found, int most);

#endif
