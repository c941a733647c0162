/* Where the messages of a rendered prompt begin.
 *
 * Templates open a message with a special token of their own (<|im_start|>, <|start_header_id|>,
 * <|user|>). Which ones those are is learned from the template itself: in a rendered conversation
 * of known texts, an opening token is the first special one behind a text that does not stop
 * answers. Texts of messages hold no special tokens (plain_text.h), so in a prompt every opening
 * token is a border. */
#ifndef MX_SERVE_BORDERS_H
#define MX_SERVE_BORDERS_H

#include "serve/app.h"

/* Fills app->openers from the template of app->model; none for a template without such tokens. */
void mx_borders_learn(struct mx_app *app);

/* Token counts at which messages of ids[0..n) begin, ascending, without 0: an array to free(), NULL
 * where there is none or memory is out (borders are only a hint). *count is their number. */
size_t *mx_borders_find(const struct mx_app *app, const int32_t *ids, size_t n, size_t *count);

#endif
