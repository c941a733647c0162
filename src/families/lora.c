/* LoRA adapters on the MTP head (Hu et al. 2021): y += s * B (A x).
 *
 * An adapter changes only the draft distribution q, so exactness of the output does not depend on
 * it. Two layouts are read: PEFT ("<..>.lora_A.weight" [r, in], "<..>.lora_B.weight" [out, r]) and
 * mlx-lm ("<..>.lora_a" [in, r], "<..>.lora_b" [r, out]). The scale is lora_alpha / r (PEFT) or
 * lora_parameters.scale (mlx-lm) of an adapter_config.json beside the tensors, and 1 without one.
 */
#include "families/loader.h"

#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening ------------------------------------------------------------------------------ */

/* The scale an adapter_config.json states; 1 when it states none. */
static double config_scale(const json_t *cfg)
{
    const json_t *mlx = json_object_get(json_object_get(cfg, "lora_parameters"), "scale");
    if (json_is_number(mlx))
        return json_number_value(mlx);
    const json_t *alpha = json_object_get(cfg, "lora_alpha"), *r = json_object_get(cfg, "r");
    if (!json_is_number(alpha) || !json_is_number(r) || json_number_value(r) <= 0)
        return 1;
    double rank = json_number_value(r);
    bool rs = json_is_true(json_object_get(cfg, "use_rslora"));
    return json_number_value(alpha) / (rs ? sqrt(rank) : rank);
}

/* Variants whose maths is not plain LoRA with one scale. */
static mtplx_status check_variant(const json_t *cfg, const char *path, mtplx_error *err)
{
    static const char *const keys[] = {"use_dora", "rank_pattern", "alpha_pattern", NULL};
    for (int i = 0; keys[i]; i++) {
        const json_t *v = json_object_get(cfg, keys[i]);
        if (json_is_true(v) || json_object_size(v) > 0)
            return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                            "%s: field '%s' is not supported; merge the adapter with the tool that "
                            "made it",
                            path, keys[i]);
    }
    return MTPLX_OK;
}

static mtplx_status read_scale(const char *dir, double *scale, mtplx_error *err)
{
    char *path = mx_path_join(dir, "adapter_config.json");
    mtplx_status st = MTPLX_OK;
    *scale = 1;
    if (!path)
        return mx_error_nomem(err, "a path", strlen(dir));
    if (mx_file_exists(path)) {
        json_t *cfg = mx_json_file(path, 1 << 20, err);
        st = cfg ? check_variant(cfg, path, err) : MTPLX_ERR_FORMAT;
        *scale = config_scale(cfg);
        json_decref(cfg);
    }
    free(path);
    return st;
}

static struct mx_checkpoint *open_file(const char *path, double *scale, mtplx_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    struct mx_checkpoint *ck = NULL;
    if (!dir)
        mx_error_nomem(err, "a path", strlen(path));
    else if (read_scale(dir, scale, err) == MTPLX_OK)
        ck = mx_checkpoint_open_file(dir, slash ? slash + 1 : path, err);
    free(dir);
    return ck;
}

struct mx_checkpoint *mx_adapter_open(const char *path, double *scale, mtplx_error *err)
{
    if (!mx_dir_exists(path))
        return open_file(path, scale, err);
    if (read_scale(path, scale, err) != MTPLX_OK)
        return NULL;
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors", NULL};
    for (int i = 0; names[i]; i++) {
        char *file = mx_path_join(path, names[i]);
        bool found = file && mx_file_exists(file);
        free(file);
        if (found)
            return mx_checkpoint_open_file(path, names[i], err);
    }
    mx_error(err, MTPLX_ERR_IO,
             "%s: no adapter_model.safetensors or adapters.safetensors in this directory", path);
    return NULL;
}

/* ---- Tensors ------------------------------------------------------------------------------ */

/* The adapter tensor of `module` with this suffix, under any prefix that ends in "mtp.". */
static const struct mx_tensor *find(const struct mx_checkpoint *ck, const char *module,
                                    const char *suffix)
{
    char tail[MX_NAME_MAX];
    int n = snprintf(tail, sizeof tail, "mtp.%s%s", module, suffix);
    if (n < 0 || (size_t)n >= sizeof tail)
        return NULL;
    const struct mx_tensor *t = mx_checkpoint_find(ck, tail + 4);
    for (size_t i = 0; !t && i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *c = mx_checkpoint_at(ck, i);
        size_t len = strlen(c->name);
        if (len < (size_t)n || strcmp(c->name + len - (size_t)n, tail) != 0)
            continue;
        if (len == (size_t)n || c->name[len - (size_t)n - 1] == '.')
            t = c;
    }
    return t;
}

struct pair {
    const struct mx_tensor *a, *b;
    bool transposed; /* mlx-lm layout */
};

static struct pair find_pair(const struct mx_checkpoint *ck, const char *module)
{
    struct pair p = {find(ck, module, ".lora_A.weight"), find(ck, module, ".lora_B.weight"), false};
    if (p.a || p.b)
        return p;
    p.a = find(ck, module, ".lora_a");
    p.b = find(ck, module, ".lora_b");
    p.transposed = true;
    return p;
}

static mtplx_status check_pair(const struct pair *p, const char *module, int64_t out, int64_t in,
                               int *rank, mtplx_error *err)
{
    const struct mx_tensor *have = p->a ? p->a : p->b;
    if (!p->a || !p->b)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: the adapter of '%s' has only one of its two LoRA matrices", have->file,
                        module);
    int ri = p->transposed ? 1 : 0, rj = p->transposed ? 0 : 1;
    bool ok = p->a->ndim == 2 && p->b->ndim == 2 && p->a->shape[ri] == p->b->shape[rj] &&
              p->a->shape[1 - ri] == in && p->b->shape[1 - rj] == out && p->a->shape[ri] > 0 &&
              p->a->shape[ri] <= 4096;
    if (!ok)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: the LoRA shapes of '%s' do not fit a [%lld, %lld] matrix", have->file,
                        module, (long long)out, (long long)in);
    if ((p->a->dtype != MX_F32 && p->a->dtype != MX_F16 && p->a->dtype != MX_BF16) ||
        (p->b->dtype != MX_F32 && p->b->dtype != MX_F16 && p->b->dtype != MX_BF16))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: the adapter of '%s' is not BF16, F16 or F32", have->file, module);
    *rank = (int)p->a->shape[ri];
    return MTPLX_OK;
}

/* Copies a LoRA matrix as float32 [rows][cols], transposing the mlx-lm layout. */
static void copy_matrix(const struct mx_tensor *t, bool transposed, int64_t rows, int64_t cols,
                        float *out)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            out[r * cols + c] =
                mx_dtype_load(t->dtype, t->data, transposed ? c * rows + r : r * cols + c);
}

static void fill_f32(struct mx_weight *w, const float *data, int64_t out, int64_t in)
{
    memset(w, 0, sizeof *w);
    w->kind = MX_W_F32;
    w->out = out;
    w->in = in;
    w->data = data;
}

static void store_row(enum mx_weight_kind kind, void *data, size_t at, const float *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (kind == MX_W_F32)
            ((float *)data)[at + i] = row[i];
        else
            ((uint16_t *)data)[at + i] =
                kind == MX_W_F16 ? mx_f32_to_f16(row[i]) : mx_f32_to_bf16(row[i]);
    }
}

/* W + s B A as a new dense matrix of W's type; bf16 when W is quantised. */
static mtplx_status merge(struct mx_loader *l, const struct mx_lora *lora, struct mx_weight *w,
                          const char *module, mtplx_error *err)
{
    bool quantised = w->kind == MX_W_MLXQ || w->kind == MX_W_GGUF;
    enum mx_weight_kind kind = quantised ? MX_W_BF16 : w->kind;
    size_t in = (size_t)w->in, out = (size_t)w->out;
    void *data = mx_load_host(l, in * out * (kind == MX_W_F32 ? 4 : 2), module, err);
    float *row = malloc(in * sizeof *row);
    if (!data || !row) {
        free(row);
        return mx_error_nomem(err, module, in * out * 2);
    }
    const float *a = lora->a.data, *b = lora->b.data;
    for (size_t r = 0; r < out; r++) {
        mx_weight_row(w, (int64_t)r, row);
        for (size_t k = 0; k < (size_t)lora->rank; k++) {
            float s = lora->scale * b[r * (size_t)lora->rank + k];
            for (size_t i = 0; i < in; i++)
                row[i] += s * a[k * in + i];
        }
        store_row(kind, data, r * in, row, in);
    }
    free(row);
    w->kind = kind;
    w->data = data;
    w->scales = w->biases = NULL;
    w->bits = w->group = 0;
    return MTPLX_OK;
}

mtplx_status mx_load_adapter(struct mx_loader *l, const char *module, struct mx_linear *lin,
                             mtplx_error *err)
{
    struct pair p = find_pair(l->adapter, module);
    if (!p.a && !p.b)
        return MTPLX_OK;
    int rank = 0;
    mtplx_status st = check_pair(&p, module, lin->w.out, lin->w.in, &rank, err);
    if (st != MTPLX_OK)
        return st;
    size_t na = (size_t)rank * (size_t)lin->w.in, nb = (size_t)rank * (size_t)lin->w.out;
    struct mx_lora *lora = mx_arena_alloc(&l->weights->arena, sizeof *lora);
    float *a = mx_load_host(l, na * sizeof *a, module, err);
    float *b = mx_load_host(l, nb * sizeof *b, module, err);
    if (!lora || !a || !b)
        return mx_error_nomem(err, module, (na + nb) * sizeof(float));
    copy_matrix(p.a, p.transposed, rank, lin->w.in, a);
    copy_matrix(p.b, p.transposed, lin->w.out, rank, b);
    fill_f32(&lora->a, a, rank, lin->w.in);
    fill_f32(&lora->b, b, lin->w.out, rank);
    lora->rank = rank;
    lora->scale = (float)l->adapter_scale;
    l->adapter_used += 2;
    if (l->options->merge_mtp_adapter)
        return merge(l, lora, &lin->w, module, err);
    lin->lora = lora;
    if ((st = mx_load_bind(l, &lora->a, err)) != MTPLX_OK)
        return st;
    return mx_load_bind(l, &lora->b, err);
}
