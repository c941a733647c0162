/* The session bank against a plain list: what it finds, counts, thins and drops. Snapshots are made
 * by hand (bank_rig.h); that restored sequences go on like cold ones is shown elsewhere. */
#include "unit/bank_rig.h"

/* ---- A plain list ------------------------------------------------------------------------- */

static size_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return i;
}

/* What a search of all entries, one by one, finds. */
static void search(const struct mx_bank *b, const char *scope, const int32_t *tokens, size_t n,
                   size_t *restored, size_t *known)
{
    *restored = *known = 0;
    for (const struct mx_entry *e = b->newest; e; e = e->older) {
        if (strcmp(mx_index_scope(&e->item), scope) != 0)
            continue;
        size_t same = common(e->s->tokens, e->s->n, tokens, n);
        if (same == e->s->n && same < n && same > *restored)
            *restored = same;
        if (b->can_cut && same && same - 1 > *restored && same - 1 < n)
            *restored = same - 1;
        if (same > *known)
            *known = same;
    }
}

/* Prompts of few symbols, many with a prefix of an earlier one: a random walk over a small tree. */
static size_t random_prompt(uint64_t seed, int32_t *out)
{
    size_t n = 1 + rig_pick(seed, LONGEST);
    uint32_t family = rig_pick(seed + 1, 4), turn = rig_pick(seed + 2, LONGEST);
    if (rig_pick(seed + 3, 3) == 0)
        n = (n + BLOCK - 1) / BLOCK * BLOCK; /* borders of blocks */
    n = n > LONGEST ? LONGEST : n;
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)(family * 7 + i % 5);
    for (size_t i = turn; i < n; i++)
        out[i] = (int32_t)(100 + rig_pick(seed + 4, 3));
    return n;
}

static void check_find(struct rig *r, uint64_t seed)
{
    static const char *const scopes[] = {"", "a", "b"};
    int32_t prompt[LONGEST + 1];
    size_t n = random_prompt(seed, prompt), restored, known;
    const char *scope = scopes[rig_pick(seed + 9, 3)];
    search(r->bank, scope, prompt, n, &restored, &known);
    struct mx_bank_hit hit = rig_find(r, scope, prompt, n);
    assert_int_equal(hit.snapshot ? hit.snapshot->n : 0, restored);
    assert_int_equal(hit.known, known);
    if (restored + 1 >= n)
        assert_int_equal(hit.miss, MX_MISS_NONE);
    assert_int_equal(hit.kind == MX_RESTORE_NONE, restored == 0);
    mx_snapshot_unref(hit.snapshot);
}

static void random_put(struct rig *r, uint64_t seed)
{
    static const char *const scopes[] = {"", "a", "b"};
    int32_t prompt[LONGEST + 1];
    char session[16];
    size_t n = random_prompt(seed, prompt);
    snprintf(session, sizeof session, "s%u", rig_pick(seed + 10, 40));
    rig_put(r, prompt, n, (enum mx_point)rig_pick(seed + 11, 5), scopes[rig_pick(seed + 9, 3)],
            session);
}

static void play(struct mx_bank_options o, bool recurrent, uint64_t from, uint64_t steps)
{
    struct rig r;
    mtplx_snapshot *held[8] = {0};
    rig_open(&r, o, recurrent);
    for (uint64_t i = from; i < from + steps; i++) {
        uint64_t seed = i * 64;
        uint32_t what = rig_pick(seed + 20, 20);
        rig_time += rig_pick(seed + 21, 1000) * 1000000ull;
        if (what < 9) {
            random_put(&r, seed);
        } else if (what < 17) {
            check_find(&r, seed);
        } else if (what == 17 && r.bank->newest) {
            mtplx_snapshot **h = &held[rig_pick(seed + 22, 8)]; /* somebody uses it for a while */
            mx_snapshot_unref(*h);
            *h = mx_snapshot_ref(r.bank->newest->s);
        } else if (what == 18) {
            mx_bank_drop(r.bank, NULL, 1 + rig_pick(seed + 22, (uint32_t)r.bank->next_id + 1),
                         false);
        } else {
            mx_bank_tick(r.bank);
        }
        if (i % 8 == 0)
            rig_recount(&r);
    }
    rig_recount(&r);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        mx_snapshot_unref(held[i]);
    rig_close(&r);
}

static void test_random_unbounded(void **state)
{
    (void)state;
    play((struct mx_bank_options){0}, true, 1, 3000);
}

static void test_random_budget(void **state)
{
    (void)state;
    struct mx_bank_options o = {.budget = 300000,
                                .session_cap = 60000,
                                .pin_ns = 5000000000ull,
                                .ttl_ns = 100000000000ull,
                                .spacing = 64,
                                .max_points = 6};
    play(o, true, 100000, 4000);
}

static void test_random_cut(void **state)
{
    (void)state;
    play((struct mx_bank_options){.budget = 400000}, false, 200000, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_unbounded),
        cmocka_unit_test(test_random_budget),
        cmocka_unit_test(test_random_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
