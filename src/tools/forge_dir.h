/* An output directory that appears whole or not at all.
 *
 * Everything is written into OUT.tmp beside OUT, which takes OUT's place at the end in one rename.
 * OUT.tmp holds a locked marker file while work is going on, so that the leftovers of a crash can
 * be told from a run that is still busy, and from a directory of that name which is not ours. */
#ifndef MX_TOOLS_FORGE_DIR_H
#define MX_TOOLS_FORGE_DIR_H

#include "base/error.h"

#include <stdbool.h>

struct mx_forge_dir {
    char *final;  /* OUT without trailing slashes */
    char *tmp;    /* where to write */
    int lock;     /* the marker file, or -1 */
    bool replace; /* OUT exists and is not empty, and may be replaced */
};

/* Checks OUT against `in` and makes OUT.tmp. Refused: OUT is IN or holds IN; OUT is a symbolic link
 * or a file; OUT is not empty, unless `force` is set and it looks like a model directory. The
 * directory is aborted already when this fails. */
mtplx_status mx_forge_dir_begin(struct mx_forge_dir *d, const char *in, const char *out, bool force,
                                mtplx_error *err);

/* Puts OUT.tmp in OUT's place. */
mtplx_status mx_forge_dir_commit(struct mx_forge_dir *d, mtplx_error *err);

/* Frees *d; removes OUT.tmp unless it was committed. */
void mx_forge_dir_end(struct mx_forge_dir *d);

/* Copies the small files of `in` that are not weights (tokenizer, chat template, generation config,
 * ...) to d->tmp, except config.json. Files over 64 MiB are left out and counted in *skipped. */
mtplx_status mx_forge_copy_small(const struct mx_forge_dir *d, const char *in, int *skipped,
                                 mtplx_error *err);

#endif
