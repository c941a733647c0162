/* What forge quantize does with every tensor. */
#include "tools/forge_plan.h"

#include "format/mlxq.h"

#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

static bool contains_any(const char *name, const char *const *words)
{
    for (; *words; words++) {
        if (strstr(name, *words))
            return true;
    }
    return false;
}

size_t mx_forge_path_length(const struct mx_tensor *t)
{
    return strlen(t->name) - strlen(".weight");
}

static bool is_float(enum mx_dtype t)
{
    return t == MX_F16 || t == MX_BF16 || t == MX_F32;
}

/* Names of what loses more by quantisation than it saves. */
static bool is_sensitive(const char *name)
{
    static const char *const words[] = {"norm",    "conv1d",    "in_proj_a", "in_proj_b",
                                        "visual.", "vision_",   "pos_embed", "shared_expert_gate",
                                        "router",  "mlp.gate.", "e_score_",  NULL};
    return contains_any(name, words);
}

/* True for "...layers.<n>." with n beyond the trunk: how DeepSeek-like checkpoints append heads. */
static bool is_appended_layer(const char *name, int layers)
{
    const char *p = strstr(name, "layers.");
    return p && layers > 0 && strtol(p + strlen("layers."), NULL, 10) >= layers;
}

static enum mx_forge_part part_of(const char *name, bool side, int layers)
{
    if (side || strncmp(name, "mtp.", 4) == 0 || strstr(name, ".mtp.") ||
        is_appended_layer(name, layers))
        return MX_FORGE_MTP;
    if (strstr(name, "embed_tokens") || strstr(name, "lm_head"))
        return MX_FORGE_EMBEDDING;
    if (strstr(name, "linear_attn"))
        return MX_FORGE_RECURRENT;
    if (strstr(name, "attn"))
        return MX_FORGE_ATTENTION;
    return strstr(name, "mlp") ? MX_FORGE_MLP : MX_FORGE_OTHER;
}

static int bits_for(enum mx_forge_part part, const struct mx_forge_options *o)
{
    int special = part == MX_FORGE_EMBEDDING ? o->embed_bits
                  : part == MX_FORGE_MTP     ? o->mtp_bits
                                             : 0;
    return special ? special : o->bits;
}

/* The largest group up to the wanted one that divides the input dimension, or 0. */
static int group_for(int bits, int wanted, int64_t in)
{
    for (int g = wanted; g >= 32; g /= 2) {
        if (!mx_mlxq_check(bits, g, in))
            return g;
    }
    return 0;
}

static void plan_item(struct mx_forge_item *it, const struct mx_forge_options *o)
{
    const struct mx_tensor *t = it->t;
    bool narrow = t->dtype == MX_F16 || t->dtype == MX_BF16;
    int bits = bits_for(it->part, o);
    if (t->ndim == 2 && t->shape[0] > 0 && is_float(t->dtype) && ends_with(t->name, ".weight") &&
        !is_sensitive(t->name) && bits != MX_FORGE_KEEP_BITS)
        it->group = group_for(bits, o->group, t->shape[1]);
    if (it->group == 0) {
        it->dtype = narrow && o->dtype ? o->dtype : t->dtype;
        it->bytes = t->bytes; /* a cast goes from one 16-bit type to the other */
        return;
    }
    it->bits = bits;
    it->dtype = o->dtype ? o->dtype : t->dtype == MX_F16 ? MX_F16 : MX_BF16;
    uint64_t row = mx_mlxq_row_bytes(bits, t->shape[1]) +
                   2 * (uint64_t)(t->shape[1] / it->group) * (uint64_t)mx_dtype_bytes(it->dtype);
    it->bytes = row * (uint64_t)t->shape[0]; /* no overflow: less than the mapped input */
}

static mtplx_status check_source(const struct mx_checkpoint *ck, const struct mx_config *c,
                                 mtplx_error *err)
{
    if (mx_config_get(c, "quantization") || mx_config_get(c, "quantization_config"))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s says that the model is quantised already; quantise the original",
                        c->path);
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *t = mx_checkpoint_at(ck, i);
        bool packed = ends_with(t->name, ".scales") || ends_with(t->name, ".weight_scale_inv");
        if (packed || t->dtype == MX_F8_E4M3 || t->dtype == MX_F8_E5M2)
            return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                            "%s: tensor '%s' (%s) is quantised already; quantise the original",
                            t->file, t->name, mx_dtype_name(t->dtype));
    }
    return MTPLX_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct mx_forge_item *x = a, *y = b;
    return strcmp(x->t->name, y->t->name);
}

/* Fills files in name order, so that layers stay together; a tensor is never split. */
static void assign_files(struct mx_forge_plan *p, uint64_t limit)
{
    uint64_t used = 0;
    p->files = 1;
    for (size_t i = 0; i < p->count; i++) {
        struct mx_forge_item *it = &p->items[i];
        p->bytes += it->bytes;
        p->has_side = p->has_side || it->side;
        if (it->side)
            continue;
        if (used > 0 && used + it->bytes > limit) {
            p->files++;
            used = 0;
        }
        used += it->bytes;
        it->file = p->files - 1;
    }
    for (size_t i = 0; i < p->count; i++) {
        if (p->items[i].side)
            p->items[i].file = p->files;
    }
}

mtplx_status mx_forge_plan_make(struct mx_forge_plan *p, const struct mx_checkpoint *ck,
                                const struct mx_config *c, const struct mx_forge_options *o,
                                mtplx_error *err)
{
    int layers = 0;
    *p = (struct mx_forge_plan){.count = mx_checkpoint_count(ck)};
    mtplx_status st = check_source(ck, c, err);
    if (st == MTPLX_OK)
        st = mx_config_int_or(c, "num_hidden_layers", 0, 1 << 20, 0, &layers, err);
    if (st != MTPLX_OK)
        return st;
    p->items = calloc(p->count ? p->count : 1, sizeof *p->items);
    if (!p->items)
        return mx_error_nomem(err, "the plan", p->count * sizeof *p->items);
    for (size_t i = 0; i < p->count; i++) {
        struct mx_forge_item *it = &p->items[i];
        it->t = mx_checkpoint_at(ck, i);
        it->side = mx_checkpoint_is_side(ck, it->t);
        it->part = part_of(it->t->name, it->side, layers);
        plan_item(it, o);
    }
    qsort(p->items, p->count, sizeof *p->items, by_name);
    assign_files(p, o->file_bytes ? o->file_bytes : MX_FORGE_FILE_BYTES);
    return MTPLX_OK;
}

void mx_forge_plan_free(struct mx_forge_plan *p)
{
    free(p->items);
    *p = (struct mx_forge_plan){0};
}
