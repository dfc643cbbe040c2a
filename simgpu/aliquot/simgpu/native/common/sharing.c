/*
 * Whose turn it is: a device's time is shared out among the accounts that have work queued.
 *
 *   time-sliced  Accounts take turns, each for as long as any other, whatever it has queued and however many
 *                multiprocessors its kernels fill. So k busy processes get 1/k each, whoever they belong to.
 *   concurrent   Clients of one MPS server take one turn together. In it each has its part of the multiprocessors at
 *                most; what none of them may use lies idle for as long as the turn lasts.
 *
 * Turns are taken to be short, and changing them to cost nothing. Each account has a time of its own, in which it is
 * alone on the device: it stands still or goes slower while others have their turns, so that in it all work is over at
 * a moment that is known when it is queued. What an account does in a MIG instance shares with others there alone.
 */
#include "machine.h"

#define WINDOW_NS UINT64_C(100000000)

uint64_t account_time_ns(const struct sim_account *account, uint64_t now_ns)
{
    return now_ns - account->lag_ns;
}

static bool waits(const struct sim_account *account, uint64_t now_ns)
{
    return account->state && account->queued_ns > account_time_ns(account, now_ns);
}

static bool one_pool(const struct sim_account *a, const struct sim_account *b)
{
    return a->gpu_instance == b->gpu_instance && a->compute_instance == b->compute_instance;
}

static bool one_turn(const struct sim_account *a, const struct sim_account *b)
{
    return a == b || (a->server && a->server == b->server);
}

/* What each client of a server may use, made to fit into the card: the largest parts give way first. */
static double part_in_turn(const struct sim_device *device, const struct sim_account *account, uint64_t now_ns)
{
    double level = 1, sum;
    if (!account->server)
        return 1;
    for (int round = 0; round < 20; round++) {
        double above = 0, held = 0;
        sum = 0;
        for (uint32_t i = 0; i < device->account_count; i++) {
            const struct sim_account *other = &device->accounts[i];
            if (!waits(other, now_ns) || !one_pool(account, other) || !one_turn(account, other))
                continue;
            const double most = other->thread_percent / 100.0;
            sum += most < level ? most : level;
            above += most >= level;
            held += most < level ? most : 0;
        }
        if (sum <= 1.0001 || above == 0)
            break;
        level = (1 - held) / above;
    }
    const double most = account->thread_percent / 100.0;
    return most < level ? most : level;
}

/* How much of the device an account has now. */
static double rate_of(const struct sim_device *device, const struct sim_account *account, uint64_t now_ns)
{
    unsigned turns = 0;
    for (uint32_t i = 0; i < device->account_count; i++) {
        const struct sim_account *other = &device->accounts[i];
        if (!waits(other, now_ns) || !one_pool(account, other))
            continue;
        bool first = true; /* of those that take this turn */
        for (uint32_t j = 0; j < i && first; j++)
            first = !(waits(&device->accounts[j], now_ns) && one_pool(account, &device->accounts[j]) &&
                      one_turn(other, &device->accounts[j]));
        turns += first;
    }
    return part_in_turn(device, account, now_ns) / turns;
}

static uint64_t window_at(struct sim_account *account, uint64_t window)
{
    if (window >= account->window + WINDOWS)
        account->window = window - WINDOWS;
    while (account->window < window)
        account->busy_ns[++account->window % WINDOWS] = 0;
    return window % WINDOWS;
}

static void count(struct sim_account *account, uint64_t from_ns, uint64_t span_ns, double rate)
{
    const uint64_t end_ns = from_ns + span_ns;
    const uint64_t used_ns = (uint64_t)(rate * (double)span_ns);
    account->used_ns += used_ns;
    account->lag_ns += span_ns - used_ns;
    if (span_ns > WINDOWS * WINDOW_NS)
        from_ns = end_ns - WINDOWS * WINDOW_NS;
    while (from_ns < end_ns) {
        uint64_t until_ns = (from_ns / WINDOW_NS + 1) * WINDOW_NS;
        until_ns = until_ns < end_ns ? until_ns : end_ns;
        account->busy_ns[window_at(account, from_ns / WINDOW_NS)] += (uint64_t)(rate * (double)(until_ns - from_ns));
        from_ns = until_ns;
    }
}

void share_out(struct sim_device *device, uint64_t now_ns)
{
    double rates[ACCOUNTS_MAX];
    while (device->shared_out_ns < now_ns) {
        const uint64_t from_ns = device->shared_out_ns;
        uint64_t step_ns = now_ns - from_ns;
        bool any = false;
        for (uint32_t i = 0; i < device->account_count; i++) {
            struct sim_account *account = &device->accounts[i];
            rates[i] = 0;
            if (!waits(account, from_ns))
                continue;
            any = true;
            rates[i] = rate_of(device, account, from_ns);
            const double left_ns = (double)(account->queued_ns - account_time_ns(account, from_ns)) / rates[i];
            if (left_ns < (double)step_ns)
                step_ns = left_ns < 1 ? 1 : (uint64_t)left_ns;
        }
        for (uint32_t i = 0; any && i < device->account_count; i++)
            if (rates[i] > 0)
                count(&device->accounts[i], from_ns, step_ns, rates[i]);
        device->shared_out_ns = any ? from_ns + step_ns : now_ns;
    }
}

uint32_t account_sm_percent(const struct sim_account *account, uint64_t now_ns)
{
    if (account->sm_percent != DERIVED)
        return (uint32_t)account->sm_percent;
    const uint64_t window = now_ns / WINDOW_NS;
    uint64_t busy_ns = 0;
    for (uint64_t back = 1; back < WINDOWS; back++) {
        const uint64_t at = window - back;
        if (at <= account->window && at + WINDOWS > account->window)
            busy_ns += account->busy_ns[at % WINDOWS];
    }
    const uint64_t percent = (busy_ns + (WINDOWS - 1) * WINDOW_NS / 200) * 100 / ((WINDOWS - 1) * WINDOW_NS);
    return percent < 100 ? (uint32_t)percent : 100;
}
