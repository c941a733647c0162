/* The config.json of a GGUF model, made from its metadata.
 *
 * Every number goes through unchanged; ranges are the family's business. For an architecture whose
 * graph is known, keys without which nothing runs are required here, so that the message names the
 * GGUF key. */
#include "format/gguf_model.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* `status` keeps the first failure; after it every step does nothing. */
struct build {
    const struct mx_gguf_model *m;
    const struct mx_gguf *g;
    json_t *root;
    mtplx_error *err;
    mtplx_status status;
};

#define KEY_MAX 160

static void full_key(const struct build *b, const char *key, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", b->m->arch, key);
}

static void put(struct build *b, json_t *object, const char *name, json_t *value)
{
    if (b->status != MTPLX_OK)
        json_decref(value);
    else if (json_object_set_new(object, name, value) != 0)
        b->status = mx_error_nomem(b->err, b->g->path, strlen(name));
}

static void bad_key(struct build *b, const char *key, const char *why)
{
    if (b->status == MTPLX_OK)
        b->status = mx_error(b->err, MTPLX_ERR_FORMAT, "%.220s: metadata key '%.120s' %s",
                             b->g->path, key, why);
}

/* The same for a key of the architecture. */
static void bad_own(struct build *b, const char *key, const char *why)
{
    char full[KEY_MAX];
    full_key(b, key, full);
    bad_key(b, full, why);
}

/* ---- Numbers ------------------------------------------------------------------------------ */

/* The value that all layers have: a number, or an array whose entries are that number or, for
 * layers it does not concern, 0. Returns -1 when absent. */
static int64_t read_int(struct build *b, const char *key)
{
    char full[KEY_MAX];
    int64_t v = -1, e;
    full_key(b, key, full);
    const struct mx_gguf_pair *p = mx_gguf_find(b->g, full);
    if (!p || b->status != MTPLX_OK)
        return -1;
    for (uint64_t i = 0; i < p->count; i++) {
        if (!mx_gguf_int_at(p, i, &e) || e < 0) {
            bad_key(b, full, "must be a count");
            return -1;
        }
        if (v > 0 && e > 0 && e != v) {
            bad_key(b, full, "differs between layers, which is not supported");
            return -1;
        }
        v = e > v ? e : v;
    }
    return v;
}

static int64_t put_int(struct build *b, const char *key, const char *name)
{
    int64_t v = read_int(b, key);
    if (v >= 0) {
        put(b, b->root, name, json_integer(v));
    } else if (b->m->known) {
        bad_own(b, key, "is missing");
    }
    return v;
}

static double read_float(struct build *b, const char *key, double fallback)
{
    char full[KEY_MAX];
    double v = fallback;
    full_key(b, key, full);
    if (b->status == MTPLX_OK)
        b->status = mx_gguf_float(b->g, full, &v, b->err);
    if (isinf(v))
        bad_key(b, full, "must be finite");
    return b->status == MTPLX_OK ? v : fallback;
}

/* ---- Parts -------------------------------------------------------------------------------- */

static void put_sizes(struct build *b)
{
    static const struct {
        const char *key, *name;
    } fields[] = {
        {"context_length", "max_position_embeddings"},
        {"embedding_length", "hidden_size"},
        {"feed_forward_length", "intermediate_size"},
        {"attention.head_count", "num_attention_heads"},
        {"attention.head_count_kv", "num_key_value_heads"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_int(b, fields[i].key, fields[i].name);
    put(b, b->root, "num_hidden_layers", json_integer(b->m->layers));
    put(b, b->root, "mtp_num_hidden_layers", json_integer(b->m->mtp_layers));
    put(b, b->root, "mtp_use_dedicated_embeddings", json_boolean(b->m->mtp_embeddings));
    double eps = read_float(b, "attention.layer_norm_rms_epsilon", NAN);
    if (!isnan(eps))
        put(b, b->root, "rms_norm_eps", json_real(eps));
    else if (b->m->known)
        bad_own(b, "attention.layer_norm_rms_epsilon", "is missing or not a number");
}

/* Rows of the embedding; whether the output head is the same matrix. */
static void put_vocabulary(struct build *b)
{
    int64_t rows = 0;
    bool head = false;
    for (size_t i = 0; i < b->m->n_files; i++) {
        const struct mx_gguf_tensor *t = mx_gguf_tensor(&b->m->files[i], "token_embd.weight");
        rows = t ? t->ne[1] : rows;
        head |= mx_gguf_tensor(&b->m->files[i], "output.weight") != NULL;
    }
    if (rows > 0)
        put(b, b->root, "vocab_size", json_integer(rows));
    put(b, b->root, "tie_word_embeddings", json_boolean(!head));
}

/* key_length values a head of which the first dimension_count are rotated. */
static void put_rope(struct build *b)
{
    int64_t head_dim = put_int(b, "attention.key_length", "head_dim");
    int64_t value_dim = read_int(b, "attention.value_length");
    int64_t rotary = read_int(b, "rope.dimension_count");
    double theta = read_float(b, "rope.freq_base", 10000);
    json_t *rope = json_object();
    if (isnan(theta))
        bad_own(b, "rope.freq_base", "is not a number");
    if (b->m->known && value_dim >= 0 && value_dim != head_dim)
        bad_own(b, "attention.value_length", "differs from attention.key_length");
    put(b, rope, "rope_theta", json_real(theta));
    if (head_dim > 0 && rotary > 0 && rotary <= head_dim) {
        /* Rounded up, so that multiplying by head_dim gives no less than what was divided. */
        double part = (double)rotary / (double)head_dim;
        put(b, rope, "partial_rotary_factor",
            json_real(rotary < head_dim ? nextafter(part, 1) : 1.0));
    } else if (rotary > 0 && head_dim > 0) {
        bad_own(b, "rope.dimension_count", "exceeds attention.key_length");
    }
    put(b, b->root, "rope_parameters", rope);
}

/* Context extension: the family refuses every kind by its name. */
static void put_rope_scaling(struct build *b)
{
    char full[KEY_MAX];
    const char *type = "none";
    size_t n = 4;
    full_key(b, "rope.scaling.type", full);
    if (b->status == MTPLX_OK)
        b->status = mx_gguf_string(b->g, full, &type, &n, b->err);
    if (b->status != MTPLX_OK)
        return;
    double factor = read_float(b, "rope.scaling.factor", 1);
    bool none = n == 0 || (n == 4 && memcmp(type, "none", 4) == 0);
    if (none && !mx_gguf_find(b->g, full) && factor != 1 && factor != 0) {
        type = "linear"; /* what a factor alone means */
        n = 6;
        none = false;
    }
    if (!none && !mx_utf8_valid(type, n))
        bad_key(b, full, "is not UTF-8");
    else if (!none)
        put(b, json_object_get(b->root, "rope_parameters"), "rope_type", json_stringn(type, n));
}

/* dimension_sections: frequencies of axes t, h and w, and a fourth count that is 0. */
static void put_sections(struct build *b)
{
    char full[KEY_MAX];
    const struct mx_gguf_pair *p;
    full_key(b, "rope.dimension_sections", full);
    if (b->status == MTPLX_OK)
        b->status = mx_gguf_ints(b->g, full, &p, b->err);
    if (b->status != MTPLX_OK || !p)
        return;
    int64_t v[4] = {0};
    for (uint64_t i = 0; i < p->count && i < 4; i++)
        mx_gguf_int_at(p, i, &v[i]);
    if (p->count < 3 || p->count > 4 || v[3] != 0) {
        bad_key(b, full, "must be three counts and a zero");
        return;
    }
    json_t *rope = json_object_get(b->root, "rope_parameters"), *list = json_array();
    for (int i = 0; i < 3; i++)
        json_array_append_new(list, json_integer(v[i]));
    put(b, rope, "mrope_section", list);
    put(b, rope, "mrope_interleaved", json_true());
}

static void put_linear(struct build *b)
{
    put_int(b, "ssm.conv_kernel", "linear_conv_kernel_dim");
    put_int(b, "ssm.state_size", "linear_key_head_dim");
    put_int(b, "ssm.group_count", "linear_num_key_heads");
    int64_t heads = put_int(b, "ssm.time_step_rank", "linear_num_value_heads");
    int64_t inner = read_int(b, "ssm.inner_size");
    if (b->status != MTPLX_OK)
        return;
    if (heads < 1 || inner < 1 || inner % heads != 0)
        bad_own(b, "ssm.inner_size", "is missing or no multiple of ssm.time_step_rank");
    else
        put(b, b->root, "linear_value_head_dim", json_integer(inner / heads));
}

/* Which layers are recurrent: a list, else every interval-th layer is full attention. */
static void put_layer_kinds(struct build *b)
{
    char full[KEY_MAX];
    const struct mx_gguf_pair *p;
    int64_t interval = read_int(b, "full_attention_interval");
    if (interval >= 0)
        put(b, b->root, "full_attention_interval", json_integer(interval));
    full_key(b, "attention.recurrent_layers", full);
    if (b->status == MTPLX_OK)
        b->status = mx_gguf_ints(b->g, full, &p, b->err);
    if (b->status != MTPLX_OK || !p)
        return;
    if (p->count < (uint64_t)b->m->layers) {
        bad_key(b, full, "has fewer entries than there are layers");
        return;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < b->m->layers; i++) {
        int64_t recurrent = 0;
        mx_gguf_int_at(p, (uint64_t)i, &recurrent);
        json_array_append_new(list, json_string(recurrent ? "linear_attention" : "full_attention"));
    }
    put(b, b->root, "layer_types", list);
}

/* ---- Generation --------------------------------------------------------------------------- */

/* End of text and end of turn. */
static void put_stops(struct build *b)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    json_t *list = json_array();
    for (size_t i = 0; i < 2; i++) {
        int64_t id = -1;
        if (b->status == MTPLX_OK)
            b->status = mx_gguf_int(b->g, keys[i], &id, b->err);
        if (id >= 0)
            json_array_append_new(list, json_integer(id));
    }
    put(b, b->root, "eos_token_id", list);
}

/* What generation_config.json would say, under that key. */
static void put_sampling(struct build *b)
{
    static const struct {
        const char *key, *name;
    } fields[] = {
        {"general.sampling.temp", "temperature"},
        {"general.sampling.top_k", "top_k"},
        {"general.sampling.top_p", "top_p"},
        {"general.sampling.min_p", "min_p"},
        {"general.sampling.penalty_repeat", "repetition_penalty"},
    };
    json_t *gen = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields && b->status == MTPLX_OK; i++) {
        double v = NAN;
        b->status = mx_gguf_float(b->g, fields[i].key, &v, b->err);
        if (!isfinite(v))
            continue;
        bool whole = i == 1 && fabs(v) < 1e9;
        put(b, gen, fields[i].name, whole ? json_integer((json_int_t)v) : json_real(v));
    }
    put(b, b->root, "generation_config", gen);
}

/* ---- The whole ---------------------------------------------------------------------------- */

json_t *mx_gguf_model_config(const struct mx_gguf_model *m, mtplx_error *err)
{
    struct build b = {.m = m, .g = &m->files[0], .root = json_object(), .err = err};
    const char *type = m->known ? "qwen3_5_text" : m->arch;
    if (!mx_utf8_valid(type, strlen(type)))
        bad_key(&b, "general.architecture", "is not UTF-8");
    put(&b, b.root, "model_type", json_string(type));
    put_sizes(&b);
    put_vocabulary(&b);
    put_rope(&b);
    if (m->known) {
        put_rope_scaling(&b);
        put_sections(&b);
        put_linear(&b);
        put_layer_kinds(&b);
    }
    put_stops(&b);
    put_sampling(&b);
    if (b.status == MTPLX_OK)
        return b.root;
    json_decref(b.root);
    return NULL;
}
