/* Inside of the tool-call parser: one call while it is being read, and the readers of syntaxes.
 *
 * The driver (toolcall.c) finds the text's markers, owns all decisions about what is emitted, and
 * feeds a call's bytes to a reader. A reader keeps everything it knows in a struct mx_tool_item and
 * only ever appends to `args`. */
#ifndef MX_TEXT_TOOLCALL_INT_H
#define MX_TEXT_TOOLCALL_INT_H

#include "text/json_stream.h"
#include "text/toolcall.h"

enum mx_item_step {
    MX_ITEM_MORE,
    MX_ITEM_DONE,   /* the byte was the call's last */
    MX_ITEM_CLOSED, /* it was, and it closed what the calls stand in, too */
    MX_ITEM_BROKEN, /* this is no call */
};

struct mx_tool_item {
    struct mx_strbuf name;
    bool named; /* the name is complete */
    /* The arguments as far as they are certain, not emitted yet. */
    struct mx_strbuf args;
    bool opened;          /* they have begun: a parameter, or an object */
    const json_t *schema; /* of the arguments; set by the driver once the name is known, or NULL */
    struct mx_strbuf token; /* tags, keys, and values that are only certain as a whole */
    struct mx_strbuf ahead; /* what may be the end of a value */
    json_t *seen;           /* parameters so far: an object of names */
    struct mx_json_stream json;
    int state, depth;
    unsigned types;                             /* of the value being read */
    bool quoted;                                /* its text goes straight into a JSON string */
    bool ignored;                               /* it goes nowhere */
    bool started;                               /* it has bytes */
    unsigned char nested[MX_JSON_STREAM_DEPTH]; /* open containers of bare values */
    const void *dialect;                        /* of the reader */
};

struct mx_tool_reader {
    const void *dialect;
    enum mx_item_step (*step)(struct mx_tool_item *item, char c);
    /* The answer ended inside of the call. True when only what closes it is missing; completes
     * `args` then. */
    bool (*end)(struct mx_tool_item *item);
};

/* toolcall_json.c */
extern const struct mx_tool_reader mx_tool_reader_json;     /* {"name": .., "arguments": ..} */
extern const struct mx_tool_reader mx_tool_reader_deepseek; /* NAME<｜tool▁sep｜>JSON.. */
/* toolcall_tags.c */
extern const struct mx_tool_reader mx_tool_reader_qwen; /* NAME>..</function> */
extern const struct mx_tool_reader mx_tool_reader_glm;  /* NAME..</tool_call> */
extern const struct mx_tool_reader mx_tool_reader_dsml; /* NAME">..</｜DSML｜invoke> */
extern const struct mx_tool_reader mx_tool_reader_minimax;
/* toolcall_gemma.c */
extern const struct mx_tool_reader mx_tool_reader_gemma; /* call:NAME{..}<tool_call|> */

/* ---- What readers share ---- */

enum { MX_TOOL_NAME_MAX = 256, MX_TOOL_KEY_MAX = 1024 };

bool mx_tool_is_blank(char c);
/* What s[0..n) is to the strings of a list that ends with NULL: the index of the one it equals,
 * else MX_TOOL_PREFIX when it is the start of one, else MX_TOOL_OTHER. */
enum { MX_TOOL_PREFIX = -1, MX_TOOL_OTHER = -2 };
int mx_tool_match(const char *const *list, const char *s, size_t n);
/* Whether b ends with `tail`. */
bool mx_tool_ends_with(const struct mx_strbuf *b, const char *tail);
/* Forgets the first n bytes. */
void mx_tool_shift(struct mx_strbuf *b, size_t n);

/* ---- Types of arguments (toolcall_types.c) ---- */

enum {
    MX_TYPE_TEXT = 1, /* a string, written as it is */
    MX_TYPE_INTEGER = 2,
    MX_TYPE_NUMBER = 4,
    MX_TYPE_BOOLEAN = 8,
    MX_TYPE_NULL = 16,
    MX_TYPE_OBJECT = 32,
    MX_TYPE_ARRAY = 64,
    MX_TYPE_ANY = 127,
    MX_TYPE_QUOTED = 128, /* a string, written as JSON */
};

/* The types that the schema of the arguments allows its member `key`. */
unsigned mx_tool_types(const json_t *schema, const char *key);
/* Appends the value that a model wrote as s[0..n), as JSON of one of the types: what is JSON of a
 * type other than TEXT is taken as that, all else is a string. */
void mx_tool_coerce(unsigned types, const char *s, size_t n, struct mx_strbuf *out);

#endif
