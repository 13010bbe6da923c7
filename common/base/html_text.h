/* html_text.h: texts from outside on a page of HTML. */
#ifndef TESSERA_COMMON_BASE_HTML_TEXT_H
#define TESSERA_COMMON_BASE_HTML_TEXT_H

#include <stdio.h>

/* Writes text as text: what HTML would take for its own becomes entities, what would steer a
 * terminal is shown as in visible.h; ends of lines stay. */
void html_put_text(FILE *f, const char *text);

#endif
