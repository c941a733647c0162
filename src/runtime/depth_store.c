/* The section "depth" of the learned state: times and acceptance of a model on a machine.
 *
 *   {"verify": [[log time at each node, or null, ...] for each context], "first": .., "next": ..,
 *    "tested": [..], "accepted": [..], "copy_tested": [..], "copy_accepted": [..]}
 *
 * Times are relative to a pass of one row and become the shape of the new run's estimates, nothing
 * more: how fast the machine is now, and every time that it measures, comes from its own passes.
 * Whatever is not a number in its range is left out. */
#include "runtime/depth.h"

#include <math.h>

static const char *const kind_names[MX_COST_KINDS] = {"verify", "first", "next"};

static bool number(const json_t *v, double low, double high, double *out)
{
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= low && x <= high))
        return false;
    *out = x;
    return true;
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* What a time relative to a one-row pass can be on any machine: n rows take no less than one and
 * hardly more than n passes; a draft step is a small part of a pass. */
static bool plausible(int kind, size_t node, double at)
{
    double most = log(1.5 * mx_cost_node_at((int)node));
    return kind == MX_COST_VERIFY ? at >= 0 && at <= most : at >= -9 && at <= most;
}

static void read_costs(struct mx_costs *c, const json_t *section)
{
    double at;
    bool any = false;
    for (int kind = 0; kind < MX_COST_KINDS; kind++)
        for (size_t b = 0; b < MX_COST_CONTEXTS; b++)
            for (size_t i = 0; i < MX_COST_NODES; i++) {
                const json_t *row = json_array_get(json_object_get(section, kind_names[kind]), b);
                if (number(json_array_get(row, i), -9, 9, &at) && plausible(kind, i, at)) {
                    c->nodes[b][kind][i] = (struct mx_cost_node){.at = at, .samples = 1};
                    any = true;
                }
            }
    if (any)
        mx_costs_reshape(c);
}

/* Pairs of discounted counts: 0 <= accepted <= tested <= 200, the most that the discounts allow. */
static void read_counts(const json_t *section, const char *tested, const char *accepted, size_t n,
                        double *t, double *a)
{
    for (size_t i = 0; i < n; i++) {
        double x, y;
        if (number(json_array_get(json_object_get(section, tested), i), 0, 201, &x) &&
            number(json_array_get(json_object_get(section, accepted), i), 0, x, &y)) {
            t[i] = x;
            a[i] = y;
        }
    }
}

void mx_depth_model_read(struct mx_depth_model *m, const json_t *section)
{
    read_costs(&m->costs, section);
    read_counts(section, "tested", "accepted", MTPLX_MAX_DEPTH, m->record.tested,
                m->record.accepted);
    read_counts(section, "copy_tested", "copy_accepted", MX_COPY_CLASSES, m->copies.tested,
                m->copies.accepted);
}

/* ---- Writing ------------------------------------------------------------------------------ */

static json_t *write_nodes(const struct mx_costs *c, int kind)
{
    json_t *all = json_array();
    for (int b = 0; b < MX_COST_CONTEXTS; b++) {
        json_t *row = json_array();
        for (int i = 0; i < MX_COST_NODES; i++) {
            bool known = c->shaped || c->nodes[b][kind][i].samples > 0;
            double at = mx_cost_log(c, (enum mx_cost_kind)kind, i, b);
            json_array_append_new(row, known ? json_real(at) : json_null());
        }
        json_array_append_new(all, row);
    }
    return all;
}

static json_t *write_counts(const double *v, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_real(v[i]));
    return all;
}

json_t *mx_depth_model_write(const struct mx_depth_model *m)
{
    json_t *o = json_object();
    for (int kind = 0; kind < MX_COST_KINDS; kind++)
        json_object_set_new(o, kind_names[kind], write_nodes(&m->costs, kind));
    json_object_set_new(o, "tested", write_counts(m->record.tested, MTPLX_MAX_DEPTH));
    json_object_set_new(o, "accepted", write_counts(m->record.accepted, MTPLX_MAX_DEPTH));
    json_object_set_new(o, "copy_tested", write_counts(m->copies.tested, MX_COPY_CLASSES));
    json_object_set_new(o, "copy_accepted", write_counts(m->copies.accepted, MX_COPY_CLASSES));
    return o;
}
