/* cards_page.h: the page "What fits on which card", of which configs/what-fits.md is a copy. */
#ifndef TESSERA_TRAINER_PLAN_CARDS_PAGE_H
#define TESSERA_TRAINER_PLAN_CARDS_PAGE_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "trainer/model/dims/dims.h"

/* Writes the page in Markdown, for cards of 24 to 180 GB and what can be trained (card_fit.h).
 * options: memory.limit, the data, and all that the search leaves as it is. dims: of one model;
 * NULL: for every published one. Needs no card and takes seconds. */
WARN_UNUSED status cards_page_write(const conf *options, const model_dims *dims, FILE *to);

#endif
