/* Files: read-only memory maps, whole small files, paths. */
#ifndef MX_BASE_FILE_H
#define MX_BASE_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A private read-only map of a whole file. Pages are touched on demand, so a map costs no memory
 * until it is read. */
struct mx_map {
    const uint8_t *data;
    size_t size;
};

mtplx_status mx_map_open(struct mx_map *m, const char *path, mtplx_error *err);
void mx_map_close(struct mx_map *m);

/* Reads a whole file of at most `max` bytes into a malloc'ed NUL-terminated buffer. */
char *mx_file_read(const char *path, size_t max, size_t *len, mtplx_error *err);

/* Writes bytes to `path` through a temporary file, fsync and rename: never half a file. */
mtplx_status mx_file_write(const char *path, const void *data, size_t len, mtplx_error *err);

/* The same for a file made of `n` parts, written one after the other. */
struct mx_part {
    const void *data;
    size_t len;
};
mtplx_status mx_file_write_parts(const char *path, const struct mx_part *parts, size_t n,
                                 mtplx_error *err);

/* Whether there is an entry of that name, whatever it is: an optional file that is a broken link or
 * a directory is to be reported by whoever opens it, not taken for absent. */
bool mx_file_exists(const char *path);
bool mx_dir_exists(const char *path);

/* dir + "/" + name into a malloc'ed string; NULL when out of memory. */
char *mx_path_join(const char *dir, const char *name);

/* A path below the user's cache directory ($XDG_CACHE_HOME, else $HOME/.cache), malloc'ed; NULL
 * when neither is an absolute path, which the XDG specification asks for, or memory is out. */
char *mx_cache_path(const char *rest);

/* Directory of the running program (malloc'ed), or NULL where the system does not tell. */
char *mx_exe_dir(void);

#endif
