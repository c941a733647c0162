/* A GGUF model seen as a Hugging Face checkpoint: its tensors under the names and shapes that the
 * families ask for, and a config made from the metadata.
 *
 * The naming of architecture "qwen35" is known. Other architectures open too, so that they can be
 * described and refused by name: their tensors keep their own names and model_type is the
 * architecture. What the conversion to GGUF did to the numbers is stated by mx_checkpoint_export().
 */
#ifndef MX_FORMAT_GGUF_MODEL_H
#define MX_FORMAT_GGUF_MODEL_H

#include "format/gguf.h"
#include "format/safetensors.h"

#include <jansson.h>

struct mx_gguf_model {
    struct mx_gguf *files; /* the parts of a split model, else one */
    size_t n_files;
    struct mx_arena arena; /* tensor names */
    const char *arch;      /* general.architecture */
    bool known;            /* the architecture's names are mapped */
    int64_t layers;        /* of the trunk */
    int64_t mtp_layers;    /* blocks behind it */
    bool mtp_embeddings;   /* the MTP block brings embeddings or a head of its own */
    struct mx_tensor *tensors;
    size_t count;
};

/* The GGUF file that a model path means: the path itself when it is a file, else the only GGUF file
 * (or first part of the only split one) of a directory without config.json; files named mmproj*
 * are not counted. Malloc'ed. NULL with err->status OK when the path means no GGUF file, and with
 * an ARGUMENT error when a file is not named *.gguf or the choice is not clear. */
char *mx_gguf_resolve(const char *path, mtplx_error *err);

/* Opens a file and the further parts of a split one. NULL on failure, see mx_gguf_open(). */
struct mx_gguf_model *mx_gguf_model_open(const char *path, mtplx_error *err);
/* The same on one file in memory, which must outlive the model. */
struct mx_gguf_model *mx_gguf_model_parse(const void *data, size_t size, const char *name,
                                          mtplx_error *err);
void mx_gguf_model_close(struct mx_gguf_model *m);

/* The object that config.json would hold. New reference; NULL on failure. */
json_t *mx_gguf_model_config(const struct mx_gguf_model *m, mtplx_error *err);

#endif
