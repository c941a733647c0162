/* API keys: which are valid, where they come from, and how often their owners may ask. */
#ifndef MX_SERVE_AUTH_H
#define MX_SERVE_AUTH_H

#include "base/error.h"

/* Immutable once made. Only hashes of the keys are kept. */
struct mx_auth;
/* Errors: ARGUMENT (an empty key, or one with blanks or control characters), MEMORY. */
struct mx_auth *mx_auth_new(const char *const *keys, int n_keys, mtplx_error *err);
void mx_auth_free(struct mx_auth *a);
/* Whether a key is needed at all. */
bool mx_auth_needed(const struct mx_auth *a);
/* Looks for a valid key in the values of the Authorization (Bearer) and X-API-Key headers, each
 * NULL when absent, in time that does not depend on how wrong a key is. True: client[0..16) names
 * it, as "key-" and 8 hex digits of its hash. */
bool mx_auth_check(const struct mx_auth *a, const char *authorization, const char *api_key,
                   char client[16]);

/* Reads the key in a file; a file that is not there is made, for its owner only, with a fresh key
 * ("mtplx-" and 48 hex digits). Returns the key, to be wiped and freed with mx_key_free(). Errors:
 * IO; ARGUMENT: others may read the file, or it holds no key. */
char *mx_key_file(const char *path, mtplx_error *err);
void mx_key_free(char *key);

/* Token buckets of clients, one for each name; thread-safe. */
struct mx_rate;
/* `per_minute` requests in a minute for each client, as many at once. NULL when out of memory. */
struct mx_rate *mx_rate_new(int per_minute);
void mx_rate_free(struct mx_rate *r);
/* Takes a token; 0, or the seconds after which there is one. */
int mx_rate_take(struct mx_rate *r, const char *client, uint64_t now_ns);

#endif
