/* Whose prompt a turn has, for the session bank: its scope and the label of its conversation.
 *
 * The scope is the API key's name (a hash), since prompts of other keys must not be found out by
 * how fast one's own are read; without keys all requests share one. The label is what the client
 * calls its conversation; where it does not say, or says it in words that are no name, it is a
 * hash: of those words, or of the beginning of the prompt up to behind the first message of the
 * user, so that all turns of a conversation have the same. With keys the label starts with the
 * key's name, since two keys may call theirs the same. */
#include "serve/turn_int.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 30, HASH = 10, HEAD = 64 };

static bool plain_name(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > NAME_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!memchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.", s[i], 65))
            return false;
    return true;
}

static void hash_name(char out[NAME_BYTES + 1], const char *kind, const void *data, size_t n)
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    char hex[2 * HASH + 1];
    crypto_generichash(hash, sizeof hash, data, n, NULL, 0);
    sodium_bin2hex(hex, sizeof hex, hash, HASH);
    snprintf(out, NAME_BYTES + 1, "%s-%s", kind, hex);
}

/* Tokens that all turns of the conversation begin with: to the end of the first user message, which
 * is the first but one border where a system message comes first; else some tokens. */
static size_t head_of(const struct mx_turn *t)
{
    if (t->n_borders > 0)
        return t->borders[t->n_borders > 1 ? 1 : 0];
    return t->n_prompt < HEAD ? t->n_prompt : HEAD;
}

void mx_turn_set_label(struct mx_turn *t, const struct mx_turn_request *r)
{
    const char *client = t->exchange ? mx_exchange_client(t->exchange) : "";
    const char *scope = strncmp(client, "key-", 4) == 0 ? client : "";
    char name[NAME_BYTES + 1];
    snprintf(t->scope, sizeof t->scope, "%s", scope);
    if (r->session && plain_name(r->session))
        snprintf(name, sizeof name, "%s", r->session);
    else if (r->session)
        hash_name(name, "id", r->session, strlen(r->session));
    else
        hash_name(name, "chat", t->prompt, head_of(t) * sizeof *t->prompt);
    snprintf(t->label, sizeof t->label, "%s%s%s", scope, *scope ? "." : "", name);
}
