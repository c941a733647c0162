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

enum { NAME_BYTES = 30, HASH_BYTES = crypto_generichash_BYTES_MIN, SHOWN = 10, HEAD = 64 };

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

static void put_name(char out[NAME_BYTES + 1], const char *kind,
                     const unsigned char hash[HASH_BYTES])
{
    char hex[2 * SHOWN + 1];
    sodium_bin2hex(hex, sizeof hex, hash, SHOWN);
    snprintf(out, NAME_BYTES + 1, "%s-%s", kind, hex);
}

static void hash_name(char out[NAME_BYTES + 1], const char *kind, const void *data, size_t n)
{
    unsigned char hash[HASH_BYTES];
    crypto_generichash(hash, sizeof hash, data, n, NULL, 0);
    put_name(out, kind, hash);
}

static void add_text(crypto_generichash_state *h, const json_t *content)
{
    size_t i;
    json_t *part;
    if (json_is_string(content))
        crypto_generichash_update(h, (const unsigned char *)json_string_value(content),
                                  json_string_length(content));
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        add_text(h, json_is_object(part) ? json_object_get(part, "text") : part);
    }
}

/* Roles and texts up to the first message of the user, which all turns of the conversation have. */
static void hash_messages(char out[NAME_BYTES + 1], const json_t *messages)
{
    crypto_generichash_state h;
    unsigned char hash[HASH_BYTES];
    size_t i;
    json_t *m;
    crypto_generichash_init(&h, NULL, 0, sizeof hash);
    json_array_foreach((json_t *)(uintptr_t)messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        crypto_generichash_update(&h, (const unsigned char *)(role ? role : ""),
                                  strlen(role ? role : "") + 1);
        add_text(&h, json_object_get(m, "content"));
        if (role && strcmp(role, "user") == 0)
            break;
    }
    crypto_generichash_final(&h, hash, sizeof hash);
    put_name(out, "chat", hash);
}

static void name_of(char out[NAME_BYTES + 1], const struct mx_turn *t,
                    const struct mx_turn_request *r)
{
    size_t head = t->n_prompt < HEAD ? t->n_prompt : HEAD;
    if (r->session && plain_name(r->session))
        snprintf(out, NAME_BYTES + 1, "%s", r->session);
    else if (r->session)
        hash_name(out, "id", r->session, strlen(r->session));
    else if (r->messages)
        hash_messages(out, r->messages);
    else
        hash_name(out, "text", t->prompt, head * sizeof *t->prompt);
}

void mx_turn_set_label(struct mx_turn *t, const struct mx_turn_request *r)
{
    const char *client = t->exchange ? mx_exchange_client(t->exchange) : "";
    const char *scope = strncmp(client, "key-", 4) == 0 ? client : "";
    char name[NAME_BYTES + 1];
    name_of(name, t, r);
    snprintf(t->scope, sizeof t->scope, "%s", scope);
    snprintf(t->label, sizeof t->label, "%s%s%s", scope, *scope ? "." : "", name);
}
