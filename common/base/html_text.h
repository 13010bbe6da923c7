/* html_text.h: writes texts from outside (questions, answers, file names) into a page of HTML. */
#ifndef TESSERA_COMMON_BASE_HTML_TEXT_H
#define TESSERA_COMMON_BASE_HTML_TEXT_H

#include <stdio.h>

/* Writes the text so that a browser shows it as it is. Characters that mean something in HTML
 * become entities, control characters are shown as in visible.h, and line ends stay. */
void html_put_text(FILE *to, const char *text);

#endif
