/* Checkpoint directories: which files belong to it and one sorted table over their tensors.
 *
 * Invariants:
 *   1. Every file is mapped once, however often index, side-file list or symbolic links name it.
 *   2. Main files come before side files in `files`.
 *   3. The table is sorted by name without duplicates; a tensor's address stays fixed, since each
 *      file owns its tensor array. */
#include "format/checkpoint.h"

#include "base/file.h"
#include "format/config.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_LIMIT (64u << 20)
#define MAX_FILES 16384u

struct shard {
    struct mx_safetensors st;
    dev_t dev;
    ino_t ino;
};

struct mx_checkpoint {
    char *dir;
    struct shard **files;
    size_t files_count, files_cap;
    size_t main_count;          /* files[0..main_count) are no side files */
    struct mx_gguf_model *gguf; /* instead of files */
    const struct mx_tensor **table;
    size_t count;
};

static const char *const side_names[] = {
    "mtp.safetensors",
    "mtp/weights.safetensors",
    "model-mtp.safetensors",
};

enum {
    SIDE_NAMES = sizeof side_names / sizeof *side_names,
};

/* ---- Files -------------------------------------------------------------------------------- */

/* Relative, not empty, without ".." components. Symbolic links are fine: hub caches consist of
 * them. */
static bool stays_inside(const char *name)
{
    if (name[0] == '\0' || name[0] == '/')
        return false;
    for (const char *p = name; p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return false;
        p = p[n] ? p + n + 1 : NULL;
    }
    return true;
}

static struct shard *find_file(const struct mx_checkpoint *ck, const struct stat *sb)
{
    for (size_t i = 0; i < ck->files_count; i++)
        if (ck->files[i]->ino == sb->st_ino && ck->files[i]->dev == sb->st_dev)
            return ck->files[i];
    return NULL;
}

static struct shard *append_file(struct mx_checkpoint *ck, mtplx_error *err)
{
    if (ck->files_count == MAX_FILES) {
        mx_error(err, MTPLX_ERR_LIMIT, "%s: more than %u tensor files", ck->dir, MAX_FILES);
        return NULL;
    }
    if (ck->files_count == ck->files_cap) {
        size_t cap = ck->files_cap ? ck->files_cap * 2 : 16;
        void *p = realloc(ck->files, cap * sizeof *ck->files);
        if (!p) {
            mx_error_nomem(err, ck->dir, cap * sizeof *ck->files);
            return NULL;
        }
        ck->files = p;
        ck->files_cap = cap;
    }
    struct shard *f = calloc(1, sizeof *f);
    if (!f) {
        mx_error_nomem(err, ck->dir, sizeof *f);
        return NULL;
    }
    return ck->files[ck->files_count++] = f;
}

/* Maps dir/name, or finds it when it is open already. A file that does not open leaves an empty
 * entry behind; the caller gives up then anyway. */
static struct shard *open_file(struct mx_checkpoint *ck, const char *name, mtplx_error *err)
{
    char *path = mx_path_join(ck->dir, name);
    if (!path) {
        mx_error_nomem(err, name, strlen(name));
        return NULL;
    }
    struct stat sb;
    struct shard *f = NULL;
    if (stat(path, &sb) != 0)
        mx_error(err, MTPLX_ERR_IO, "%.350s: the checkpoint lacks this file: %s", path,
                 strerror(errno));
    else if (!(f = find_file(ck, &sb)) && (f = append_file(ck, err))) {
        f->dev = sb.st_dev;
        f->ino = sb.st_ino;
        if (mx_safetensors_open(&f->st, path, err) != MTPLX_OK)
            f = NULL;
    }
    free(path);
    return f;
}

static bool present(const struct mx_checkpoint *ck, const char *name)
{
    char *path = mx_path_join(ck->dir, name);
    bool yes = path && mx_file_exists(path);
    free(path);
    return yes;
}

/* ---- Main files --------------------------------------------------------------------------- */

/* One entry of weight_map. `opened` maps file names to indices into ck->files, so that thousands of
 * entries cost one hash lookup each. */
static bool read_entry(struct mx_checkpoint *ck, const char *tensor, const json_t *value,
                       json_t *opened, mtplx_error *err)
{
    const char *name = json_string_value(value);
    if (!name || !stays_inside(name)) {
        mx_error(err, MTPLX_ERR_FORMAT,
                 "%.220s/" INDEX_NAME ": tensor '%.100s' names the file '%.60s', which is not "
                 "inside the checkpoint",
                 ck->dir, tensor, name ? name : "(not a string)");
        return false;
    }
    const json_t *known = json_object_get(opened, name);
    struct shard *f;
    if (known) {
        f = ck->files[json_integer_value(known)];
    } else {
        f = open_file(ck, name, err);
        if (!f)
            return false;
        size_t i = 0;
        while (ck->files[i] != f)
            i++;
        if (json_object_set_new(opened, name, json_integer((json_int_t)i)) != 0) {
            mx_error_nomem(err, INDEX_NAME, strlen(name));
            return false;
        }
    }
    if (mx_safetensors_find(&f->st, tensor))
        return true;
    mx_error(err, MTPLX_ERR_FORMAT,
             "%.220s: tensor '%.100s' is missing, although " INDEX_NAME " places it there",
             f->st.path, tensor);
    return false;
}

static bool read_weight_map(struct mx_checkpoint *ck, json_t *index, mtplx_error *err)
{
    json_t *map = json_object_get(index, "weight_map");
    json_t *opened = json_object();
    bool ok = false;
    const char *tensor;
    json_t *value;
    if (!opened) {
        mx_error_nomem(err, INDEX_NAME, 0);
    } else if (!json_is_object(map)) {
        mx_error(err, MTPLX_ERR_FORMAT, "%s/" INDEX_NAME ": field 'weight_map' must be an object",
                 ck->dir);
    } else {
        ok = true;
        json_object_foreach(map, tensor, value)
        {
            ok = read_entry(ck, tensor, value, opened, err);
            if (!ok)
                break;
        }
    }
    json_decref(opened);
    return ok;
}

static bool read_index(struct mx_checkpoint *ck, mtplx_error *err)
{
    char *path = mx_path_join(ck->dir, INDEX_NAME);
    if (!path) {
        mx_error_nomem(err, INDEX_NAME, strlen(ck->dir));
        return false;
    }
    json_t *index = mx_json_file(path, INDEX_LIMIT, err);
    free(path);
    bool ok = index && read_weight_map(ck, index, err);
    json_decref(index);
    return ok;
}

static bool is_side_name(const char *name)
{
    for (size_t i = 0; i < SIDE_NAMES; i++)
        if (strcmp(name, side_names[i]) == 0)
            return true;
    return false;
}

static int wanted(const struct dirent *e)
{
    static const char ext[] = ".safetensors";
    size_t n = strlen(e->d_name), k = sizeof ext - 1;
    return n > k && e->d_name[0] != '.' && strcmp(e->d_name + n - k, ext) == 0 &&
           !is_side_name(e->d_name);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort would follow the locale */
}

/* No index and no model.safetensors: every tensor file at the top but the side files. */
static bool read_all(struct mx_checkpoint *ck, const char *mtp_file, mtplx_error *err)
{
    struct dirent **list = NULL;
    int n = scandir(ck->dir, &list, wanted, by_bytes);
    bool ok = n >= 0;
    if (!ok)
        mx_error(err, MTPLX_ERR_IO, "%s: cannot list the directory", ck->dir);
    for (int i = 0; i < n; i++) {
        if (ok && !(mtp_file && strcmp(mtp_file, list[i]->d_name) == 0))
            ok = open_file(ck, list[i]->d_name, err) != NULL;
        free(list[i]);
    }
    free(list);
    return ok;
}

/* ---- Side files --------------------------------------------------------------------------- */

static bool side_from_config(const struct mx_checkpoint *ck, const json_t *config,
                             const char **name, mtplx_error *err)
{
    *name = NULL;
    const json_t *extra = json_object_get(config, "mlx_lm_extra_tensors");
    const json_t *v = json_object_get(extra, "mtp_file");
    if (!v || json_is_null(v))
        return true;
    *name = json_string_value(v);
    if (*name && stays_inside(*name))
        return true;
    mx_error(err, MTPLX_ERR_FORMAT,
             "%s/config.json: field 'mlx_lm_extra_tensors.mtp_file' must be a file name inside the "
             "checkpoint",
             ck->dir);
    return false;
}

static bool read_side_files(struct mx_checkpoint *ck, const char *mtp_file, mtplx_error *err)
{
    if (mtp_file && !open_file(ck, mtp_file, err))
        return false;
    for (size_t i = 0; i < SIDE_NAMES; i++)
        if (present(ck, side_names[i]) && !open_file(ck, side_names[i], err))
            return false;
    return true;
}

/* ---- The table ---------------------------------------------------------------------------- */

static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

/* Orders tensors by module path. Bytes are compared, shorter first. */
static int compare_modules(const void *a, const void *b)
{
    const char *x = (*(const struct mx_tensor *const *)a)->name;
    const char *y = (*(const struct mx_tensor *const *)b)->name;
    size_t n = module_length(x), m = module_length(y);
    int c = memcmp(x, y, n < m ? n : m);
    return c ? c : (n > m) - (n < m);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct mx_tensor *const *)a)->name,
                  (*(const struct mx_tensor *const *)b)->name);
}

static size_t count_tensors(const struct mx_checkpoint *ck, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += ck->files[i]->st.count;
    return n;
}

/* Whether a component of the name is "mtp". */
static bool is_mtp_name(const char *name)
{
    const char *at = strstr(name, "mtp.");
    return at && (at == name || at[-1] == '.');
}

/* Whether a file has the module of `t`, in whatever form: dense and quantised ones share .weight.
 */
static bool has_module(const struct mx_safetensors *st, const struct mx_tensor *t)
{
    char name[512];
    size_t n = module_length(t->name);
    if (n + sizeof ".weight" > sizeof name)
        return false;
    memcpy(name, t->name, n);
    memcpy(name + n, ".weight", sizeof ".weight");
    return mx_safetensors_find(st, name) || mx_safetensors_find(st, t->name);
}

static bool any_has_module(const struct mx_checkpoint *ck, size_t from, size_t to,
                           const struct mx_tensor *t)
{
    for (size_t i = from; i < to; i++)
        if (has_module(&ck->files[i]->st, t))
            return true;
    return false;
}

/* Side tensors that count: those no earlier side file has, and of modules that a main file has too
 * only the MTP head's. (Extracts often ship a copy of the embeddings, which must not replace the
 * trunk's.) */
static size_t append_side(const struct mx_checkpoint *ck, size_t file,
                          const struct mx_tensor **table, size_t n)
{
    const struct mx_safetensors *st = &ck->files[file]->st;
    for (size_t i = 0; i < st->count; i++) {
        const struct mx_tensor *t = &st->tensors[i];
        if (!any_has_module(ck, ck->main_count, file, t) &&
            (is_mtp_name(t->name) || !any_has_module(ck, 0, ck->main_count, t)))
            table[n++] = t;
    }
    return n;
}

/* Appends the tensors of a main file, except those whose module is in side[0..sides). */
static size_t append_main(const struct mx_safetensors *st, const struct mx_tensor **table, size_t n,
                          const struct mx_tensor **side, size_t sides)
{
    for (size_t i = 0; i < st->count; i++) {
        const struct mx_tensor *t = &st->tensors[i];
        if (sides == 0 || !bsearch(&t, side, sides, sizeof *side, compare_modules))
            table[n++] = t;
    }
    return n;
}

static bool check_unique(const struct mx_checkpoint *ck, mtplx_error *err)
{
    for (size_t i = 1; i < ck->count; i++) {
        const struct mx_tensor *a = ck->table[i - 1], *b = ck->table[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        mx_error(err, MTPLX_ERR_FORMAT,
                 "tensor '%.100s' is in both %.160s and %.160s; remove one of the files", a->name,
                 a->file, b->file);
        return false;
    }
    return true;
}

/* Side tensors fill the front of the table first and serve as the sorted list of replaced modules;
 * main tensors follow. */
static bool build_table(struct mx_checkpoint *ck, mtplx_error *err)
{
    size_t all = count_tensors(ck, 0, ck->files_count);
    if (all == 0) {
        mx_error(err, MTPLX_ERR_FORMAT, "%s: no tensors in any safetensors file", ck->dir);
        return false;
    }
    ck->table = malloc(all * sizeof *ck->table);
    if (!ck->table) {
        mx_error_nomem(err, ck->dir, all * sizeof *ck->table);
        return false;
    }
    size_t n = 0;
    for (size_t i = ck->main_count; i < ck->files_count; i++)
        n = append_side(ck, i, ck->table, n);
    size_t sides = n;
    if (sides > 1)
        qsort(ck->table, sides, sizeof *ck->table, compare_modules);
    for (size_t i = 0; i < ck->main_count; i++)
        n = append_main(&ck->files[i]->st, ck->table, n, ck->table, sides);
    ck->count = n;
    qsort(ck->table, n, sizeof *ck->table, compare_names);
    return check_unique(ck, err);
}

/* ---- GGUF --------------------------------------------------------------------------------- */

static bool open_gguf(struct mx_checkpoint *ck, const char *path, mtplx_error *err)
{
    ck->gguf = mx_gguf_model_open(path, err);
    if (!ck->gguf)
        return false;
    size_t n = ck->gguf->count;
    if (n == 0) {
        mx_error(err, MTPLX_ERR_FORMAT, "%.300s: the file has no tensors", path);
        return false;
    }
    ck->table = malloc(n * sizeof *ck->table);
    if (!ck->table) {
        mx_error_nomem(err, path, n * sizeof *ck->table);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        ck->table[i] = &ck->gguf->tensors[i];
    ck->count = n;
    qsort(ck->table, n, sizeof *ck->table, compare_names);
    return check_unique(ck, err);
}

const struct mx_gguf *mx_checkpoint_gguf(const struct mx_checkpoint *ck)
{
    return ck->gguf ? &ck->gguf->files[0] : NULL;
}

struct mx_export mx_checkpoint_export(const struct mx_checkpoint *ck)
{
    bool qwen35 = ck->gguf && ck->gguf->known;
    return (struct mx_export){.baked_norms = qwen35, .neg_exp_a = qwen35, .tiled_heads = qwen35};
}

/* ---- Public ------------------------------------------------------------------------------- */

static bool read_main_files(struct mx_checkpoint *ck, const char *mtp_file, mtplx_error *err)
{
    bool ok;
    if (present(ck, INDEX_NAME))
        ok = read_index(ck, err);
    else if (present(ck, "model.safetensors"))
        ok = open_file(ck, "model.safetensors", err) != NULL;
    else
        ok = read_all(ck, mtp_file, err);
    ck->main_count = ck->files_count;
    return ok;
}

static struct mx_checkpoint *checkpoint_new(const char *dir, bool file, mtplx_error *err)
{
    if (!file && !mx_dir_exists(dir)) {
        mx_error(err, MTPLX_ERR_IO, "%s: not a checkpoint directory", dir);
        return NULL;
    }
    struct mx_checkpoint *ck = calloc(1, sizeof *ck);
    if (!ck || !(ck->dir = strdup(dir))) {
        free(ck);
        mx_error_nomem(err, dir, sizeof *ck);
        return NULL;
    }
    return ck;
}

struct mx_checkpoint *mx_checkpoint_open_file(const char *dir, const char *file, mtplx_error *err)
{
    struct mx_checkpoint *ck = checkpoint_new(dir, false, err);
    if (ck && open_file(ck, file, err)) {
        ck->main_count = ck->files_count;
        if (build_table(ck, err))
            return ck;
    }
    mx_checkpoint_close(ck);
    return NULL;
}

struct mx_checkpoint *mx_checkpoint_open(const char *dir, const json_t *config, mtplx_error *err)
{
    const char *mtp_file;
    mtplx_error own = {0};
    char *gguf = mx_gguf_resolve(dir, &own);
    if (own.status != MTPLX_OK) {
        if (err)
            *err = own;
        return NULL;
    }
    struct mx_checkpoint *ck = checkpoint_new(dir, gguf != NULL, err);
    bool is_gguf = ck && gguf;
    bool ok = is_gguf && open_gguf(ck, gguf, err);
    free(gguf);
    if (!ck || ok)
        return ck;
    if (!is_gguf && side_from_config(ck, config, &mtp_file, err) &&
        read_main_files(ck, mtp_file, err) && read_side_files(ck, mtp_file, err) &&
        build_table(ck, err))
        return ck;
    mx_checkpoint_close(ck);
    return NULL;
}

void mx_checkpoint_close(struct mx_checkpoint *ck)
{
    if (!ck)
        return;
    for (size_t i = 0; i < ck->files_count; i++) {
        mx_safetensors_close(&ck->files[i]->st);
        free(ck->files[i]);
    }
    mx_gguf_model_close(ck->gguf);
    free(ck->files);
    free(ck->table);
    free(ck->dir);
    free(ck);
}

const struct mx_tensor *mx_checkpoint_find(const struct mx_checkpoint *ck, const char *name)
{
    const struct mx_tensor key = {.name = name}, *pkey = &key;
    const struct mx_tensor **hit =
        bsearch(&pkey, ck->table, ck->count, sizeof *ck->table, compare_names);
    return hit ? *hit : NULL;
}

size_t mx_checkpoint_count(const struct mx_checkpoint *ck)
{
    return ck->count;
}

const struct mx_tensor *mx_checkpoint_at(const struct mx_checkpoint *ck, size_t i)
{
    return i < ck->count ? ck->table[i] : NULL;
}

const char *mx_checkpoint_dir(const struct mx_checkpoint *ck)
{
    return ck->dir;
}

bool mx_checkpoint_is_side(const struct mx_checkpoint *ck, const struct mx_tensor *t)
{
    for (size_t i = ck->main_count; i < ck->files_count; i++)
        if (t->file == ck->files[i]->st.path) /* the string is owned by the file: its identity */
            return true;
    return false;
}
