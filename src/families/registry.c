/* The families this build knows. */
#include "families/family.h"

#include <string.h>

extern const struct mx_family mx_family_qwen3_5;

static const struct mx_family *const families[] = {&mx_family_qwen3_5, NULL};

const struct mx_family *const *mx_families(void)
{
    return families;
}

static const struct mx_family *by_type(const char *type)
{
    for (int i = 0; families[i]; i++)
        for (int j = 0; families[i]->model_types[j]; j++)
            if (strcmp(families[i]->model_types[j], type) == 0)
                return families[i];
    return NULL;
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "model_type"));
    return type ? type : "";
}

const char *mx_config_model_type(const struct mx_config *cfg)
{
    const char *root = type_of(cfg->root);
    return *root && by_type(root) ? root : *type_of(cfg->text) ? type_of(cfg->text) : root;
}

const struct mx_family *mx_family_find(const struct mx_config *cfg)
{
    return by_type(mx_config_model_type(cfg));
}
