/* An output directory that appears whole or not at all. */
#include "tools/forge_dir.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MARKER[] = ".mtplx-forge";

enum { SMALL_FILE = 64 << 20 };

static mtplx_status io(mtplx_error *err, const char *path, const char *verb)
{
    return mx_error(err, MTPLX_ERR_IO, "cannot %s '%.300s': %s", verb, path, strerror(errno));
}

/* ---- Removing ----------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

/* Symbolic links are removed, not followed. */
static bool remove_tree(const char *path)
{
    return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

static bool is_empty_dir(const char *path)
{
    DIR *dir = opendir(path);
    bool empty = true;
    if (!dir)
        return false;
    for (struct dirent *e = readdir(dir); e && empty; e = readdir(dir))
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(dir);
    return empty;
}

/* ---- Beginning ---------------------------------------------------------------------------- */

static bool holds_file(const char *dir, const char *name)
{
    char *path = mx_path_join(dir, name);
    bool found = path && mx_file_exists(path);
    free(path);
    return found;
}

/* True when `inner` is `outer` or lies below it; both must exist. */
static bool is_within(const char *inner, const char *outer)
{
    char *a = realpath(inner, NULL), *b = realpath(outer, NULL);
    bool within = false;
    if (a && b) {
        size_t n = strlen(b);
        within = strncmp(a, b, n) == 0 && (a[n] == '\0' || a[n] == '/' || b[n - 1] == '/');
    }
    free(a);
    free(b);
    return within;
}

static mtplx_status check_final(struct mx_forge_dir *d, const char *in, bool force,
                                mtplx_error *err)
{
    struct stat st;
    if (lstat(d->final, &st) != 0)
        return errno == ENOENT ? MTPLX_OK : io(err, d->final, "look at");
    if (S_ISLNK(st.st_mode))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.300s' is a symbolic link; name the directory itself", d->final);
    if (!S_ISDIR(st.st_mode))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "'%.300s' exists and is not a directory",
                        d->final);
    if (is_within(in, d->final))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "the output '%.300s' is the input directory or holds it; choose another",
                        d->final);
    if (is_empty_dir(d->final))
        return MTPLX_OK;
    if (!force)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.300s' exists and is not empty; remove it or pass --force", d->final);
    if (!holds_file(d->final, "config.json"))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.300s' holds no config.json, so --force does not replace it", d->final);
    d->replace = true;
    return MTPLX_OK;
}

static mtplx_status make_names(struct mx_forge_dir *d, const char *out, mtplx_error *err)
{
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    if (n == 0 || (n == 1 && out[0] == '/') || strcmp(out, ".") == 0 || strcmp(out, "..") == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "'%s' cannot be the output directory", out);
    d->final = strndup(out, n);
    d->tmp = malloc(n + sizeof ".tmp");
    if (!d->final || !d->tmp)
        return mx_error_nomem(err, "a path", n);
    snprintf(d->tmp, n + sizeof ".tmp", "%s.tmp", d->final);
    return MTPLX_OK;
}

/* OUT.tmp exists: removes it when it is the rest of a run that died. */
static mtplx_status clear_leftovers(const struct mx_forge_dir *d, mtplx_error *err)
{
    char *marker = mx_path_join(d->tmp, MARKER);
    if (!marker)
        return mx_error_nomem(err, "a path", strlen(d->tmp));
    int fd = open(marker, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    free(marker);
    if (fd < 0 && !is_empty_dir(d->tmp))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.300s' is in the way and was not made by this program; remove it",
                        d->tmp);
    bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    bool removed = !busy && remove_tree(d->tmp);
    if (fd >= 0)
        close(fd);
    if (busy)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "another run is writing '%.300s' right now",
                        d->final);
    return removed ? MTPLX_OK : io(err, d->tmp, "remove");
}

static mtplx_status make_tmp(struct mx_forge_dir *d, mtplx_error *err)
{
    if (mkdir(d->tmp, 0777) != 0 && errno == EEXIST) {
        mtplx_status st = clear_leftovers(d, err);
        if (st != MTPLX_OK)
            return st;
        if (mkdir(d->tmp, 0777) != 0)
            return io(err, d->tmp, "make the directory");
    } else if (!mx_dir_exists(d->tmp)) {
        return io(err, d->tmp, "make the directory");
    }
    char *marker = mx_path_join(d->tmp, MARKER);
    if (marker)
        d->lock = open(marker, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    free(marker);
    if (d->lock < 0 || flock(d->lock, LOCK_EX | LOCK_NB) != 0)
        return io(err, d->tmp, "write in");
    return MTPLX_OK;
}

mtplx_status mx_forge_dir_begin(struct mx_forge_dir *d, const char *in, const char *out, bool force,
                                mtplx_error *err)
{
    *d = (struct mx_forge_dir){.lock = -1};
    mtplx_status st = make_names(d, out, err);
    if (st == MTPLX_OK)
        st = check_final(d, in, force, err);
    if (st == MTPLX_OK)
        st = make_tmp(d, err);
    if (st != MTPLX_OK && d->lock < 0) {
        free(d->tmp); /* not ours to remove */
        d->tmp = NULL;
    }
    if (st != MTPLX_OK)
        mx_forge_dir_end(d);
    return st;
}

/* ---- Ending ------------------------------------------------------------------------------- */

static void sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd); /* some file systems cannot; the data itself is synced already */
    close(fd);
}

/* Moves OUT out of the way, the new directory in, then removes the old one. */
static mtplx_status replace_final(struct mx_forge_dir *d, mtplx_error *err)
{
    size_t n = strlen(d->final) + sizeof ".old-XXXXXX";
    char *old = malloc(n);
    mtplx_status st = MTPLX_OK;
    if (!old)
        return mx_error_nomem(err, "a path", n);
    snprintf(old, n, "%s.old-XXXXXX", d->final);
    if (!mkdtemp(old) || rename(d->final, old) != 0) {
        st = io(err, d->final, "move away");
    } else if (rename(d->tmp, d->final) != 0) {
        st = io(err, d->final, "replace");
        rename(old, d->final);
    } else if (!remove_tree(old)) {
        st = io(err, old, "remove the replaced directory");
    }
    free(old);
    return st;
}

mtplx_status mx_forge_dir_commit(struct mx_forge_dir *d, mtplx_error *err)
{
    char *marker = mx_path_join(d->tmp, MARKER);
    if (!marker)
        return mx_error_nomem(err, "a path", strlen(d->tmp));
    unlink(marker);
    free(marker);
    sync_dir(d->tmp);
    mtplx_status st = MTPLX_OK;
    if (d->replace)
        st = replace_final(d, err);
    else if (rename(d->tmp, d->final) != 0)
        st = io(err, d->final, "make");
    if (st != MTPLX_OK)
        return st;
    free(d->tmp);
    d->tmp = NULL;
    return MTPLX_OK;
}

void mx_forge_dir_end(struct mx_forge_dir *d)
{
    if (d->tmp)
        remove_tree(d->tmp);
    if (d->lock >= 0)
        close(d->lock);
    free(d->tmp);
    free(d->final);
    *d = (struct mx_forge_dir){.lock = -1};
}

/* ---- Small files -------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

static int not_weights(const struct dirent *e)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pt",          ".pth",
                                          ".gguf",        ".onnx",
                                          ".h5",          ".msgpack"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        if (ends_with(e->d_name, weights[i]))
            return 0;
    }
    return e->d_name[0] != '.' && strcmp(e->d_name, "config.json") != 0;
}

static mtplx_status copy_file(const char *from, const char *to, int *skipped, mtplx_error *err)
{
    struct stat st;
    size_t len;
    if (stat(from, &st) != 0 || !S_ISREG(st.st_mode))
        return MTPLX_OK; /* a subdirectory or a dangling link is not part of the model */
    if (st.st_size > SMALL_FILE) {
        ++*skipped;
        return MTPLX_OK;
    }
    char *data = mx_file_read(from, SMALL_FILE, &len, err);
    if (!data)
        return err->status;
    mtplx_status status = mx_file_write(to, data, len, err);
    free(data);
    return status;
}

mtplx_status mx_forge_copy_small(const struct mx_forge_dir *d, const char *in, int *skipped,
                                 mtplx_error *err)
{
    struct dirent **list = NULL;
    int n = scandir(in, &list, not_weights, alphasort);
    mtplx_status st = n < 0 ? io(err, in, "list") : MTPLX_OK;
    for (int i = 0; i < n; i++) {
        char *from = mx_path_join(in, list[i]->d_name);
        char *to = mx_path_join(d->tmp, list[i]->d_name);
        if (st == MTPLX_OK)
            st = from && to ? copy_file(from, to, skipped, err)
                            : mx_error_nomem(err, "a path", strlen(in));
        free(from);
        free(to);
        free(list[i]);
    }
    free(list);
    return st;
}
