/* dataset_open.c: opens the data set that data.format names. It stands apart from open_source.c,
 * which the mixture calls for each of its sources. */
#include "prepd/dataset/open_source.h"

status dataset_open(const conf *options, dataset **out)
{
    return options->data_format == DATA_MIXTURE ? dataset_open_by(&dataset_mixture, options, out)
                                                : dataset_open_source(options, out);
}
