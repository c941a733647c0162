/* GGUF models: finding the file, split files, and tensors under Hugging Face names.
 *
 * A GGUF block holds the tensors of one decoder layer. Blocks behind the trunk (their number is
 * <arch>.nextn_predict_layers) are MTP layers; the first of them also holds what the head has once.
 * Tensors without a Hugging Face name keep theirs behind "gguf.", so that they are counted but can
 * not be taken for something else. */
#include "format/gguf_model.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define MAX_PARTS 1000
#define MAX_BLOCKS 4096

/* ---- Finding the file --------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcasecmp(s + n - k, tail) == 0;
}

#define PART_SUFFIX "-00001-of-00001.gguf"

/* Five digits. */
static bool read_number(const char *s, int *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return true;
}

/* Reads "-<part>-of-<count>.gguf" off the end of a name. */
static bool split_suffix(const char *name, int *part, int *count)
{
    size_t n = strlen(name), k = sizeof PART_SUFFIX - 1;
    const char *s = name + (n > k ? n - k : 0);
    return n > k && s[0] == '-' && memcmp(s + 6, "-of-", 4) == 0 && ends_with(s, ".gguf") &&
           read_number(s + 1, part) && read_number(s + 10, count) && *part > 0 && *count > 1;
}

/* A file that could be the model: no projector and no later part of a split. */
static bool is_candidate(const char *name)
{
    int part, count;
    return name[0] != '.' && ends_with(name, ".gguf") && strncasecmp(name, "mmproj", 6) != 0 &&
           (!split_suffix(name, &part, &count) || part == 1);
}

/* Number of candidates in a directory and the path of one of them. */
static int scan_directory(const char *dir, char **path)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) {
        if (!is_candidate(e->d_name))
            continue;
        free(*path);
        *path = mx_path_join(dir, e->d_name);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static bool has_config(const char *dir)
{
    char *config = mx_path_join(dir, "config.json");
    bool yes = config && mx_file_exists(config);
    free(config);
    return yes;
}

char *mx_gguf_resolve(const char *path, mtplx_error *err)
{
    struct stat st;
    mtplx_error local;
    char *file = NULL;
    err = err ? err : &local;
    err->status = MTPLX_OK;
    if (stat(path, &st) != 0)
        return NULL;
    if (!S_ISDIR(st.st_mode)) {
        if (!ends_with(path, ".gguf"))
            mx_error(err, MTPLX_ERR_ARGUMENT,
                     "'%.200s' is a file; give the directory that holds config.json, or a .gguf "
                     "file",
                     path);
        else if (!(file = strdup(path)))
            mx_error_nomem(err, path, strlen(path));
        return file;
    }
    if (has_config(path))
        return NULL;
    int n = scan_directory(path, &file);
    if (n == 1 && !file)
        mx_error_nomem(err, path, strlen(path));
    if (n <= 1)
        return file;
    free(file);
    mx_error(err, MTPLX_ERR_ARGUMENT, "'%.200s' holds %d GGUF files; name one of them", path, n);
    return NULL;
}

/* ---- Split files -------------------------------------------------------------------------- */

static mtplx_status open_part(struct mx_gguf_model *m, const char *first, size_t index,
                              mtplx_error *err)
{
    char *path = strdup(first);
    if (!path)
        return mx_error_nomem(err, first, strlen(first));
    char digits[24];
    snprintf(digits, sizeof digits, "%05zu", index + 1);
    memcpy(path + strlen(path) - (sizeof PART_SUFFIX - 2), digits, 5);
    mtplx_status st = mx_gguf_open(&m->files[index], path, err);
    free(path);
    if (st != MTPLX_OK)
        return st;
    m->n_files = index + 1;
    int64_t no = -1;
    st = mx_gguf_int(&m->files[index], "split.no", &no, err);
    if (st == MTPLX_OK && no != (int64_t)index)
        st = mx_error(err, MTPLX_ERR_FORMAT,
                      "%.220s: metadata key 'split.no' is %" PRId64
                      " but the file name says part %zu",
                      m->files[index].path, no, index + 1);
    return st;
}

/* The parts behind the first, whose names differ in the part number only. */
static mtplx_status open_parts(struct mx_gguf_model *m, mtplx_error *err)
{
    const struct mx_gguf *g = &m->files[0];
    int64_t count = 1, no = 0;
    int part, named;
    mtplx_status st = mx_gguf_int(g, "split.count", &count, err);
    if (st == MTPLX_OK)
        st = mx_gguf_int(g, "split.no", &no, err);
    if (st != MTPLX_OK || count == 1 || count == 0)
        return st;
    if (no != 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "%.220s: this is a later part of a split model; name the first part",
                        g->path);
    if (count < 0 || count > MAX_PARTS || !split_suffix(g->path, &part, &named) || part != 1 ||
        named != count)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%.220s: metadata key 'split.count' is %" PRId64
                        ", so the file must be named like '...-00001-of-%05" PRId64 ".gguf'",
                        g->path, count, count);
    struct mx_gguf *grown = realloc(m->files, (size_t)count * sizeof *grown);
    if (!grown)
        return mx_error_nomem(err, "the parts of a split model", (size_t)count * sizeof *grown);
    m->files = grown;
    for (size_t i = 1; st == MTPLX_OK && i < (size_t)count; i++)
        st = open_part(m, m->files[0].path, i, err);
    return st;
}

/* ---- Names -------------------------------------------------------------------------------- */

struct name_pair {
    const char *gguf, *hf;
};

static const struct name_pair model_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

static const struct name_pair block_names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

#define MTP_NORM "mtp.norm.weight"

static const struct name_pair mtp_names[] = {
    {"nextn.eh_proj.weight", "mtp.fc.weight"},
    {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
    {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
    {"nextn.shared_head_norm.weight", MTP_NORM},
    {"nextn.embed_tokens.weight", "mtp.embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "mtp.lm_head.weight"},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *look_up(const struct name_pair *names, size_t n, const char *gguf)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i].gguf, gguf) == 0)
            return names[i].hf;
    return NULL;
}

/* Splits "blk.<n>.<rest>"; numbers are written in one way only. */
static const char *block_rest(const char *name, int64_t *block)
{
    if (strncmp(name, "blk.", 4) != 0)
        return NULL;
    const char *p = name + 4;
    int64_t n = 0;
    if (*p == '0' && p[1] != '.')
        return NULL;
    for (; *p >= '0' && *p <= '9' && n < MAX_BLOCKS; p++)
        n = n * 10 + (*p - '0');
    if (p == name + 4 || *p != '.' || n >= MAX_BLOCKS)
        return NULL;
    *block = n;
    return p + 1;
}

/* The Hugging Face name of a tensor, in the arena; NULL when out of memory. */
static const char *mapped_name(struct mx_gguf_model *m, const char *name)
{
    int64_t block;
    const char *hf = look_up(model_names, COUNT(model_names), name);
    const char *rest = block_rest(name, &block);
    if (m->known && hf)
        return hf;
    if (m->known && rest && block < m->layers + m->mtp_layers) {
        bool mtp = block >= m->layers;
        if (block == m->layers && (hf = look_up(mtp_names, COUNT(mtp_names), rest)))
            return hf;
        if ((hf = look_up(block_names, COUNT(block_names), rest)))
            return mx_arena_printf(&m->arena, "%slayers.%" PRId64 ".%s", mtp ? "mtp." : "model.",
                                   mtp ? block - m->layers : block, hf);
    }
    return mx_arena_printf(&m->arena, "gguf.%s", name);
}

/* ---- Tensors ------------------------------------------------------------------------------ */

static enum mx_dtype dense_dtype(int type)
{
    switch (type) {
    case MX_GGUF_F32: return MX_F32;
    case MX_GGUF_F16: return MX_F16;
    case MX_GGUF_BF16: return MX_BF16;
    case 24: return MX_I8;
    case 25: return MX_I16;
    case 26: return MX_I32;
    case 27: return MX_I64;
    case 28: return MX_F64;
    default: return MX_DTYPE_NONE;
    }
}

/* Dimensions slowest first. The conv kernel gets back the middle dimension that it lost. */
static void set_shape(struct mx_tensor *t, const struct mx_gguf_tensor *g)
{
    t->ndim = g->ndim;
    for (int i = 0; i < g->ndim; i++)
        t->shape[i] = g->ne[g->ndim - 1 - i];
    if (g->ndim == 2 && strstr(t->name, "linear_attn.conv1d.")) {
        t->ndim = 3;
        t->shape[2] = t->shape[1];
        t->shape[1] = 1;
    }
}

static bool add_tensor(struct mx_gguf_model *m, const struct mx_gguf *file,
                       const struct mx_gguf_tensor *g)
{
    struct mx_tensor *t = &m->tensors[m->count];
    *t = (struct mx_tensor){.name = mapped_name(m, g->name),
                            .dtype = dense_dtype(g->type),
                            .data = g->data,
                            .bytes = g->bytes,
                            .file = file->path};
    if (!t->name)
        return false;
    if (t->dtype == MX_DTYPE_NONE)
        t->gguf_type = g->type;
    set_shape(t, g);
    m->count++;
    return true;
}

static const struct mx_tensor *find_tensor(const struct mx_gguf_model *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

/* A head without a final norm of its own uses the trunk's. */
static void share_final_norm(struct mx_gguf_model *m)
{
    const struct mx_tensor *norm = find_tensor(m, "model.norm.weight");
    if (!norm || !find_tensor(m, "mtp.fc.weight") || find_tensor(m, MTP_NORM))
        return;
    m->tensors[m->count] = *norm;
    m->tensors[m->count++].name = MTP_NORM;
}

static mtplx_status map_tensors(struct mx_gguf_model *m, mtplx_error *err)
{
    size_t total = 1; /* one more, for a shared norm */
    for (size_t i = 0; i < m->n_files; i++)
        total += m->files[i].n_tensors;
    m->tensors = malloc(total * sizeof *m->tensors);
    if (!m->tensors)
        return mx_error_nomem(err, m->files[0].path, total * sizeof *m->tensors);
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t k = 0; k < m->files[i].n_tensors; k++)
            if (!add_tensor(m, &m->files[i], &m->files[i].tensors[k]))
                return mx_error_nomem(err, m->files[0].path, total * 64);
    m->mtp_embeddings =
        find_tensor(m, "mtp.embed_tokens.weight") || find_tensor(m, "mtp.lm_head.weight");
    share_final_norm(m);
    return MTPLX_OK;
}

/* ---- Opening ------------------------------------------------------------------------------ */

static mtplx_status read_architecture(struct mx_gguf_model *m, mtplx_error *err)
{
    const struct mx_gguf *g = &m->files[0];
    const char *arch = NULL;
    size_t n = 0;
    mtplx_status st = mx_gguf_string(g, "general.architecture", &arch, &n, err);
    if (st != MTPLX_OK)
        return st;
    if (n == 0 || n > 64 || memchr(arch, 0, n))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%.220s: metadata key 'general.architecture' is missing or no name",
                        g->path);
    if (!(m->arch = mx_arena_strndup(&m->arena, arch, n)))
        return mx_error_nomem(err, g->path, n);
    m->known = strcmp(m->arch, "qwen35") == 0;
    return MTPLX_OK;
}

/* Trunk and MTP blocks: block_count counts both. */
static mtplx_status read_layers(struct mx_gguf_model *m, mtplx_error *err)
{
    const struct mx_gguf *g = &m->files[0];
    char blocks_key[96], mtp_key[96];
    int64_t blocks = -1;
    snprintf(blocks_key, sizeof blocks_key, "%s.block_count", m->arch);
    snprintf(mtp_key, sizeof mtp_key, "%s.nextn_predict_layers", m->arch);
    mtplx_status st = mx_gguf_int(g, blocks_key, &blocks, err);
    if (st == MTPLX_OK)
        st = mx_gguf_int(g, mtp_key, &m->mtp_layers, err);
    if (st != MTPLX_OK)
        return st;
    if (!m->known && blocks < 0)
        blocks = 0; /* described as far as it goes */
    if (blocks < m->known || blocks > MAX_BLOCKS)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%.220s: metadata key '%s' is missing or outside 1..%d", g->path,
                        blocks_key, MAX_BLOCKS);
    if (m->mtp_layers < 0 || m->mtp_layers > blocks - m->known)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%.220s: metadata key '%s' is %" PRId64 " but there are %" PRId64 " blocks",
                        g->path, mtp_key, m->mtp_layers, blocks);
    m->layers = blocks - m->mtp_layers;
    return MTPLX_OK;
}

static struct mx_gguf_model *model_new(const char *path, mtplx_error *err)
{
    struct mx_gguf_model *m = calloc(1, sizeof *m);
    if (m) {
        mx_arena_init(&m->arena, 0);
        m->files = calloc(1, sizeof *m->files);
    }
    if (m && m->files)
        return m;
    mx_gguf_model_close(m);
    mx_error_nomem(err, path, sizeof *m);
    return NULL;
}

/* With the first file open. */
static struct mx_gguf_model *finish(struct mx_gguf_model *m, mtplx_status st, mtplx_error *err)
{
    if (st == MTPLX_OK) {
        m->n_files = 1;
        st = open_parts(m, err);
    }
    if (st == MTPLX_OK)
        st = read_architecture(m, err);
    if (st == MTPLX_OK)
        st = read_layers(m, err);
    if (st == MTPLX_OK)
        st = map_tensors(m, err);
    if (st == MTPLX_OK)
        return m;
    mx_gguf_model_close(m);
    return NULL;
}

struct mx_gguf_model *mx_gguf_model_open(const char *path, mtplx_error *err)
{
    struct mx_gguf_model *m = model_new(path, err);
    return m ? finish(m, mx_gguf_open(&m->files[0], path, err), err) : NULL;
}

struct mx_gguf_model *mx_gguf_model_parse(const void *data, size_t size, const char *name,
                                          mtplx_error *err)
{
    struct mx_gguf_model *m = model_new(name, err);
    return m ? finish(m, mx_gguf_parse(&m->files[0], data, size, name, err), err) : NULL;
}

void mx_gguf_model_close(struct mx_gguf_model *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_files; i++)
        mx_gguf_close(&m->files[i]);
    free(m->files);
    free(m->tensors);
    mx_arena_free(&m->arena);
    free(m);
}
