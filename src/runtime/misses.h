/* Misses: tokens that answers held although they could not be drafted, counted from run to run, so
 * that the next load of the model takes them into its draft vocabulary.
 *
 * Only misses are counted: what is in the draft vocabulary already needs no record, and a token
 * taken in because of its record keeps it. The record is bounded; when it is full, all counts are
 * halved and those that vanish make room. It says which rare tokens were answered, in no order: it
 * is kept in the private file of runtime/state.h, and MTPLX_STATE_DIR=off keeps none.
 *
 * Every function but the first takes NULL. */
#ifndef MX_RUNTIME_MISSES_H
#define MX_RUNTIME_MISSES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MX_MISSES "draft_misses" /* section of the state file */
#define MX_MISSES_MAX 4096       /* tokens of a record */

struct mx_misses;

/* A record for tokens below `vocab` that goes on from a saved one (NULL: none; what is not sound in
 * it is ignored). NULL when out of memory, which costs the record only. */
struct mx_misses *mx_misses_new(const json_t *saved, int vocab);
void mx_misses_free(struct mx_misses *m);

/* The recorded tokens, the most frequent first; valid until the next call. */
const int32_t *mx_misses_ranked(struct mx_misses *m, size_t *n);

/* From now on every token counts that is not among ids[n], ascending (NULL: none counts). */
void mx_misses_watch(struct mx_misses *m, const int32_t *ids, int n);

/* A token of an answer. Does not allocate. */
void mx_misses_note(struct mx_misses *m, int32_t token);

/* Whether something was noted since the record was made. */
bool mx_misses_grown(const struct mx_misses *m);

/* The record as an object for mx_misses_new(); NULL when out of memory. */
json_t *mx_misses_json(const struct mx_misses *m);

#endif
