/* The application: its template's conventions, and its settings under their lock. */
#include "serve/app.h"

#include "runtime/model.h"
#include "serve/borders.h"
#include "text/messages.h"

void mx_app_read_template(struct mx_app *app)
{
    const struct mx_chat *chat = app->model->chat;
    const char *text = chat ? mx_chat_template_text(chat, true) : NULL;
    app->tools = text ? mx_tool_syntax_of(text) : MX_TOOLS_NONE;
    app->reasoning = text ? mx_reasoning_style_of(text) : MX_REASONING_NONE;
    app->system_first = chat && mx_messages_system_first(chat);
    mx_borders_learn(app);
}

struct mx_app_settings mx_app_get_settings(struct mx_app *app)
{
    pthread_mutex_lock(&app->lock);
    struct mx_app_settings s = app->settings;
    pthread_mutex_unlock(&app->lock);
    return s;
}
