/* Scores rows for shapes by the price policy: the same integers as policies/price.py and candidates.gather, in one pass.
 *
 * A decision in NumPy costs the overhead of some seventy calls on arrays of a few hundred numbers; here it costs the
 * numbers. Everything is a pure function of the arrays in `scene`; nothing is allocated, and the only writes go to `keys`
 * and `block_keys`. A test holds the two implementations together on random pools.
 */
#include <stdint.h>

#define ABI 1
#define WHOLE 1000
#define MIB (INT64_C(1) << 20)
#define NEVER (-(INT64_C(1) << 62))
#define COLUMN_BITS 8
#define COLUMN_LAST 255
#define TIER_SHIFT 50
#define GRAIN 4096
#define CPU_PRICES_MAX 16
#define COLUMNS_MAX 256
#define EXPORT __attribute__((visibility("default")))

/* Arrays of the inventory's table, of the shapes, of the prices and of the index. `_stride` counts elements. */
typedef struct {
    /* DeviceTable */
    const int64_t *share_left, *memory_left, *usable, *base, *island, *numa; /* [row][column] */
    const int64_t *cpu_left, *host_left, *class_id, *width, *has_foreign, *islands; /* [row] */
    const uint8_t *numa_known;                                                      /* [row] */
    int64_t columns;
    /* ShapeTable */
    const int64_t *share, *memory, *size; /* [class][slot] */
    const int64_t *cpu, *host, *count;    /* [slot] */
    const uint8_t *linked, *require_island, *proportional;
    int64_t shape_stride;
    int64_t classes; /* rows without devices use the one after the last */
    /* PriceTable */
    const int64_t *worth; /* [left 0..1000][cpu price] */
    const int64_t *cpu_prices;
    int64_t n_prices;
    /* ScoreIndex */
    const uint8_t *eligible; /* [row][slot] */
    int64_t *keys;           /* [row][slot] */
    int64_t *block_keys;     /* [block][slot] */
    int64_t slot_stride, block;
} Scene;

typedef struct {
    int64_t before[CPU_PRICES_MAX]; /* the row's worth at each CPU price */
    int64_t value;                  /* the least of them */
    int64_t idle;                   /* part of the row that is idle, in thousandths */
    int64_t states[COLUMNS_MAX];    /* first device of each distinct state */
    int64_t weight[COLUMNS_MAX];    /* devices in it */
    int64_t n_states;
} Row;

static void look_at_row(const Scene *s, int64_t row, Row *out)
{
    const int64_t *left = s->share_left + row * s->columns, *memory = s->memory_left + row * s->columns;
    const int64_t *usable = s->usable + row * s->columns, *base = s->base + row * s->columns;
    int64_t idle = 0, width = s->width[row] > 1 ? s->width[row] : 1;
    for (int64_t p = 0; p < s->n_prices; p++)
        out->before[p] = s->cpu_prices[p] * s->cpu_left[row];
    out->n_states = 0;
    for (int64_t d = 0; d < s->columns; d++) {
        const int64_t *worth = s->worth + usable[d] * s->n_prices;
        for (int64_t p = 0; p < s->n_prices; p++)
            out->before[p] += worth[p];
        idle += left[d];
        if (!left[d] && d)
            continue;
        int64_t n = 0;
        for (; n < out->n_states; n++) {
            int64_t e = out->states[n];
            if (left[e] == left[d] && memory[e] == memory[d] && base[e] == base[d])
                break;
        }
        if (n == out->n_states) {
            out->states[n] = d;
            out->weight[n] = 0;
            out->n_states++;
        }
        out->weight[n]++;
    }
    out->value = INT64_MAX;
    for (int64_t p = 0; p < s->n_prices; p++)
        if (out->before[p] < out->value)
            out->value = out->before[p];
    out->idle = idle / width;
}

static int fits(const Scene *s, int64_t at, int64_t class_slot, int64_t slot)
{
    int64_t share = s->share[class_slot], memory = s->memory[class_slot];
    if (s->share_left[at] < share)
        return 0;
    if (s->proportional[slot]) {
        int64_t base = s->base[at];
        if (base < 0)
            return 0;
        if (share <= WHOLE)
            memory = share == WHOLE ? base : base * share / WHOLE / MIB * MIB;
    }
    return s->memory_left[at] >= memory;
}

/* 2 if enough fitting devices share an NVLink island, 1 if a NUMA node, else 0. */
static int64_t closeness(const Scene *s, int64_t row, int64_t class_slot, int64_t slot)
{
    int64_t found = 0, first = row * s->columns;
    if (!s->islands[row] && !s->numa_known[row])
        return 0;
    for (int64_t kind = 1; kind <= 2; kind++) {
        const int64_t *group = (kind == 2 ? s->island : s->numa) + first;
        for (int64_t d = 0; d < s->columns; d++) {
            int64_t members = 0;
            if (group[d] < 0)
                continue;
            for (int64_t e = 0; e < s->columns; e++)
                members += group[e] == group[d] && fits(s, first + e, class_slot, slot);
            if (members >= s->count[slot])
                found = kind;
        }
    }
    return found;
}

static int64_t key_of(const Scene *s, int64_t row, const Row *r, int64_t slot)
{
    int64_t class_id = s->class_id[row] < 0 ? s->classes : s->class_id[row];
    int64_t class_slot = class_id * s->shape_stride + slot, first = row * s->columns;
    int64_t count = s->count[slot], cpu = s->cpu[slot], size = s->size[class_slot];
    int64_t best = NEVER, fitting = 0;
    if (!s->eligible[row * s->slot_stride + slot] || s->cpu_left[row] < cpu || s->host_left[row] < s->host[slot])
        return NEVER;
    for (int64_t n = 0; n < r->n_states; n++) {
        int64_t d = r->states[n], at = first + d, usable = s->usable[at], gain = INT64_MAX;
        int fit = fits(s, at, class_slot, slot);
        if (fit)
            fitting += r->weight[n];
        if (!fit && !(count == 0 && n == 0))
            continue;
        int64_t rest = usable - size, kept = rest > 0 ? rest : 0;
        const int64_t *had = s->worth + usable * s->n_prices, *has = s->worth + kept * s->n_prices;
        for (int64_t p = 0; p < s->n_prices; p++) {
            int64_t after = r->before[p] - s->cpu_prices[p] * cpu + count * (has[p] - had[p]);
            if (after < gain)
                gain = after;
        }
        gain = ((gain - r->value) & -(int64_t)GRAIN) - (count ? rest : 0) - r->idle;
        int64_t key = gain * (INT64_C(1) << COLUMN_BITS) + COLUMN_LAST - d;
        if (key > best)
            best = key;
    }
    if (fitting < count)
        return NEVER;
    if (s->linked[slot]) {
        int64_t tier = closeness(s, row, class_slot, slot);
        if (s->require_island[slot] && tier != 2)
            return NEVER;
        best += tier << TIER_SHIFT;
    }
    return best;
}

static void best_of_block(const Scene *s, int64_t block, int64_t from, int64_t to)
{
    int64_t *out = s->block_keys + block * s->slot_stride;
    for (int64_t slot = from; slot < to; slot++)
        out[slot] = NEVER;
    for (int64_t row = block * s->block; row < (block + 1) * s->block; row++) {
        const int64_t *keys = s->keys + row * s->slot_stride;
        for (int64_t slot = from; slot < to; slot++)
            if (keys[slot] > out[slot])
                out[slot] = keys[slot];
    }
}

/* Score `n_rows` ascending rows (null: rows 0..n_rows-1) for the slots from..to-1, and the blocks they lie in. */
EXPORT void aliquot_price_score(const Scene *s, const int64_t *rows, int64_t n_rows, int64_t from, int64_t to)
{
    int64_t last = -1;
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t row = rows ? rows[i] : i, block = row / s->block;
        Row looked;
        look_at_row(s, row, &looked);
        for (int64_t slot = from; slot < to; slot++)
            s->keys[row * s->slot_stride + slot] = key_of(s, row, &looked, slot);
        if (last >= 0 && block != last)
            best_of_block(s, last, from, to);
        last = block;
    }
    if (last >= 0)
        best_of_block(s, last, from, to);
}

EXPORT int64_t aliquot_price_abi(void)
{
    return ABI;
}

EXPORT int64_t aliquot_price_scene_bytes(void)
{
    return (int64_t)sizeof(Scene);
}
