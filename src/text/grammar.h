/* Constrained decoding: which tokens may come next so that the text obeys a grammar.
 *
 *   mx_token_table   the bytes of a tokenizer's tokens, sorted as a trie; one per model
 *   mx_grammar       compiled rules; immutable but for a bounded cache of masks, shared by threads
 *   mx_matcher       one position in one text, with undo so that drafts can be tried and taken back
 *
 * A grammar works on bytes, so tokens that straddle two terminals, or the border between free text
 * and grammar, need no special case. Special tokens have no bytes: they are never allowed inside a
 * grammar, except stop tokens where the text may end, and those a marker names. */
#ifndef MX_TEXT_GRAMMAR_H
#define MX_TEXT_GRAMMAR_H

#include "base/error.h"
#include "text/tokenizer.h"

#include <jansson.h>

struct mx_token_table;
/* `vocab`: columns of the logits; ids that the tokenizer does not know are never allowed.
 * The tokenizer must outlive the table. */
struct mx_token_table *mx_token_table_new(const struct mx_tokenizer *t, int vocab,
                                          const int32_t *stops, int n_stops, mtplx_error *err);
void mx_token_table_free(struct mx_token_table *t);

/* How the constrained part sits in the answer. All zero: the whole answer obeys the grammar. */
struct mx_grammar_frame {
    /* Free text, stop tokens excluded, up to and including this string ("</think>"); then optional
     * white space and the grammar. NULL: none. */
    const char *prelude_end;
    /* Bytes of prelude after which only its end is allowed; 0: no limit. */
    size_t prelude_max;
    /* Free text, stop tokens included, until this string appears ("<tool_call>"), which is the
     * start of the constrained text; after a complete match, free text again. NULL: none. */
    const char *trigger;
};

struct mx_grammar;
/* Errors of all: ARGUMENT (the sentence names the place: a JSON pointer, or line and column),
 * UNSUPPORTED (a keyword outside of what is supported), LIMIT, MEMORY. */
/* JSON Schema 2020-12, the subset OpenAI documents for strict mode and more (see grammar_schema.c).
 * `true` and {} are any JSON value. */
struct mx_grammar *mx_grammar_from_schema(const json_t *schema, const struct mx_grammar_frame *f,
                                          mtplx_error *err);
/* Any JSON object. */
struct mx_grammar *mx_grammar_json_object(const struct mx_grammar_frame *f, mtplx_error *err);
/* A regular expression that the whole text matches. */
struct mx_grammar *mx_grammar_from_regex(const char *re, size_t len,
                                         const struct mx_grammar_frame *f, mtplx_error *err);
/* GBNF as llama.cpp documents it (rule ::= ..., root), and the EBNF spelling `rule = ... ;`. */
struct mx_grammar *mx_grammar_from_gbnf(const char *text, size_t len,
                                        const struct mx_grammar_frame *f, mtplx_error *err);

/* Tool calls in the syntax of a chat template. */
enum mx_tool_syntax {
    MX_TOOLS_NONE = 0,
    MX_TOOLS_HERMES,   /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */
    MX_TOOLS_QWEN_XML, /* <tool_call><function=N><parameter=K>V</parameter></function></tool_call>
                        */
    MX_TOOLS_GLM,      /* <tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call> */
    MX_TOOLS_GEMMA4,   /* <|tool_call>call:N{k:v}<tool_call|> */
    MX_TOOLS_DEEPSEEK_V3, /* <｜tool▁calls▁begin｜>... */
    MX_TOOLS_DSML,        /* <｜DSML｜function_calls> or tool_calls: invoke, parameter */
    MX_TOOLS_MINIMAX,     /* <minimax:tool_call><invoke name=".."><parameter name=".."> */
};
struct mx_grammar_tools {
    enum mx_tool_syntax syntax;
    const json_t *tools; /* OpenAI function tools: [{type, function: {name, parameters, strict}}] */
    const char *only;    /* the one tool that may be called, or NULL: any */
    bool parallel;       /* several calls may follow one another */
    bool strict_all;     /* hold all to their schemas; else only those with strict: true, and the
                            others to any JSON object (or free parameters) */
};
/* With f->trigger NULL the answer consists of calls (tool_choice required or named); the caller
 * sets the trigger for tool_choice auto with strict tools. */
struct mx_grammar *mx_grammar_from_tools(const struct mx_grammar_tools *t,
                                         const struct mx_grammar_frame *f, mtplx_error *err);

/* Bytes that a grammar and its masks may come to hold in use, beside the program. */
uint64_t mx_grammar_bytes_most(int vocab);

/* Reference counted; NULL is allowed. */
struct mx_grammar *mx_grammar_ref(struct mx_grammar *g);
void mx_grammar_unref(struct mx_grammar *g);

struct mx_matcher;
/* At the start of a text. Keeps a reference to g; t must outlive it. One thread at a time. */
struct mx_matcher *mx_matcher_new(struct mx_grammar *g, const struct mx_token_table *t,
                                  mtplx_error *err);
void mx_matcher_free(struct mx_matcher *m);

/* Bit id % 64 of word id / 64 says whether `id` may come next; [ceil(vocab / 64)] words, valid
 * until the next call on m. NULL: every token may (free text). At least one bit is set as long as
 * only allowed tokens were accepted and no stop token was. None is set, and no token accepted until
 * the next call, when memory is out or the grammar is too ambiguous to be followed in time. */
const uint64_t *mx_matcher_mask(struct mx_matcher *m);
/* Takes a token; false, with nothing changed, when it is not allowed or memory is out. */
bool mx_matcher_accept(struct mx_matcher *m, int32_t token);
/* Takes back the last n tokens accepted; n <= MX_MATCHER_UNDO. */
#define MX_MATCHER_UNDO 16
void mx_matcher_rollback(struct mx_matcher *m, int n);
/* True when the text could end here. */
bool mx_matcher_may_end(const struct mx_matcher *m);

#endif
