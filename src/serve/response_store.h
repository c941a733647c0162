/* The bounded store behind previous_response_id and GET /v1/responses/{id}.
 *
 * A record is what one response needs to be shown and to be gone on with: the response object, its
 * own input items, and the items that came before them. All three are JSON text, so that their size
 * is known and no tree is shared between threads. Records are immutable and reference counted; the
 * least recently used ones go when there are too many or they are too large together.
 *
 * A client sees its own records only: all look-ups take the client (mx_exchange_client()), and
 * those of others are as good as none. Thread-safe. */
#ifndef MX_SERVE_RESPONSE_STORE_H
#define MX_SERVE_RESPONSE_STORE_H

#include "serve/api.h"

struct mx_response_record {
    const char *id, *client;
    const char *response; /* JSON object */
    const char *input;    /* JSON array of items */
    const char *context;  /* JSON array of items: the conversation before the input */
    bool pending;         /* the answer is still being written */
};

/* Stores a copy; a record of the same id is replaced. False when it is larger than the store, or
 * memory is out. */
bool mx_response_store_add(struct mx_response_store *s, const struct mx_response_record *r);
/* The answer of a pending record is complete: gives it the response object, unless the record was
 * deleted meanwhile. */
bool mx_response_store_complete(struct mx_response_store *s, const char *client, const char *id,
                                const char *response);
/* NULL when there is none. Give it back with mx_response_record_unref(). */
const struct mx_response_record *mx_response_store_get(struct mx_response_store *s,
                                                       const char *client, const char *id);
void mx_response_record_unref(const struct mx_response_record *r);
/* False when there is none. */
bool mx_response_store_remove(struct mx_response_store *s, const char *client, const char *id);

/* The engine's job of a pending record, for cancelling. Setting it does nothing once the record is
 * complete or gone; 0: none. */
void mx_response_store_set_job(struct mx_response_store *s, const char *client, const char *id,
                               uint64_t job);
uint64_t mx_response_store_job(struct mx_response_store *s, const char *client, const char *id);

/* Records and their bytes. */
void mx_response_store_size(struct mx_response_store *s, size_t *entries, size_t *bytes);

#endif
