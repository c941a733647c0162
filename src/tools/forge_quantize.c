/* Forge quantize: an MLX affine copy of a checkpoint. */
#include "tools/forge_quantize.h"

#include "base/half.h"
#include "base/threads.h"
#include "format/mlxq.h"
#include "tools/forge_dir.h"
#include "tools/forge_plan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum {
    TASK_ROWS = 32, /* rows of one unit of parallel work */
    NAME_SIZE = 56, /* "model-00001-of-00002.safetensors" */
    SPARE_MIB = 4,  /* disk space beyond the tensors: tokenizer and the like */
};

/* One tensor of an output file, ready to be written. */
struct entry {
    char *name;
    enum mx_dtype dtype;
    int ndim;
    int64_t shape[MX_MAX_DIMS];
    const void *data;
    void *owned; /* data, when it was made here */
};

struct forge {
    const struct mx_forge_options *o;
    struct mx_forge_report *r;
    struct mx_config config;
    struct mx_checkpoint *ck;
    struct mx_forge_plan plan;
    struct mx_forge_dir dir;
    struct mx_pool *pool;
    struct entry *entries; /* of the file being made */
    size_t n_entries, cap_entries;
    uint64_t done; /* input bytes worked on */
};

const char *mx_forge_part_name(enum mx_forge_part part)
{
    static const char *const names[MX_FORGE_PARTS] = {
        [MX_FORGE_EMBEDDING] = "embedding, head",
        [MX_FORGE_ATTENTION] = "attention",
        [MX_FORGE_RECURRENT] = "linear attention",
        [MX_FORGE_MLP] = "MLP",
        [MX_FORGE_MTP] = "MTP head",
        [MX_FORGE_OTHER] = "other",
    };
    return names[part];
}

static bool cancelled(const struct forge *f)
{
    return f->o->cancel && *f->o->cancel;
}

/* ---- One matrix --------------------------------------------------------------------------- */

/* Shared by the workers of one matrix; each task owns its rows and its two sums. */
struct matrix_job {
    const struct forge *f;
    const struct mx_forge_item *item;
    uint8_t *codes, *scales, *biases;
    size_t row_bytes, group_bytes; /* of one output row */
    float *scratch;                /* [threads][2][in] */
    double *sums;                  /* [tasks][2]: squared error, squared weight */
};

static void quantize_row(const struct matrix_job *j, int64_t row, float *w, float *back,
                         double sums[2])
{
    const struct mx_forge_item *it = j->item;
    const struct mx_tensor *t = it->t;
    int64_t in = t->shape[1];
    uint8_t *codes = j->codes + (size_t)row * j->row_bytes;
    void *scales = j->scales + (size_t)row * j->group_bytes;
    void *biases = j->biases + (size_t)row * j->group_bytes;
    for (int64_t i = 0; i < in; i++)
        w[i] = mx_dtype_load(t->dtype, t->data, row * in + i);
    mx_mlxq_quant_row(w, in, it->bits, it->group, it->dtype, codes, scales, biases);
    mx_mlxq_dequant_row(codes, scales, biases, it->dtype, it->bits, it->group, in, back);
    for (int64_t i = 0; i < in; i++) {
        double e = (double)w[i] - (double)back[i];
        sums[0] += e * e;
        sums[1] += (double)w[i] * (double)w[i];
    }
}

static void quantize_task(void *arg, int task, int thread)
{
    const struct matrix_job *j = arg;
    const struct mx_tensor *t = j->item->t;
    float *w = j->scratch + 2 * (size_t)t->shape[1] * (size_t)thread;
    int64_t first = (int64_t)task * TASK_ROWS, end = first + TASK_ROWS;
    if (end > t->shape[0])
        end = t->shape[0];
    for (int64_t row = first; row < end && !cancelled(j->f); row++)
        quantize_row(j, row, w, w + t->shape[1], j->sums + 2 * (size_t)task);
}

/* Sums in task order, so that the report does not depend on the threads either. */
static mtplx_status account(struct forge *f, const struct mx_forge_item *it, const double *sums,
                            int tasks, mtplx_error *err)
{
    struct mx_forge_part_report *part = &f->r->parts[it->part];
    double error = 0, weight = 0;
    for (int i = 0; i < tasks; i++) {
        error += sums[2 * i];
        weight += sums[2 * i + 1];
    }
    if (!isfinite(weight) || !isfinite(error))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: tensor '%s' holds values that are not finite; the file is damaged",
                        it->t->file, it->t->name);
    part->matrices++;
    part->weights += (uint64_t)(it->t->shape[0] * it->t->shape[1]);
    part->bytes += it->bytes;
    part->squared_error += error;
    part->squared_weight += weight;
    return MTPLX_OK;
}

/* Takes e.owned, also when it fails. `tail` takes the place of ".weight"; without one the tensor
 * keeps its name. */
static mtplx_status add_entry(struct forge *f, const struct mx_tensor *t, const char *tail,
                              struct entry e, mtplx_error *err)
{
    size_t n = tail ? mx_forge_path_length(t) : strlen(t->name);
    size_t size = n + sizeof ".scales";
    if (f->n_entries == f->cap_entries) {
        size_t cap = f->cap_entries ? 2 * f->cap_entries : 256;
        struct entry *p = realloc(f->entries, cap * sizeof *p);
        f->entries = p ? p : f->entries;
        f->cap_entries = p ? cap : f->cap_entries;
    }
    e.name = f->n_entries < f->cap_entries ? malloc(size) : NULL;
    if (!e.name) {
        free(e.owned);
        return mx_error_nomem(err, t->name, size);
    }
    snprintf(e.name, size, "%.*s%s", (int)n, t->name, tail ? tail : "");
    f->entries[f->n_entries++] = e;
    return MTPLX_OK;
}

/* Hands the three arrays of a quantised matrix over to the file. */
static mtplx_status add_matrix(struct forge *f, struct matrix_job *j, mtplx_error *err)
{
    const struct mx_forge_item *it = j->item;
    const struct mx_tensor *t = it->t;
    const int64_t out = t->shape[0], words = t->shape[1] * it->bits / 32;
    const int64_t groups = t->shape[1] / it->group;
    struct {
        const char *tail;
        uint8_t **data;
        enum mx_dtype dtype;
        int64_t columns;
    } parts[] = {{".weight", &j->codes, MX_U32, words},
                 {".scales", &j->scales, it->dtype, groups},
                 {".biases", &j->biases, it->dtype, groups}};
    mtplx_status st = MTPLX_OK;
    for (size_t i = 0; i < 3 && st == MTPLX_OK; i++) {
        void *data = *parts[i].data;
        *parts[i].data = NULL;
        st = add_entry(f, t, parts[i].tail,
                       (struct entry){.dtype = parts[i].dtype,
                                      .ndim = 2,
                                      .shape = {out, parts[i].columns},
                                      .data = data,
                                      .owned = data},
                       err);
    }
    return st;
}

static mtplx_status quantize_matrix(struct forge *f, const struct mx_forge_item *it,
                                    mtplx_error *err)
{
    const struct mx_tensor *t = it->t;
    size_t out = (size_t)t->shape[0], in = (size_t)t->shape[1];
    int tasks = (int)((t->shape[0] + TASK_ROWS - 1) / TASK_ROWS);
    struct matrix_job j = {
        .f = f, .item = it, .row_bytes = mx_mlxq_row_bytes(it->bits, t->shape[1])};
    j.group_bytes = in / (size_t)it->group * (size_t)mx_dtype_bytes(it->dtype);
    j.codes = malloc(out * j.row_bytes);
    j.scales = malloc(out * j.group_bytes);
    j.biases = malloc(out * j.group_bytes);
    j.scratch = calloc((size_t)mx_pool_threads(f->pool), 2 * in * sizeof *j.scratch);
    j.sums = calloc((size_t)tasks, 2 * sizeof *j.sums);

    mtplx_status st = MTPLX_OK;
    if (!j.codes || !j.scales || !j.biases || !j.scratch || !j.sums) {
        st = mx_error_nomem(err, t->name, it->bytes);
    } else {
        mx_pool_run(f->pool, quantize_task, &j, tasks);
        st = cancelled(f) ? mx_error(err, MTPLX_ERR_CANCELLED, "interrupted")
                          : account(f, it, j.sums, tasks, err);
        if (st == MTPLX_OK)
            st = add_matrix(f, &j, err);
    }
    free(j.codes);
    free(j.scales);
    free(j.biases);
    free(j.scratch);
    free(j.sums);
    return st;
}

/* ---- One kept tensor ---------------------------------------------------------------------- */

static void *cast_16(const struct mx_tensor *t, enum mx_dtype to)
{
    size_t n = (size_t)t->bytes / 2;
    uint16_t *out = malloc(n ? 2 * n : 1);
    for (size_t i = 0; out && i < n; i++) {
        float x = mx_dtype_load(t->dtype, t->data, (int64_t)i);
        out[i] = to == MX_F16 ? mx_f32_to_f16(x) : mx_f32_to_bf16(x);
    }
    return out;
}

static mtplx_status keep_tensor(struct forge *f, const struct mx_forge_item *it, mtplx_error *err)
{
    const struct mx_tensor *t = it->t;
    struct entry e = {.dtype = it->dtype, .ndim = t->ndim, .data = t->data};
    memcpy(e.shape, t->shape, sizeof e.shape);
    if (it->dtype != t->dtype) {
        e.data = e.owned = cast_16(t, it->dtype);
        if (!e.owned)
            return mx_error_nomem(err, t->name, (size_t)t->bytes);
    }
    f->r->kept_tensors++;
    f->r->kept_bytes += it->bytes;
    return add_entry(f, t, NULL, e, err);
}

/* ---- One file ----------------------------------------------------------------------------- */

static void clear_entries(struct forge *f)
{
    for (size_t i = 0; i < f->n_entries; i++) {
        free(f->entries[i].name);
        free(f->entries[i].owned);
    }
    f->n_entries = 0;
}

/* Widest elements first keeps every tensor aligned to its element without holes. */
static int by_width_and_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int wide = mx_dtype_bytes(y->dtype) - mx_dtype_bytes(x->dtype);
    return wide ? wide : strcmp(x->name, y->name);
}

static mtplx_status write_entries(struct forge *f, const char *name, mtplx_error *err)
{
    qsort(f->entries, f->n_entries, sizeof *f->entries, by_width_and_name);
    struct mx_st_writer *w = mx_st_writer_new("mlx", err);
    char *path = mx_path_join(f->dir.tmp, name);
    mtplx_status st = w && path ? MTPLX_OK : mx_error_nomem(err, name, 0);
    for (size_t i = 0; i < f->n_entries && st == MTPLX_OK; i++) {
        const struct entry *e = &f->entries[i];
        st = mx_st_writer_add(w, e->name, e->dtype, e->ndim, e->shape, e->data, err);
    }
    if (st == MTPLX_OK)
        st = mx_st_writer_finish(w, path, err);
    free(path);
    mx_st_writer_free(w);
    return st;
}

static void file_name(const struct mx_forge_plan *p, int file, char name[NAME_SIZE])
{
    if (file == p->files)
        snprintf(name, NAME_SIZE, "mtp.safetensors");
    else if (p->files == 1)
        snprintf(name, NAME_SIZE, "model.safetensors");
    else
        snprintf(name, NAME_SIZE, "model-%05d-of-%05d.safetensors", file + 1, p->files);
}

/* Makes every tensor of an output file and writes it; `map` collects name -> file. */
static mtplx_status make_file(struct forge *f, int file, json_t *map, mtplx_error *err)
{
    char name[NAME_SIZE];
    mtplx_status st = MTPLX_OK;
    file_name(&f->plan, file, name);
    for (size_t i = 0; i < f->plan.count && st == MTPLX_OK; i++) {
        const struct mx_forge_item *it = &f->plan.items[i];
        if (it->file != file)
            continue;
        if (cancelled(f))
            return mx_error(err, MTPLX_ERR_CANCELLED, "interrupted");
        st = it->bits ? quantize_matrix(f, it, err) : keep_tensor(f, it, err);
        f->done += it->t->bytes;
        if (f->o->progress)
            f->o->progress(f->o->progress_arg, f->done, f->r->bytes_in);
    }
    if (st == MTPLX_OK)
        st = write_entries(f, name, err);
    for (size_t i = 0; i < f->n_entries && st == MTPLX_OK; i++) {
        if (json_object_set_new(map, f->entries[i].name, json_string(name)) != 0)
            st = mx_error_nomem(err, "the index", f->n_entries);
    }
    f->r->files++;
    return st;
}

/* ---- JSON files --------------------------------------------------------------------------- */

/* Takes `o`, which may be NULL after a failed allocation. Real numbers are written with as few
 * digits as give the same value back. */
static mtplx_status write_json(const struct forge *f, const char *name, json_t *o, size_t flags,
                               mtplx_error *err)
{
    char *text = o ? json_dumps(o, flags | JSON_REAL_PRECISION(15)) : NULL;
    json_t *back = text ? json_loads(text, 0, NULL) : NULL;
    if (text && !json_equal(o, back)) {
        free(text);
        text = json_dumps(o, flags | JSON_REAL_PRECISION(17));
    }
    char *path = mx_path_join(f->dir.tmp, name);
    mtplx_status st =
        text && path ? mx_file_write(path, text, strlen(text), err) : mx_error_nomem(err, name, 0);
    json_decref(back);
    free(path);
    free(text);
    return st;
}

static mtplx_status write_index(const struct forge *f, json_t *map, mtplx_error *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < f->plan.count; i++)
        total += f->plan.items[i].side ? 0 : f->plan.items[i].bytes;
    json_t *o =
        json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    mtplx_status st =
        write_json(f, "model.safetensors.index.json", o, JSON_INDENT(2) | JSON_SORT_KEYS, err);
    json_decref(o);
    return st;
}

static json_t *quant_spec(int bits, int group)
{
    return json_pack("{s:i, s:i, s:s}", "group_size", group, "bits", bits, "mode", "affine");
}

/* The default, and every path that differs from it. */
static json_t *quantization(const struct forge *f)
{
    json_t *o = quant_spec(f->o->bits, f->o->group);
    for (size_t i = 0; i < f->plan.count; i++) {
        const struct mx_forge_item *it = &f->plan.items[i];
        if (!it->bits || (it->bits == f->o->bits && it->group == f->o->group))
            continue;
        char *path = strndup(it->t->name, mx_forge_path_length(it->t));
        if (!path || json_object_set_new(o, path, quant_spec(it->bits, it->group)) != 0) {
            json_decref(o);
            o = NULL;
        }
        free(path);
        if (!o)
            break;
    }
    return o;
}

static void set_dtype(json_t *object, const char *name)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    for (size_t i = 0; i < 2; i++) {
        if (json_is_string(json_object_get(object, keys[i])))
            json_object_set_new(object, keys[i], json_string(name));
    }
}

static mtplx_status write_config(const struct forge *f, mtplx_error *err)
{
    json_t *root = json_deep_copy(f->config.root), *q = quantization(f);
    if (!root || json_object_set(root, "quantization", q) != 0 ||
        json_object_set(root, "quantization_config", q) != 0) {
        json_decref(root);
        json_decref(q);
        return mx_error_nomem(err, "config.json", 0);
    }
    json_decref(q);
    if (f->o->dtype) {
        const char *name = f->o->dtype == MX_F16 ? "float16" : "bfloat16";
        set_dtype(root, name);
        set_dtype(json_object_get(root, "text_config"), name);
    }
    json_t *extra = json_object_get(root, "mlx_lm_extra_tensors");
    if (f->plan.has_side && json_object_get(extra, "mtp_file"))
        json_object_set_new(extra, "mtp_file", json_string("mtp.safetensors"));
    mtplx_status st = write_json(f, "config.json", root, JSON_INDENT(2), err);
    json_decref(root);
    return st;
}

/* ---- The whole ---------------------------------------------------------------------------- */

static mtplx_status check_options(const struct mx_forge_options *o, mtplx_error *err)
{
    const int bits[] = {o->bits, o->embed_bits, o->mtp_bits};
    for (size_t i = 0; i < 3; i++) {
        const char *why = mx_mlxq_check(bits[i], o->group, 8 * 128);
        bool special = i > 0 && (bits[i] == 0 || bits[i] == MX_FORGE_KEEP_BITS);
        if (why && !special)
            return mx_error(err, MTPLX_ERR_ARGUMENT, "%s", why);
    }
    return MTPLX_OK;
}

static mtplx_status check_space(const struct forge *f, mtplx_error *err)
{
    struct statvfs fs;
    if (statvfs(f->dir.tmp, &fs) != 0 || fs.f_blocks == 0)
        return MTPLX_OK; /* the file system does not say */
    double need = (double)f->plan.bytes / (1 << 20) + SPARE_MIB;
    double have = (double)fs.f_bavail * (double)fs.f_frsize / (1 << 20);
    if (need > have)
        return mx_error(err, MTPLX_ERR_IO,
                        "the copy needs about %.0f MiB but the disk of '%.200s' has %.0f MiB left",
                        need, f->dir.final, have);
    return MTPLX_OK;
}

static mtplx_status open_input(struct forge *f, mtplx_error *err)
{
    mtplx_status st = mx_config_open(&f->config, f->o->in, err);
    if (st != MTPLX_OK)
        return st;
    f->ck = mx_checkpoint_open(f->o->in, f->config.root, err);
    if (!f->ck)
        return err->status;
    if (mx_checkpoint_gguf(f->ck))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "'%.200s' is a GGUF model; quantize the safetensors checkpoint that it was "
                        "made from",
                        f->o->in);
    if ((st = mx_forge_plan_make(&f->plan, f->ck, &f->config, f->o, err)) != MTPLX_OK)
        return st;
    f->r->bytes_out = f->plan.bytes;
    for (size_t i = 0; i < f->plan.count; i++) {
        const struct mx_tensor *t = f->plan.items[i].t;
        f->r->bytes_in += t->bytes;
        f->r->weights += t->bytes / (uint64_t)mx_dtype_bytes(t->dtype);
    }
    f->pool = mx_pool_new(f->o->threads, err);
    return f->pool ? MTPLX_OK : err->status;
}

static mtplx_status write_output(struct forge *f, mtplx_error *err)
{
    json_t *map = json_object(), *side = json_object();
    mtplx_status st = map && side ? check_space(f, err) : mx_error_nomem(err, "the index", 0);
    for (int i = 0; i < f->plan.files + f->plan.has_side && st == MTPLX_OK; i++) {
        st = make_file(f, i, i < f->plan.files ? map : side, err);
        clear_entries(f);
    }
    if (st == MTPLX_OK && f->plan.files > 1)
        st = write_index(f, map, err);
    if (st == MTPLX_OK)
        st = write_config(f, err);
    if (st == MTPLX_OK)
        st = mx_forge_copy_small(&f->dir, f->o->in, &f->r->skipped_files, err);
    if (st == MTPLX_OK && cancelled(f))
        st = mx_error(err, MTPLX_ERR_CANCELLED, "interrupted");
    if (st == MTPLX_OK)
        st = mx_forge_dir_commit(&f->dir, err);
    json_decref(map);
    json_decref(side);
    return st;
}

mtplx_status mx_forge_quantize(const struct mx_forge_options *o, struct mx_forge_report *r,
                               mtplx_error *err)
{
    mtplx_error local = {0};
    struct forge f = {.o = o, .r = r, .dir = {.lock = -1}};
    *r = (struct mx_forge_report){0};
    mtplx_status st = check_options(o, &local);
    if (st == MTPLX_OK)
        st = mx_forge_dir_begin(&f.dir, o->in, o->out, o->force, &local);
    if (st == MTPLX_OK)
        st = open_input(&f, &local);
    if (st == MTPLX_OK)
        st = write_output(&f, &local);
    mx_forge_dir_end(&f.dir);
    free(f.entries);
    mx_pool_free(f.pool);
    mx_forge_plan_free(&f.plan);
    mx_checkpoint_close(f.ck);
    mx_config_close(&f.config);
    if (err)
        *err = local;
    return st;
}
