/* The commands of the program. */
#include "cli/commands.h"

#include "cli/suggest.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

const struct mx_cli_command *const mx_cli_commands[] = {
    &mx_cli_ask,      &mx_cli_serve,          &mx_cli_stop,        &mx_cli_inspect,
    &mx_cli_bench,    &mx_cli_forge_quantize, &mx_cli_cache_check, &mx_cli_cache_ls,
    &mx_cli_cache_gc, &mx_cli_cache_clear,
};
const int mx_cli_command_count = sizeof mx_cli_commands / sizeof *mx_cli_commands;

/* How many arguments spell `name` out: 0 when they do not, else the words of the name. */
static int words_matching(const char *name, int argc, char *const *argv)
{
    int used = 0;
    while (used < argc) {
        size_t n = strcspn(name, " ");
        if (strncmp(name, argv[used], n) != 0 || argv[used][n] != '\0')
            return 0;
        used++;
        if (name[n] == '\0')
            return used;
        name += n + 1;
    }
    return 0;
}

const struct mx_cli_command *mx_cli_find_command(int argc, char *const *argv, int *used)
{
    for (int i = 0; i < mx_cli_command_count; i++) {
        const struct mx_cli_command *c = mx_cli_commands[i];
        *used = words_matching(c->name, argc, argv);
        if (*used == 0 && c->alias)
            *used = words_matching(c->alias, argc, argv);
        if (*used > 0)
            return c;
    }
    return NULL;
}

bool mx_cli_is_group(const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; i < mx_cli_command_count; i++) {
        const char *name = mx_cli_commands[i]->name;
        if (n > 0 && strncmp(name, word, n) == 0 && name[n] == ' ')
            return true;
    }
    return false;
}

const char *mx_cli_nearest_command(int argc, char *const *argv)
{
    char two[64] = "";
    const char *best = NULL;
    size_t distance = SIZE_MAX;
    if (argc > 1)
        snprintf(two, sizeof two, "%.30s %.30s", argv[0], argv[1]);
    for (int i = 0; i < mx_cli_command_count; i++) {
        const char *name = mx_cli_commands[i]->name;
        mx_cli_suggest(strchr(name, ' ') && two[0] ? two : argv[0], name, &best, &distance);
    }
    mx_cli_suggest(argv[0], "help", &best, &distance);
    if (!mx_cli_is_group(argv[0])) {
        mx_cli_suggest(argv[0], "forge", &best, &distance);
        mx_cli_suggest(argv[0], "cache", &best, &distance);
    }
    return best;
}
