/* Inspect: what a checkpoint holds and whether this build runs it. */
#include "tools/inspect.h"

#include "families/family.h"
#include "families/loader.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "runtime/draft_vocab.h"
#include "runtime/kv_option.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mx_verdict_name(enum mx_verdict v)
{
    switch (v) {
    case MX_VERIFIED: return "verified";
    case MX_NO_MTP: return "no MTP";
    case MX_UNVERIFIED: return "unverified";
    case MX_UNSUPPORTED: return "unsupported";
    }
    return "unknown";
}

void mx_inspect_free(struct mx_inspect *r)
{
    mx_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}

/* The worst verdict stands; every reason is kept. */
static void judge(struct mx_inspect *r, enum mx_verdict v, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void judge(struct mx_inspect *r, enum mx_verdict v, const char *fmt, ...)
{
    static const enum mx_verdict order[] = {MX_VERIFIED, MX_UNVERIFIED, MX_NO_MTP, MX_UNSUPPORTED};
    size_t now = 0, then = 0;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        now = order[i] == v ? i : now;
        then = order[i] == r->verdict ? i : then;
    }
    if (now > then)
        r->verdict = v;

    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *kept = r->n_reasons < MX_INSPECT_REASONS ? mx_arena_strdup(&r->arena, text) : NULL;
    if (kept)
        r->reasons[r->n_reasons++] = kept;
}

static const char *keep(struct mx_inspect *r, const char *s)
{
    return s ? mx_arena_strdup(&r->arena, s) : NULL;
}

/* ---- config.json -------------------------------------------------------------------------- */

static int64_t number(const struct mx_config *c, const char *key)
{
    json_int_t n = json_integer_value(mx_config_get(c, key));
    return n > 0 ? n : 0;
}

static void count_layer_kinds(struct mx_inspect *r, const struct mx_config *c)
{
    size_t i;
    json_t *kind;
    json_array_foreach(mx_config_get(c, "layer_types"), i, kind)
    {
        const char *s = json_string_value(kind);
        if (s && strcmp(s, "linear_attention") == 0)
            r->recurrent_layers++;
        else
            r->attention_layers++;
    }
}

/* Whatever config.json says, unchecked: this also describes models that are not supported. */
static void describe_config(struct mx_inspect *r, const struct mx_config *c)
{
    const json_t *classes = json_object_get(c->root, "architectures");
    r->class_name = keep(r, json_string_value(json_array_get(classes, 0)));
    r->model_type = keep(r, mx_config_model_type(c));
    r->layers = number(c, "num_hidden_layers");
    r->hidden = number(c, "hidden_size");
    r->intermediate = number(c, "intermediate_size");
    r->heads = number(c, "num_attention_heads");
    r->kv_heads = number(c, "num_key_value_heads");
    r->head_dim = number(c, "head_dim");
    r->vocab = number(c, "vocab_size");
    r->context = number(c, "max_position_embeddings");
    count_layer_kinds(r, c);
}

/* ---- Weight files ------------------------------------------------------------------------- */

/* `type` is one of the names of gguf_quant.h, which are the same string every time, or NULL. */
static void add_quant(struct mx_inspect *r, const char *type, int bits, int group)
{
    for (int i = 0; i < r->n_quants; i++) {
        struct mx_inspect_quant *q = &r->quants[i];
        if (q->type == type && q->bits == bits && q->group == group) {
            q->matrices++;
            return;
        }
    }
    if (r->n_quants < MX_INSPECT_QUANTS)
        r->quants[r->n_quants++] = (struct mx_inspect_quant){type, bits, group, 1};
}

const char *mx_inspect_dtype_name(int i)
{
    return i < MX_DTYPE_COUNT ? mx_dtype_name((enum mx_dtype)i)
                              : mx_gguf_type_name(i - MX_DTYPE_COUNT);
}

/* The entry of dtypes that a tensor counts to; ids beyond those with names share the last. */
static struct mx_inspect_dtype *dtype_slot(struct mx_inspect *r, const struct mx_tensor *t)
{
    int i = t->gguf_type ? MX_DTYPE_COUNT + t->gguf_type : (int)t->dtype;
    return &r->dtypes[i >= 0 && i < MX_INSPECT_DTYPES ? i : MX_INSPECT_DTYPES - 1];
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

/* Length of the module path when `name` is one of the tensors that describe a quantised matrix
 * (weight, scales, biases), else 0. */
static size_t quant_path(const struct mx_checkpoint *ck, const char *name, char *path, size_t size)
{
    static const char *const tails[] = {".weight", ".scales", ".biases"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        if (!ends_with(name, tails[i]))
            continue;
        size_t n = strlen(name) - strlen(tails[i]);
        if (snprintf(path, size, "%.*s.scales", (int)n, name) >= (int)size ||
            !mx_checkpoint_find(ck, path))
            return 0;
        path[n] = '\0';
        return n;
    }
    return 0;
}

static uint64_t elements(const struct mx_tensor *t)
{
    if (t->gguf_type == 0)
        return t->bytes / (uint64_t)mx_dtype_bytes(t->dtype);
    uint64_t n = 1; /* shapes of GGUF tensors were checked not to overflow */
    for (int i = 0; i < t->ndim; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

/* Logical weights of a tensor: codes count as weights, their scales and biases do not. */
static uint64_t logical_weights(struct mx_inspect *r, const struct mx_checkpoint *ck,
                                const struct mx_config *c, const struct mx_tensor *t)
{
    char path[300];
    struct mx_quant_spec q;
    if (t->gguf_type)
        add_quant(r, mx_gguf_type_name(t->gguf_type), 0, 0);
    if (quant_path(ck, t->name, path, sizeof path) == 0)
        return elements(t);
    if (!ends_with(t->name, ".weight"))
        return 0;
    if (mx_config_quant(c, path, &q, NULL) != MTPLX_OK || q.bits <= 0)
        return 0;
    add_quant(r, NULL, q.bits, q.group_size);
    return t->bytes * 8 / (uint64_t)q.bits;
}

static void describe_weights(struct mx_inspect *r, const struct mx_checkpoint *ck,
                             const struct mx_config *c)
{
    r->weights_read = true;
    r->tensors = mx_checkpoint_count(ck);
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *t = mx_checkpoint_at(ck, i);
        r->bytes += t->bytes;
        dtype_slot(r, t)->tensors++;
        dtype_slot(r, t)->bytes += t->bytes;
        r->parameters += logical_weights(r, ck, c, t);
    }
}

/* ---- Tokenizer and template --------------------------------------------------------------- */

static bool has_file(const char *dir, const char *name)
{
    char *path = mx_path_join(dir, name);
    bool yes = path && mx_file_exists(path);
    free(path);
    return yes;
}

/* generation_config.json and tokenizer_config.json may be absent, but a run refuses broken ones. */
static mtplx_status check_json(const char *dir, const char *name, mtplx_error *err)
{
    if (!has_file(dir, name))
        return MTPLX_OK;
    char *path = mx_path_join(dir, name);
    json_t *v = path ? mx_json_file(path, 64 << 20, err) : NULL;
    free(path);
    json_decref(v);
    return v ? MTPLX_OK : MTPLX_ERR_FORMAT;
}

static void judge_tokenizer(struct mx_inspect *r, const struct mx_tokenizer *t)
{
    r->has_tokenizer = t != NULL;
    if (t)
        r->tokenizer_size = mx_tokenizer_size(t);
    else
        judge(r, MX_UNVERIFIED, "there is no tokenizer, so it can not read or write text");
    if (t && r->vocab > 0 && r->tokenizer_size > r->vocab)
        judge(r, MX_UNVERIFIED, "the tokenizer has %d tokens but the model only %lld",
              r->tokenizer_size, (long long)r->vocab);
}

/* From the metadata of a GGUF file, else from files in the directory, as a run does. */
static mtplx_status describe_tokenizer(struct mx_inspect *r, const char *dir,
                                       const struct mx_gguf *g, mtplx_error *err)
{
    mtplx_error why = {0};
    struct mx_tokenizer *t = g ? mx_tokenizer_open_gguf(g, &why) : NULL;
    if (!t && why.status == MTPLX_OK && has_file(dir, "tokenizer.json"))
        t = mx_tokenizer_open(dir, &why);
    if (!t && why.status != MTPLX_OK) {
        *err = why;
        return why.status;
    }
    judge_tokenizer(r, t);
    mx_tokenizer_free(t);
    return MTPLX_OK;
}

static mtplx_status describe_chat(struct mx_inspect *r, const char *dir, const struct mx_gguf *g,
                                  mtplx_error *err)
{
    mtplx_error why = {0};
    struct mx_chat *chat = g && r->has_tokenizer ? mx_chat_open_gguf(g, &why) : NULL;
    if (!chat && why.status == MTPLX_OK)
        chat = mx_chat_open(dir, &why);
    r->has_chat_template = chat != NULL;
    r->template_thinks = chat && mx_chat_mentions(chat, "enable_thinking");
    if (!chat && why.status != MTPLX_OK) {
        *err = why;
        return why.status;
    }
    if (!chat)
        judge(r, MX_UNVERIFIED, "there is no chat template, so prompts are continued as text");
    mx_chat_free(chat);
    return MTPLX_OK;
}

/* What is missing makes the model unverified; what is there but broken would stop a run. */
static mtplx_status describe_text(struct mx_inspect *r, const char *dir, const struct mx_gguf *g,
                                  mtplx_error *err)
{
    if (check_json(dir, "generation_config.json", err) != MTPLX_OK ||
        check_json(dir, "tokenizer_config.json", err) != MTPLX_OK)
        return MTPLX_ERR_FORMAT;
    mtplx_status st = describe_tokenizer(r, dir, g, err);
    return st == MTPLX_OK ? describe_chat(r, dir, g, err) : st;
}

/* ---- Trial load --------------------------------------------------------------------------- */

static const char *norm_name(enum mx_norm_encoding e)
{
    return e == MX_NORM_RAW ? "raw" : e == MX_NORM_BAKED ? "baked" : NULL;
}

static const char *file_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

static void describe_loaded(struct mx_inspect *r, const struct mx_loader *l,
                            const struct mx_geometry *g)
{
    r->layers = g->layers;
    r->hidden = g->hidden;
    r->vocab = g->vocab;
    r->context = g->context;
    r->attention_layers = g->kv.layers;
    r->recurrent_layers = g->gdn.layers;
    r->has_mtp = g->has_mtp;
    r->mtp_source = g->has_mtp ? keep(r, file_name(l->mtp_source)) : NULL;
    r->mtp_parameters = l->weights->mtp_parameters;
    r->trunk_norms = norm_name(l->trunk_norms);
    r->mtp_norms = g->has_mtp ? norm_name(l->mtp_norms) : NULL;
    if (l->norms_ambiguous)
        judge(r, MX_UNVERIFIED,
              "the norm weights do not clearly store w or w - 1, and a wrong guess spoils the "
              "output");
}

static void describe_state(struct mx_inspect *r, const struct mx_geometry *g)
{
    for (int f = 0; f <= MX_KV_Q4; f++) {
        struct mx_kv_layout kv = g->kv, mtp = g->mtp_kv;
        kv.format = mtp.format = (enum mx_kv_format)f;
        if (mx_kv_check(&kv, NULL) != MTPLX_OK || mx_kv_check(&mtp, NULL) != MTPLX_OK)
            continue;
        r->kv_token_bytes[f] = mx_kv_token_bytes(&kv);
        if (g->has_mtp)
            r->kv_token_bytes[f] += mx_kv_token_bytes(&mtp);
    }
    r->recurrent_bytes =
        (uint64_t)g->gdn.layers * (uint64_t)mx_gdn_layer_floats(&g->gdn) * sizeof(float);
}

/* A run picks the tokens after loading the tokenizer, but how many they are is known without. */
static void describe_draft(struct mx_inspect *r, const struct mx_family *family, const void *arch,
                           const struct mx_geometry *g)
{
    const struct mx_weight *head = family->output_head ? family->output_head(arch) : NULL;
    if (!g->has_mtp)
        return;
    r->draft_vocab = head ? mx_draft_vocab_size(g->vocab, 0) : g->vocab;
    r->draft_head_bytes = r->draft_vocab < g->vocab ? mx_weight_bytes(head, r->draft_vocab) : 0;
}

/* Binds every weight the way a run does. */
static mtplx_status trial_load(struct mx_inspect *r, const struct mx_config *c,
                               const struct mx_checkpoint *ck, const struct mx_family *family,
                               bool no_mtp, mtplx_error *err)
{
    mtplx_load_options options = {.device = "ref", .threads = 1, .no_mtp = no_mtp};
    struct mx_weights weights;
    struct mx_geometry geometry = {0};
    struct mx_device *device = mx_device_open("ref", 1, err);
    if (!device)
        return err->status;
    mx_weights_init(&weights, device);
    struct mx_loader loader = {
        .cfg = c, .ck = ck, .device = device, .options = &options, .weights = &weights};
    mtplx_status st = MTPLX_OK;
    const void *arch = family->load(&loader, &geometry, err);
    if (arch) {
        describe_loaded(r, &loader, &geometry);
        describe_draft(r, family, arch, &geometry);
        describe_state(r, &geometry);
    } else {
        st = err->status;
    }
    mx_weights_free(&weights);
    mx_device_close(device);
    return st;
}

/* A broken head must not hide that the trunk is fine. */
static mtplx_status judge_model(struct mx_inspect *r, const struct mx_config *c,
                                const struct mx_checkpoint *ck, const struct mx_family *family,
                                mtplx_error *err)
{
    mtplx_error head = {0};
    mtplx_status st = trial_load(r, c, ck, family, false, &head);
    if (st == MTPLX_OK) {
        if (!r->has_mtp)
            judge(r, MX_NO_MTP, "there is no MTP head, so nothing can be drafted");
        return MTPLX_OK;
    }
    mtplx_error trunk = {0};
    if (st != MTPLX_ERR_MEMORY && trial_load(r, c, ck, family, true, &trunk) == MTPLX_OK) {
        judge(r, MX_UNVERIFIED, "the MTP head can not be used: %s", head.message);
        return MTPLX_OK;
    }
    if (st == MTPLX_ERR_UNSUPPORTED) {
        judge(r, MX_UNSUPPORTED, "%s", head.message);
        return MTPLX_OK;
    }
    if (err)
        *err = head;
    return st;
}

static mtplx_status inspect_config(struct mx_inspect *r, const struct mx_config *c, const char *dir,
                                   mtplx_error *err)
{
    const struct mx_family *family = mx_family_find(c);
    describe_config(r, c);
    r->architecture = family ? family->name : NULL;
    struct mx_checkpoint *ck = mx_checkpoint_open(dir, c->root, err);
    if (ck)
        describe_weights(r, ck, c);
    if (!family) {
        judge(r, MX_UNSUPPORTED, "model type '%s' is not one that this build runs",
              r->model_type ? r->model_type : "");
        mx_checkpoint_close(ck);
        return MTPLX_OK;
    }
    if (!ck)
        return err->status;
    mtplx_status st = judge_model(r, c, ck, family, err);
    if (st == MTPLX_OK)
        st = describe_text(r, dir, mx_checkpoint_gguf(ck), err);
    mx_checkpoint_close(ck);
    return st;
}

/* A device that cannot be opened (MTPLX_CPU names what is not here) is a note, not a failure. */
static void inspect_device(struct mx_inspect *r)
{
    struct mx_device_probe p;
    mtplx_error err = {0};
    if (mx_device_probe(&p, &err) != MTPLX_OK) {
        r->device = "none";
        r->device_note = keep(r, err.message);
        return;
    }
    r->device = p.device;
    r->int8_kernels = p.int8;
    r->formats_checked = p.formats;
    r->formats_broken = p.broken;
    r->device_note = p.note;
}

mtplx_status mx_inspect(struct mx_inspect *r, const char *dir, mtplx_error *err)
{
    mtplx_error local = {0};
    struct mx_config c;
    memset(r, 0, sizeof *r);
    mx_arena_init(&r->arena, 1 << 20);
    r->path = keep(r, dir);
    mtplx_status st = mx_config_open(&c, dir, &local);
    if (st == MTPLX_OK) {
        st = inspect_config(r, &c, dir, &local);
        mx_config_close(&c);
    }
    if (st == MTPLX_OK && !r->path)
        st = mx_error_nomem(&local, "the report", strlen(dir));
    if (st == MTPLX_OK)
        inspect_device(r);
    if (err)
        *err = local;
    return st;
}
