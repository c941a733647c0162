/* The prompt of a one-shot command: its words, standard input, or both. */
#ifndef MX_CLI_PROMPT_H
#define MX_CLI_PROMPT_H

#include "base/error.h"
#include "base/strbuf.h"

enum { MX_PROMPT_MAX = 16 << 20 };

/* Joins the words with blanks. Standard input is read when it is a file, pipe or socket, or when
 * the only word is "-"; what it holds follows the words after an empty line, and stands alone when
 * there are none. A terminal or /dev/null is not read.
 * Errors: ARGUMENT (no prompt at all, or an empty one), FORMAT (not UTF-8, NUL byte), LIMIT (over
 * 16 MiB), IO, MEMORY, CANCELLED (interrupted while reading). */
mtplx_status mx_prompt_gather(char *const *words, int n_words, struct mx_strbuf *out,
                              mtplx_error *err);

#endif
