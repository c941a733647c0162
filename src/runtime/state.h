/* Learned facts about one model on one machine, kept from run to run.
 *
 * A state is a small JSON object of named sections ("depth", ...), one file for each identity: the
 * model, the machine and how the model is run. It is a cache in the strict sense. Losing it costs a
 * few slow tokens, so nothing about it is ever an error: a file that is missing, unreadable, too
 * big, torn or written by someone else counts as empty and is replaced by the next save; a
 * directory that cannot be written is silently left alone.
 *
 * Where: $MTPLX_STATE_DIR, else $XDG_CACHE_HOME/mtplx/state, else $HOME/.cache/mtplx/state.
 * MTPLX_STATE_DIR=off, or set to nothing, keeps nothing.
 *
 * Whoever owns a section checks every value it reads: a file's text is input like any other.
 *
 * Threads: a state belongs to its model and is used under the model's lock. Processes: a save
 * replaces the file as a whole (rename), after taking over the sections that this process did not
 * put from the file of that moment; of two racing saves the last one stands, never a mixture. */
#ifndef MX_RUNTIME_STATE_H
#define MX_RUNTIME_STATE_H

#include <jansson.h>
#include <stdbool.h>

#define MX_STATE_LIMIT (4u << 20) /* bytes of a state file; larger ones are not read or written */

struct mx_state;

/* A state for what `identity` describes (any text; the file's name is made of its hash, and a file
 * that records another identity is not read). Nothing is read or written yet. NULL when states are
 * switched off, no directory is known or memory is out; every function takes NULL. */
struct mx_state *mx_state_new(const char *identity);

/* Saves what was put and frees the state. */
void mx_state_free(struct mx_state *s);

/* The section of that name, an object borrowed until the next put, save or free; NULL when there is
 * none. The first call reads the file. */
const json_t *mx_state_get(struct mx_state *s, const char *section);

/* Replaces a section in memory; takes over `object` (also on failure, also when s is NULL). */
void mx_state_put(struct mx_state *s, const char *section, json_t *object);

/* Writes the file now if a section was put since the last save. */
void mx_state_save(struct mx_state *s);

/* Path of the file (for reports and tests), or NULL. */
const char *mx_state_path(const struct mx_state *s);

/* Appends a description of this machine (CPU model, usable CPUs) to an identity: buf is a string of
 * less than `size` bytes. */
void mx_state_machine(char *buf, size_t size);

#endif
