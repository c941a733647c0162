/* API keys and rate limits. */
#include "serve/auth.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASH = 32, KEY_BYTES = 24, KEY_MAX = 4096 };

/* ---- Keys --------------------------------------------------------------------------------- */

struct mx_auth {
    int n;
    unsigned char hashes[][HASH];
};

static void hash_key(const char *key, size_t n, unsigned char out[HASH])
{
    crypto_generichash(out, HASH, (const unsigned char *)key, n, NULL, 0);
}

static bool sound(const char *key)
{
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f)
            return false;
    return *key && strlen(key) < KEY_MAX;
}

struct mx_auth *mx_auth_new(const char *const *keys, int n_keys, mtplx_error *err)
{
    struct mx_auth *a = calloc(1, sizeof *a + (size_t)n_keys * HASH);
    if (!a || sodium_init() < 0) {
        mx_error_nomem(err, "the API keys", sizeof *a);
        free(a);
        return NULL;
    }
    for (; a->n < n_keys; a->n++) {
        if (!sound(keys[a->n])) {
            mx_error(err, MTPLX_ERR_ARGUMENT,
                     "an API key is empty, too long, or has blanks or control characters in it");
            free(a);
            return NULL;
        }
        hash_key(keys[a->n], strlen(keys[a->n]), a->hashes[a->n]);
    }
    return a;
}

void mx_auth_free(struct mx_auth *a)
{
    free(a);
}

bool mx_auth_needed(const struct mx_auth *a)
{
    return a->n > 0;
}

static bool check_one(const struct mx_auth *a, const char *key, size_t n, char client[16])
{
    unsigned char hash[HASH];
    int found = 0;
    hash_key(key, n, hash);
    for (int i = 0; i < a->n; i++)
        found |= sodium_memcmp(hash, a->hashes[i], HASH) == 0;
    if (found) {
        memcpy(client, "key-", 4);
        sodium_bin2hex(client + 4, 12, hash, 4);
    }
    return found;
}

bool mx_auth_check(const struct mx_auth *a, const char *authorization, const char *api_key,
                   char client[16])
{
    if (api_key && check_one(a, api_key, strlen(api_key), client))
        return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *key = authorization + 7 + strspn(authorization + 7, " ");
    size_t n = strlen(key);
    while (n > 0 && key[n - 1] == ' ')
        n--;
    return check_one(a, key, n, client);
}

/* ---- Key files ---------------------------------------------------------------------------- */

void mx_key_free(char *key)
{
    if (key)
        sodium_memzero(key, strlen(key));
    free(key);
}

static char *fresh_key(void)
{
    unsigned char raw[KEY_BYTES];
    char *key = sodium_init() < 0 ? NULL : malloc(6 + 2 * KEY_BYTES + 1);
    if (!key)
        return NULL;
    randombytes_buf(raw, sizeof raw);
    memcpy(key, "mtplx-", 6);
    sodium_bin2hex(key + 6, 2 * KEY_BYTES + 1, raw, sizeof raw);
    sodium_memzero(raw, sizeof raw);
    return key;
}

static char *make_key_file(int fd, const char *path, mtplx_error *err)
{
    char *key = fresh_key();
    if (!key) {
        mx_error_nomem(err, "an API key", KEY_MAX);
        return NULL;
    }
    size_t n = strlen(key);
    if (write(fd, key, n) == (ssize_t)n && write(fd, "\n", 1) == 1 && fsync(fd) == 0)
        return key;
    mx_error(err, MTPLX_ERR_IO, "cannot write the key file %.200s: %s", path, strerror(errno));
    unlink(path);
    mx_key_free(key);
    return NULL;
}

static char *read_key_file(int fd, const char *path, mtplx_error *err)
{
    struct stat st;
    char buf[KEY_MAX + 2];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "the key file %.200s is not a regular file", path);
        return NULL;
    }
    if (st.st_mode & 077) {
        mx_error(err, MTPLX_ERR_ARGUMENT,
                 "the key file %.200s can be read by others: run chmod 600 on it", path);
        return NULL;
    }
    ssize_t n = read(fd, buf, sizeof buf - 1);
    if (n < 0) {
        mx_error(err, MTPLX_ERR_IO, "cannot read the key file %.200s: %s", path, strerror(errno));
        return NULL;
    }
    buf[n] = '\0';
    buf[strcspn(buf, "\r\n")] = '\0';
    char *key = sound(buf) ? strdup(buf) : NULL;
    sodium_memzero(buf, sizeof buf);
    if (!key)
        mx_error(err, MTPLX_ERR_ARGUMENT,
                 "the first line of the key file %.200s is not a key (delete the file to get a "
                 "fresh one)",
                 path);
    return key;
}

char *mx_key_file(const char *path, mtplx_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool made = fd >= 0;
    if (!made && errno == EEXIST)
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        mx_error(err, MTPLX_ERR_IO, "cannot open the key file %.200s: %s", path, strerror(errno));
        return NULL;
    }
    char *key = made ? make_key_file(fd, path, err) : read_key_file(fd, path, err);
    close(fd);
    return key;
}

/* ---- Rates -------------------------------------------------------------------------------- */

/* A table of sets of eight: the client that was away longest makes room, and whoever was away for a
 * minute has a full bucket anyway. */
enum { SETS = 256, WAYS = 8 };

struct bucket {
    uint64_t client; /* keyed hash of the name; 0: free */
    uint64_t at;
    double tokens;
};

struct mx_rate {
    pthread_mutex_t lock;
    double most, per_ns;
    unsigned char key[crypto_shorthash_KEYBYTES];
    struct bucket buckets[SETS][WAYS];
};

struct mx_rate *mx_rate_new(int per_minute)
{
    struct mx_rate *r = sodium_init() < 0 ? NULL : calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->most = per_minute;
    r->per_ns = per_minute / 60e9;
    crypto_shorthash_keygen(r->key);
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void mx_rate_free(struct mx_rate *r)
{
    if (r)
        pthread_mutex_destroy(&r->lock);
    free(r);
}

static struct bucket *bucket_of(struct mx_rate *r, const char *client)
{
    uint64_t h = 0;
    crypto_shorthash((unsigned char *)&h, (const unsigned char *)client, strlen(client), r->key);
    struct bucket *set = r->buckets[h % SETS], *oldest = set;
    h |= 1; /* not free */
    for (int i = 0; i < WAYS; i++) {
        if (set[i].client == h)
            return &set[i];
        if (set[i].at < oldest->at)
            oldest = &set[i];
    }
    *oldest = (struct bucket){.client = h, .tokens = r->most};
    return oldest;
}

int mx_rate_take(struct mx_rate *r, const char *client, uint64_t now_ns)
{
    int wait = 0;
    pthread_mutex_lock(&r->lock);
    struct bucket *b = bucket_of(r, client);
    if (b->at && now_ns > b->at)
        b->tokens += (double)(now_ns - b->at) * r->per_ns;
    if (b->tokens > r->most)
        b->tokens = r->most;
    b->at = now_ns;
    if (b->tokens >= 1)
        b->tokens -= 1;
    else
        wait = 1 + (int)((1 - b->tokens) / r->per_ns / 1e9);
    pthread_mutex_unlock(&r->lock);
    return wait;
}
