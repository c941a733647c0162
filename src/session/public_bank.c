/* The public session bank: mtplx_bank of mtplx.h over mx_bank and the cold tier. It has one scope
 * and one session: conversations are told apart by their tokens alone. */
#include "base/memory.h"
#include "session/bank.h"
#include "session/cold_state.h"

#include <stdlib.h>
#include <string.h>

struct mtplx_bank {
    mtplx_model *model;
    struct mx_bank *bank;
    struct mx_cold *cold; /* NULL: RAM only */
};

/* How long closing waits for the disk. */
#define CLOSE_NS 5000000000ull

static uint64_t default_bytes(const mtplx_model *m)
{
    return mx_memory_budget(mx_memory_usable(), mtplx_model_get_info(m)->weight_bytes) / 2;
}

static uint64_t seconds(double s)
{
    return s >= 1e9 ? UINT64_MAX : (uint64_t)(s * 1e9) + 1;
}

static mtplx_status check(const mtplx_model *m, const mtplx_bank_options *o, mtplx_error *err)
{
    if (!m)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "a session bank needs a model");
    if (!(o->ttl_s >= 0))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "ttl_s is %g; give 0 or more seconds", o->ttl_s);
    return MTPLX_OK;
}

static mtplx_status open_cold(mtplx_bank *b, const mtplx_bank_options *o, mtplx_error *err)
{
    struct mx_cold_options c = {
        .dir = *o->ssd_dir ? o->ssd_dir : NULL, .mode = MX_COLD_ON, .max_bytes = o->ssd_max_bytes};
    mx_cold_identify(b->model, &c.identity);
    b->cold = mx_cold_open(&c, err);
    return b->cold ? MTPLX_OK : MTPLX_ERR_IO;
}

static mtplx_status open_bank(mtplx_bank *b, const mtplx_bank_options *o, mtplx_error *err)
{
    struct mx_bank_options inner = {
        .model = b->model,
        .budget = o->max_bytes ? o->max_bytes : default_bytes(b->model),
        .session_cap = UINT64_MAX,
        .ttl_ns = o->ttl_s > 0 ? seconds(o->ttl_s) : 0,
        .cold = b->cold,
    };
    b->bank = mx_bank_new(&inner, err);
    return b->bank ? MTPLX_OK : MTPLX_ERR_MEMORY;
}

mtplx_bank *mtplx_bank_new(mtplx_model *model, const mtplx_bank_options *options, mtplx_error *err)
{
    mtplx_bank_options o = options ? *options : (mtplx_bank_options){0};
    if (check(model, &o, err) != MTPLX_OK)
        return NULL;
    mtplx_bank *b = calloc(1, sizeof *b);
    if (!b) {
        mx_error_nomem(err, "a session bank", sizeof *b);
        return NULL;
    }
    b->model = model;
    if ((o.ssd_dir && open_cold(b, &o, err) != MTPLX_OK) || open_bank(b, &o, err) != MTPLX_OK) {
        mtplx_bank_free(b);
        return NULL;
    }
    return b;
}

void mtplx_bank_free(mtplx_bank *b)
{
    if (!b)
        return;
    mx_bank_free(b->bank);
    mx_cold_close(b->cold, CLOSE_NS);
    free(b);
}

/* Restores what was found, and drops the reference to it. NULL without an error: nothing was. */
static mtplx_seq *restore(struct mx_bank_hit *hit, mtplx_error *err)
{
    mtplx_seq *s = hit->snapshot ? mx_snapshot_restore(hit->snapshot, err) : NULL;
    mx_snapshot_unref(hit->snapshot);
    return s;
}

mtplx_seq *mtplx_bank_restore(mtplx_bank *b, const int32_t *prompt, size_t count, mtplx_error *err)
{
    struct mx_bank_hit hit;
    mx_bank_tick(b->bank);
    mx_bank_find(b->bank, "", "", prompt, count, &hit);
    if (hit.cold_tokens) {
        mx_snapshot_unref(hit.snapshot);
        mx_bank_load(b->bank, "", "", prompt, count, NULL, &hit);
    }
    return hit.snapshot ? restore(&hit, err) : mtplx_seq_new(b->model, err);
}

mtplx_status mtplx_bank_keep(mtplx_bank *b, mtplx_seq *seq, mtplx_error *err)
{
    mtplx_error own = {0};
    if (seq->model != b->model)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "the sequence is of another model than the bank");
    mtplx_snapshot *s = mtplx_seq_snapshot(seq, err ? err : &own);
    if (!s)
        return err ? err->status : own.status;
    mx_bank_put(b->bank, s, MX_POINT_ANSWER, "", "");
    mx_bank_tick(b->bank);
    return MTPLX_OK;
}
