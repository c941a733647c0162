/* The application's settings under their lock. */
#include "serve/app.h"

struct mx_app_settings mx_app_get_settings(struct mx_app *app)
{
    pthread_mutex_lock(&app->lock);
    struct mx_app_settings s = app->settings;
    pthread_mutex_unlock(&app->lock);
    return s;
}
